"""What a workspace changed, and how it is merged, also where others changed the tree meanwhile."""

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.errors import ErrorCode
from deepfs.policy import FilesystemPermission, PermissionedBackend
from deepfs.workspaces import MergeConflict, OverlayBackend, fork

pytestmark = pytest.mark.anyio

THREE_LINES = "one\ntwo\nthree\n"


def texts(backend: MemoryBackend) -> dict[str, str]:
    return {path: file.content for path, file in backend._files.items()}


async def test_changes_of_both_sides_are_merged_by_lines() -> None:
    below = MemoryBackend(files={"/a.txt": THREE_LINES})
    workspace = fork(below)
    await workspace.aedit("/a.txt", "one", "ONE")
    await below.aedit("/a.txt", "three", "THREE")
    result = await workspace.amerge()
    assert (result.ok, result.merged) == (True, ["/a.txt"])
    assert texts(below) == {"/a.txt": "ONE\ntwo\nTHREE\n"}
    assert await workspace.achanges() == []


async def test_a_conflict_leaves_both_sides_and_keeps_copies_of_them() -> None:
    below = MemoryBackend(files={"/d/a.txt": THREE_LINES})
    workspace = fork(below)
    await workspace.aedit("/d/a.txt", "two", "mine")
    await below.aedit("/d/a.txt", "two", "theirs")
    result = await workspace.amerge()
    [conflict] = result.conflicts
    assert isinstance(conflict, MergeConflict)
    assert (result.merged, conflict.path, conflict.theirs) == ([], "/d/a.txt", (await below.aread("/d/a.txt")).version)
    assert (await below.aread("/d/a.txt")).file_data.content == "one\ntheirs\nthree\n"
    assert (await workspace.aread("/d/a.txt")).file_data.content == "one\nmine\nthree\n"
    kept = {path: texts(below)[path] for path in conflict.kept}
    assert sorted(kept.values()) == ["one\nmine\nthree\n", "one\ntheirs\nthree\n"]
    assert all(path.startswith("/conflicts/d/a.txt.") for path in kept)
    assert (await workspace.amerge()).conflicts == result.conflicts, "a repeated merge finds the same"


@pytest.mark.parametrize(("strategy", "content", "left"), [("mine", "mine", 0), ("theirs", "theirs", 0)])
async def test_a_strategy_decides(strategy: str, content: str, left: int) -> None:
    below = MemoryBackend(files={"/a": "old"})
    workspace = fork(below)
    await workspace.awrite("/a", "mine", overwrite=True)
    await below.awrite("/a", "theirs", overwrite=True)
    assert (await workspace.amerge(strategy=strategy)).ok
    assert texts(below) == {"/a": content}
    assert len(await workspace.achanges()) == left


async def test_refuse_merges_nothing_at_all() -> None:
    below = MemoryBackend(files={"/a": "old", "/b": "old"})
    workspace = fork(below)
    await workspace.awrite("/a", "mine", overwrite=True)
    await workspace.awrite("/b", "mine", overwrite=True)
    await below.awrite("/a", "theirs", overwrite=True)
    result = await workspace.amerge(strategy="refuse")
    assert (result.merged, [conflict.path for conflict in result.conflicts]) == ([], ["/a"])
    assert texts(below) == {"/a": "theirs", "/b": "old"}


async def test_a_moved_file_takes_along_what_others_changed_in_it() -> None:
    below = MemoryBackend(files={"/src/a": "1", "/src/b": "2"})
    workspace = fork(below)
    await workspace.amove("/src", "/lib")
    await below.awrite("/src/a", "changed", overwrite=True)
    assert (await workspace.amerge()).ok
    assert texts(below) == {"/lib/a": "changed", "/lib/b": "2"}


