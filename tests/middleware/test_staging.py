"""Agents whose changes are staged, and subagents that work on forks, until someone takes the changes over."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    create_deep_agent,
)
from deepfs.middleware import FilesystemMiddleware, StagedChanges, SubAgent, SubAgentMiddleware
from deepfs.middleware.staging import hide_forks
from deepfs.policy import PermissionedBackend
from deepfs.testing import Call, ScriptedModel, Turn
from support.agents import Invoke, results

GO = {"messages": [("user", "go")]}
THREAD: Any = {"configurable": {"thread_id": "1"}}
FILES = {"/keep.md": "keep\n", "/src/a.py": "a = 1\n", "/src/b.py": "b = 2\n"}
WRONG = Turn(
    calls=[
        Call("delete", {"file_path": "/keep.md"}),
        Call("move", {"source": "/src", "destination": "/lib"}),
        Call("write_file", {"file_path": "/new.md", "content": "new\n"}),
    ]
)
"""What an agent does that was asked for the file `/new.md` and the directory `/lib`."""
UNASKED = {"commit_changes": False}


def model(*turns: Any) -> ScriptedModel:
    return ScriptedModel(script=[*turns, "done"])


def commit(**given: Any) -> Turn:
    return Turn(calls=[Call("commit_changes", given)])


def write(path: str, content: str) -> Turn:
    return Turn(calls=[Call("write_file", {"file_path": path, "content": content, "overwrite": True})])


def edit(path: str, old: str, new: str) -> Turn:
    return Turn(calls=[Call("edit_file", {"file_path": path, "old_string": old, "new_string": new})])


def read(path: str) -> Turn:
    return Turn(calls=[Call("read_file", {"file_path": path})])


def given_files(files: dict[str, str]) -> dict[str, Any]:
    return {**GO, "files": {path: {"content": text, "encoding": "utf-8"} for path, text in files.items()}}


def texts(backend: BackendProtocol) -> dict[str, str]:
    found = backend.glob("**").unwrap()
    return {info.path: backend.read(info.path).unwrap().content for info in found if not info.is_dir}


def answers(state: dict[str, Any], name: str) -> list[str]:
    return [message.text for message in results(state) if message.name == name]


def decide(*decisions: dict[str, Any]) -> Any:
    return Command(resume={"decisions": [*decisions]})


def description(state: dict[str, Any]) -> str:
    [request] = state["__interrupt__"][0].value["action_requests"]
    return str(request["description"])


@pytest.fixture
def anyio_backend() -> str:
    """LangGraph runs on asyncio only."""
    return "asyncio"


# --- staged changes --------------------------------------------------------------------------------------------------


def on_disk(root: Path) -> BackendProtocol:
    backend = FilesystemBackend(root / "files")
    for path, text in FILES.items():
        backend.write(path, text).unwrap()
    return backend


LOWER: dict[str, Callable[[Path], BackendProtocol]] = {"memory": lambda _: MemoryBackend(files=FILES), "disk": on_disk}
UPPER: dict[str, Callable[[Path], Any]] = {
    "state": lambda _: True,
    "sqlite": lambda root: SqliteBackend(root / "staged.db"),
}


@pytest.mark.both_forms
@pytest.mark.parametrize("upper", UPPER)
@pytest.mark.parametrize("lower", LOWER)
def test_nothing_reaches_the_backend_before_a_part_is_committed(
    invoke: Invoke, lower: str, upper: str, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    files = LOWER[lower](tmp_path)
    look = Turn(calls=[Call("review_changes"), Call("ls", {"path": "/"})])
    agent = create_deep_agent(
        model(WRONG, look, "Look at it.", commit(paths=["/new.md", "/lib"])),
        backend=files,
        staged=UPPER[upper](tmp_path),
        interrupt_on=UNASKED,
        checkpointer=InMemorySaver(),
    )
    state = invoke(agent, GO, THREAD)
    assert texts(files) == FILES
    [review], [listing] = answers(state, "review_changes"), answers(state, "ls")
    assert "deleted /keep.md\nmoved /lib/a.py from /src/a.py (6 bytes)" in review
    assert "--- a/keep.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-keep" in review
    assert "keep" not in listing
    assert "/lib/" in listing
    assert ".forks" not in listing
    state = invoke(agent, GO, THREAD)
    assert answers(state, "commit_changes") == ["Merged 3 of 3 changed files: /lib/a.py, /lib/b.py, /new.md."]
    assert texts(files) == {"/keep.md": "keep\n", "/lib/a.py": "a = 1\n", "/lib/b.py": "b = 2\n", "/new.md": "new\n"}


def test_files_in_state_are_staged_in_the_state(invoke: Invoke) -> None:
    look = Turn(calls=[Call("glob", {"pattern": "**"}), Call("ls", {"path": "/"})])
    agent = create_deep_agent(model(WRONG, look, commit()), staged=True, interrupt_on=UNASKED)
    state = invoke(agent, given_files(FILES))
    assert answers(state, "glob") == ["/lib/a.py\n/lib/b.py\n/new.md"]
    assert ".forks" not in answers(state, "ls")[0]
    assert sorted(state["files"]) == ["/lib/a.py", "/lib/b.py", "/new.md"]


def test_discarded_changes_are_gone(invoke: Invoke) -> None:
    files = MemoryBackend(files=FILES)
    discard = [Turn(calls=[Call("discard_changes", given)]) for given in ({"paths": ["/src"]}, {})]
    agent = create_deep_agent(
        model(
            WRONG, discard[0], Turn(calls=[Call("review_changes")]), discard[1], Turn(calls=[Call("review_changes")])
        ),
        backend=files,
        staged=True,
    )
    state = invoke(agent, GO)
    first, second = answers(state, "review_changes")
    assert first.startswith("deleted /keep.md\ncreated /new.md")
    assert second == "Nothing is changed."
    assert texts(files) == FILES


def test_what_others_changed_is_merged_or_named(invoke: Invoke) -> None:
    files = MemoryBackend(files={"/a": "1\n2\n3\n4\n5\n", "/b": "old\n"})

    def others(messages: list[Any]) -> Turn:
        files.edit("/a", "5", "five").unwrap()
        files.edit("/b", "old", "theirs").unwrap()
        return commit()

    changes = Turn(calls=[*edit("/a", "1", "one").calls, *edit("/b", "old", "mine").calls])
    agent = create_deep_agent(model(changes, others, commit()), backend=files, staged=True, interrupt_on=UNASKED)
    state = invoke(agent, GO)
    assert files.read("/a").unwrap().content == "one\n2\n3\n4\nfive\n"
    assert files.read("/b").unwrap().content == "theirs\n"
    first, second = answers(state, "commit_changes")
    assert first.startswith("Merged 1 of 2 changed files: /a.\nConflict in /b: others changed it too")
    assert second.startswith("Error: Nothing was merged.\nConflict in /b")
    assert "Both versions: /conflicts/b." in second


def test_rules_of_the_backend_hold_for_a_commit(invoke: Invoke) -> None:
    below = MemoryBackend()
    files = PermissionedBackend(below, [FilesystemPermission(["write"], ["/locked/**"], "deny")])
    changes = Turn(calls=[*write("/locked/x", "x").calls, *write("/y", "y").calls])
    turns = [changes, commit(), commit(paths=["/y"])]
    agent = create_deep_agent(model(*turns), backend=files, staged=True, interrupt_on=UNASKED)
    refused, merged = answers(invoke(agent, GO), "commit_changes")
    assert refused.startswith("Error: Nothing was merged.\nRefused: /locked/x: permission_denied.")
    assert merged == "Merged 1 of 1 changed files: /y."
    assert texts(below) == {"/y": "y"}


def test_a_review_keeps_to_the_rules_of_the_model(invoke: Invoke) -> None:
    rules = [FilesystemPermission(["read"], ["/secret/**"], "deny")]
    turns = [Turn(calls=[Call("delete", {"file_path": "/secret/key"})]), Turn(calls=[Call("review_changes")])]
    agent = create_deep_agent(
        model(*turns), backend=MemoryBackend(files={"/secret/key": "hunter2"}), staged=True, permissions=rules
    )
    [review] = answers(invoke(agent, GO), "review_changes")
    assert review == "deleted /secret/key\n[By the rules, the texts of 1 files are not shown]"


def test_a_long_diff_is_cut_and_says_so(invoke: Invoke) -> None:
    changes = Turn(calls=[call for n in range(200) for call in write(f"/{n:03}", "line\n" * 10).calls])
    agent = create_deep_agent(
        model(changes, Turn(calls=[Call("review_changes")]), Turn(calls=[Call("review_changes", {"path": "/199"})])),
        backend=MemoryBackend(),
        staged=True,
    )
    whole, part = answers(invoke(agent, GO), "review_changes")
    assert len(whole.splitlines()) == 401
    # Of each file, one row with its name, and a diff of 15 rows.
    left = 64 * 15 - 200
    assert whole.endswith(f"[Not shown: {left} more rows of diffs, 136 more diffs. Ask for a part of the paths]")
    assert part.count("+line") == 10


def test_parallel_changes_of_one_file_are_refused_at_once_and_not_lost(invoke: Invoke) -> None:
    both = Turn(calls=[*edit("/a", "1", "one").calls, *edit("/a", "2", "two").calls])
    files = MemoryBackend(files={"/a": "1\n\n\n2\n"})
    agent = create_deep_agent(
        model(both, edit("/a", "2", "two"), commit()), backend=files, staged=True, interrupt_on=UNASKED
    )
    state = invoke(agent, GO)
    edits = [message for message in results(state) if message.name == "edit_file"]
    assert [message.status for message in edits[:2]].count("error") <= 1
    assert not any(".forks" in message.text for message in edits)
    assert "one" in files.read("/a").unwrap().content
    assert "two" in files.read("/a").unwrap().content


def test_of_a_commit_and_an_edit_in_one_turn_one_is_made(invoke: Invoke) -> None:
    """Otherwise what is left of the edit conflicts with the merge of the same turn."""
    files = MemoryBackend(files={"/a": "1\n"})
    both = Turn(calls=[*edit("/a", "2", "3").calls, *commit().calls])
    turns = [edit("/a", "1", "1\n2"), both, edit("/a", "1", "0"), commit()]
    state = invoke(create_deep_agent(model(*turns), backend=files, staged=True, interrupt_on=UNASKED), GO)
    assert [message.status for message in results(state)[1:3]].count("error") == 1
    assert texts(files) in [{"/a": "0\n2\n"}, {"/a": "0\n3\n"}]


def test_what_middleware_keeps_for_itself_is_committed_only_by_name(invoke: Invoke) -> None:
    files = MemoryBackend()
    turns = [write("/large_tool_results/1", "x"), Turn(calls=[Call("review_changes")]), commit()]
    agent = create_deep_agent(
        model(*turns, commit(paths=["/large_tool_results"])), backend=files, staged=True, interrupt_on=UNASKED
    )
    state = invoke(agent, GO)
    assert answers(state, "review_changes") == ["Nothing is changed."]
    assert answers(state, "commit_changes") == [
        "Nothing was merged.",
        "Merged 1 of 1 changed files: /large_tool_results/1.",
    ]


def test_staged_agents_take_their_files_as_backend() -> None:
    with pytest.raises(ValueError, match="pass the files as backend"):
        create_deep_agent(model(), staged=True, middleware=[FilesystemMiddleware(backend=MemoryBackend())])
    with pytest.raises(ValueError, match="stages nothing"):
        StagedChanges(create_deep_agent(model()), THREAD)


def test_subagents_stage_in_the_workspace_of_the_agent(invoke: Invoke) -> None:
    files = MemoryBackend(files={"/a": "old\n"})

    def on_same_files(name: str) -> SubAgent:
        turns = [edit("/a", "old", name), write(f"/{name}", name)]
        return SubAgent(name=name, description="Works.", system_prompt="Work.", model=model(*turns))

    def look(messages: list[Any]) -> Turn:
        assert texts(files) == {"/a": "old\n"}
        return Turn(calls=[Call("glob", {"pattern": "**"}), *read("/a").calls])

    turns = [tasks("one", "two"), look, commit()]
    subagents = [on_same_files("one"), on_same_files("two")]
    agent = create_deep_agent(model(*turns), backend=files, subagents=subagents, staged=True, interrupt_on=UNASKED)
    state = invoke(agent, GO)
    [told] = [answer for answer in answers(state, "task") if "elsewhere" in answer]
    found = re.search(r"\[/a was changed elsewhere .* This subagent's version is in (/conflicts/\S+/a): ", told)
    assert found is not None
    there = texts(files)
    assert {*there} == {"/a", "/one", "/two", found[1]}
    assert {there["/a"], there[found[1]]} == {"one\n", "two\n"}


# --- a person decides ------------------------------------------------------------------------------------------------


def asking(files: BackendProtocol, *turns: Any, **options: Any) -> Any:
    return create_deep_agent(model(*turns), backend=files, staged=True, checkpointer=InMemorySaver(), **options)


@pytest.mark.parametrize(
    ("decision", "merged"),
    [
        ({"type": "approve"}, {"/lib/a.py", "/lib/b.py", "/new.md"}),
        ({"type": "reject", "message": "no"}, {*FILES}),
        (
            {"type": "edit", "edited_action": {"name": "commit_changes", "args": {"paths": ["/lib"]}}},
            {"/keep.md", "/lib/a.py", "/lib/b.py"},
        ),
    ],
    ids=["approve", "reject", "edit"],
)
def test_a_person_decides_about_a_commit(invoke: Invoke, decision: dict[str, Any], merged: set[str]) -> None:
    files = MemoryBackend(files=FILES)
    agent = asking(files, WRONG, commit())
    state = invoke(agent, GO, THREAD)
    assert "deleted /keep.md" in description(state)
    assert "-keep" in description(state)
    assert "+new" in description(state)
    assert texts(files) == FILES
    invoke(agent, decide(decision), THREAD)
    assert {*texts(files)} == merged


def test_a_person_sees_a_diff_that_is_longer_than_that_of_a_review(invoke: Invoke) -> None:
    agent = asking(MemoryBackend(), write("/a", "line\n" * 3_000), commit())
    assert description(invoke(agent, GO, THREAD)).count("+line") == 3_000


def test_only_what_a_person_saw_is_merged(invoke: Invoke, tmp_path: Path) -> None:
    files, staged = MemoryBackend(), SqliteBackend(tmp_path / "staged.db")

    def agent(*turns: Any) -> Any:
        return create_deep_agent(
            model(*turns), backend=files, staged=staged, checkpointer=saver, interrupt_on={"commit_changes": True}
        )

    saver = InMemorySaver()
    first = agent(Turn(calls=[*write("/a", "1").calls, *write("/b", "1").calls]), commit())
    invoke(first, GO, THREAD)
    # Another agent of a thread of that name changes what is staged while the person looks at it.
    other = create_deep_agent(model(write("/b", "2"), write("/c", "2")), backend=files, staged=staged)
    invoke(other, GO, THREAD)
    state = invoke(first, decide({"type": "approve"}), THREAD)
    [answer] = answers(state, "commit_changes")
    assert answer.splitlines() == [
        "Merged 1 of 3 changed files: /a.",
        "Not merged, since a person was asked about other versions of these or of files there: /b, /c.",
    ]
    assert texts(files) == {"/a": "1"}


def agents_of_one_thread(files: BackendProtocol, root: Path, *turns: Any) -> tuple[Any, Callable[..., Any]]:
    """An agent, and what makes another one that changes what the thread has staged."""
    shared: Any = {"backend": files, "staged": SqliteBackend(root / "staged.db")}
    first = create_deep_agent(
        model(*turns), checkpointer=InMemorySaver(), interrupt_on={"commit_changes": True}, **shared
    )
    return first, lambda *others: create_deep_agent(model(*others), interrupt_on=UNASKED, **shared)


def test_a_person_who_was_shown_nothing_has_nothing_merged(invoke: Invoke, tmp_path: Path) -> None:
    files = MemoryBackend()
    first, other = agents_of_one_thread(files, tmp_path, commit(paths=["/x"]))
    assert "nothing is changed at /x" in description(invoke(first, GO, THREAD))
    invoke(other(write("/x", "1")), GO, THREAD)
    invoke(first, decide({"type": "approve"}), THREAD)
    assert texts(files) == {}


DELETE = Turn(calls=[Call("delete", {"file_path": "/x"})])
DISCARD = Turn(calls=[Call("discard_changes")])
MOVE = Turn(calls=[Call("move", {"source": "/x", "destination": "/y"})])


@pytest.mark.parametrize(
    ("shown", "later"),
    [
        (DELETE, [write("/x/y", "unseen")]),
        (write("/x", "new"), [DISCARD, MOVE, write("/x", "new")]),
        (MOVE, [write("/x", "unseen")]),
        (DELETE, [DISCARD, DELETE]),
    ],
    ids=["beneath", "moved-away", "in-place-of-moved", "of-another-version"],
)
def test_what_a_person_saw_is_not_merged_with_what_they_did_not_see(
    invoke: Invoke, shown: Turn, later: list[Any], tmp_path: Path
) -> None:
    files = MemoryBackend(files={"/x": "1"})
    first, other = agents_of_one_thread(files, tmp_path, shown, commit())
    invoke(first, GO, THREAD)
    before = {"/x": "others changed it" if later[-1] is DELETE else "1"}
    files.write("/x", before["/x"], overwrite=True).unwrap()
    invoke(other(*later), GO, THREAD)
    state = invoke(first, decide({"type": "approve"}), THREAD)
    assert "a person was asked about other versions" in answers(state, "commit_changes")[0]
    assert texts(files) == before


# --- StagedChanges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", UPPER)
def test_a_person_reviews_commits_and_discards(upper: str, tmp_path: Path) -> None:
    files = MemoryBackend(files=FILES)
    agent = create_deep_agent(model(WRONG), backend=files, staged=UPPER[upper](tmp_path), checkpointer=InMemorySaver())
    agent.invoke(GO, THREAD)
    changes = StagedChanges(agent, THREAD)
    assert changes.review("/new.md").endswith("@@ -0,0 +1 @@\n+new\n")
    assert changes.discard(["/keep.md"]) == ["/keep.md"]
    assert changes.commit(["/new.md"]).merged == ["/new.md"]
    assert texts(files) == {**FILES, "/new.md": "new\n"}
    assert changes.commit().ok
    assert changes.review() == ""
    assert changes.commit().merged == []
    assert {*texts(files)} == {"/keep.md", "/lib/a.py", "/lib/b.py", "/new.md"}
    assert not agent.get_state(THREAD).values.get("files")


@pytest.mark.anyio
async def test_a_person_commits_files_of_the_state_while_a_question_waits() -> None:
    agent = create_deep_agent(model(WRONG, commit()), staged=True, checkpointer=InMemorySaver())
    await agent.ainvoke(given_files(FILES), THREAD)
    changes = StagedChanges(agent, THREAD)
    assert "rename to lib/a.py" in await changes.areview("/lib")
    assert (await changes.acommit(["/lib"])).ok
    assert await changes.adiscard(["/keep.md"]) == ["/keep.md"]
    state = await agent.ainvoke(decide({"type": "approve"}), THREAD)
    assert answers(state, "commit_changes") == ["Merged 1 of 1 changed files: /new.md."]
    assert sorted(state["files"]) == ["/keep.md", "/lib/a.py", "/lib/b.py", "/new.md"]


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", UPPER)
def test_threads_share_no_staged_changes(invoke: Invoke, upper: str, tmp_path: Path) -> None:
    look = Turn(calls=[Call("ls", {"path": "/"}), Call("review_changes")])
    agent = create_deep_agent(
        model(write("/mine", "1"), look, "done", look), backend=MemoryBackend(), staged=UPPER[upper](tmp_path)
    )
    mine = invoke(agent, GO, THREAD)
    others = invoke(agent, GO, {"configurable": {"thread_id": "../1"}})
    assert "created /mine" in answers(mine, "review_changes")[0]
    assert answers(others, "review_changes") == ["Nothing is changed."]


@pytest.mark.parametrize("upper", UPPER)
def test_another_process_resumes_a_thread(upper: str, tmp_path: Path) -> None:
    files = MemoryBackend(files=FILES)

    def run(given: Any, *turns: Any) -> dict[str, Any]:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            agent = create_deep_agent(model(*turns), backend=files, staged=UPPER[upper](tmp_path), checkpointer=saver)
            return agent.invoke(given, THREAD)

    asked = run(GO, WRONG, commit())
    assert "deleted /keep.md" in description(asked)
    assert texts(files) == FILES
    state = run(decide({"type": "approve"}))
    assert answers(state, "commit_changes")[0].startswith("Merged 4 of 4")
    assert {*texts(files)} == {"/lib/a.py", "/lib/b.py", "/new.md"}


@pytest.mark.anyio
async def test_a_rerun_from_an_earlier_checkpoint_has_what_was_staged_then(tmp_path: Path) -> None:
    files = MemoryBackend()
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        look = [Turn(calls=[Call("review_changes")])] * 2
        agent = create_deep_agent(
            model(write("/a", "first\n"), "one", write("/a", "second\n"), "two", *look),
            backend=files,
            staged=True,
            checkpointer=saver,
        )
        await agent.ainvoke(GO, THREAD)
        earlier = (await agent.aget_state(THREAD)).config
        await agent.ainvoke(GO, THREAD)
        assert "+second" in await StagedChanges(agent, THREAD).areview()
        assert "+first" in await StagedChanges(agent, earlier).areview()
        state = await agent.ainvoke(GO, earlier)
        [review] = answers(state, "review_changes")[:1]
        assert "+first" in review
        assert "second" not in review
        assert "+first" in await StagedChanges(agent, THREAD).areview()


@pytest.mark.anyio
async def test_a_commit_that_runs_again_doubles_nothing() -> None:
    files = MemoryBackend(files={"/a": "1\n"})
    agent = asking(files, edit("/a", "1", "1\n2"), commit(), "once", "twice")
    await agent.ainvoke(GO, THREAD)
    waiting = (await agent.aget_state(THREAD)).config
    for _ in range(2):  # The second time, the thread starts where nothing was committed yet.
        state = await agent.ainvoke(decide({"type": "approve"}), waiting)
        assert answers(state, "commit_changes") == ["Merged 1 of 1 changed files: /a."]
    assert texts(files) == {"/a": "1\n2\n"}
    assert await StagedChanges(agent, THREAD).areview() == ""


# --- forks of subagents ----------------------------------------------------------------------------------------------


def worker(name: str, *turns: Any, **more: Any) -> SubAgent:
    return SubAgent(
        name=name, description="Works.", system_prompt="Work.", model=model(*turns), isolation="fork", **more
    )


def tasks(*names: str) -> Turn:
    return Turn(calls=[Call("task", {"description": "go", "subagent_type": name}) for name in names])


def forks(messages: list[Any]) -> list[str]:
    told = [message.text for message in messages if message.type == "tool" and message.name == "task"]
    return [found[0] for text in told if (found := re.search("fork-[0-9a-f]{8}", text))]


def on_fork(number: int, name: str, **given: Any) -> Callable[[list[Any]], Turn]:
    return lambda messages: Turn(calls=[Call(name, {"fork_id": forks(messages)[number], **given})])


OURS = {"/a": "1\n2\n3\n4\n5\n", "/b": "old\n"}


@pytest.mark.both_forms
@pytest.mark.parametrize("kind", ["memory", "disk", "state", "staged", "sqlite"])
def test_parallel_subagents_work_on_forks(invoke: Invoke, kind: str, tmp_path: Path) -> None:
    one = worker(
        "one", edit("/a", "1", "one"), edit("/b", "old", "mine"), Turn(calls=[Call("glob", {"pattern": "**"})])
    )
    two = worker("two", edit("/a", "5", "five"), edit("/b", "old", "other"), write("/two", "2"))
    turns = [
        tasks("one", "two"),
        Turn(calls=[*read("/a").calls, Call("glob", {"pattern": "**"}), Call("ls", {"path": "/"})]),
        on_fork(0, "merge_fork"),
        on_fork(1, "merge_fork"),
        on_fork(1, "review_fork", path="/b"),
        on_fork(1, "discard_fork"),
        on_fork(1, "review_fork"),
        Turn(calls=[*read("/a").calls, *read("/b").calls]),
    ]
    (tmp_path / "files").mkdir()
    disk = FilesystemBackend(tmp_path / "files")
    for path, text in OURS.items():
        disk.write(path, text).unwrap()
    backend: Any = {"disk": disk, "state": None}.get(kind, MemoryBackend(files=OURS))
    staged: Any = {"staged": True, "sqlite": SqliteBackend(tmp_path / "staged.db")}.get(kind, False)
    agent = create_deep_agent(model(*turns), backend=backend, subagents=[one, two], staged=staged)
    state = invoke(agent, given_files(OURS) if kind == "state" else GO, THREAD)
    first, second = answers(state, "task")
    assert "+one" in first
    assert "+mine" in first
    assert "five" not in first
    assert "other" not in first
    assert "+five" in second
    assert "created /two (1 bytes)" in second
    assert "mine" not in second
    assert answers(state, "glob") == ["/a\n/b"], "the files of the supervisor are as they were, and show no fork"
    assert ".forks" not in answers(state, "ls")[0]
    merged, conflicting = answers(state, "merge_fork")
    assert merged == "Merged 2 of 2 changed files: /a, /b."
    assert conflicting.startswith("Merged 2 of 3 changed files: /a, /two.\nConflict in /b: others changed it too")
    left, gone = answers(state, "review_fork")
    assert "+other" in left
    assert "five" not in left
    assert "Forks with changes: none" in gone
    before, united, mine = answers(state, "read_file")
    assert "one" not in before
    assert "five" not in before
    assert "one" in united
    assert "five" in united
    assert "mine" in mine


@pytest.mark.parametrize("upper", UPPER)
def test_a_person_takes_a_part_of_a_fork(invoke: Invoke, upper: str, tmp_path: Path) -> None:
    files = MemoryBackend(files=FILES)
    staged = None if upper == "state" else UPPER[upper](tmp_path)
    agent = create_deep_agent(
        model(tasks("wrong"), on_fork(0, "merge_fork")),
        backend=files,
        subagents=[worker("wrong", WRONG)],
        interrupt_on={"merge_fork": True, **UNASKED},
        checkpointer=InMemorySaver(),
        **({"staged": staged} if staged else {}),
    )
    state = invoke(agent, GO, THREAD)
    assert "-keep" in description(state)
    assert "+new" in description(state)
    [fork] = forks(state["messages"])
    args = {"fork_id": fork, "paths": ["/lib", "/new.md"]}
    state = invoke(agent, decide({"type": "edit", "edited_action": {"name": "merge_fork", "args": args}}), THREAD)
    assert "Merged 3 of 3 changed files: /lib/a.py, /lib/b.py, /new.md." in answers(state, "merge_fork")[0]
    if upper == "state":
        assert {*texts(files)} == {"/keep.md", "/lib/a.py", "/lib/b.py", "/new.md"}
    else:
        assert texts(files) == FILES, "the supervisor's own changes are staged"


@pytest.mark.parametrize("upper", UPPER)
def test_a_subagent_that_asks_goes_on_with_its_fork(invoke: Invoke, upper: str, tmp_path: Path) -> None:
    files = MemoryBackend(files=FILES)
    new = [Turn(calls=[Call("write_file", {"file_path": path, "content": ""})]) for path in ("/1", "/2")]
    turns = [new[0], Turn(calls=[Call("delete", {"file_path": "/keep.md"})]), new[1]]
    agent = create_deep_agent(
        model(tasks("one"), on_fork(0, "merge_fork"), commit()),
        backend=files,
        subagents=[worker("one", *turns, interrupt_on={"delete": True})],
        staged=UPPER[upper](tmp_path),
        interrupt_on=UNASKED,
        checkpointer=InMemorySaver(),
    )
    assert "-keep" in description(invoke(agent, GO, THREAD))
    invoke(agent, decide({"type": "approve"}), THREAD)
    assert {*texts(files)} == {"/1", "/2", "/src/a.py", "/src/b.py"}


def test_a_fork_of_the_conversation_may_work_on_a_fork_of_the_files(invoke: Invoke) -> None:
    files = MemoryBackend(files=FILES)
    forked = worker("one", write("/1", "1"), mode="fork")
    state = invoke(create_deep_agent(model(tasks("one")), backend=files, subagents=[forked]), GO)
    assert texts(files) == FILES
    assert "created /1" in answers(state, "task")[0]
    request = forked["model"].requests[0]  # type: ignore[union-attr]
    assert "Your files are not those" not in request[-1].text


def test_a_fork_without_changes_says_so(invoke: Invoke) -> None:
    agent = create_deep_agent(model(tasks("one")), backend=MemoryBackend(), subagents=[worker("one")])
    assert answers(invoke(agent, GO), "task")[0].endswith("[It worked on a fork of your files, and changed none]")


def test_the_workspaces_of_a_mounted_state_are_hidden() -> None:
    hidden = hide_forks(CompositeBackend(MemoryBackend(), {"/x/": StateBackend(), "/y/": MemoryBackend()}))
    assert asyncio.run(hidden.aread("/x/.forks/a")).code == "permission_denied"
    assert asyncio.run(hidden.aread("/y/.forks/a")).code == "file_not_found"


@pytest.mark.parametrize("staged", [True, False])
def test_a_subagent_on_the_state_sees_no_workspaces(invoke: Invoke, staged: bool) -> None:
    look = Turn(
        calls=[
            Call("ls", {"path": "/"}),
            Call("ls", {"path": "/.forks"}),
            Call("glob", {"pattern": "/.forks/**"}),
            *write("/.forks/staged/1=", "forged").calls,
        ]
    )
    other = SubAgent(
        name="other", description="Looks.", system_prompt="Look.", model=model(look), backend=StateBackend()
    )
    turns = [write("/1", "1"), tasks("one"), tasks("other")]
    subagents = [worker("one", write("/2", "2")), other]
    backend = MemoryBackend()
    invoke(create_deep_agent(model(*turns), backend=backend, staged=staged, subagents=subagents), GO)
    seen = [message.text for message in other["model"].requests[-1] if message.type == "tool"]  # type: ignore[union-attr]
    assert len(seen) == 4
    assert not any("staged/" in text or re.search("fork-", text) for text in seen[:3])
    assert "permission denied" in seen[3]


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"isolation": "copy"}, "has the isolation 'copy'"),
        ({"backend": MemoryBackend()}, "omit backend"),
        ({"mode": "async"}, "cannot have the key isolation"),
    ],
)
def test_wrong_isolation_is_refused(spec: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        create_deep_agent(model(), subagents=[{**worker("one"), **spec}])  # type: ignore[typeddict-item]


def test_the_middleware_alone_needs_a_backend() -> None:
    with pytest.raises(ValueError, match="need the backend"):
        SubAgentMiddleware(default_model=model(), subagents=[worker("one")])
