"""Arguments of the wrong type raise a TypeError that names the argument, on every backend, and nothing is stored."""

import math
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread
import pytest

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    FsspecBackend,
    MemoryBackend,
    ObjectStoreBackend,
    PermissionedBackend,
    PostgresBackend,
    S3Backend,
    StoreBackend,
)
from deepfs.backends import LandlockSandbox, LocalShellBackend
from deepfs.compat.adapters import adapt_backend_protocol
from deepfs.policy import AuditedBackend, HistoryBackend, HookedBackend, ReadOnlyBackend
from deepfs.policy.limits import RateLimit

pytestmark = pytest.mark.anyio


class Foreign:
    """A backend of another library: it has the methods but not the base class, and forwards to a deepfs backend."""

    def __init__(self, inner: MemoryBackend) -> None:
        for name in ("ls", "read", "write", "edit", "glob", "grep", "delete", "upload_files", "download_files"):
            setattr(self, name, getattr(inner, name))


RULE = FilesystemPermission(["write"], ["/no/**"], "deny")
BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda _: MemoryBackend(),
    "disk": FilesystemBackend,
    "composite": lambda root: CompositeBackend(MemoryBackend(), {"/disk/": FilesystemBackend(root)}),
    "permissioned": lambda _: PermissionedBackend(MemoryBackend(), [RULE]),
    "history": lambda _: HistoryBackend(MemoryBackend()),
    "adapted": lambda _: adapt_backend_protocol(Foreign(MemoryBackend())),
}

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(
        (name, (PurePosixPath("/a"), *more), {}, "path must be a string, not PurePosixPath")
        for name, *more in (("als",), ("aread",), ("aread_raw",), ("awrite", "x"), ("aedit", "one", "x"), ("adelete",))
    ),
    ("acopy", (PurePosixPath("/a"), "/b"), {}, "src must be a string, not PurePosixPath"),
    ("acopy", ("/a", PurePosixPath("/b")), {}, "dst must be a string, not PurePosixPath"),
    ("aread", (b"/a",), {}, "path must be a string, not bytes"),
    ("amove", ("/a", PurePosixPath("/b")), {}, "dst must be a string, not PurePosixPath"),
    ("aread", ("/a", "1"), {}, "offset must be an integer, not '1'"),
    ("aread", ("/a", 0, None), {}, "limit must be an integer, not None"),
    ("aread", ("/a", 0, float("nan")), {}, "limit must be an integer, not nan"),
    ("awrite", ("/new", b"bytes"), {}, "the content must be a string, not bytes"),
    ("aedit", ("/a", b"one", "x"), {}, "the text to replace must be a string, not bytes"),
    ("aedit", ("/a", "one", None), {}, "the new text must be a string, not NoneType"),
    ("aglob", (None,), {}, "pattern must be a string, not NoneType"),
    ("agrep", (None,), {}, "pattern must be a string, not NoneType"),
    ("agrep", ("one",), {"context_lines": "1"}, "context_lines must be an integer, not '1'"),
    ("agrep", ("one",), {"max_count": "1"}, "max_count must be an integer, not '1'"),
    ("agrep", ("one",), {"max_count": float("nan")}, "max_count must be an integer, not nan"),
    ("aupload_files", ([("/new", b"x"), ("/b", "text")],), {}, "the content of '/b' must be bytes, not str"),
    ("aupload_files", (["ab"],), {}, "files must be a list of pairs of a path and bytes, and 'ab' is none"),
    ("aupload_files", ({"/new": b"x"},), {}, "files must be a list of pairs"),
    ("aupload_files", ([("/new", b"x"), (None, b"x")],), {}, "path must be a string, not NoneType"),
    ("adownload_files", ("/a",), {}, "paths must be a list of paths, not the str '/a'"),
    ("adownload_files", (["/a", None],), {}, "path must be a string, not NoneType"),
    ("aupload_files", (3,), {}, "files must be a list of pairs of a path and bytes, not 3"),
    *(
        (name, arguments, {option: given}, message)
        for name, arguments in (("awrite", ("/a", "x")), ("aedit", ("/a", "one", "x")))
        for option, given, message in (
            ("if_match", 3, "if_match must be a string, not int"),
            ("if_match", b"v", "if_match must be a string, not bytes"),
        )
    ),
    *(
        (name, arguments, {"overwrite": given}, f"overwrite must be True or False, not {given!r}")
        for name, arguments in (("awrite", ("/a", "x")), ("amove", ("/a", "/b")), ("acopy", ("/a", "/b")))
        for given in ("no", 0, None)
    ),
    ("aedit", ("/a", "one", "x"), {"replace_all": 1}, "replace_all must be True or False, not 1"),
    ("agrep", ("one",), {"regex": "no"}, "regex must be True or False, not 'no'"),
    ("agrep", ("one", 3), {}, "path must be a string, not int"),
    ("agrep", ("one", None, 3), {}, "glob must be a string, not int"),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    return BACKENDS[request.param](tmp_path / "files")


