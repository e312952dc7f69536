"""One storage mounted at two paths of a tree: no transfer loses a file, and results are those of a single mount."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import adapt_backend_protocol, run_sync
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.store import StoreBackend
from deepfs.errors import BackendError
from deepfs.policy import (
    AuditedBackend,
    FilesystemPermission,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    ReadOnlyBackend,
)
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from deepfs.testing import FaultyBackend
from deepfs.types import DeleteResult, WriteResult
from support.disks import tree as tree_on_disk
from support.rooted import RootedBackend
from support.sandboxes import LocalSandbox
from support.stores import open_sqlite_store

pytestmark = pytest.mark.anyio

FILES = {"/f": "content of f", "/d/g": "content of g", "/d/deep/h": "content of h", "/other": "content of other"}
ONE, OTHER = "/one/sub", "/shared"
"""Two paths of the tree that hold the same files."""


class Foreign:
    """A backend of another library over a directory, which does not report where its files are."""

    def __init__(self, root: Path) -> None:
        self._inner = FilesystemBackend(root)

    def __getattr__(self, name: str) -> Any:
        if name.removeprefix("a") in ("move", "copy") or name.startswith(("a", "_")):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def ls(self, path: str) -> Any:
        return self._inner.ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return self._inner.read(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._inner.write(file_path, content)

    def delete(self, file_path: str) -> DeleteResult:
        return self._inner.delete(file_path)


def _stores() -> tuple[BackendProtocol, BackendProtocol]:
    store = InMemoryStore()
    return StoreBackend(store, namespace=("n",)), StoreBackend(store, namespace=lambda _: ("n",))


def _behind_a_composite() -> tuple[BackendProtocol, BackendProtocol]:
    memory = MemoryBackend()
    return memory, RootedBackend(CompositeBackend(MemoryBackend(), {"/in/": memory}), "/in")


PAIRS: dict[str, Callable[[Path], Any]] = {
    "disk": lambda root: (FilesystemBackend(root / "ws"), FilesystemBackend(root / "ws/sub")),
    "linked": lambda root: (FilesystemBackend(root / "ws"), FilesystemBackend(root / "link")),
    "box": lambda root: (FilesystemBackend(root / "ws"), BubblewrapSandbox(root / "ws/sub")),
    "sandboxes": lambda root: (LocalSandbox(root / "ws"), LocalSandbox(root / "ws/sub")),
    "foreign": lambda root: (FilesystemBackend(root / "ws"), Foreign(root / "ws/sub")),
    "memory": lambda _: [MemoryBackend()] * 2,
    "store": lambda _: _stores(),
    "composite": lambda _: _behind_a_composite(),
}
"""Two backends over one storage: `/sub` of the first is `/` of the second; over flat storage both have the same `/`."""
FLAT = ("memory", "store", "composite")


async def _discard(record: object) -> None:
    """An audit log that drops its records."""


WRAPPERS: dict[str, Callable[[Any], BackendProtocol]] = {
    "nothing": lambda backend: backend,
    "rules": lambda backend: PermissionedBackend(backend, [FilesystemPermission(["read"], ["/secret/**"], "deny")]),
    "hooks": lambda backend: HookedBackend(backend, before=[lambda _: None]),
    "history": lambda backend: HistoryBackend(backend, MemoryBackend()),
    "several": lambda backend: HookedBackend(PermissionedBackend(CompositeBackend(AuditedBackend(backend, _discard)))),
}


class Tree:
    """A composite with one storage at the paths `ONE` and `OTHER`."""

    def __init__(self, kind: str, root: Path, wrap: Callable[[Any], BackendProtocol]) -> None:
        self.root = root
        (root / "ws" / "sub").mkdir(parents=True)
        (root / "link").symlink_to(root / "ws" / "sub")
        one, other = PAIRS[kind](root)
        routes = {"/one/sub/" if kind in FLAT else "/one/": one, "/shared/": wrap(other)}
        self.backend = CompositeBackend(MemoryBackend(), routes)
        outcomes = run_sync(
            self.backend.aupload_files, [(f"{ONE}{path}", text.encode()) for path, text in FILES.items()]
        )
        assert [outcome.error for outcome in outcomes] == [None] * len(FILES)

    async def found(self, prefix: str = OTHER) -> dict[str, str]:
        """The contents of all files beneath `prefix`, hidden ones included, by path relative to it."""
        paths = [entry.path for entry in (await self.backend.alist_tree(prefix)).entries if entry.kind == "file"]
        return {
            each.path.removeprefix(prefix): each.unwrap().decode() for each in await self.backend.adownload_files(paths)
        }

    def raw(self) -> dict[str, Any]:
        """The files in the directory of the test, if the storage is on disk."""
        return tree_on_disk(self.root)


@pytest.fixture
def tree(tmp_path: Path, kind: str, wrapper: str) -> Tree:
    return Tree(kind, tmp_path, WRAPPERS[wrapper])


EVERY = pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        *((kind, "nothing") for kind in PAIRS),
        *(("foreign", wrapper) for wrapper in WRAPPERS if wrapper != "nothing"),
        ("disk", "several"),
    ],
)
NAMES = [(ONE, OTHER), (OTHER, ONE)]


# --- transfers onto themselves ---


@EVERY
async def test_no_transfer_onto_or_into_itself_changes_anything(tree: Tree) -> None:
    raw, backend = await anyio.to_thread.run_sync(tree.raw), tree.backend
    for src, dst in NAMES:
        for path in ("/f", "/d/g"):
            moved = await backend.amove(f"{src}{path}", f"{dst}{path}", overwrite=True)
            assert (moved.error, moved.path) == (None, f"{dst}{path}")
        assert (await backend.acopy(f"{src}/f", f"{dst}/f")).code == "already_exists"
        assert (await backend.acopy(f"{src}/f", f"{dst}/f", overwrite=True)).path == f"{dst}/f"
        assert (await backend.amove(f"{src}/d", f"{dst}/d")).code in (None, "already_exists")
        assert (await backend.acopy(f"{src}/d", f"{dst}/d")).code == "already_exists"
        for operation in (backend.amove, backend.acopy):
            for beneath in ("/d/new", "/d/deep/new", "/d/.new/er"):
                gone = await operation(f"{src}/d", f"{dst}{beneath}")
                assert (gone.code, f"{src}/d" in str(gone.error)) == ("invalid_path", True)
            assert (await operation(f"{src}/d/g", f"{dst}/d")).code == "already_exists"
            assert (await operation(f"{src}/d/deep", f"{dst}/d", overwrite=True)).code == "is_directory"
            assert (await operation(f"{src}/missing", f"{dst}/missing/x")).code == "file_not_found"
        assert await tree.found() == await tree.found(ONE) == FILES
    assert await anyio.to_thread.run_sync(tree.raw) == raw


# --- elsewhere in the same storage ---


@EVERY
async def test_moves_and_copies_to_other_paths_of_the_storage_succeed(tree: Tree) -> None:
    for src, dst in NAMES:
        assert (await tree.backend.amove(f"{src}/f", f"{dst}/d/f")).error is None
        assert (await tree.backend.amove(f"{src}/d", f"{dst}/new")).error is None
        moved = {"/new/f": FILES["/f"], "/new/g": FILES["/d/g"], "/new/deep/h": FILES["/d/deep/h"]}
        assert await tree.found() == await tree.found(ONE) == moved | {"/other": FILES["/other"]}
        assert (await tree.backend.acopy(f"{src}/new/f", f"{dst}/other", overwrite=True)).error is None
        assert await tree.found() == await tree.found(ONE) == moved | {"/other": FILES["/f"]}
        assert (await tree.backend.amove(f"{src}/new/f", f"{dst}/f")).error is None
        assert (await tree.backend.amove(f"{src}/new", f"{dst}/d")).error is None
        assert (await tree.backend.aupload_files([(f"{ONE}/other", FILES["/other"].encode())]))[0].error is None
        assert await tree.found() == await tree.found(ONE) == FILES


@pytest.mark.parametrize("wrapper", ["nothing"])
@pytest.mark.parametrize("kind", ["linked", "store", "sandboxes"])
async def test_concurrent_edits_by_both_names_all_take_effect(tree: Tree) -> None:
    lines = "".join(f"<{number}>\n" for number in range(50))
    assert (await tree.backend.awrite(f"{ONE}/log", lines)).ok
    results = []

    async def edit(number: int) -> None:
        name = (ONE, OTHER)[number % 2]
        results.append(await tree.backend.aedit(f"{name}/log", f"<{number}>", f"({number})"))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(edit, number)
    assert [result.error for result in results] == [None] * 50
    assert (await tree.found())["/log"] == "".join(f"({number})\n" for number in range(50))


# --- wrappers over storage without a known location ---


async def two_names(*, wrap: Callable[[Any], BackendProtocol], root: Path, one: Any = Foreign) -> CompositeBackend:
    """Mount one directory twice, the second time behind a wrapper, by backends that do not report its location."""
    tree = CompositeBackend(MemoryBackend(), {"/one/": one(root / "ws"), "/other/": wrap(Foreign(root / "ws"))})
    outcomes = await tree.aupload_files([(f"/one{path}", text.encode()) for path, text in FILES.items()])
    assert [outcome.error for outcome in outcomes] == [None] * len(FILES)
    return tree


def make(root: Path, *directories: str, links: Mapping[str, str] | None = None) -> None:
    """Make directories with a file `f` in each, symlinks, and hard links (the targets that start with `=`)."""
    for directory in directories:
        (root / directory).mkdir(parents=True)
        (root / directory / "f").write_bytes(b"content")
    for link, target in (links or {}).items():
        if target.startswith("="):
            (root / link).unlink()
            (root / link).hardlink_to(root / target[1:])
        else:
            (root / link).symlink_to(target)


async def raw(root: Path) -> dict[str, Any]:
    return await anyio.to_thread.run_sync(tree_on_disk, root)


async def test_a_file_is_not_moved_to_a_read_only_name_of_its_storage(tmp_path: Path) -> None:
    tree = await two_names(wrap=ReadOnlyBackend, root=tmp_path)
    before = await raw(tmp_path)
    for src, dst in (("/one", "/other"), ("/other", "/one")):
        assert (await tree.amove(f"{src}/f", f"{dst}/f", overwrite=True)).code == "permission_denied"
    assert (await tree.amove("/one/f", "/other/other", overwrite=True)).code == "permission_denied"
    assert await raw(tmp_path) == before


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_without_a_probe_file_only_a_file_of_other_content_is_replaced(tmp_path: Path, kind: Any) -> None:
    """The rules allow the files but deny the probe file; two files with the same content might then be one file."""
    rules = [
        FilesystemPermission(["read", "write"], ["/f", "/other", "/same"], "allow"),
        FilesystemPermission([kind], ["/**"], "deny"),
    ]
    tree = await two_names(wrap=partial(PermissionedBackend, rules=rules), root=tmp_path)
    assert (await tree.awrite("/one/same", FILES["/f"])).ok
    before = await raw(tmp_path)
    for path in ("f", "same"):
        for src, dst in (("/one", "/other"), ("/other", "/one")):
            moved = await tree.amove(f"{src}/f", f"{dst}/{path}", overwrite=True)
            if moved.ok:  # The probe file could be used under the other name.
                await tree.awrite("/one/f", FILES["/f"])
                await tree.awrite("/one/same", FILES["/f"])
            assert await raw(tmp_path) == before, (src, dst)
    if kind == "write":
        assert (await tree.amove("/one/f", "/other/other", overwrite=True)).ok
        assert (await raw(tmp_path))["ws/other"] == FILES["/f"].encode()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", ["write", "delete"])
async def test_the_probe_file_is_deleted_if_the_storage_fails(tmp_path: Path, operation: str, late: bool) -> None:
    def fault(name: str, number: int) -> Exception | None:
        return BackendError("Error: lost") if name == operation and number == {"write": 1, "delete": 2}[name] else None

    tree = await two_names(wrap=lambda backend: FaultyBackend(backend, fault, late=late), root=tmp_path)
    before = await raw(tmp_path)
    await tree.amove("/one/f", "/other/f", overwrite=True)
    assert await raw(tmp_path) == before


async def test_the_probe_file_is_deleted_if_the_move_is_cancelled(tmp_path: Path) -> None:
    class Slow(Foreign):
        """Never answers when the probe file is read."""

        def download_files(self, paths: list[str]) -> Any:
            if any("probe" in path for path in paths):
                looked.append((tmp_path / "ws" / paths[0].lstrip("/")).exists())
                anyio.from_thread.run(anyio.sleep, 60)
            return self._inner.download_files(paths)

    looked: list[bool] = []
    tree = await two_names(wrap=lambda backend: backend, root=tmp_path, one=Slow)
    before = await raw(tmp_path)
    with anyio.move_on_after(1) as scope:
        await tree.amove("/one/f", "/other/f", overwrite=True)
    assert scope.cancelled_caught
    assert looked == [True]
    assert await raw(tmp_path) == before


async def test_a_foreign_backend_does_not_move_a_file_onto_itself_through_a_link(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(partial(make, tmp_path, "ws/d", links={"ws/link": "d"}))
    before, backend = await raw(tmp_path), adapt_backend_protocol(Foreign(tmp_path / "ws"))
    assert (await backend.amove("/d/f", "/link/f", overwrite=True)).path == "/link/f"
    assert (await backend.amove("/link/f", "/d/f", overwrite=True)).ok
    assert (await backend.amove("/d", "/link/new")).code == "invalid_path"
    assert (await backend.acopy("/d", "/link/new")).code == "invalid_path"
    assert await raw(tmp_path) == before


# --- links and hard links ---


async def test_transfers_between_links_to_one_file_change_nothing(tmp_path: Path) -> None:
    links = {"ws/sub/link": "f", "ws/up": "sub/link", "ws/dir": "sub"}
    await anyio.to_thread.run_sync(partial(make, tmp_path, "ws/sub", links=links))
    before = await raw(tmp_path)
    tree = CompositeBackend(FilesystemBackend(tmp_path / "ws"), {"/shared": FilesystemBackend(tmp_path / "ws" / "sub")})
    for src in ("/sub/f", "/sub/link", "/up", "/dir/f", "/dir/link"):
        for dst in ("/shared/f", "/shared/link"):
            for one, other in ((src, dst), (dst, src)):
                assert (await tree.amove(one, other, overwrite=True)).path == other
                assert (await tree.acopy(one, other, overwrite=True)).path == other
                assert await raw(tmp_path) == before, (one, other)


async def test_a_directory_is_not_copied_into_a_backend_mounted_in_it(tmp_path: Path) -> None:
    memory = MemoryBackend()
    tree = CompositeBackend(MemoryBackend(), {"/d/mount": memory, "/other": memory})
    await tree.awrite("/d/f", "f")
    await tree.awrite("/other/g", "g")
    assert (await tree.acopy("/d", "/other/new")).code == "invalid_path"
    assert (await tree.acopy("/d", "/new")).ok
    assert sorted(memory._files) == ["/g"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_two_stores_over_one_database_count_as_one_storage(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "store.db") as one, open_sqlite_store(tmp_path / "store.db") as other:
        files = (StoreBackend(store, namespace=("n",)) for store in (one, other))
        tree = CompositeBackend(MemoryBackend(), dict(zip(("/one", "/other"), files, strict=True)))
        await tree.awrite("/one/d/f", "content")
        assert (await tree.amove("/one/d/f", "/other/d/f", overwrite=True)).path == "/other/d/f"
        assert (await tree.amove("/one/d", "/other/d/new")).code == "invalid_path"
        assert [item.key for item in await one.asearch(("n",))] == ["/d/f"]
