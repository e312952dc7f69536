"""Backends of which the protocol derives the async methods, or copy and move, pass the parts that depend on it."""

from functools import wraps
from typing import Any

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.sync import OPERATIONS
from deepfs.testing import BackendConformance
from deepfs.testing.conformance.changing import MovingConformance
from support.raw import RawMemory


def forwarding(name: str) -> Any:
    """A sync method that calls that of the memory."""

    @wraps(getattr(MemoryBackend, name))
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self.memory, name)(*arguments, **options)

    return call


class Holding(BackendProtocol):
    def __init__(self, memory: MemoryBackend) -> None:
        self.memory = memory


OnlySync: Any = type("OnlySync", (Holding,), {name: forwarding(name) for name in OPERATIONS if name != "execute"})
"""A backend with sync methods only."""


@pytest.mark.suite_parts("Surface", "Parity", "Concurrency", "Cancellation", "Transfer")
class TestOnlySync(RawMemory, BackendConformance):
    """The async methods are generated from the sync ones."""

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory = MemoryBackend()
        return OnlySync(self.memory)


class DerivedTransfers(WrapperBackend):
    """A wrapper that uses the copy and move of the protocol."""

    acopy = BackendProtocol.acopy
    amove = BackendProtocol.amove


class TestDerivedTransfers(RawMemory, MovingConformance):
    """Copy and move as the protocol derives them from other operations."""

    @pytest.fixture
    def backend(self) -> DerivedTransfers:
        self.memory = MemoryBackend()
        return DerivedTransfers(self.memory)
