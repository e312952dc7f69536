"""Servers to measure with, started for one scenario and stopped at its end."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

__all__ = ["Places", "SlowS3", "of_the_tests", "postgres", "s3", "slow_s3"]

_TESTS: Final = Path(__file__).parents[1] / "tests"

Places: TypeAlias = Callable[[], AbstractContextManager[str]]
"""Makes an empty place for files, as a text that another process can open."""


@contextmanager
def postgres() -> Iterator[Places]:
    """A PostgreSQL server; a place is the DSN of a new database."""
    with of_the_tests("postgres").running_server() as server:

        @contextmanager
        def place() -> Iterator[str]:
            with server.database() as name:
                yield server.dsn(name)

        yield place


@contextmanager
def s3() -> Iterator[Places]:
    """An S3 server (moto) in a process of its own; a place is the arguments of `S3Backend`, as JSON."""
    module = of_the_tests("object_stores")
    with module.running_s3() as server:

        @contextmanager
        def place() -> Iterator[str]:
            arguments = {"bucket": module.BUCKET, "prefix": server.prefix(), "endpoint_url": server.url}
            yield json.dumps({**arguments, **server.options()})

        yield place


class SlowS3:
    """An S3 server in a process of its own, which waits before each answer."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        port = self.requests()
        options = {"region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret"}
        self.place = json.dumps({"bucket": "bucket", "endpoint_url": f"http://127.0.0.1:{port}", **options})
        """The arguments of `S3Backend`, as JSON."""

    def requests(self) -> int:
        """The number of requests so far."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


_SLOW_S3: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from support.object_server import running_object_server
with running_object_server() as server:
    server.delay = float(sys.argv[2])
    sys.stdin.readline()
    print(server.port, flush=True)
    for _ in sys.stdin:
        print(server.requests, flush=True)
"""


@contextmanager
def slow_s3(delay: float) -> Iterator[SlowS3]:
    """A small S3 server that answers after `delay` seconds."""
    command = [sys.executable, "-c", _SLOW_S3, str(_TESTS), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield SlowS3(process)


def of_the_tests(module: str) -> ModuleType:
    """A module of the tests that starts a server."""
    source = _TESTS / "support" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"_{module}_server", source)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # Its dataclasses look for their module there.
    spec.loader.exec_module(loaded)
    return loaded
