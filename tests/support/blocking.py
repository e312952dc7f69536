"""No blocking call on an event loop in tests: blockbuster, extended to trio and to more calls."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import trio
from blockbuster import BlockBuster
from blockbuster.blockbuster import BlockBusterFunction

__all__ = ["no_blocking"]

_ALSO_BLOCKING: Final = (
    "builtins.open",
    "fcntl.flock",
    "fcntl.lockf",
    "io.open",
    "os.chmod",
    "os.fdatasync",
    "os.fstat",
    "os.fsync",
    "os.ftruncate",
    "os.lstat",
    "os.open",
    "os.pread",
    "os.pwrite",
    "os.scandir",
    "os.truncate",
    "os.utime",
    "subprocess.Popen",
)
"""Blocking calls that blockbuster does not wrap. For example, it wraps reading a directory, but not opening it."""

_IMPORTING: Final = ("<frozen importlib._bootstrap>", "_find_and_load")
"""The first use of a module imports it, even on an event loop; blockbuster also allows imports to stat and read."""

_RULES_OF_DEEPAGENTS: Final = ("deepagents/middleware/filesystem.py", "_resolve_real_path")
"""This function of deepagents resolves links on the event loop, by a sync method of the backend."""

_COVERAGE: Final = ("coverage/inorout.py", "should_trace")
"""When branches are counted, coverage looks at a file when the first line of it runs."""

_THREAD_OF_FSSPEC: Final = "fsspecIO"
"""The thread with the event loop of fsspec, on which drivers such as s3fs read files of configuration."""


class _Loops:
    """Replaces the `asyncio` that blockbuster asks for a running event loop; recognises trio as well."""

    @staticmethod
    def get_running_loop() -> object:
        if trio.lowlevel.in_trio_task():
            return trio.lowlevel.current_trio_token()
        loop = asyncio.get_running_loop()
        # Only a thread with a loop is asked for its name: to make a name for a thread of a driver, Python takes locks,
        # about which blockbuster would ask again.
        if threading.current_thread().name == _THREAD_OF_FSSPEC:
            raise RuntimeError("no event loop of deepfs or of a test")
        return loop


@contextmanager
def no_blocking() -> Iterator[None]:
    """Within the block, a blocking call in a thread that runs an event loop raises BlockingError."""
    guard = BlockBuster()
    for name in _ALSO_BLOCKING:
        guard.functions[name] = BlockBusterFunction(None, name).can_block_in(*_IMPORTING)
    for function in guard.functions.values():
        function.can_block_in(*_RULES_OF_DEEPAGENTS).can_block_in(*_COVERAGE)
    with patch("blockbuster.blockbuster.asyncio", _Loops):
        guard.activate()
        try:
            yield
        finally:
            guard.deactivate()
