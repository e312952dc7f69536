"""Many workspaces of one tree at once, and trees with rules, a quota, or a history."""

import threading
from pathlib import Path

import anyio
import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.policy import FilesystemPermission, HistoryBackend, PermissionedBackend, QuotaBackend
from deepfs.workspaces import OverlayBackend, fork
from support.processes import started

pytestmark = pytest.mark.anyio

LINES = [f"line {number}\n" for number in range(400)]


async def test_a_hundred_forks_see_nothing_of_each_other() -> None:
    below = MemoryBackend(files={"/own": "base", "/shared": "".join(LINES), "/gone": "x"})
    forks = [fork(below) for _ in range(100)]

    async def work(number: int) -> None:
        workspace = forks[number]
        assert (await workspace.awrite(f"/new/{number}", str(number))).ok
        await anyio.lowlevel.checkpoint()
        assert (await workspace.aedit("/own", "base", f"fork {number}")).ok
        assert (await workspace.aedit("/shared", LINES[number * 4], f"fork {number}\n")).ok
        assert (await (workspace.adelete if number % 2 else workspace.aread)("/gone")).ok
        await anyio.lowlevel.checkpoint()
        found = await workspace.agrep("fork")
        assert {match.text for match in found.matches or ()} == {f"fork {number}"}
        assert [entry.path for entry in (await workspace.als("/new")).entries or ()] == [f"/new/{number}"]

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(work, number)
    assert (await below.aread("/own")).file_data.content == "base"
    async with anyio.create_task_group() as tasks:
        for workspace in forks:
            tasks.start_soon(lambda each: each.amerge(paths=["/new", "/shared"]), workspace)
    merged = (await below.aread_raw("/shared")).data.content
    assert merged == "".join(f"fork {at // 4}\n" if at % 4 == 0 else line for at, line in enumerate(LINES))
    assert len((await below.als("/new")).entries) == 100


async def test_rules_hold_for_a_merge() -> None:
    memory = MemoryBackend(files={"/open/a": "1", "/closed/a": "1"})
    rules = [FilesystemPermission(["write"], ["/closed/**"], "deny")]
    workspace = fork(PermissionedBackend(memory, rules))
    for directory in ("/open", "/closed"):
        assert (await workspace.aedit(f"{directory}/a", "1", "2")).ok
    result = await workspace.amerge()
    assert result.refused["/closed/a"] == "permission_denied"
    assert memory._files["/closed/a"].content == "1"
    assert (await workspace.amerge(paths=["/open"])).merged == ["/open/a"]
    assert (await workspace.aread("/closed/a")).file_data.content == "2"


async def test_a_merge_is_one_change_of_a_history_and_is_undone() -> None:
    memory = MemoryBackend(files={"/a": "1", "/b": "2", "/c": "3"})
    before = {path: file.content for path, file in memory._files.items()}
    lower = HistoryBackend(memory, MemoryBackend())
    workspace = fork(lower)
    assert (await workspace.aedit("/a", "1", "one")).ok
    assert (await workspace.adelete("/b")).ok
    assert (await workspace.amove("/c", "/d/c")).ok
    assert (await workspace.awrite("/new", "new")).ok
    assert (await workspace.amerge()).ok
    [change] = await lower.achanges()
    assert set(change.paths) == {"/a", "/b", "/c", "/d/c", "/new"}
    await lower.aundo(change=change.id)
    assert {path: file.content for path, file in memory._files.items()} == before


async def test_a_quota_counts_a_merge() -> None:
    memory = MemoryBackend(files={"/a": "1" * 100})
    workspace = fork(QuotaBackend(memory, max_bytes=200))
    assert (await workspace.awrite("/b", "2" * 150)).ok, "the workspace is not in the quota"
    assert (await workspace.amerge()).refused == {"/b": "quota_exceeded"}
    assert list(memory._files) == ["/a"]
    assert (await workspace.adelete("/a")).ok
    assert (await workspace.amerge()).ok, "what is deleted in the same merge makes room"
    assert list(memory._files) == ["/b"]


async def fork_and_merge(lower: SqliteBackend, first: int) -> None:
    for number in range(first, first + 10):
        workspace = OverlayBackend(lower)
        assert (await workspace.aedit("/shared", LINES[number * 4], f"fork {number}\n")).ok
        assert (await workspace.awrite(f"/new/{number}", str(number))).ok
        result = await workspace.amerge()
        assert result.ok, result


SCRIPT = """
import sys
import anyio
from deepfs.backends.sqlite import SqliteBackend
from workspaces.test_many_forks import fork_and_merge

async def main():
    async with SqliteBackend(sys.argv[1]) as lower:
        await fork_and_merge(lower, int(sys.argv[2]))

sys.stdin.readline()
anyio.run(main)
print("merged")
"""


def check_merged(file: Path) -> None:
    with SqliteBackend(file) as lower:
        merged = lower.read_raw("/shared").data.content
        assert merged == "".join(
            f"fork {at // 4}\n" if at % 4 == 0 and at < 80 else line for at, line in enumerate(LINES)
        )
        assert len(lower.ls("/new").entries) == 20


def test_two_threads_merge_into_one_tree_at_once(tmp_path: Path) -> None:
    file = tmp_path / "files.db"
    with SqliteBackend(file) as lower:
        assert lower.write("/shared", "".join(LINES)).ok
        failed: list[BaseException] = []

        def merge(first: int) -> None:
            try:
                anyio.run(fork_and_merge, lower, first)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=merge, args=[first]) for first in (0, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    check_merged(file)


def test_two_processes_merge_into_one_tree_at_once(tmp_path: Path) -> None:
    file = tmp_path / "files.db"
    with SqliteBackend(file) as lower:
        assert lower.write("/shared", "".join(LINES)).ok
    with started(SCRIPT, file, 0) as one, started(SCRIPT, file, 10) as other:
        assert [process.communicate("go\n")[0] for process in (one, other)] == ["merged\n", "merged\n"]
    check_merged(file)
