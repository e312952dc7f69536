"""Object stores for tests: moto's S3 in a process of its own, and stores of obstore over it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio.to_thread
from obstore.store import S3Store

from deepfs.backends.object_store import S3Backend
from deepfs.backends.object_store.keys import Keys

__all__ = ["BUCKET", "PAGE", "RawObjects", "S3Server", "running_s3"]

BUCKET: Final = "bucket"
PAGE: Final = 100
"""How many keys the server lists in one answer."""
# One request at a time, since moto's conditional puts are not atomic between threads; but each connection has a thread,
# as one that sends nothing would block the server. A request whose body is cut does nothing.
_SERVER: Final = """
import io
import logging
import sys
from threading import Lock, Thread
logging.getLogger("werkzeug").disabled = True
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application, lock = DomainDispatcherApplication(create_backend_app), Lock()
def serve(environ, start_response):
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(size)
    if len(body) != size:
        start_response("400 Bad Request", [])
        return []
    environ["wsgi.input"] = io.BytesIO(body)
    with lock:
        return list(application(environ, start_response))
server = make_server("127.0.0.1", 0, serve, threaded=True)
Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket; each test uses a prefix of its own."""

    url: str
    _numbers: Iterator[int] = field(default_factory=count)

    def prefix(self) -> str:
        """A prefix that no other test uses."""
        return f"test-{next(self._numbers)}"

    def options(self) -> dict[str, Any]:
        """The options of a client."""
        return {"region": "us-east-1", "access_key_id": "id-of-a-key", "secret_access_key": "a-secret-key"}

    def backend(self, prefix: str, **options: Any) -> S3Backend:
        """A backend over the files under `prefix`."""
        given = {"endpoint_url": self.url, **self.options(), **options}
        return S3Backend(BUCKET, prefix, **given)

    def store(self) -> S3Store:
        """A store of the driver, to look at objects."""
        return S3Store(BUCKET, endpoint=self.url, client_options={"allow_http": True}, **self.options())


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server on the loopback interface, with an empty bucket."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)}
    with subprocess.Popen([sys.executable, "-c", _SERVER], stderr=subprocess.DEVNULL, env=env, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            server = S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
            _make_bucket(server.url)
            yield server
        finally:
            process.stdin.close()
            process.wait(30)


def _make_bucket(url: str) -> None:
    from urllib.request import Request, urlopen

    with urlopen(Request(f"{url}/{BUCKET}", method="PUT")) as answer:
        assert answer.status == 200


class RawObjects:
    """Raw access by the driver."""

    store: Any
    prefix: str

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(lambda: self.store.put(self._key(path), data, use_multipart=False))

    async def raw_peek(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self._peek, path)

    def _key(self, path: str) -> str:
        return Keys(f"/{self.prefix}").key(path)  # The driver refuses control characters.

    def _peek(self, path: str) -> bytes | None:
        try:
            return bytes(self.store.get(self._key(path)).bytes())
        except FileNotFoundError:
            return None
