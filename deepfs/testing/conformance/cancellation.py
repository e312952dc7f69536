"""Cancellation: a cancelled change is either complete or not done, and its path can be used at once."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.expect import listing, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["CancellationConformance", "ReadOnlyCancellation"]

_OLD: Final = "old " * 20_000
_NEW: Final = "new " * 20_000
_PATIENCE: Final = 20
"""Seconds within which a path must be free again."""


async def _turns(count: int) -> None:
    """Let the event loop run `count` iterations."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


_MOMENTS: Final[tuple[Callable[[], Awaitable[None]], ...]] = (
    *(partial(_turns, count) for count in (0, 1, 2, 3, 4, 6, 10, 25)),
    *(partial(anyio.sleep, seconds) for seconds in (0.0003, 0.001, 0.004, 0.02)),
)
"""When to cancel: after some iterations of the event loop, or after a fraction of a second."""


async def _cancelled(moment: Callable[[], Awaitable[None]], call: Callable[[], Awaitable[Any]]) -> None:
    """Run `call`, and cancel it at `moment` unless it has ended by then."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await call()
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await moment()
        tasks.cancel_scope.cancel()


class ReadOnlyCancellation(BackendSuite):
    """Searches that are cancelled."""

    async def test_a_cancelled_search_ends_at_once(self, backend: BackendProtocol) -> None:
        await self.put({f"/many/{number}.txt": "needle\n" * 50 for number in range(60)})
        for moment in self.some(_MOMENTS):
            with anyio.fail_after(_PATIENCE):
                await _cancelled(moment, partial(backend.agrep, "needle", regex=True))
                await _cancelled(moment, partial(backend.aglob, "**/*.txt"))
        assert len(succeeded(await backend.aglob("*.txt")).matches or ()) == 60


class CancellationConformance(ReadOnlyCancellation):
    """A cancelled operation leaves no partial change, no lock and no temporary file."""

    async def _check_done_or_not(
        self, backend: BackendProtocol, call: Callable[[str], Awaitable[Any]], either: set[str | None]
    ) -> None:
        encoded = {text and text.encode() for text in either}
        for number, moment in enumerate(self.some(_MOMENTS)):
            path, other = f"/cancelled-{number}/a.txt", f"/cancelled-{number}/b.txt"
            await self.put({path: _OLD})
            await _cancelled(moment, partial(call, path))
            with anyio.fail_after(_PATIENCE):
                await backend.aupload_files([(other, b"b")])
                first = await self.raw_peek(path)
                assert first in encoded, f"cancelled at {moment}: neither the old content nor the new"
                await backend.awrite(path, "usable", overwrite=True)
            assert await self.raw_peek(path) == b"usable", "nothing cancelled comes later"
            assert await listing(backend, f"/cancelled-{number}") == [path, other], "nothing temporary is left"

    async def test_a_cancelled_write_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, lambda path: backend.awrite(path, _NEW, overwrite=True), {_OLD, _NEW})

    async def test_a_cancelled_edit_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, lambda path: backend.aedit(path, "old", "new", True), {_OLD, _NEW})

    async def test_a_cancelled_upload_is_done_or_not(self, backend: BackendProtocol) -> None:
        new = _NEW.encode()
        await self._check_done_or_not(backend, lambda path: backend.aupload_files([(path, new)]), {_OLD, _NEW})

    async def test_a_cancelled_delete_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self._check_done_or_not(backend, backend.adelete, {_OLD, None})

    async def test_a_cancelled_creation_is_done_or_not(self, backend: BackendProtocol) -> None:
        for number, moment in enumerate(self.some(_MOMENTS)):
            path = f"/created-{number}/a.txt"
            await _cancelled(moment, partial(backend.awrite, path, _NEW))
            assert await self.raw_peek(path) in (_NEW.encode(), None)
            with anyio.fail_after(_PATIENCE):
                succeeded(await backend.awrite(path, "usable", overwrite=True))
            assert await listing(backend, f"/created-{number}") == [path]

    async def test_a_cancelled_move_keeps_the_file_at_its_source_or_destination(self, backend: BackendProtocol) -> None:
        for number, moment in enumerate(self.some(_MOMENTS)):
            src, dst = f"/from-{number}/a.txt", f"/to-{number}/a.txt"
            await self.put({src: _OLD})
            await _cancelled(moment, partial(backend.amove, src, dst))
            ends = {await self.raw_peek(src), await self.raw_peek(dst)}
            assert _OLD.encode() in ends
            assert ends <= {_OLD.encode(), None}
            with anyio.fail_after(_PATIENCE):
                for path in (src, dst):
                    succeeded(await backend.awrite(path, "usable", overwrite=True))

    async def test_cancelled_waiting_tasks_do_not_block_the_path(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "#"})
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(backend.aedit, "/a.txt", "#", "#+")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(_PATIENCE):
            succeeded(await backend.aedit("/a.txt", "#", "end"))
        stored = await self.raw_peek("/a.txt") or b""
        assert stored.startswith(b"end")
        assert set(stored[3:]) <= set(b"+")

    async def test_a_write_after_its_deadline_is_done_or_not(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": _OLD})
        with anyio.move_on_after(0):
            await backend.awrite("/a.txt", _NEW, overwrite=True)
        assert await self.raw_peek("/a.txt") in (_OLD.encode(), _NEW.encode())
        with anyio.fail_after(_PATIENCE):
            succeeded(await backend.awrite("/a.txt", "usable", overwrite=True))