async def test_a_move_to_a_place_that_others_took_removes_nothing() -> None:
    below = MemoryBackend(files={"/a": "moved"})
    workspace = fork(below)
    await workspace.amove("/a", "/b")
    await below.awrite("/b", "theirs")
    result = await workspace.amerge(conflicts=None)
    assert [conflict.path for conflict in result.conflicts] == ["/b"]
    assert texts(below) == {"/a": "moved", "/b": "theirs"}


async def test_two_files_that_change_places() -> None:
    below = MemoryBackend(files={"/a": "1", "/b": "2"})
    workspace = fork(below)
    for source, target in (("/a", "/c"), ("/b", "/a"), ("/c", "/b")):
        assert (await workspace.amove(source, target)).ok
    assert (await workspace.amerge()).ok
    assert texts(below) == {"/a": "2", "/b": "1"}


async def test_a_part_is_merged_and_a_part_discarded() -> None:
    below = MemoryBackend(files={"/keep/a": "1", "/drop/b": "2", "/old": "3"})
    workspace = fork(below)
    await workspace.awrite("/keep/new", "new")
    await workspace.adelete("/drop/b")
    await workspace.amove("/old", "/new")
    assert (await workspace.amerge(paths=["/keep", "/old"])).merged == ["/keep/new", "/new", "/old"]
    assert texts(below) == {"/keep/a": "1", "/keep/new": "new", "/drop/b": "2", "/new": "3"}
    assert [change.kind for change in await workspace.achanges()] == ["deleted"]
    assert await workspace.adiscard() == ["/drop/b"]
    assert (await workspace.aread("/drop/b")).ok


async def test_a_merge_into_another_tree_leaves_the_workspace_as_it_is() -> None:
    below, other = MemoryBackend(files={"/a": "1"}), MemoryBackend(files={"/a": "1"})
    workspace = fork(below)
    await workspace.aedit("/a", "1", "2")
    assert (await workspace.amerge(other)).ok
    assert (texts(below), texts(other)) == ({"/a": "1"}, {"/a": "2"})
    assert [change.path for change in await workspace.achanges()] == ["/a"]
    assert (await workspace.amerge(other)).ok, "it is done already"


async def test_a_fork_of_a_fork_is_merged_step_by_step() -> None:
    below = MemoryBackend(files={"/a": THREE_LINES})
    first = fork(below)
    await first.aedit("/a", "one", "ONE")
    second = OverlayBackend(first)
    await second.aedit("/a", "two", "TWO")
    assert texts(below) == {"/a": THREE_LINES}
    assert (await second.amerge()).ok
    assert (await first.aread("/a")).file_data.content == "ONE\nTWO\nthree\n"
    assert (await first.amerge()).ok
    assert texts(below) == {"/a": "ONE\nTWO\nthree\n"}


async def test_another_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="strategy is one of keep, refuse, mine, theirs"):
        await fork(MemoryBackend()).amerge(strategy="ours")  # type: ignore[arg-type]


async def test_a_part_that_rules_hide_is_not_left_behind_by_a_move() -> None:
    below = MemoryBackend(files={"/d/a": "1", "/d/secret": "2"})
    rules = [FilesystemPermission(["read"], ["/d/secret"], "deny")]
    workspace = fork(PermissionedBackend(below, rules))
    for result in (await workspace.amove("/d", "/e"), await workspace.acopy("/d", "/e")):
        assert result.code is ErrorCode.PERMISSION_DENIED
    assert await workspace.achanges() == []


async def test_changes_that_are_kept_in_the_tree_itself_are_no_part_of_it() -> None:
    tree = MemoryBackend(files={"/a": "1"})
    workspace = OverlayBackend(tree, tree, directory="/.changes")
    await workspace.awrite("/b", "2")
    assert [info.path for info in (await workspace.aglob("**")).unwrap()] == ["/a", "/b"]
    assert not (await workspace.adelete("/.changes")).ok
    assert (await workspace.amerge()).ok
    assert texts(tree) == {"/a": "1", "/b": "2"}
    with pytest.raises(ValueError, match="need a directory"):
        OverlayBackend(tree, tree)
