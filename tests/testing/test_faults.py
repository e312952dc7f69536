"""Backends that are slow or broken on purpose."""

import anyio
import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.errors import BackendError, ErrorCode
from deepfs.testing import FaultyBackend, LatencyBackend
from deepfs.types import ReadResult

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


async def test_latency_is_added_to_each_operation() -> None:
    backend = LatencyBackend(MemoryBackend(), 0.05)
    start = anyio.current_time()
    assert (await backend.awrite("/a", "x")).ok
    assert (await backend.aread("/a")).ok
    assert anyio.current_time() - start >= 0.1


async def test_a_leaf_error_becomes_the_error_of_the_result() -> None:
    backend = FaultyBackend(MemoryBackend(), {"read": BackendError("Error: the disk is on fire")})
    assert (await backend.awrite("/a", "x")).ok
    assert await backend.aread("/a") == ReadResult("Error: the disk is on fire", code=ErrorCode.BACKEND_ERROR)


async def test_other_exceptions_are_raised() -> None:
    backend = FaultyBackend(MemoryBackend(), {"read": ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        await backend.aread("/a")


async def test_a_fault_may_be_a_function_of_the_call() -> None:
    def every_second_write(operation: str, number: int) -> Exception | None:
        return BackendError("Error: again") if operation == "write" and number % 2 == 0 else None

    backend = FaultyBackend(MemoryBackend(), every_second_write)
    assert [(await backend.awrite(f"/{number}", "x")).ok for number in range(4)] == [True, False, True, False]
    assert backend.calls == {"write": 4}
    assert [entry.path for entry in (await backend.als("/")).entries or ()] == ["/0", "/2"]


async def test_a_late_fault_is_raised_after_the_change() -> None:
    memory = MemoryBackend()
    backend = FaultyBackend(memory, {"write": BackendError("Error: no answer")}, late=True)
    assert not (await backend.awrite("/a", "x")).ok
    assert (await memory.aread("/a")).ok
