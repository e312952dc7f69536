"""Snapshots of a tree: what they keep, what a restore changes, and what goes with the last of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import anyio
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.policy import PermissionedBackend
from deepfs.testing.suite import assert_ok
from deepfs.text.entries import TreeListing, unreadable_omission
from deepfs.types import WriteResult
from deepfs.workspaces import Snapshots, fork

pytestmark = pytest.mark.anyio

FILES = {"/a.txt": b"one\n", "/d/b.txt": b"two\n", "/d/bin": b"\0\xff", "/same": b"two\n"}


@pytest.fixture(params=["memory", "disk", "sqlite"])
async def tree(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
    made: BackendProtocol
    match request.param:
        case "memory":
            made = MemoryBackend()
        case "disk":
            made = FilesystemBackend(tmp_path / "tree")
        case _:
            made = SqliteBackend(tmp_path / "tree.db")
    async with made:
        await made.aupload_files(list(FILES.items()))
        yield made


async def contents(tree: BackendProtocol) -> dict[str, bytes | None]:
    found = assert_ok(await tree.aglob("**")).matches or []
    paths = [info.path for info in found]
    return {each.path: each.content for each in await tree.adownload_files(paths)}


async def test_a_tree_becomes_what_it_was(tree: BackendProtocol, tmp_path: Path) -> None:
    snapshots = Snapshots(tree, FilesystemBackend(tmp_path / "kept"))
    taken = await snapshots.atake("first")
    assert (taken.name, taken.files, taken.bytes, taken.left_out) == ("first", 4, 14, 0)
    await tree.aedit("/a.txt", "one", "ONE")
    await tree.adelete("/d")
    await tree.awrite("/new", "new")
    result = await snapshots.arestore("first")
    assert (result.ok, result.changed) == (True, ["/a.txt", "/d/b.txt", "/d/bin", "/new"])
    assert await contents(tree) == FILES
    assert result.before is not None
    await snapshots.arestore(result.before, keep_present=False)
    assert await contents(tree) == {"/a.txt": b"ONE\n", "/same": b"two\n", "/new": b"new"}
    assert [each.name for each in await snapshots.alist()] == ["first", result.before]


async def test_each_content_is_stored_once() -> None:
    tree, storage = MemoryBackend(), MemoryBackend()
    await tree.aupload_files(list(FILES.items()))
    snapshots = Snapshots(tree, storage, directory="/kept")
    await snapshots.atake("1")
    await tree.awrite("/new", "new")
    await snapshots.atake("2")
    stored = [path for path in storage._files if path.startswith("/kept/contents/")]
    assert sorted(storage._files[path].content for path in stored) == ["AP8=", "new", "one\n", "two\n"]
    await snapshots.adelete("2")
    assert [path for path in storage._files if path.startswith("/kept/contents/")] == stored[:3]
    await snapshots.adelete("1")
    assert not storage._files


async def test_the_oldest_are_deleted_beyond_those_that_are_kept() -> None:
    tree = MemoryBackend(files={"/a": "1"})
    snapshots = Snapshots(tree, MemoryBackend(), keep=2)
    for name in ("x", "b", "c"):
        await snapshots.atake(name)
    assert [each.name for each in await snapshots.alist()] == ["b", "c"]


async def test_snapshots_within_the_tree_are_no_part_of_it() -> None:
    tree = MemoryBackend(files={"/a": "1"})
    snapshots = Snapshots(tree, tree)
    assert (await snapshots.atake("one")).files == (await snapshots.atake("two")).files == 1
    await tree.adelete("/a")
    assert (await snapshots.arestore("one")).changed == ["/a"]


async def test_snapshots_beneath_a_layer_are_no_part_of_its_tree() -> None:
    storage = MemoryBackend(files={"/a": "1"})
    snapshots = Snapshots(PermissionedBackend(storage, []), storage)
    await snapshots.atake("one")
    assert (await snapshots.atake("two")).files == 1
    await storage.adelete("/a")
    assert (await snapshots.arestore("one")).changed == ["/a"]
    assert [each.name for each in await snapshots.alist()][:2] == ["one", "two"]


async def test_a_part_is_restored() -> None:
    tree = MemoryBackend(files={"/a/x": "1", "/b/x": "1"})
    snapshots = Snapshots(tree, MemoryBackend())
    await snapshots.atake("one")
    await tree.awrite("/a/new", "")
    await tree.adelete("/b/x")
    assert (await snapshots.arestore("one", chosen=["/b"])).changed == ["/b/x"]
    assert sorted(tree._files) == ["/a/new", "/a/x", "/b/x"]


async def test_differences_are_shown_as_git_does() -> None:
    tree = MemoryBackend(files={"/a": "1\n", "/gone": "x\n"})
    snapshots = Snapshots(tree, MemoryBackend())
    await snapshots.atake("one")
    assert await snapshots.adiff("one") == ""
    await tree.awrite("/a", "2\n", overwrite=True)
    await tree.adelete("/gone")
    await tree.awrite("/new", "y\n")
    await snapshots.atake("two")
    expected = (
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n"
    )
    assert await snapshots.adiff("one") == expected
    assert await snapshots.adiff("one", "two") == expected


async def test_a_snapshot_of_a_workspace_is_of_what_it_shows() -> None:
    workspace = fork(MemoryBackend(files={"/a": "1", "/b": "2"}))
    await workspace.amove("/a", "/moved")
    snapshots = Snapshots(workspace, MemoryBackend())
    assert (await snapshots.atake("one")).files == 2
    await workspace.adiscard()
    assert (await snapshots.arestore("one")).changed == ["/a", "/moved"]
    assert [change.kind for change in await workspace.achanges()] == ["deleted", "created"]


async def test_names_and_contents_that_cannot_be_used() -> None:
    storage = MemoryBackend()
    snapshots = Snapshots(MemoryBackend(files={"/a": "1"}), storage)
    for name in ("", "a/b", "..", "x" * 300):
        with pytest.raises(InvalidPathError):
            await snapshots.atake(name)
    await snapshots.atake("one")
    with pytest.raises(AlreadyExistsError):
        await snapshots.atake("one")
    for call in (snapshots.arestore("two"), snapshots.adiff("two"), snapshots.adelete("two")):
        with pytest.raises(NotFoundError):
            await call
    await snapshots._tree.awrite("/a", "2", overwrite=True)
    [content] = [path for path in storage._files if "/contents/" in path]
    await storage.awrite(content, "forged", overwrite=True)
    with pytest.raises(BackendError, match="not what was stored"):
        await snapshots.arestore("one")


async def test_nothing_is_removed_while_another_process_makes_a_snapshot() -> None:
    storage = MemoryBackend()
    snapshots = Snapshots(MemoryBackend(files={"/a": "1"}), storage)
    await snapshots.atake("one")
    async with snapshots._announce():
        await snapshots.adelete("one")
    assert any("/contents/" in path for path in storage._files)
    await storage.awrite("/.snapshots/cleaning", "9e12")
    with pytest.raises(ConflictError):
        await snapshots.atake("two")
    await storage.awrite("/.snapshots/cleaning", "0", overwrite=True)  # Its process was killed.
    await snapshots.atake("two")
    await snapshots.adelete("two")
    assert [path for path in storage._files if "/cleaning" not in path] == []


async def test_a_cancelled_snapshot_is_none_and_leaves_no_announcement() -> None:
    storage = MemoryBackend()
    snapshots = Snapshots(MemoryBackend(files={"/a": "1"}), storage)
    with anyio.CancelScope() as scope:
        async with snapshots._announce():
            scope.cancel()
            await anyio.sleep(1)
    assert not storage._files


async def test_snapshots_in_the_tree_below_are_no_part_of_a_workspace() -> None:
    tree = MemoryBackend(files={"/a": "1"})
    snapshots = Snapshots(fork(tree), tree)
    assert (await snapshots.atake("one")).files == (await snapshots.atake("two")).files == 1


async def test_of_two_processes_that_clean_one_does() -> None:
    class Racing(MemoryBackend):
        async def awrite(
            self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
        ) -> WriteResult:
            if path == "/.snapshots/cleaning":  # The other process was faster by one step.
                await self.aupload_files([(path, f"{time()} other".encode())])
            return await super().awrite(path, content, overwrite=overwrite, if_match=if_match)

    storage = Racing()
    snapshots = Snapshots(MemoryBackend(files={"/a": "1"}), storage)
    await snapshots.atake("one")
    await snapshots.adelete("one")
    assert storage._files["/.snapshots/cleaning"].content.endswith(" other")
    assert any("/contents/" in path for path in storage._files)


async def test_contents_are_private_and_restored_with_their_modes(tmp_path: Path) -> None:
    tree = FilesystemBackend(tmp_path / "tree")
    await tree.aupload_files([("/secret", b"s"), ("/run.sh", b"#!"), ("/plain", b"p")])
    for name, mode in (("secret", 0o600), ("run.sh", 0o755)):
        await anyio.Path(tmp_path / "tree" / name).chmod(mode)
    snapshots = Snapshots(tree, FilesystemBackend(tmp_path / "kept"))
    await snapshots.atake("one")
    async for stored in anyio.Path(tmp_path / "kept").rglob("*"):
        assert await stored.is_dir() or (await stored.stat()).st_mode & 0o077 == 0
    for path in ("/secret", "/run.sh", "/plain"):
        await tree.adelete(path)
    assert (await snapshots.arestore("one")).ok
    modes = {name: (await anyio.Path(tmp_path / "tree" / name).stat()).st_mode & 0o777 for name in ("secret", "run.sh")}
    assert modes == {"secret": 0o600, "run.sh": 0o755}


async def test_a_tree_that_cannot_be_listed_whole_has_no_snapshot() -> None:
    class Hiding(MemoryBackend):
        async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
            listing = await super().alist_tree(path, deleting=deleting)
            return TreeListing(listing.entries, unreadable_omission())

    with pytest.raises(PermissionDeniedError):
        await Snapshots(Hiding(files={"/a": "1"}), MemoryBackend()).atake("one")


async def test_the_snapshot_that_is_restored_stays() -> None:
    tree = MemoryBackend(files={"/a": "1"})
    snapshots = Snapshots(tree, MemoryBackend(), keep=1)
    await snapshots.atake("one")
    await tree.awrite("/a", "2", overwrite=True)
    before = (await snapshots.arestore("one")).before
    assert [each.name for each in await snapshots.alist()] == ["one", before]
