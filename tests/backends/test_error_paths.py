"""Errors of mounts name the paths of the tree, and do not change quoted file contents and patterns."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
)
from deepfs.errors import DeepFSError, ErrorCode, NotFoundError, error_about, error_of
from deepfs.operations import Operation
from deepfs.policy import AuditedBackend, HistoryBackend, HookedBackend, WrapperBackend
from deepfs.types import (
    DeleteResult,
    EditResult,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Result,
    WriteResult,
    error_behind,
    failure,
)

pytestmark = pytest.mark.anyio

DENIED = FilesystemPermission(["read", "write"], ["/denied/**"], "deny")

MOUNTED: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda _: MemoryBackend(),
    "disk": FilesystemBackend,
    "history": lambda _: HistoryBackend(MemoryBackend()),
    "permissioned": lambda _: PermissionedBackend(MemoryBackend(), [DENIED]),
    "composite": lambda _: CompositeBackend(MemoryBackend(), {"/deep/": MemoryBackend()}),
}

CONTENT = "see '/a' and '/d' in '/' or '/d/b' for 'more'\n" * 2
QUOTING = "see  '/a' and '/d' in '/' or '/d/b' for 'more'"

FAILURES: dict[str, Callable[[BackendProtocol, str], Awaitable[Result]]] = {
    "nearly": lambda b, m: b.aedit(f"{m}/a", QUOTING, "x"),
    "ambiguous": lambda b, m: b.aedit(f"{m}/a", "see '/a'", "x"),
    "missing": lambda b, m: b.aread(f"{m}/none"),
    "below a file": lambda b, m: b.awrite(f"{m}/a/b", "x"),
    "a directory": lambda b, m: b.aread(f"{m}/d"),
    "an existing file": lambda b, m: b.awrite(f"{m}/a", "x"),
    "an existing directory": lambda b, m: b.acopy(f"{m}/a", f"{m}/d"),
    "another version": lambda b, m: b.awrite(f"{m}/a", "x", if_match="none"),
    "into itself": lambda b, m: b.amove(f"{m}/d", f"{m}/d/b/c"),
    "no listing": lambda b, m: b.als(f"{m}/a"),
    "no place to search": lambda b, m: b.aglob("*", f"{m}/none"),
    "no file to search": lambda b, m: b.agrep("'/a'", f"{m}/none"),
    "raw": lambda b, m: b.aread_raw(f"{m}/none"),
    "delete": lambda b, m: b.adelete(f"{m}/none"),
    "denied": lambda b, m: b.aread(f"{m}/denied/x"),
    "denied root": lambda b, m: b.adelete("/") if not m else b.adelete(m),
}

NAMED = ["/a", "/none", "/d", "/d/b/c", "/denied/x", "/"]


async def filled(backend: BackendProtocol) -> BackendProtocol:
    assert (await backend.awrite("/a", CONTENT)).ok
    assert (await backend.awrite("/d/b", CONTENT)).ok
    return backend


@pytest.mark.parametrize("kind", MOUNTED)
async def test_the_error_of_a_mounted_backend_differs_only_in_its_path(kind: str, tmp_path: Path) -> None:
    backend = await filled(MOUNTED[kind](tmp_path / "files"))
    tree = CompositeBackend(MemoryBackend(), {"/m/": CompositeBackend(MemoryBackend(), {"/n/": backend})})
    for name, fail in FAILURES.items():
        alone, mounted = await fail(backend, ""), await fail(tree, "/m/n")
        error = error_behind(alone)
        assert (name, mounted.ok, mounted.code) == (name, False, alone.code)
        assert error is not None
        assert error.path in [*NAMED, "/d/b", "/a/b"], name
        assert mounted.error == str(error.with_paths(in_tree)), name
    quoted = str((await FAILURES["nearly"](tree, "/m/n")).error)
    assert quoted.startswith("Error: String not found in file '/m/n/a'. ")
    assert QUOTING in quoted, "what a file holds is quoted as it is"


# --- every error code, from every operation, through mounts and wrappers ---


class Failing(WrapperBackend):
    """Every operation fails with `code`, by a result or by raising; the text names three paths and a cause."""

    def __init__(self, code: ErrorCode, *, raises: bool) -> None:
        super().__init__(MemoryBackend())
        self.code = code
        self.raises = raises

    def error(self, path: str) -> DeepFSError:
        cause = NotFoundError(f"{path}/cause")
        return error_about(self.code, path, "as '{other}' and '{more}': {cause}", other="/o", more="/", cause=cause)

    async def run(self, operation: Operation) -> Any:
        error = self.error(operation.paths[0])
        if self.raises:
            raise error
        return failure(RESULTS[operation.name], error)

    async def adownload_stream(self, path: str, *, chunk_size: int = 1) -> AsyncIterator[bytes]:
        raise self.error(path)
        yield b""


RESULTS: dict[str, type[Result]] = {
    "ls": LsResult,
    "read": ReadResult,
    "read_raw": ReadRawResult,
    "write": WriteResult,
    "edit": EditResult,
    "delete": DeleteResult,
    "glob": GlobResult,
    "grep": GrepResult,
    "copy": WriteResult,
    "move": WriteResult,
}

CALLS: dict[str, Callable[[BackendProtocol, str], Awaitable[Result]]] = {
    "ls": lambda b, path: b.als(path),
    "read": lambda b, path: b.aread(path),
    "read_raw": lambda b, path: b.aread_raw(path),
    "write": lambda b, path: b.awrite(path, "x"),
    "edit": lambda b, path: b.aedit(path, "x", "y"),
    "delete": lambda b, path: b.adelete(path),
    "glob": lambda b, path: b.aglob("*", path),
    "grep": lambda b, path: b.agrep("x", path),
    "copy": lambda b, path: b.acopy(path, f"{path}2"),
    "move": lambda b, path: b.amove(path, f"{path}2"),
}

WRAPPED: list[Callable[[BackendProtocol], BackendProtocol]] = [
    HookedBackend,
    lambda backend: PermissionedBackend(backend, []),
    lambda backend: AuditedBackend(backend, lambda _: None),
]


def mounted_twice(backend: BackendProtocol) -> BackendProtocol:
    """Mount `backend` at /m/n: a mount in a mount, with wrappers in between."""
    wrap, between, outside = WRAPPED
    inner = between(CompositeBackend(MemoryBackend(), {"/n/": wrap(backend)}))
    return outside(CompositeBackend(MemoryBackend(), {"/m/": inner}))


def in_tree(path: str) -> str:
    return "/m/n" if path == "/" else f"/m/n{path}"


async def test_errors_of_every_code_name_the_paths_of_the_tree() -> None:
    for code, raises, operation in product(ErrorCode, [False, True], CALLS):
        backend = Failing(code, raises=raises)
        failed = await CALLS[operation](mounted_twice(backend), "/m/n/f")
        expected = str(backend.error("/f").with_paths(in_tree))
        assert (operation, raises, failed.code, failed.error) == (operation, raises, code, expected)
        assert "as '/m/n/o' and '/m/n': " in expected
        assert "'/m/n/f/cause'" in expected
        error = error_behind(failed)
        assert error is not None
        assert (error.code, error.path, error.other) == (code, "/m/n/f", "/m/n/o")
        with pytest.raises(DeepFSError) as caught:
            [chunk async for chunk in mounted_twice(backend).adownload_stream("/m/n/f")]
        assert (caught.value.code, str(caught.value)) == (code, expected)


class TextOnly(WrapperBackend):
    """Fails with only an error text and code, as a backend of another library does."""

    def __init__(self, text: str, code: Any = None) -> None:
        super().__init__(MemoryBackend())
        self.failure: Any = text, code

    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **_: Any) -> EditResult:
        return EditResult(self.failure[0], code=self.failure[1])

    async def adownload_stream(self, path: str, *, chunk_size: int = 1) -> AsyncIterator[bytes]:
        raise error_of("file_not_found", self.failure[0])
        yield b""


FOREIGN = [
    ("Error: File '/a' not found, see '/a'", "Error: File '/m/a' not found, see '/a'"),
    ("Error: '/a' is a directory", "Error: '/m/a' is a directory"),
    ("no such file '/a'", "no such file '/m/a'"),
    ("Error: String not found in file: '/a'", "Error: String not found in file: '/a'"),
    ("Error: String '/a' appears 3 times in string", "Error: String '/a' appears 3 times in string"),
    ("Error: nothing like it; line 3 is '/a'", "Error: nothing like it; line 3 is '/a'"),
    ("Error: it's said of '/a'", "Error: it's said of '/a'"),
    ("Error: File '/b' not found", "Error: File '/b' not found"),
]


async def test_in_a_foreign_error_text_only_the_path_of_the_call_is_rewritten() -> None:
    for text, shown in FOREIGN:
        tree = CompositeBackend(MemoryBackend(), {"/m/": TextOnly(text)})
        assert (await tree.aedit("/m/a", "x", "y")).error == shown
        with pytest.raises(NotFoundError) as caught:
            [chunk async for chunk in tree.adownload_stream("/m/a")]
        assert str(caught.value) == shown


def test_replacing_the_error_text_discards_the_error_object() -> None:
    failed = MemoryBackend().read("/none")
    failed.error = "Error: told otherwise"
    assert error_behind(failed) is None