async def test_an_argument_of_the_wrong_type_raises_a_type_error_that_names_it(backend: BackendProtocol) -> None:
    await backend.awrite("/a", "one\n")
    told = []
    for operation, arguments, options, message in CALLS:
        try:
            told.append((operation, message, str(await getattr(backend, operation)(*arguments, **options))))
        except TypeError as error:
            if message not in str(error):
                told.append((operation, message, str(error)))
    assert told == []
    assert [info.path for info in (await backend.als("/")).entries or () if not info.is_dir] == ["/a"]
    assert (await backend.adownload_files(["/a"]))[0].content == b"one\n"


async def test_a_glob_without_a_path_searches_everything_as_with_deepagents(backend: BackendProtocol) -> None:
    await backend.awrite("/d/a.py", "")
    no_path: Any = None
    assert [info.path for info in (await backend.aglob("*.py", no_path)).matches or ()] == ["/d/a.py"]


async def test_sync_methods_and_keyword_arguments_are_checked_too(backend: BackendProtocol) -> None:
    anything: Any = backend
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: anything.write("/a", "x", if_match=3), "if_match must be a string"),
        (lambda: anything.write(path="/a", content="x", overwrite="no"), "overwrite must be True or False"),
        (lambda: anything.write(file_path="/a", content=3), "the content must be a string"),
        (lambda: anything.edit("/a", old_string=3, new_string="x"), "the text to replace must be a string"),
        (lambda: anything.upload_files(files=[("/a", "x")]), "the content of '/a' must be bytes"),
        (lambda: anything.download_files(paths="/a"), "paths must be a list of paths"),
    ]
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            await anyio.to_thread.run_sync(call)
    assert (await backend.aglob("**")).matches == []


async def test_uploads_accept_every_bytes_like_content(backend: BackendProtocol) -> None:
    changed = bytearray(b"one")
    for content in (changed, memoryview(b"oone")[1:], memoryview(b"eno")[::-1]):
        assert [each.error for each in await backend.aupload_files([("/new", content)])] == [None]  # type: ignore[list-item]
        changed[:] = b"two"
        assert [each.content for each in await backend.adownload_files(["/new"])] == [b"one"]


async def test_the_types_of_a_streamed_upload_are_checked(backend: BackendProtocol) -> None:
    async def texts() -> Any:
        yield "text"

    wrong: Any
    for wrong, message in (
        ([b"x"], "chunks must be an async iterable"),
        (texts(), "each chunk must be bytes, not str"),
    ):
        with pytest.raises(TypeError, match=message):
            await backend.aupload_stream("/new", wrong)
    with pytest.raises(TypeError, match="path must be a string"):
        await backend.aupload_stream(PurePosixPath("/new"), texts())  # type: ignore[arg-type]
    assert (await backend.aglob("**")).matches == []


async def test_the_arguments_of_execute_are_checked(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path)
    wrong: list[tuple[Any, str]] = [("5", "timeout must be a number"), (math.nan, "not be negative, not nan")]
    for backend in (shell, CompositeBackend(shell), PermissionedBackend(shell, [RULE]), ReadOnlyBackend(shell)):
        for timeout, message in wrong:
            with pytest.raises((TypeError, ValueError), match=message):
                await backend.aexecute("touch made", timeout=timeout)
        with pytest.raises(TypeError, match="command must be a string"):
            await backend.aexecute(3)  # type: ignore[arg-type]
    assert (await shell.als("/")).entries == []


