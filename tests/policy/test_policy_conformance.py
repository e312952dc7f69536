"""Policies without objections change no result of the suite."""

import pytest

from deepfs import MemoryBackend
from deepfs.policy import AuditedBackend, Call, HistoryBackend, HookedBackend
from deepfs.testing import BackendConformance
from support.raw import RawMemory
from support.selection import few_on_trio


def nothing(call: Call, result: object = None) -> None:
    """A hook that does nothing."""


async def nothing_async(call: Call, result: object = None) -> None:
    """An async hook that does nothing."""


@few_on_trio
class TestGuarded(RawMemory, BackendConformance):
    """Hooks that do nothing, and an audit log that is discarded."""

    @pytest.fixture
    def backend(self) -> HookedBackend:
        self.memory = MemoryBackend()
        audited = AuditedBackend(self.memory, lambda record: None)
        return HookedBackend(audited, [nothing, nothing_async], [nothing, nothing_async])


class TestHistory(RawMemory, BackendConformance):
    """Versions in a directory of the same backend."""

    @pytest.fixture
    def backend(self) -> HistoryBackend:
        self.memory = MemoryBackend()
        return HistoryBackend(self.memory)


@few_on_trio
class TestHistoryElsewhere(RawMemory, BackendConformance):
    """Versions in another backend."""

    @pytest.fixture
    def backend(self) -> HistoryBackend:
        self.memory = MemoryBackend()
        return HistoryBackend(self.memory, MemoryBackend(), "/")
