"""Servers to measure with, started for one scenario and stopped at its end."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

__all__ = ["Places", "of_the_tests", "postgres", "s3"]

Places: TypeAlias = Callable[[], AbstractContextManager[str]]
"""Makes an empty place for files, as a text that another process can open."""

_SECONDS: Final = 30


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(endpoint, server)
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bench", method="PUT")).close()
        yield _prefixes(endpoint)
    finally:
        server.terminate()
        server.wait(_SECONDS)


def _prefixes(endpoint: str) -> Places:
    numbers = count()

    @contextmanager
    def place() -> Iterator[str]:
        arguments = {
            "bucket": "bench",
            "prefix": f"run-{next(numbers)}",
            "endpoint_url": endpoint,
            "region": "us-east-1",
            "access_key_id": "bench",
            "secret_access_key": "bench",
        }
        yield json.dumps(arguments)

    return place


def _wait_until_ready(endpoint: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def of_the_tests(module: str) -> ModuleType:
    """A module of the tests that starts a server."""
    source = Path(__file__).parents[1] / "tests" / "support" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"_{module}_server", source)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # Its dataclasses look for their module there.
    spec.loader.exec_module(loaded)
    return loaded
