"""Sync and async are one API: each reads what the other writes, and both return the same results."""

import inspect
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import pytest
from msgspec import to_builtins

from deepfs.backends.protocol import BackendProtocol, supports_execute
from deepfs.sync import OPERATIONS
from deepfs.testing.expect import only, shown, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["ReadOnlyParity", "SyncParity", "assert_sync_results_equal"]

T = TypeVar("T")

_CLOCKED: Final = frozenset({"created_at", "modified_at", "files_update", "version"})
"""Fields that may differ between two equal operations: times, and versions that depend on them."""

_CALLS: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("write", ("/new/a.txt", "one\ntwo\n"), {}),
    ("write", ("/new/a.txt", "again"), {}),
    ("write", ("/new/a.txt", "one\r\ntwo\r\n"), {"overwrite": True}),
    ("write", ("/new/a.txt", "x"), {"if_match": "no version"}),
    ("write", ("/../a.txt", "x"), {}),
    ("upload_files", ([("/new/b.bin", b"\x00\xff"), ("/new", b"x"), ("~", b"x")],), {}),
    ("read", ("/new/a.txt",), {}),
    ("read", ("/new/a.txt", 1, 1), {}),
    ("read", ("/new/b.bin",), {}),
    ("read", ("/none",), {}),
    ("read_raw", ("/new/a.txt",), {}),
    ("read_raw", ("/new",), {}),
    ("ls", ("/new",), {}),
    ("ls", ("/new/a.txt",), {}),
    ("edit", ("/new/a.txt", "one\n", "1\n"), {}),
    ("edit", ("/new/a.txt", "o", "0", True), {}),
    ("edit", ("/new/a.txt", "absent", "x"), {"replace_all": True}),
    ("glob", ("*.txt",), {}),
    ("glob", ("*", "/new"), {}),
    ("glob", ("../*",), {}),
    ("grep", ("tw",), {}),
    ("grep", ("TW.", "/new", "*.txt"), {"regex": True, "ignore_case": True, "context_lines": 1, "max_count": 1}),
    ("grep", ("(",), {"regex": True}),
    ("copy", ("/new/a.txt", "/new/c.txt"), {}),
    ("copy", ("/new", "/new/c.txt"), {"overwrite": True}),
    ("move", ("/new", "/moved"), {}),
    ("move", ("/none", "/moved"), {}),
    ("download_files", (["/moved/b.bin", "/none", "/moved"],), {}),
    ("delete", ("/moved/a.txt",), {"if_match": "no version"}),
    ("delete", ("/moved/a.txt",), {}),
    ("delete", ("/",), {}),
    ("delete", ("/moved",), {}),
)
"""A sequence of operations, each with its arguments."""


def _plain(result: Any) -> Any:
    """A result as plain data, without fields that depend on the clock."""
    return _without_clock({"type": type(result).__name__, "data": to_builtins(result)})


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(inner) for key, inner in value.items() if key not in _CLOCKED}
    return [_without_clock(inner) for inner in value] if isinstance(value, list) else value


