"""The contract, sentence by sentence, as tests that a backend's own test class inherits."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.conformance.at_once import (
    CancellationConformance,
    ConcurrencyConformance,
    ReadOnlyCancellation,
    WatchingConformance,
)
from deepfs.testing.conformance.batches import ChangingFilesConformance
from deepfs.testing.conformance.changing import (
    DeletingConformance,
    EditingConformance,
    MovingConformance,
    WritingConformance,
)
from deepfs.testing.conformance.reading import (
    HOSTILE_PATHS,
    LineConformance,
    ListingConformance,
    PathConformance,
    ReadingConformance,
    ReadOnlyListing,
    ReadOnlyPaths,
    ReadOnlyReading,
)
from deepfs.testing.conformance.searching import GlobConformance, GrepConformance
from deepfs.testing.conformance.surface import (
    ReadOnlyParity,
    ReadOnlySurface,
    ReadOnlyTransfer,
    SurfaceConformance,
    SyncParity,
    TransferConformance,
    assert_sync_results_equal,
)
from deepfs.testing.suite import BackendSuite, assert_failed
from deepfs.types import ContentChange

__all__ = ["BackendConformance", "ReadOnlyConformance"]


class BackendConformance(
    PathConformance,
    ListingConformance,
    LineConformance,
    ReadingConformance,
    WritingConformance,
    EditingConformance,
    GlobConformance,
    GrepConformance,
    DeletingConformance,
    MovingConformance,
    TransferConformance,
    ChangingFilesConformance,
    ConcurrencyConformance,
    CancellationConformance,
    WatchingConformance,
    SurfaceConformance,
    SyncParity,
):
    """Tests of everything that a backend promises, async and sync.

    ```python
    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self):
            self.storage = {}
            return MyBackend(self.storage)

        async def raw_put(self, path, data):
            self.storage[path] = data

        async def raw_peek(self, path):
            return self.storage.get(path)
    ```

    The tests run on the event loops that the fixture `anyio_backend` names. They allow no differences between backends
    except the fields of `Capabilities`.
    """


# --- backends that only read ---

_REFUSALS: Final = (ErrorCode.PERMISSION_DENIED, ErrorCode.UNSUPPORTED)
_FILES: Final = {"/kept.txt": b"kept", "/dir/kept.bin": b"\x00kept", "/dir/deep/kept.txt": b"kept"}
_NEW: Final = ("/new.txt", "/new/kept.bin", "/dir/new.txt", "/kept.txt/new.txt")

_CHANGES: Final[Mapping[str, Callable[[BackendProtocol], Awaitable[Any]]]] = {
    "write": lambda backend: backend.awrite("/new.txt", "x"),
    "write in a directory": lambda backend: backend.awrite("/dir/new.txt", "x"),
    "overwrite": lambda backend: backend.awrite("/kept.txt", "x", overwrite=True),
    "edit": lambda backend: backend.aedit("/kept.txt", "kept", "x"),
    "edit everywhere": lambda backend: backend.aedit("/dir/deep/kept.txt", "k", "x", replace_all=True),
    "delete": lambda backend: backend.adelete("/kept.txt"),
    "delete a directory": lambda backend: backend.adelete("/dir"),
    "copy": lambda backend: backend.acopy("/kept.txt", "/new.txt"),
    "copy over": lambda backend: backend.acopy("/kept.txt", "/dir/deep/kept.txt", overwrite=True),
    "copy a directory": lambda backend: backend.acopy("/dir", "/new"),
    "move": lambda backend: backend.amove("/kept.txt", "/new.txt"),
    "move a directory": lambda backend: backend.amove("/dir", "/new"),
}
"""Each way to change files of `_FILES`, none of which fails for another reason than that nothing can be changed."""


async def _chunks() -> AsyncIterator[bytes]:
    yield b"x"


class RefusalConformance(BackendSuite):
    """Every change is refused with `permission_denied` or `unsupported`, and nothing has changed after it."""

    async def _assert_unchanged(self) -> None:
        assert {path: await self.raw_peek(path) for path in _FILES} == _FILES
        assert [path for path in _NEW if await self.raw_peek(path) is not None] == []

    async def test_every_change_is_refused(self, backend: BackendProtocol) -> None:
        await self.put(_FILES)
        for name, change in _CHANGES.items():
            result = await change(backend)
            assert result.code in _REFUSALS, f"{name}: {result}"
            assert_failed(result, *_REFUSALS)
        await self._assert_unchanged()

    async def test_every_upload_is_refused(self, backend: BackendProtocol) -> None:
        await self.put(_FILES)
        files = [("/new.txt", b"x"), ("/kept.txt", b"x"), ("/dir/kept.bin", b"\x00x")]
        outcomes = await backend.aupload_files(files)
        outcomes += [await backend.aupload_stream(path, _chunks()) for path, _ in files]
        assert [outcome.path for outcome in outcomes] == [path for path, _ in files] * 2
        outcomes += await backend.achange_files([ContentChange(path, content, True) for path, content in files])
        outcomes += await backend.achange_files([ContentChange(path, None) for path in _FILES])
        assert [outcome for outcome in outcomes if outcome.error not in _REFUSALS] == []
        await self._assert_unchanged()

    async def test_it_declares_that_it_changes_nothing(self, backend: BackendProtocol) -> None:
        assert not backend.offers_changes, "with offers_changes = False, models get no tools that would be refused"
        assert not backend.capabilities.deletes, "deletes is declared where files can be deleted"


class ReadOnlyConformance(
    ReadOnlyPaths,
    ReadOnlyListing,
    LineConformance,
    ReadOnlyReading,
    GlobConformance,
    GrepConformance,
    ReadOnlyTransfer,
    ReadOnlyCancellation,
    ReadOnlySurface,
    ReadOnlyParity,
    RefusalConformance,
):
    """Tests of everything that a backend promises which only reads: archives, snapshots, remote services.

    A class inherits from it in place of `BackendConformance`, and defines the same fixture and hooks. `raw_put` adds a
    file to the storage by other means than the backend. Each test adds all of its files before its first operation, so
    a backend may read its storage once, at its first operation.
    """

    async def test_hostile_paths_are_refused_and_never_raise(self, backend: BackendProtocol) -> None:
        await self.put({"/kept.txt": "kept"})
        for path in HOSTILE_PATHS:
            for read in (
                await backend.als(path),
                await backend.aread(path),
                await backend.aread_raw(path),
                await backend.aglob("*", path),
                await backend.agrep("kept", path),
            ):
                assert_failed(read, ErrorCode.INVALID_PATH)
            for change in (
                await backend.awrite(path, "text"),
                await backend.aedit(path, "old", "new"),
                await backend.adelete(path),
                await backend.acopy("/kept.txt", path),
                await backend.amove("/kept.txt", path),
            ):
                assert_failed(change, ErrorCode.INVALID_PATH, *_REFUSALS)
        downloads = await backend.adownload_files(list(HOSTILE_PATHS))
        assert [(item.path, item.error) for item in downloads] == [(path, "invalid_path") for path in HOSTILE_PATHS]

    async def test_both_methods_return_the_same_results(self, backend: BackendProtocol) -> None:
        await self.put({"/new/a.txt": "one\r\ntwo\r\n", "/new/b.bin": b"\x00\xff", "/moved/b.bin": b"\x00"})
        await assert_sync_results_equal(backend)
