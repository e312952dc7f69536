"""What a run changed is brought back, and what others changed since stays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    SqliteBackend,
    create_deep_agent,
    run_sync,
)
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, NotFoundError, PermissionDeniedError
from deepfs.operations import Operation
from deepfs.policy import HistoryBackend, QuotaBackend, UndoResult, WrapperBackend
from support.chat import ScriptedModel, call, calls
from support.graphs import in_run

pytestmark = pytest.mark.anyio


async def contents(backend: BackendProtocol) -> dict[str, bytes | None]:
    """All files outside of the history."""
    listing = await backend.alist_tree("/")
    found = [each.path for each in listing.entries if each.kind == "file" and not each.path.startswith("/.history")]
    return {each.path: each.content for each in await backend.adownload_files(found)}


# --- random programs of two runs and somebody else -------------------------------------------------------------------

PATHS = ["/a", "/b", "/d", "/d/x", "/d/y", "/e", "/e/x"]
Step = tuple[str, str, str, str, bytes]
"""Who, what, where, to where, and the content."""
STEPS: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(["A", "A", "B", "outside"]),
    st.sampled_from(["write", "edit", "upload", "stream", "delete", "move", "copy"]),
    st.sampled_from(PATHS),
    st.sampled_from(PATHS),
    st.sampled_from([b"0", b"1", b"22", b"\0\xff", b"\xef\xbb\xbf2\r\n"]),
)


async def change(files: BackendProtocol, step: Step) -> None:
    """Make a change, which may fail."""
    _, what, path, other, content = step

    async def chunks() -> Any:
        yield content

    match what:
        case "write":
            await files.awrite(path, content.decode("latin-1"), overwrite=True)
        case "edit":
            await files.aedit(path, "2", "3", replace_all=True)
        case "upload":
            await files.aupload_files([(path, content), (other, content * 2)])
        case "stream":
            await files.aupload_stream(path, chunks())
        case "delete":
            await files.adelete(path)
        case "move":
            await files.amove(path, other, overwrite=True)
        case _:
            await files.acopy(path, other, overwrite=True)


@dataclass
class Touched:
    """What a run did to a file, seen from outside."""

    before: bytes | None
    after: bytes | None
    is_own: bool = True
    """Whether nobody else changed it in between."""


@dataclass
class Seen:
    """What happened in a program."""

    by_a: dict[str, Touched] = field(default_factory=dict)
    by_others: set[str] = field(default_factory=set)

    def note(self, who: str, before: dict[str, bytes | None], after: dict[str, bytes | None]) -> None:
        for path in before.keys() | after.keys():
            was, now = before.get(path), after.get(path)
            if was == now:
                continue
            if who != "A":
                self.by_others.add(path)
            elif path not in self.by_a:
                self.by_a[path] = Touched(was, now)
            else:
                touched = self.by_a[path]
                touched.is_own &= touched.after == was
                touched.after = now


async def check_program(inner: BackendProtocol, program: list[Step]) -> None:
    history = HistoryBackend(inner, MemoryBackend())
    await inner.aupload_files([("/a", b"first"), ("/d/x", b"22"), ("/d/y", b"\0")])
    start, seen = await contents(inner), Seen()
    for step in program:
        before = await contents(inner)
        with in_run(step[0]):
            await change(inner if step[0] == "outside" else history, step)
        seen.note(step[0], before, await contents(inner))
    if not seen.by_a:
        return
    before = await contents(inner)
    done = await history.aundo("A")
    after = await contents(inner)
    assert {*done.paths}.isdisjoint(done.conflicts)
    for path in {*before, *after, *seen.by_a}:
        touched = seen.by_a.get(path)
        if touched is None:
            assert after.get(path) == before.get(path)
        elif not touched.is_own or before.get(path) != touched.after:
            assert after.get(path) == before.get(path)
            assert before.get(path) == touched.before or done.conflicts[path] == "conflict"
        elif path in done.conflicts:
            # Another one's file is in the way of what was a directory, or the reverse; or of what was moved from there.
            assert done.conflicts[path] in ("is_directory", "not_a_directory", "conflict")
            in_the_way = any(each.startswith(f"{path}/") or path.startswith(f"{each}/") for each in seen.by_others)
            assert in_the_way or any(
                step[:2] == ("A", "move") and f"{path}/".startswith(f"{step[3]}/") for step in program
            )
            assert after.get(path) == before.get(path)
        else:
            assert after.get(path) == touched.before
            assert path in seen.by_others or after.get(path) == start.get(path)
    if after != before:
        again = await history.aundo(done.run)
        assert again.conflicts == {}
        assert await contents(inner) == before
        assert (await history.aundo(again.run)).conflicts == {}
        assert await contents(inner) == after


FILE_FOR_A_DIRECTORY: list[Step] = [("A", "delete", "/d", "/d", b"0"), ("A", "write", "/d", "/d", b"0")]
OVER_A_DIRECTORY: list[Step] = [
    ("B", "write", "/e/x", "/e/x", b"1"),
    ("A", "copy", "/d", "/e", b"0"),
    ("A", "write", "/b", "/b", b"0"),
]
"""The copy fails, so what is there already is nothing that it made."""


@settings(max_examples=100)
@given(program=st.lists(STEPS, min_size=1, max_size=12))
@example(program=FILE_FOR_A_DIRECTORY)
@example(program=OVER_A_DIRECTORY)
async def test_undoing_a_run_of_a_random_program(program: list[Step]) -> None:
    await check_program(MemoryBackend(), program)


@settings(max_examples=20)
@given(program=st.lists(STEPS, min_size=1, max_size=12))
@example(program=FILE_FOR_A_DIRECTORY)
@example(program=[("A", "delete", "/a", "/a", b"0"), ("A", "write", "/a/x", "/a/x", b"0")])
async def test_undoing_a_run_of_a_random_program_on_disk(
    program: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = await anyio.to_thread.run_sync(tmp_path_factory.mktemp, "files")
    await check_program(FilesystemBackend(directory), program)


# --- runs of agents --------------------------------------------------------------------------------------------------


def write(path: str, content: str) -> dict[str, Any]:
    return call("write_file", file_path=path, content=content)


def agent_that_writes(history: HistoryBackend) -> Any:
    """An agent that changes a file, and has a subagent that makes one."""
    subagent = ScriptedModel(script=[calls(write("/made.md", "made")), AIMessage("done")] * 2)
    task = call("task", description="make it", subagent_type="worker")
    edit = call("edit_file", file_path="/plan.md", old_string="old", new_string="new")
    return create_deep_agent(
        ScriptedModel(script=[calls(edit), calls(task), AIMessage("done")] * 2),
        backend=history,
        subagents=[{"name": "worker", "description": "Works.", "system_prompt": "Work.", "model": subagent}],
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_run_of_an_agent_and_its_subagents_is_undone(anyio_backend: str) -> None:
    history = HistoryBackend(MemoryBackend())
    await history.awrite("/plan.md", "old")
    agent = agent_that_writes(history)
    thread = {"configurable": {"thread_id": "thread 1"}}
    await agent.ainvoke({"messages": [("user", "go")]}, thread)
    assert await contents(history) == {"/plan.md": b"new", "/made.md": b"made"}
    made, edited = await history.achanges(thread="thread 1")
    assert (made.operation, made.paths, edited.operation, edited.paths) == ("write", ["/made.md"], "edit", ["/plan.md"])
    assert made.run == edited.run is not None
    assert [change.paths for change in await history.achanges("/made.md", run=made.run)] == [["/made.md"]]
    done = await history.aundo(made.run)
    assert (done.paths, done.conflicts) == (["/made.md", "/plan.md"], {})
    assert await contents(history) == {"/plan.md": b"old"}
    latest, *_ = await history.achanges()
    assert (latest.operation, latest.run, latest.thread) == ("undo", done.run, None)
    await agent.ainvoke({"messages": [("user", "go")]}, {**thread, "run_id": "00000000-0000-0000-0000-000000000007"})
    assert (await history.aundo("00000000-0000-0000-0000-000000000007")).paths == ["/made.md", "/plan.md"]


async def test_what_others_changed_since_is_brought_back_by_force_and_not_lost() -> None:
    files = MemoryBackend()
    history = HistoryBackend(files)
    with in_run("A"):
        await history.awrite("/a", "of A")
    await files.awrite("/a", "of a person", overwrite=True)
    assert (await history.aundo("A")).conflicts == {"/a": "conflict"}
    assert (await history.aundo("A", force=True)).paths == ["/a"]
    assert await contents(history) == {}
    assert await history.aread_version("/a", 1) == b"of a person"


async def test_a_single_change_is_undone() -> None:
    history = HistoryBackend(MemoryBackend())
    await history.awrite("/a", "1")
    await history.awrite("/b", "1")
    await history.aedit("/a", "1", "2")
    edited, _, written = await history.achanges(limit=3)
    assert (await history.aundo(change=written.id)).conflicts == {"/a": "conflict"}
    assert (await history.aundo(change=edited.id)).paths == ["/a"]
    assert (await history.aundo(change=written.id)).paths == ["/a"]
    assert await contents(history) == {"/b": b"1"}
    for unknown in ({"change": "../00000001"}, {"change": written.id[:-1]}, {"run": "none"}):
        with pytest.raises(NotFoundError, match="no such change"):
            await history.aundo(**unknown)
    for wrong in ({}, {"run": "A", "change": "B"}):
        with pytest.raises(ValueError, match="which"):
            await history.aundo(**wrong)


async def test_a_version_that_is_no_longer_kept_is_named() -> None:
    history = HistoryBackend(MemoryBackend(), keep=1)
    await history.awrite("/a", "0")
    with in_run("A"):
        for number in range(3):
            await history.awrite("/a", f"{number}", overwrite=True)
            await history.awrite("/b", f"{number}", overwrite=True)
    done = await history.aundo("A")
    assert (done.paths, done.conflicts) == (["/b"], {"/a": "file_not_found"})


async def test_what_a_run_changed_by_several_names_is_one_file(tmp_path: Path) -> None:
    await anyio.Path(tmp_path / "link").symlink_to("file")
    history = HistoryBackend(FilesystemBackend(tmp_path), MemoryBackend())
    await history.awrite("/file", "A")
    with in_run("A"):
        await history.aedit("/file", "A", "B")
        await history.aedit("/link", "B", "C")
    assert (await history.aundo("A")).paths == ["/file"]
    assert await contents(history) == {"/file": b"A"}
    assert await anyio.Path(tmp_path / "link").is_symlink()


async def test_a_link_through_which_a_run_made_a_file_stays(tmp_path: Path) -> None:
    await anyio.Path(tmp_path / "link").symlink_to("file")
    history = HistoryBackend(FilesystemBackend(tmp_path), MemoryBackend())
    with in_run("A"):
        await history.awrite("/link", "A", overwrite=True)
    assert (await history.aundo("A", force=True)).conflicts == {"/link": "conflict"}
    assert await contents(history) == {"/file": b"A"}
    assert await anyio.Path(tmp_path / "link").is_symlink()


async def test_the_order_of_changes_outlasts_a_clock_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        offset = timedelta()

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp((datetime.now(tz) + cls.offset).timestamp(), tz)

    monkeypatch.setattr("deepfs.policy.archive.datetime", Clock)
    history = HistoryBackend(MemoryBackend())
    await history.awrite("/a", "1")
    with in_run("A"):
        await history.aedit("/a", "1", "2")
        Clock.offset = timedelta(hours=-1)
        await history.aedit("/a", "2", "3")
    assert (await history.aundo("A")).paths == ["/a"]
    assert await contents(history) == {"/a": b"1"}


@pytest.mark.parametrize("over", [False, True])
async def test_what_was_moved_is_in_one_of_its_places_whatever_room_there_is(over: bool) -> None:
    undone = []
    for room in range(0, 40_000, 1_000):
        storage = MemoryBackend()
        await storage.aupload_files([(f"/src/{number}", b"moved" * 1_000) for number in range(3)])
        if over:
            await storage.aupload_files([(f"/dst/{number}", b"there") for number in range(3)])
        history = HistoryBackend(storage)
        with in_run("A"):
            for number in range(3):
                assert (await history.amove(f"/src/{number}", f"/dst/{number}", overwrite=True)).ok
            assert (await history.awrite("/dst/0", "edited", overwrite=True)).ok
        used = await QuotaBackend(storage, 0).ausage()
        history = HistoryBackend(QuotaBackend(storage, used.bytes + room))

        async def count_places(storage: MemoryBackend = storage) -> int:
            held = (await contents(storage)).values()
            return len([content for content in held if content in (b"moved" * 1_000, b"edited")])

        done = await history.aundo("A")
        assert await count_places() >= 3
        undone.append(len(done.paths))
        if done.paths:
            await history.aundo(done.run)
            assert await count_places() >= 3
    assert undone[0] == 0 < undone[10] < undone[-1] == 6


# --- ends in the middle ----------------------------------------------------------------------------------------------


class Ended(BaseException):
    """The end of the process."""


class EndsAt(WrapperBackend):
    """Ends the process at a step."""

    left: int | None = None

    async def run(self, operation: Operation) -> Any:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Ended
        return await super().run(operation)


async def test_an_undo_that_ends_anywhere_is_completed_by_another_one() -> None:
    for steps in range(1_000):
        storage = EndsAt(MemoryBackend())
        history = HistoryBackend(storage)
        await history.aupload_files([("/a", b"a"), ("/d/x", b"x"), ("/e", b"e")])
        before = await contents(history)
        with in_run("A"):
            await history.aedit("/a", "a", "changed")
            await history.amove("/d", "/f")
            await history.adelete("/e")
        storage.left = steps
        try:
            await history.aundo("A")
            ended = False
        except Ended:
            ended = True
        storage.left = None
        # Another process goes on. What was being changed at that moment is not known to be of the run.
        assert (await HistoryBackend(storage).aundo("A", force=True)).conflicts == {}
        assert await contents(history) == before, steps
        if not ended:
            break
    assert steps > 50


async def test_a_run_that_ends_anywhere_is_undone_or_named() -> None:
    for steps in range(1_000):
        storage = EndsAt(MemoryBackend())
        history = HistoryBackend(storage)
        await history.aupload_files([("/a", b"a"), ("/d/x", b"x")])
        before = await contents(history)
        storage.left, ended = steps, True
        with in_run("A"):
            try:
                await history.amove("/d", "/e")
                await history.aedit("/a", "a", "changed")
                await history.awrite("/new", "new")
                ended = False
            except Ended:
                pass
        storage.left = None
        if await contents(history) != before:
            done = await history.aundo("A")
            if done.conflicts:
                assert set((await history.aundo("A", force=True)).conflicts) == set()
            assert await contents(history) == before, steps
        if not ended:
            assert not done.conflicts
            break
    assert steps > 30


async def test_an_undo_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "files.db") as files:
        history = HistoryBackend(files)
        await history.aupload_files([(f"/{number}", b"old") for number in range(20)])
        before = await contents(history)
        with in_run("A"):
            await history.aupload_files([(f"/{number}", b"new") for number in range(20)])
        for number in range(20):
            with anyio.move_on_after(0.001 * number):
                await history.aundo("A")
        done = await history.aundo("A")
        assert (done.conflicts, await contents(history)) == ({}, before)


# --- who sees what ---------------------------------------------------------------------------------------------------


async def test_rules_of_now_hold_for_the_log_and_for_an_undo() -> None:
    files, archive = MemoryBackend(), MemoryBackend()
    with in_run("A"):
        await HistoryBackend(files, archive).aupload_files([("/open", b"1"), ("/secret", b"1")])
    rules = [FilesystemPermission(["read", "write"], ["/secret"], "deny")]
    history = HistoryBackend(PermissionedBackend(files, rules), archive)
    assert [change.paths for change in await history.achanges()] == [["/open"]]
    with pytest.raises(PermissionDeniedError) as refused:
        await history.aundo("A")
    assert "/secret" not in str(refused.value)
    only_read = [FilesystemPermission(["write"], ["/secret"], "deny")]
    history = HistoryBackend(PermissionedBackend(files, only_read), archive)
    done = await history.aundo("A")
    assert (done.paths, done.conflicts) == (["/open"], {"/secret": "permission_denied"})


async def test_the_log_is_bounded_but_for_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.policy.archive._MOST_CHANGES", 10)
    history = HistoryBackend(MemoryBackend())

    async def change_until(is_enough: Callable[[int], bool]) -> int:
        for number in range(10_000):
            await history.awrite("/a", str(number), overwrite=True)
            if is_enough(len(await history.achanges(limit=10_000))):
                return number
        raise AssertionError

    with in_run("A"):
        await change_until(lambda kept: kept > 30)
    await change_until(lambda kept: kept == 10)
    assert not await history.achanges(run="A")


async def test_a_record_that_cannot_be_read_hides_no_others(caplog: pytest.LogCaptureFixture) -> None:
    archive = MemoryBackend()
    history = HistoryBackend(MemoryBackend(), archive)
    with in_run("A"):
        await history.awrite("/a", "1")
    [record] = (await archive.aglob("/.history/changes/*")).matches or []
    await archive.awrite(record.path, "{", overwrite=True)
    await archive.awrite(record.path.replace("T", "9T"), "{")  # Names of no record, one of a day that is none.
    await archive.awrite(f"/.history/changes/20261399{record.path[-43:]}", "{")
    await history.awrite("/b", "1")
    assert [change.paths for change in await history.achanges()] == [["/b"]]
    assert "cannot be read" in caplog.text
    with pytest.raises(BackendError, match="cannot be read"):  # It may be needed.
        await history.aundo("A")


def test_an_undo_without_an_event_loop() -> None:
    history = HistoryBackend(CompositeBackend(MemoryBackend(), {"/d/": MemoryBackend()}))
    with in_run("A"):
        history.write("/a", "1")
        history.move("/a", "/d/a")
    done: UndoResult = run_sync(history.aundo, "A")
    assert (done.paths, run_sync(contents, history)) == (["/a", "/d/a"], {})
