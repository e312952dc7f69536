"""`achange_files` on storages that make one change after another, and on backends without a way of their own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import anyio.lowlevel
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import ContentChange, MemoryBackend, StoreBackend
from deepfs.backends.flat import FlatBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, ErrorCode
from deepfs.operations import ChangeFiles
from deepfs.testing.suite import gather
from deepfs.text import records
from deepfs.text.flat_tree import Change, ChangedError, PartlyDoneError
from deepfs.text.lines import version
from deepfs.types import FileDataV2, FileDownloadResponse, FileUploadResponse, LsResult, ReadResult, WriteResult

pytestmark = pytest.mark.anyio


class Plain(FlatBackend):
    """Stores files one after the other. `before` is called with the changes that are about to be stored."""

    def __init__(self, **files: bytes) -> None:
        super().__init__()
        self.files = {f"/{name}": records.new_file(content) for name, content in files.items()}
        self.before: list[Callable[[Sequence[Change]], None]] = []
        self.commits: list[list[str]] = []

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self.files[path] for path in wanted if path in self.files}

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        return dict(self.files)

    async def _commit(self, changes: Sequence[Change]) -> None:
        if self.before:
            self.before.pop(0)(changes)
        self.commits.append([change.path for change in changes])
        for change in changes:
            self.store(change)

    def store(self, change: Change) -> None:
        if change.after is None:
            del self.files[change.path]
        else:
            self.files[change.path] = change.after

    def contents(self) -> dict[str, bytes]:
        return {path: records.content_bytes(data) for path, data in self.files.items()}


def nothing(_: Sequence[Change]) -> None:
    """Let the changes pass."""


CHANGES = [ContentChange("/a", b"a"), ContentChange("/b", b"b"), ContentChange("/c", None), ContentChange("/d", b"d")]


async def errors_of(backend: BackendProtocol, changes: Sequence[ContentChange] = CHANGES) -> list[str | None]:
    return [outcome.error for outcome in await backend.achange_files(changes)]


async def test_changes_are_stored_in_order_without_a_transaction() -> None:
    plain = Plain(c=b"c")
    assert await errors_of(plain) == [None] * 4
    assert plain.commits == [["/a", "/b"], ["/c"], ["/d"]]


async def test_what_was_stored_is_not_stored_again_when_a_later_change_is_overtaken() -> None:
    plain = Plain(c=b"c")

    def overtake(changes: Sequence[Change]) -> None:
        plain.files["/c"] = records.new_file(b"of somebody else")
        raise ChangedError(changes[0].path)

    plain.before = [nothing, overtake]
    changes = [*CHANGES[:2], ContentChange("/c", None, if_match=version(b"c")), CHANGES[3]]
    assert await errors_of(plain, changes) == [None, None, "conflict", None]
    assert plain.commits == [["/a", "/b"], ["/d"]]
    assert plain.contents()["/c"] == b"of somebody else"


async def test_the_changes_that_were_overtaken_are_made_anew_and_no_others() -> None:
    plain = Plain(c=b"c")

    class PartlyChangedError(PartlyDoneError):
        code = ErrorCode.CONFLICT

    def store_first(changes: Sequence[Change]) -> None:
        plain.store(changes[0])
        raise PartlyChangedError("the other one was overtaken", [changes[0].path])

    plain.before = [store_first]
    assert await errors_of(plain) == [None] * 4
    assert plain.commits == [["/b"], ["/c"], ["/d"]]


async def test_a_storage_that_fails_says_for_each_change_what_became_of_it() -> None:
    plain = Plain(c=b"c")

    def store_first(changes: Sequence[Change]) -> None:
        plain.store(changes[0])
        raise PartlyDoneError("the disk is on fire", [changes[0].path])

    def fail(changes: Sequence[Change]) -> None:
        raise BackendError("the disk is on fire")

    plain.before = [store_first, fail]
    assert await errors_of(plain) == [None, "backend_error", "backend_error", None]
    assert plain.contents() == {"/a": b"a", "/c": b"c", "/d": b"d"}


async def test_a_file_may_take_the_place_of_a_directory_that_the_changes_empty() -> None:
    for files in (Plain(), MemoryBackend()):
        await files.aupload_files([("/dir/a", b"a"), ("/dir/deep/b", b"b")])
        gone = [ContentChange("/dir/a", None), ContentChange("/dir/deep/b", None)]
        assert await errors_of(files, [gone[0], ContentChange("/dir", b"file")]) == [None, "is_directory"]
        assert await errors_of(files, [*gone[1:], ContentChange("/dir", b"file")]) == [None, None]
        assert [entry.path for entry in (await files.als("/")).entries or ()] == ["/dir"]


async def test_a_store_has_no_transaction() -> None:
    files = StoreBackend(InMemoryStore(), namespace="files")
    outcomes = await files.achange_files([ContentChange("/a", b"a"), ContentChange("/b", b"b")], all_or_none=True)
    assert [outcome.error for outcome in outcomes] == ["unsupported"] * 2
    assert (await files.als("/")).entries == []


# --- the value -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        [("/a", b"a")],
        [ContentChange("/a", "text")],  # type: ignore[arg-type]
        [ContentChange("/a", b"", if_match=1)],  # type: ignore[arg-type]
        [ContentChange("/a", b"", overwrite="yes")],  # type: ignore[arg-type]
        [ContentChange(b"/a", b"")],  # type: ignore[arg-type]
        5,
    ],
)
async def test_what_is_no_change_is_a_type_error(files: list[ContentChange]) -> None:
    for backend in (MemoryBackend(), BackendProtocol()):
        with pytest.raises(TypeError):
            await backend.achange_files(files)


async def test_content_may_be_any_bytes_like_object() -> None:
    content = bytearray(b"a")
    operation = ChangeFiles([ContentChange("/a", content)])  # type: ignore[arg-type]
    content[:] = b"b"
    assert operation.files[0].content == b"a"


# --- backends without a way of their own -----------------------------------------------------------------------------


class Texts(BackendProtocol):
    """A backend as programs have them: sync, text only, without conditions."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        if path not in self.files:
            return ReadResult(error=f"File '{path}' not found", code=ErrorCode.FILE_NOT_FOUND)
        return ReadResult(file_data=FileDataV2(self.files[path]))

    def write(self, path: str, content: str) -> WriteResult:
        self.files[path] = content
        return WriteResult(path=path)


