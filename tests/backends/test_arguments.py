"""Arguments of the wrong type: a TypeError that names the argument, on every backend, and nothing is stored."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    StoreBackend,
)
from deepfs.policy import GuardedBackend

pytestmark = pytest.mark.anyio

RULE = FilesystemPermission(["write"], ["/no/**"], "deny")
BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda _: MemoryBackend(),
    "store": lambda _: StoreBackend(InMemoryStore(), namespace=("fs",)),
    "disk": FilesystemBackend,
    "composite": lambda root: CompositeBackend(MemoryBackend(), {"/disk/": FilesystemBackend(root)}),
    "guarded": lambda _: GuardedBackend(MemoryBackend()),
    "permissioned": lambda _: PermissionedBackend(MemoryBackend(), [RULE]),
}

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(
        (name, (PurePosixPath("/a"), *more), {}, "path must be a string, not PurePosixPath")
        for name, *more in (
            ("als",),
            ("aread",),
            ("aread_raw",),
            ("awrite", "x"),
            ("aedit", "one", "x"),
            ("adelete",),
            ("amove", "/b"),
            ("acopy", "/b"),
        )
    ),
    ("als", (None,), {}, "path must be a string, not NoneType"),
    ("aread", (b"/a",), {}, "path must be a string, not bytes"),
    ("amove", ("/a", PurePosixPath("/b")), {}, "path must be a string"),
    ("aread", ("/a", "1"), {}, "offset must be an integer, not '1'"),
    ("aread", ("/a", 0, None), {}, "limit must be an integer, not None"),
    ("aread", ("/a", 0, float("nan")), {}, "limit must be an integer, not nan"),
    ("awrite", ("/new", b"bytes"), {}, "the content must be a string, not bytes"),
    ("awrite", ("/new", None), {}, "the content must be a string, not NoneType"),
    ("aedit", ("/a", b"one", "x"), {}, "the text to replace must be a string, not bytes"),
    ("aedit", ("/a", None, "x"), {}, "the text to replace must be a string, not NoneType"),
    ("aedit", ("/a", "one", None), {}, "the new text must be a string, not NoneType"),
    ("aglob", (None,), {}, "pattern must be a string, not NoneType"),
    ("agrep", (None,), {}, "pattern must be a string, not NoneType"),
    ("agrep", ("one",), {"context_lines": "1"}, "context_lines must be an integer, not '1'"),
    ("agrep", ("one",), {"max_count": "1"}, "max_count must be an integer, not '1'"),
    ("agrep", ("one",), {"max_count": float("nan")}, "max_count must be an integer, not nan"),
    ("aupload_files", ([("/new", b"x"), ("/b", "text")],), {}, "the content of '/b' must be bytes, not str"),
    ("aupload_files", ([("/new", b"x"), ("/b", None)],), {}, "the content of '/b' must be bytes, not NoneType"),
    ("aupload_files", (["ab"],), {}, "files must be a list of pairs of a path and bytes, and 'ab' is none"),
    ("aupload_files", ({"/new": b"x"},), {}, "files must be a list of pairs"),
    ("aupload_files", ([("/new", b"x"), (None, b"x")],), {}, "path must be a string, not NoneType"),
    ("adownload_files", ("/a",), {}, "paths must be a list of paths, not the str '/a'"),
    ("adownload_files", (["/a", None],), {}, "path must be a string, not NoneType"),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    return BACKENDS[request.param](tmp_path / "files")


@pytest.mark.parametrize(("operation", "arguments", "options", "told"), CALLS)
async def test_a_wrong_type_is_told_by_the_name_of_the_argument(
    backend: BackendProtocol, operation: str, arguments: tuple[Any, ...], options: dict[str, Any], told: str
) -> None:
    await backend.awrite("/a", "one\n")
    with pytest.raises(TypeError) as caught:
        await getattr(backend, operation)(*arguments, **options)
    assert told in str(caught.value)
    assert [info.path for info in (await backend.als("/")).entries or () if not info.is_dir] == ["/a"]
    assert (await backend.adownload_files(["/a"]))[0].content == b"one\n"


async def test_a_glob_without_a_path_searches_everything_as_with_deepagents(backend: BackendProtocol) -> None:
    await backend.awrite("/d/a.py", "")
    no_path: Any = None
    assert [info.path for info in (await backend.aglob("*.py", no_path)).matches or ()] == ["/d/a.py"]
