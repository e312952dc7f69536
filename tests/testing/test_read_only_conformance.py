"""Backends that only read pass their part of the suite, which fails those that change files or let models try."""

import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from io import BytesIO

import pytest

from deepfs import Capabilities, FileDataV2, FlatBackend, MemoryBackend
from deepfs.errors import PermissionDeniedError
from deepfs.policy import ReadOnlyBackend
from deepfs.testing import ReadOnlyConformance
from deepfs.testing.conformance import RefusalConformance
from deepfs.text.flat_tree import Change
from deepfs.text.records import new_file
from support.raw import RawMemory


class ZipArchive(FlatBackend):
    """The files of a zip archive, which is read once, by the first operation."""

    capabilities = Capabilities(deletes=False)
    offers_changes = False

    def __init__(self, archive: BytesIO) -> None:
        super().__init__()
        self.archive = archive

    @cached_property
    def _files(self) -> Mapping[str, FileDataV2]:
        if not self.archive.getbuffer().nbytes:
            return {}
        with zipfile.ZipFile(self.archive) as opened:
            return {f"/{name}": new_file(opened.read(name)) for name in opened.namelist()}

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self._files[path] for path in wanted if path in self._files}

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        return self._files

    async def _commit(self, changes: Sequence[Change]) -> None:
        raise PermissionDeniedError(changes[0].path, "the archive is read-only")


class TestZipArchive(ReadOnlyConformance):
    """A backend of a few lines."""

    @pytest.fixture
    def backend(self) -> ZipArchive:
        self.archive = BytesIO()
        return ZipArchive(self.archive)

    async def raw_put(self, path: str, data: bytes) -> None:
        with zipfile.ZipFile(self.archive, "a") as opened:
            opened.writestr(path[1:], data)

    async def raw_peek(self, path: str) -> bytes | None:
        with zipfile.ZipFile(self.archive) as opened:
            return opened.read(path[1:]) if path[1:] in opened.namelist() else None


class TestReadOnlyMemory(RawMemory, ReadOnlyConformance):
    """The wrapper that refuses every change."""

    @pytest.fixture
    def backend(self) -> ReadOnlyBackend:
        self.memory = MemoryBackend()
        return ReadOnlyBackend(self.memory)


class RawOf(RawMemory, RefusalConformance):
    """The part of the suite about refusals, over a memory."""

    def __init__(self) -> None:
        self.memory = MemoryBackend()


class DeletesBehindARefusal(ReadOnlyBackend):
    async def adelete(self, path: str, *, if_match: str | None = None) -> object:  # type: ignore[override]
        await self.inner.adelete(path, if_match=if_match)
        raise PermissionDeniedError(path)


@pytest.mark.anyio
async def test_backends_that_change_files_or_let_models_try_fail() -> None:
    for test, said in (
        (RawOf.test_every_change_is_refused, "write: WriteResult"),
        (RawOf.test_every_upload_is_refused, None),
        (RawOf.test_it_declares_that_it_changes_nothing, "offers_changes"),
    ):
        suite = RawOf()
        with pytest.raises(AssertionError, match=said):
            await test(suite, suite.memory)
    suite = RawOf()
    with pytest.raises(AssertionError, match="None"):
        await suite.test_every_change_is_refused(DeletesBehindARefusal(suite.memory))
