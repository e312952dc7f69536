"""What FsspecBackend makes of filesystems that are local, read-only, hostile, slow, caching or unreliable."""

import asyncio
import errno
import io
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.lowlevel
import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from deepfs import ErrorCode, FsspecBackend
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import assert_failed, assert_ok
from support.fsspec_memory import AsyncMemory
from support.processes import started
from support.promises import keeps
from support.waiting import until

FIRST: Final = datetime(2026, 1, 2, tzinfo=UTC)
HASTY: Final = RetryPolicy(attempts=3, first_delay=0.001, contention=0.2)


@pytest.fixture(autouse=True)
def memory() -> Iterator[MemoryFileSystem]:
    """fsspec's memory, which all its objects share; empty."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return fsspec.filesystem("memory")


def _paths(result: Any) -> list[str]:
    return [info.path for info in assert_ok(result).entries]


# --- what a filesystem may be ----------------------------------------------------------------------------------------


def test_arguments_are_checked() -> None:
    local = LocalFileSystem()
    for given in ("file:///tmp", "/tmp", "local://tmp", "dir::file:///tmp", local, DirFileSystem("/tmp", local)):
        with pytest.raises(ValueError, match="FilesystemBackend"):
            FsspecBackend(given)
    for url in ("simplecache::memory://a", "filecache::memory://a", "blockcache::memory://a"):
        with pytest.raises(ValueError, match="caching"):
            FsspecBackend(url)
    with pytest.raises(TypeError, match="a URL or a filesystem"):
        FsspecBackend(object())
    with pytest.raises(TypeError, match="storage options"):
        FsspecBackend(fsspec.filesystem("memory"), key="value")
    with pytest.raises(TypeError, match="unsafe_overwrites"):
        FsspecBackend("memory://", unsafe_overwrites="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nosuch"):
        FsspecBackend("nosuch://bucket")


def test_without_fsspec_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ModuleNotFoundError, match=r"deepfs\[fsspec\]"):
        FsspecBackend("memory://")


WAYS: Final[dict[str, Callable[[], FsspecBackend]]] = {
    "url": lambda: FsspecBackend("memory://a/b"),
    "root": lambda: FsspecBackend("memory://a", "/b/"),
    "dir": lambda: FsspecBackend("dir::memory://a/b"),
    "dir-path": lambda: FsspecBackend("dir://b::memory://a"),
    "wrapped-url": lambda: FsspecBackend("asyncwrapper::memory://a/b"),
    "object": lambda: FsspecBackend(MemoryFileSystem(), "a/b"),
    "dir-object": lambda: FsspecBackend(DirFileSystem("/a", MemoryFileSystem()), "b"),
    "dirs": lambda: FsspecBackend(DirFileSystem("b", DirFileSystem("/a", MemoryFileSystem()))),
    "wrapped": lambda: FsspecBackend(AsyncFileSystemWrapper(MemoryFileSystem()), "/a/b"),
}


@pytest.mark.anyio
async def test_every_way_to_name_a_directory_reaches_the_same_files_and_locks(memory: Any) -> None:
    memory.pipe_file("/a/b/c.txt", b"one\n")
    other = FsspecBackend("memory://a/b")
    for way, make in WAYS.items():
        backend = make()
        assert _paths(await backend.als("/")) == ["/c.txt"], way
        assert await backend.astorage_place("/c.txt") == await other.astorage_place("/c.txt"), way
        async with backend._hold("/c.txt"):
            with anyio.move_on_after(0.05) as waited:
                await other.awrite("/c.txt", "two", overwrite=True)
        assert waited.cancelled_caught, way
    assert memory.cat_file("/a/b/c.txt") == b"one\n"


def test_names_above_the_root_are_out_of_reach(memory: Any) -> None:
    memory.pipe_file("/secret", b"x")
    memory.pipe_file("/root-not/secret", b"x")
    backend = FsspecBackend("memory://root")
    assert _paths(backend.ls("/")) == []
    assert_failed(backend.read("/../secret"), ErrorCode.INVALID_PATH)
    assert assert_ok(backend.glob("**/*")).matches == []
    assert backend.write("/a", "x").ok
    assert sorted(memory.find("/")) == ["/root-not/secret", "/root/a", "/secret"]


@keeps("Names that it would read as others are refused.")
def test_a_name_that_the_filesystem_reads_as_another_is_refused() -> None:
    backend = FsspecBackend(AsyncMemory())
    assert_failed(backend.write("/asyncmemory::x", "x"), ErrorCode.INVALID_PATH)
    assert_failed(backend.read("/asyncmemory::x"), ErrorCode.INVALID_PATH)
    assert backend.write("/other::x", "x").ok


# --- archives --------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(memory: Any) -> FsspecBackend:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("docs/a.txt", "one\nneedle\n")
        file.writestr("docs/deep/b.bin", b"\xff\0")
        file.writestr("empty/", b"")
        file.writestr("../outside.txt", "needle")
    memory.pipe_file("/files.zip", data.getvalue())
    return FsspecBackend("zip::memory://files.zip")


def test_an_archive_is_read_and_not_changed(archive: FsspecBackend) -> None:
    assert _paths(archive.ls("/")) == ["/docs/"]
    assert _paths(archive.ls("/docs")) == ["/docs/a.txt", "/docs/deep/"]
    assert assert_ok(archive.read("/docs/a.txt")).total_lines == 2
    assert [match.path for match in assert_ok(archive.grep("needle")).matches] == ["/docs/a.txt"]
    assert assert_ok(archive.grep("needle")).skipped == 1  # The name that is no path.
    assert archive.download_files(["/docs/deep/b.bin"])[0].content == b"\xff\0"
    assert_failed(archive.read("/docs"), ErrorCode.IS_DIRECTORY)
    assert_failed(archive.ls("/empty"), ErrorCode.FILE_NOT_FOUND)
    assert_failed(archive.write("/new.txt", "x"), ErrorCode.PERMISSION_DENIED)
    assert_failed(archive.edit("/docs/a.txt", "one", "two"), ErrorCode.PERMISSION_DENIED)
    assert_failed(archive.delete("/docs"), ErrorCode.PERMISSION_DENIED)
    archive.close()
    assert _paths(archive.ls("/")) == ["/docs/"]


# --- directories that the filesystem keeps ---------------------------------------------------------------------------


def test_empty_directories_are_hidden_and_make_room(memory: Any) -> None:
    backend = FsspecBackend("memory://top")
    memory.makedirs("/top/empty/deep")
    assert _paths(backend.ls("/")) == []
    assert_failed(backend.ls("/empty"), ErrorCode.FILE_NOT_FOUND)
    assert_failed(backend.delete("/empty"), ErrorCode.FILE_NOT_FOUND)
    assert backend.write("/empty", "now a file").ok
    assert memory.cat_file("/top/empty") == b"now a file"


# --- strangers' answers ----------------------------------------------------------------------------------------------


class Answering(AsyncMemory):
    """An async filesystem that answers as the test says: by method, a value to return or an exception to raise."""

    def __init__(self, **answers: Any) -> None:
        super().__init__({"a.txt": (b"one\n", 1, FIRST)})
        self.answers = answers

    async def _call(self, name: str) -> None:
        await super()._call(name)
        if isinstance(answer := self.answers.get(name), BaseException):
            raise answer

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        answer = await super()._ls(path, detail, **options)
        return self.answers.get("ls", answer) if path == "" else answer

    async def _info(self, path: str, **options: Any) -> Any:
        answer = await super()._info(path, **options)
        return self.answers.get("info", answer)

    async def _cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        answer = await super()._cat_file(path, *arguments, **options)
        return self.answers.get("cat_file", answer)


NAMES: Final = [
    "../up", "..", "/../../etc/passwd", "a//b", "b/", "", ".", "C:\\x", "nul\0", "\ud800", "x" * 300,
    "d/" * 3000 + "x", 7, None, b"bytes", ("t",), "a.txt/..",
]  # fmt: skip


@keeps("are no valid paths or are links are never followed")
def test_names_that_are_no_paths_are_left_out() -> None:
    kinds = ("file", "directory", "link", "other", None, 7)
    listing: list[Any] = [{"name": name, "type": kind, "size": 1} for name, kind in product(NAMES, kinds)]
    listing += [None, "text", 7, {}, {"name": "a.txt", "type": "file", "size": 4}]
    backend = FsspecBackend(Answering(ls=listing))
    assert _paths(backend.ls("/")) == ["/a.txt"]
    found = assert_ok(backend.grep("one"))
    assert [match.path for match in found.matches] == ["/a.txt"]
    assert found.skipped > 0
    assert [info.path for info in assert_ok(backend.glob("**/*")).matches] == ["/a.txt"]


@keeps("are links are never followed")
@pytest.mark.parametrize("link", [{"type": "link"}, {"type": "other"}, {"type": "file", "islink": True}], ids=repr)
def test_links_are_hidden_and_not_followed(link: dict[str, Any]) -> None:
    info = {"name": "link.txt", "size": 4, **link}
    backend = FsspecBackend(filesystem := Answering(ls=[info], info=info))
    filesystem.keys["link.txt"] = filesystem.keys["a.txt"]
    assert _paths(backend.ls("/")) == []
    assert assert_ok(backend.grep("one")).matches == []
    assert not backend.read("/link.txt").ok
    assert not backend.edit("/link.txt", "one", "two").ok
    assert filesystem.keys["link.txt"][0] == b"one\n"


CODES: Final = {code.value for code in ErrorCode}


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: Final = [
    OSError(errno.EIO, "s3://user:hunter2@host"), PermissionError("hunter2"), IsADirectoryError(), NotADirectoryError(),
    NotImplementedError(), ValueError("hunter2"), KeyError("hunter2"), RuntimeError(), OddError(), FileExistsError(),
    StopAsyncIteration(), TypeError(), UnicodeError(), RecursionError(), MemoryError(), OSError(errno.EROFS, "x"),
    io.UnsupportedOperation(), asyncio.CancelledError(), ConnectionError(), TimeoutError(), AssertionError(),
]  # fmt: skip


@keeps("Whatever a filesystem answers or raises, operations return results.")
@pytest.mark.parametrize("method", ["info", "ls", "cat_file", "pipe_file", "rm_file"])
def test_no_exception_of_a_filesystem_gets_out(method: str) -> None:
    for error in ERRORS:
        _check_results(method, error)


def _check_results(method: str, error: BaseException) -> None:
    backend = FsspecBackend(Answering(**{method: error}), retries=HASTY)
    codes = set()
    for result in (
        backend.ls("/"), backend.read("/a.txt"), backend.write("/b.txt", "x"),
        backend.write("/a.txt", "x", overwrite=True), backend.edit("/a.txt", "one", "two"), backend.glob("*"),
        backend.grep("one"), backend.move("/a.txt", "/c.txt"), backend.delete("/a.txt"),
    ):  # fmt: skip
        codes.add(result.code)
        assert "hunter2" not in str(result.error)
        assert result.code is None or result.code.value in CODES
    assert codes != {None}
    uploaded, downloaded = backend.upload_files([("/x", b"x")]), backend.download_files(["/a.txt"])
    assert (uploaded[0].error or "backend_error") in CODES
    assert (downloaded[0].error or "backend_error") in CODES


def test_an_answer_of_another_type_is_an_error() -> None:
    for method, answer in product(("info", "ls", "cat_file"), (None, 7, "text", {1, 2}, iter(()))):
        backend = FsspecBackend(Answering(**{method: answer}))
        assert_failed(backend.ls("/") if method == "ls" else backend.read("/a.txt"), ErrorCode.BACKEND_ERROR)


def test_sizes_and_times_of_other_types_are_unknown() -> None:
    sizes = (-1, "4", None, 4.0, [], 10**30, True)
    times = ("no time", -1e300, 1e300, [], "2026-13-99", (1, 2), float("nan"))
    for size, time in zip(sizes, times, strict=True):
        info = {"name": "a.txt", "type": "file", "size": size, "mtime": time, "ETag": ["no", "text"]}
        [entry] = assert_ok(FsspecBackend(Answering(ls=[info])).ls("/")).entries
        assert entry.modified_at is None
        assert entry.size in (None, 10**30, True)


EXPECTED: Final = [
    (PermissionError(), ErrorCode.PERMISSION_DENIED),
    (OSError(errno.EROFS, "read-only"), ErrorCode.PERMISSION_DENIED),
    (IsADirectoryError(), ErrorCode.IS_DIRECTORY),
    (NotADirectoryError(), ErrorCode.NOT_A_DIRECTORY),
    (NotImplementedError(), ErrorCode.UNSUPPORTED),
    (io.UnsupportedOperation(), ErrorCode.UNSUPPORTED),
    (OSError(errno.ENAMETOOLONG, "long"), ErrorCode.INVALID_PATH),
    (TimeoutError(), ErrorCode.TIMEOUT),
    (ConnectionError(), ErrorCode.BACKEND_ERROR),
    (ValueError(), ErrorCode.BACKEND_ERROR),
]


def test_errors_have_the_code_of_their_condition() -> None:
    for error, code in EXPECTED:
        assert_failed(FsspecBackend(Answering(pipe_file=error), retries=HASTY).write("/b.txt", "x"), code)


@keeps("No text, result or `repr` has a URL")
def test_secrets_are_not_shown() -> None:
    options = dict.fromkeys(("password", "secret", "token"), "hunter2")
    backend = FsspecBackend("ftp://user:hunter2@127.0.0.1:9/x", **options)
    result = backend.read("/a")
    assert not result.ok
    assert "hunter2" not in f"{backend!r} {result!r} {backend._source!r} {backend._scope()!r}"


class Private(AsyncMemory):
    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if path.startswith("private"):
            raise PermissionError(path)
        return await super()._ls(path, detail, **options)


def test_a_directory_that_cannot_be_listed_hides_no_other() -> None:
    backend = FsspecBackend(filesystem := Private())
    filesystem.keys = dict.fromkeys(("private/a", "public/b"), (b"needle", 1, FIRST))
    assert _paths(backend.ls("/")) == ["/private/", "/public/"]
    found = assert_ok(backend.grep("needle"))
    assert ([match.path for match in found.matches], found.skipped) == (["/public/b"], 1)
    assert_failed(backend.ls("/private"), ErrorCode.PERMISSION_DENIED)
    assert_failed(backend.delete("/private"), ErrorCode.PERMISSION_DENIED)
    assert_failed(backend.move("/private", "/other"), ErrorCode.PERMISSION_DENIED)
    assert sorted(filesystem.keys) == ["private/a", "public/b"]


# --- one file that cannot be read ------------------------------------------------------------------------------------


class Damaged(AsyncMemory):
    """Raises `error` where `/b` is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def _cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("/b"):
            raise self.error
        return await super()._cat_file(path, *arguments, **options)