async def test_conditions_hold_over_methods_that_lack_them() -> None:
    texts = Texts()
    changes = [ContentChange("/a", b"one"), ContentChange("/b", b"\xff", overwrite=True), ContentChange("/c", None)]
    assert await errors_of(texts, changes) == [None, "unsupported", "unsupported"]
    assert await errors_of(texts, changes[:1]) == ["already_exists"]
    old = version(b"one")
    contents = [f"by {number}".encode() for number in range(8)]
    calls = [partial(errors_of, texts, [ContentChange("/a", content, if_match=old)]) for content in contents]
    errors = await gather(calls)
    assert sorted(errors, key=str) == [["conflict"]] * 7 + [[None]]
    assert texts.files == {"/a": contents[errors.index([None])].decode()}


class Bytes(BackendProtocol):
    """A backend that defines each method over the files of another one, but not `achange_files`."""

    def __init__(self) -> None:
        self.memory = MemoryBackend()

    async def als(self, path: str) -> LsResult:
        return await self.memory.als(path)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self.memory.aread(path, offset, limit)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        await anyio.lowlevel.checkpoint()
        return await self.memory.aupload_files(files)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        await anyio.lowlevel.checkpoint()
        return await self.memory.adownload_files(paths)


@pytest.mark.parametrize(
    ("if_match", "other"), [(None, "already_exists"), (version(b"\x00old"), "conflict")], ids=["create", "if_match"]
)
async def test_of_concurrent_changes_to_bytes_that_are_no_text_one_succeeds(if_match: str | None, other: str) -> None:
    files = Bytes()
    assert await errors_of(files, [ContentChange("/a", b"\xff", if_match=version(b"\x00old"))]) == ["conflict"]
    if if_match is not None:
        await files.aupload_files([("/a", b"\x00old")])
    contents = [b"\xff%d" % number for number in range(8)]
    changes = [ContentChange("/a", content, if_match=if_match) for content in contents]
    errors = await gather([partial(errors_of, files, [change]) for change in changes])
    assert sorted(errors, key=str) == sorted([[other]] * 7 + [[None]], key=str)
    [stored] = await files.adownload_files(["/a"])
    assert stored.content == contents[errors.index([None])]