async def _in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a sync call in a worker thread of anyio."""
    return await anyio.to_thread.run_sync(partial(call, *args, **kwargs))


async def assert_sync_results_equal(backend: BackendProtocol) -> None:
    """Call operations one after another by their async methods, then by their sync ones, and compare the results."""
    results = [_plain(await getattr(backend, f"a{name}")(*args, **kwargs)) for name, args, kwargs in _CALLS]
    results_sync = [_plain(await _in_thread(getattr(backend, name), *args, **kwargs)) for name, args, kwargs in _CALLS]
    for call, result, result_sync in zip(_CALLS, results, results_sync, strict=True):
        assert result_sync == result, call


async def _in_own_threads(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Make sync calls concurrently, each in a thread without a connection to an event loop; return their results."""
    outcomes: dict[int, T] = {}

    def keep(number: int, call: Callable[[], T]) -> None:
        outcomes[number] = call()

    threads = [threading.Thread(target=keep, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert len(outcomes) == len(threads), "a sync call raised"
    return [outcomes[number] for number in range(len(threads))]


class ReadOnlyParity(BackendSuite):
    """Each operation has a sync method with the same parameters."""

    async def test_each_operation_has_both_methods_with_one_signature(self, backend: BackendProtocol) -> None:
        for name in OPERATIONS:
            if name == "execute" and not supports_execute(backend):
                continue
            method, amethod = getattr(backend, name), getattr(backend, f"a{name}")
            assert list(inspect.signature(method).parameters) == list(inspect.signature(amethod).parameters), name
            assert not inspect.iscoroutinefunction(method)
            assert inspect.iscoroutinefunction(amethod)
            assert method.__name__ == name
            assert amethod.__name__ == f"a{name}"


class SyncParity(ReadOnlyParity):
    """Each operation has a sync method that does the same from any thread."""

    async def test_both_methods_return_the_same_results(self, backend: BackendProtocol) -> None:
        await assert_sync_results_equal(backend)

    async def test_async_reads_what_sync_writes(self, backend: BackendProtocol) -> None:
        succeeded(await _in_thread(backend.write, "/a.txt", "one"))
        assert shown(await backend.aread("/a.txt")) == "one"
        succeeded(await _in_thread(backend.edit, "/a.txt", "one", "two"))
        assert shown(await backend.aread("/a.txt")) == "two"
        succeeded(await _in_thread(backend.move, "/a.txt", "/b.txt"))
        assert shown(await backend.aread("/b.txt")) == "two"
        await _in_thread(backend.upload_files, [("/c.bin", b"\x00")])
        assert [item.content for item in await backend.adownload_files(["/c.bin"])] == [b"\x00"]
        assert await self.raw_peek("/b.txt") == b"two"

    async def test_sync_reads_what_async_writes(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/a.txt", "one"))
        assert shown(await _in_thread(backend.read, "/a.txt")) == "one"
        succeeded(await backend.aedit("/a.txt", "one", "two"))
        assert [item.content for item in await _in_thread(backend.download_files, ["/a.txt"])] == [b"two"]
        succeeded(await backend.acopy("/a.txt", "/b.txt"))
        assert [info.path for info in succeeded(await _in_thread(backend.glob, "*.txt")).matches or ()] == [
            "/a.txt",
            "/b.txt",
        ]

    async def test_sync_works_in_threads_without_an_event_loop(self, backend: BackendProtocol) -> None:
        written = only(await _in_own_threads([partial(backend.write, "/a.txt", "one")]))
        read = only(await _in_own_threads([partial(backend.read, "/a.txt")]))
        assert succeeded(written).path == "/a.txt"
        assert shown(read) == "one"

    async def test_sync_edits_from_many_threads_all_land(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number}\n" for number in range(8))})
        results = await _in_own_threads(
            partial(backend.edit, "/a.txt", f"slot-{number}", f"done-{number}") for number in range(8)
        )
        assert [result.ok for result in results] == [True] * 8, [result.error for result in results]
        assert await self.raw_peek("/a.txt") == "".join(f"done-{number}\n" for number in range(8)).encode()

    async def test_sync_and_async_edits_at_once_all_land(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "".join(f"slot-{number}\n" for number in range(8))})
        results: list[bool] = []

        async def edit(number: int) -> None:
            change = "/a.txt", f"slot-{number}", f"done-{number}"
            result = await (_in_thread(backend.edit, *change) if number % 2 else backend.aedit(*change))
            results.append(result.ok)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(edit, number)
        assert results == [True] * 8
        assert await self.raw_peek("/a.txt") == "".join(f"done-{number}\n" for number in range(8)).encode()

    async def test_sync_on_the_event_loop_works_or_names_the_async_method(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/a.txt", "one"))
        if backend.is_synchronous:
            assert shown(backend.read("/a.txt")) == "one"
        elif backend.bound_to_this_thread():
            with pytest.raises(RuntimeError, match="aread"):
                backend.read("/a.txt")
