"""Servers to measure with, started for one scenario and stopped at its end."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

__all__ = ["Places", "of_the_tests", "postgres", "s3"]

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