def with_three_files(filesystem: Any) -> FsspecBackend:
    backend = FsspecBackend(filesystem, "dir", retries=HASTY)
    assert [each.error for each in backend.upload_files([(f"/{name}", b"needle") for name in "abc"])] == [None] * 3
    return backend


@pytest.mark.parametrize(("error", "code"), [(PermissionError(), "permission_denied"), (OSError(), "backend_error")])
def test_a_file_that_cannot_be_read_spoils_no_other(error: Exception, code: str) -> None:
    backend = with_three_files(Damaged(error))
    found = assert_ok(backend.grep("needle"))
    assert ([match.path for match in found.matches], found.skipped) == (["/a", "/c"], 1)
    assert [each.error for each in backend.download_files(["/a", "/b", "/c"])] == [None, code, None]
    assert backend.read("/b").code == code


def test_a_filesystem_that_fails_is_no_unreadable_file() -> None:
    backend = with_three_files(Damaged(ConnectionError()))
    assert_failed(backend.grep("needle"), ErrorCode.BACKEND_ERROR)
    assert {each.error for each in backend.download_files(["/a", "/b"])} == {"backend_error"}


# --- two clients -----------------------------------------------------------------------------------------------------


class Caching(AsyncMemory):
    """A filesystem that remembers its listings, as most do unless told otherwise."""

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = await super()._ls(path, True, **options)
        return self.dircache[path]

    async def _info(self, path: str, **options: Any) -> Any:
        for entry in self.dircache.get(path.rpartition("/")[0], ()) if self.dircache else ():
            if entry["name"] == path:
                return entry
        return await super()._info(path, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_what_one_client_writes_the_other_reads() -> None:
    first = Caching(use_listings_cache=True)
    one, other = FsspecBackend(first), FsspecBackend(Caching(first.keys, use_listings_cache=True))
    for number in range(3):
        assert _paths(one.ls("/")) == _paths(other.ls("/")) == [f"/{n}.txt" for n in range(number)]
        assert one.write(f"/{number}.txt", f"{number}\n").ok
        assert assert_ok(other.read(f"/{number}.txt")).file_data.content == f"{number}\n"
        assert other.write(f"/{number}.txt", "longer than before\n", overwrite=True).ok
        assert assert_ok(one.read(f"/{number}.txt")).file_data.content == "longer than before\n"
        assert [match.line for match in assert_ok(one.grep("longer")).matches] == [1] * (number + 1)
        assert_failed(one.write(f"/{number}.txt", "x"), ErrorCode.ALREADY_EXISTS)


class Racing(AsyncMemory):
    """Another client changes a file between what an operation reads and what it writes."""

    races = 1

    async def _cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        content = await super()._cat_file(path, *arguments, **options)
        if self.races > 0:
            self.races -= 1
            self.keys[path] = (content + b"theirs\n", 10_000 + self.races, FIRST)
        return content


@pytest.mark.parametrize("tagged", [True, False])
def test_a_change_of_another_client_is_not_overwritten(tagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tagged:  # The filesystem says neither version nor time: contents are compared.
        monkeypatch.setattr(AsyncMemory, "_described", _bare)
    filesystem = Racing({"a.txt": (b"one\n", 1, FIRST)})
    filesystem.races = 0
    backend = FsspecBackend(filesystem)
    version = assert_ok(backend.read("/a.txt")).version
    filesystem.races = 1
    assert backend.edit("/a.txt", "one", "two").ok
    assert filesystem.keys["a.txt"][0] == b"two\ntheirs\n"
    assert_failed(backend.write("/a.txt", "x", if_match=version), ErrorCode.CONFLICT)


def _bare(filesystem: AsyncMemory, key: str) -> dict[str, Any]:
    return {"name": key, "type": "file", "size": len(filesystem.keys[key][0])}


# --- answers that are lost -------------------------------------------------------------------------------------------


class Losing(AsyncMemory):
    """Some changes take effect, and their answers are lost; others fail before."""

    lost: tuple[str, bool] | None = None

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        await self._failing("pipe_file", partial(super()._pipe_file, path, value, mode, **options))

    async def _rm_file(self, path: str, **options: Any) -> None:
        await self._failing("rm_file", partial(super()._rm_file, path, **options))

    async def _failing(self, method: str, call: Callable[[], Awaitable[None]]) -> None:
        lost = self.lost
        if lost is None or lost[0] != method:
            return await call()
        self.lost = None
        if lost[1]:
            await call()
        raise ConnectionResetError("the answer is lost")


OPERATIONS: Final[dict[str, Callable[[FsspecBackend], Any]]] = {
    "create": lambda backend: backend.write("/new.txt", "new\n"),
    "overwrite": lambda backend: backend.write("/a.txt", "new\n", overwrite=True),
    "edit": lambda backend: backend.edit("/a.txt", "one", "one one"),
    "delete": lambda backend: backend.delete("/a.txt"),
    "move": lambda backend: backend.move("/a.txt", "/b.txt"),
    "copy": lambda backend: backend.copy("/a.txt", "/b.txt"),
}


def test_a_lost_answer_is_looked_up() -> None:
    for operation, method, stored in product(OPERATIONS, ["pipe_file", "rm_file"], [True, False]):
        _check_lost(operation, method, stored)


def _check_lost(operation: str, method: str, stored: bool) -> None:
    before = {"a.txt": (b"one\n", 1, FIRST), "z.txt": (b"other\n", 2, FIRST)}
    whole = Losing(dict(before))
    assert OPERATIONS[operation](FsspecBackend(whole)).ok
    filesystem = Losing(dict(before))
    filesystem.lost = (method, stored)
    result = OPERATIONS[operation](FsspecBackend(filesystem, retries=HASTY))
    contents = {name: content for name, (content, *_) in filesystem.keys.items()}
    wanted = whole if result.ok else Losing(dict(before))
    assert contents == {name: content for name, (content, *_) in wanted.keys.items()}
    if filesystem.lost is None:  # The failure has happened.
        assert result.ok is stored


def test_reads_are_tried_again() -> None:
    filesystem = Flaky({"a.txt": (b"one\n", 1, FIRST)})
    backend = FsspecBackend(filesystem, retries=HASTY)
    filesystem.failures = 2
    assert backend.read("/a.txt").ok
    filesystem.failures = 3
    assert_failed(backend.read("/a.txt"), ErrorCode.BACKEND_ERROR)


class Flaky(AsyncMemory):
    failures = 0

    async def _info(self, path: str, **options: Any) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionResetError
        return await super()._info(path, **options)


def test_a_batch_that_fails_leaves_nothing_behind() -> None:
    filesystem = Refusing({})
    responses = FsspecBackend(filesystem).upload_files([(f"/{n}.txt", b"x") for n in range(50)] + [("/bad", b"x")])
    assert {response.error for response in responses} == {"permission_denied"}
    assert filesystem.keys == {}


@pytest.mark.parametrize("name", ["NoSuchBucket.md", "docs/ContainerNotFound.md", "it's NoSuchBucket", "a Timeout.md"])
def test_a_name_is_no_condition(name: str) -> None:
    backend = FsspecBackend(MemoryFileSystem())
    path = f"/{uuid4()}/{name}"
    assert (backend.read(path)).code == "file_not_found"
    assert (backend.write(path, "x")).ok
    assert (backend.read(path)).unwrap().content == "x"
    assert (backend.ls(f"{path}/NoSuchBucket")).code in ("file_not_found", "not_a_directory")


def test_a_file_that_is_refused_is_refused_whatever_its_name() -> None:
    backend = FsspecBackend(Unreadable({}))
    backend.upload_files([("/it's SSL.md", b"x"), ("/ok.md", b"x")])
    assert backend.read("/it's SSL.md").code == "permission_denied"
    found = backend.grep("x")
    assert ([match.path for match in found.unwrap()], found.skipped) == (["/ok.md"], 1)


class Unreadable(AsyncMemory):
    async def _cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        if "SSL" in path:
            raise PermissionError(13, "Permission denied", path)
        content: bytes = await super()._cat_file(path, *args, **options)
        return content


class Refusing(AsyncMemory):
    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if path == "bad":
            raise PermissionError
        await super()._pipe_file(path, value, mode, **options)


# --- filesystems where a file can be read while it is written --------------------------------------------------------


class Streaming(MemoryFileSystem):
    """A sync filesystem that stores a file piece by piece, and renames whole files; as FTP and SFTP do."""

    protocol = "sftp"
    cachable = False
    seen: list[bytes]
    fails = False

    def __init__(self) -> None:
        super().__init__(global_store=False, skip_instance_cache=True)
        self.seen = []

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        for end in range(len(value) + 1):
            super().pipe_file(path, value[:end])
            self.seen.append(super().cat_file("/a.txt") if self.isfile("/a.txt") else b"")
            if self.fails and end == 2:
                raise OSError(errno.EIO, "cut")

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self.store[path2] = self.store.pop(path1)


def test_no_reader_sees_half_a_file() -> None:
    filesystem = Streaming()
    backend = FsspecBackend(filesystem)
    assert backend.write("/a.txt", "first\n").ok
    assert backend.edit("/a.txt", "first", "second").ok
    assert set(filesystem.seen) == {b"", b"first\n"}
    filesystem.fails = True
    assert_failed(backend.write("/a.txt", "third\n", overwrite=True), ErrorCode.BACKEND_ERROR)
    assert_failed(backend.write("/b.txt", "third\n"), ErrorCode.BACKEND_ERROR)
    assert sorted(filesystem.store) == ["/a.txt"]
    assert backend.read("/a.txt").file_data.content == "second\n"  # type: ignore[union-attr]


def test_a_blocking_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FsspecBackend(Streaming(), retries=HASTY)
    assert backend.write("/a.txt", "first\n").ok
    failures = [ConnectionResetError(), ConnectionResetError()]
    read = Streaming.cat_file

    def flaky(filesystem: Streaming, path: str, **options: Any) -> bytes:
        if failures:
            raise failures.pop()
        return read(filesystem, path, **options)

    monkeypatch.setattr(Streaming, "cat_file", flaky)
    assert backend.read("/a.txt").ok
    assert not failures


def test_temporary_files_of_others_are_hidden() -> None:
    filesystem = Streaming()
    filesystem.store.clear()
    MemoryFileSystem.pipe_file(filesystem, "/.deepfs-tmp-0123", b"needle")
    MemoryFileSystem.pipe_file(filesystem, "/a.txt", b"needle")
    backend = FsspecBackend(filesystem)
    assert _paths(backend.ls("/")) == ["/a.txt"]
    assert [match.path for match in assert_ok(backend.grep("needle")).matches] == ["/a.txt"]


# --- loops, threads and processes ------------------------------------------------------------------------------------


class Slow(AsyncMemory):
    """Every call waits until the test lets it go on."""

    gate: asyncio.Event
    waiting = 0
    cancelled = 0

    async def _call(self, name: str) -> None:
        await super()._call(name)
        if name in ("cat_file", "pipe_file"):
            self.waiting += 1
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise


@pytest.mark.anyio
async def test_a_cancelled_read_stops_and_a_cancelled_write_is_whole() -> None:
    filesystem = Slow({"a.txt": (b"one\n", 1, FIRST)})
    backend = FsspecBackend(filesystem)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.aread, "/a.txt")
        await until(lambda: filesystem.waiting == 1)
        tasks.cancel_scope.cancel()
    await until(lambda: filesystem.cancelled == 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.awrite, "/b.txt", "whole\n")
        await until(lambda: filesystem.waiting == 2)
        tasks.cancel_scope.cancel()
    assert filesystem.keys["b.txt"][0] == b"whole\n"
    # Its lock is free.
    assert (await backend.aedit("/b.txt", "whole", "changed")).ok


class TestAsynchronousObjects:
    """A filesystem made with `asynchronous=True` belongs to the first loop that uses it."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.anyio
    async def test_it_is_used_on_this_loop_from_everywhere(self) -> None:
        filesystem = Homely(asynchronous=True)
        backend = FsspecBackend(filesystem)
        assert (await backend.awrite("/a.txt", "one\n")).ok
        with pytest.raises(RuntimeError, match="await"):
            backend.read("/a.txt")
        read = await anyio.to_thread.run_sync(backend.read, "/a.txt")
        assert read.ok
        assert filesystem.loops == {asyncio.get_running_loop()}


class Homely(AsyncMemory):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loops: set[Any] = set()

    async def _call(self, name: str) -> None:
        self.loops.add(asyncio.get_running_loop())
        await super()._call(name)


def test_an_asynchronous_object_needs_asyncio() -> None:
    backend = FsspecBackend(AsyncMemory(asynchronous=True))
    result = anyio.run(backend.aread, "/a", backend="trio")
    assert_failed(result, ErrorCode.BACKEND_ERROR)


FORKS: Final = """
import os, sys
import fsspec
from support.fsspec_memory import AsyncMemory
from deepfs import FsspecBackend

fsspec.register_implementation("asyncmemory", AsyncMemory)
backends = [FsspecBackend("memory://x"), FsspecBackend("asyncmemory://x")]
given = FsspecBackend(AsyncMemory())
assert all(backend.write("/a", "one").ok for backend in [*backends, given])
child = os.fork()
ok = [backend.write("/b", "two").ok and backend.read("/b").ok for backend in backends]
code = given.read("/a").code
if child:
    os.waitpid(child, 0)  # So that what both print is not mixed.
print("child" if child == 0 else "parent", ok, code, flush=True)
"""


def test_a_forked_child_has_filesystems_of_its_own() -> None:
    with started(FORKS) as process:
        lines = process.communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == ["child [True, True] backend_error", "parent [True, True] None"]