ANY: Any = None
CONSTRUCTORS: list[tuple[Callable[[], object], str]] = [
    (lambda: LocalShellBackend(env={"A": ANY or 1}), "the value of 'A' in env must be a string, not int"),
    (lambda: LocalShellBackend(env={ANY or 1: "a"}), "a name in env must be a string, not int"),
    (lambda: LocalShellBackend(env=ANY or ["A=1"]), "env must be a mapping of strings"),
    (lambda: LocalShellBackend(env={"A=B": "1"}), "env cannot hold 'A=B'"),
    (lambda: LocalShellBackend(env={"A": "1\0"}), "env cannot hold 'A'"),
    (lambda: LocalShellBackend(timeout=True), "timeout must be a number, not True"),
    (lambda: LocalShellBackend(timeout=math.nan), "timeout must be positive, not nan"),
    (lambda: LandlockSandbox(network=ANY or ["a.org"]), "network must be True or False, not ['a.org']"),
    (lambda: FilesystemBackend(ANY or b"/tmp"), "root_dir must be a path, not b'/tmp'"),
    (lambda: MemoryBackend(max_file_size_mb=ANY or "1"), "max_file_size_mb must be a number, not '1'"),
    (lambda: AuditedBackend(MemoryBackend(), ANY or 3), "log must be a function, not 3"),
    (lambda: HookedBackend(MemoryBackend(), before=ANY or print), "before must be a list of functions, not "),
    (lambda: HookedBackend(MemoryBackend(), before=[ANY or 3]), "each of before must be a function, not 3"),
    (lambda: HistoryBackend(MemoryBackend(), keep=ANY or "x"), "keep must be an integer, not 'x'"),
    (lambda: RateLimit(ANY or "3", 1), "limit must be a number, not '3'"),
    (lambda: RateLimit(3, math.nan), "at least one operation in more than no time"),
    (lambda: RateLimit(3, 1, ANY or 3), "operations is a collection of names, not 3"),
    (lambda: PermissionedBackend(MemoryBackend(), ANY or 3), "rules is a list of FilesystemPermission, not 3"),
    (lambda: ReadOnlyBackend(ANY or 3), "int is no backend"),
    (lambda: StoreBackend(ANY or 5, namespace=("fs",)), "store must be a BaseStore"),
    (lambda: CompositeBackend(MemoryBackend(), ANY or {Path("/a"): MemoryBackend()}), "a route must be a string"),
    (lambda: CompositeBackend(MemoryBackend(), ANY or [("/a/", MemoryBackend())]), "routes must be a mapping"),
    (lambda: S3Backend(ANY), "bucket must be a string"),
    (lambda: S3Backend("bucket", ANY or 5), "prefix must be a"),
    (lambda: S3Backend("bucket", endpoint_url=ANY or 0), "endpoint_url must be a string"),
    (lambda: ObjectStoreBackend("memory://", index=ANY or 0), "index must be a"),
    (lambda: ObjectStoreBackend("memory://", retries=ANY or 0), "retries must be a RetryPolicy"),
    (lambda: PostgresBackend("postgresql:///x", "n", retries=ANY or 0), "retries must be a RetryPolicy"),
    (lambda: FsspecBackend("memory://", retries=ANY or 0), "retries must be a RetryPolicy"),
    (lambda: CompositeBackend(MemoryBackend(), artifacts_root=ANY or 3), "artifacts_root must be a string, not int"),
    (lambda: CompositeBackend(MemoryBackend(), executor=ANY or ["/m/"]), "executor must be a string, not list"),
    (lambda: CompositeBackend(MemoryBackend(), route_timeout=True), "route_timeout must be a number, not True"),
    (lambda: AuditedBackend(MemoryBackend(), print, ANY or 3), "redact must be a function, not 3"),
    (lambda: HookedBackend(MemoryBackend(), after=[ANY or "x"]), "each of after must be a function, not 'x'"),
    (lambda: HistoryBackend(MemoryBackend(), directory=ANY or 3), "directory must be a string, not int"),
    (lambda: RateLimit(3, ANY or "1"), "seconds must be a number, not '1'"),
    (lambda: RateLimit(3, 1, clock=ANY or 3), "clock must be a function, not 3"),
    (lambda: AuditedBackend(ANY, print), "NoneType is no backend"),
    (lambda: MemoryBackend(max_file_size_mb=-1), "max_file_size_mb must not be negative, not -1"),
    (lambda: CompositeBackend(MemoryBackend(), route_timeout=math.nan), "route_timeout must be positive, not nan"),
]


def test_a_wrong_constructor_argument_raises_an_error_that_names_it() -> None:
    told = []
    for make, message in CONSTRUCTORS:
        try:
            told.append((message, repr(make())))
        except (TypeError, ValueError) as error:
            if message not in str(error):
                told.append((message, str(error)))
    assert told == []
