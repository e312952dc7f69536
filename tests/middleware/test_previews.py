"""Approvals show what a call would change, and an approved call changes only what was shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepfs import (
    BackendProtocol,
    FilesystemBackend,
    FilesystemMiddleware,
    FilesystemPermission,
    MemoryBackend,
    SqliteBackend,
    StateBackend,
    create_deep_agent,
    run_sync,
)
from deepfs.middleware import preview_call
from deepfs.middleware.approvals import asks_first
from deepfs.types import ReadResult, replace_fields
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}
ALL = {"write_file": True, "edit_file": True, "delete": True}
EDIT = call("edit_file", file_path="/a", old_string="two", new_string="2")
APPROVED = {"type": "approve"}


def files_of(**options: Any) -> MemoryBackend:
    files = MemoryBackend(**options)
    files.write("/a", "one\ntwo\nthree\n")
    files.write("/d/x", "1")
    files.write("/d/y/z", "22")
    return files


def agent_of(files: BackendProtocol, *made: Any, **options: Any) -> Any:
    options.setdefault("interrupt_on", ALL)
    model = ScriptedModel(script=[calls(*made), AIMessage("done")])
    return create_deep_agent(model, backend=files, checkpointer=InMemorySaver(), **options)


def answers(*decisions: Any) -> Command[Any]:
    return Command(resume={"decisions": list(decisions)})


def shown(state: dict[str, Any]) -> list[str]:
    requests = [request for each in state["__interrupt__"] for request in each.value["action_requests"]]
    return [request["description"].partition("\n\n")[2].partition("\n\n")[2] for request in requests]


def text(files: BackendProtocol, path: str) -> str | None:
    data = files.read(path).file_data
    return None if data is None else data.content


# --- what is shown ---------------------------------------------------------------------------------------------------

OVER = call("write_file", file_path="/d/x", content="2", overwrite=True)
MOVE_OVER = call("move", source="/d/x", destination="/a", overwrite=True)
NO_OVERWRITE = "[This call would fail: the file is there already, and overwrite is not set]"
TREE = ["/d/ is deleted (files: 2, directories: 1, 3 bytes)", "  /d/x (1 byte)", "  /d/y", "  /d/y/z (2 bytes)"]
DOTS = "[This call would fail: Invalid path '/../x': '..' is not allowed; name the path from '/']"
HUNK = ["[/a: 1 line added, 1 line removed]", "--- /a", "+++ /a", "@@ -1,3 +1,3 @@", " one", "-two", "+2", " three"]

EDITS = [
    {"old_string": "one", "new_string": "1"},
    {"old_string": "t", "new_string": "T", "replace_all": True},
]
SEVERAL = ["[/a: 3 lines added, 3 lines removed]", "-one", "-two", "-three", "+1", "+Two", "+Three"]

SHOWN: dict[str, tuple[Any, list[str]]] = {
    "edit": (EDIT, HUNK),
    "several edits": (call("edit_file", file_path="/a", edits=EDITS), SEVERAL),
    "create": (call("write_file", file_path="/n", content="x\n"), ["--- /dev/null", "+++ /n", "@@ -0,0 +1,1 @@", "+x"]),
    "replace": (OVER, ["-1", "\\ No newline at end of file", "+2"]),
    "create over a file": (call("write_file", file_path="/a", content="x"), [NO_OVERWRITE]),
    "delete": (call("delete", file_path="/a"), ["+++ /dev/null", "-one", "-two", "-three"]),
    "delete directory": (call("delete", file_path="/d"), TREE),
    "move": (call("move", source="/a", destination="/b"), ["/a (14 bytes) is moved to /b"]),
    "move over": (MOVE_OVER, ["[It replaces a file]", "-one", "-two", "-three", "+1"]),
    "no match": (
        call("edit_file", file_path="/a", old_string="nine", new_string="2"),
        ["[This call would fail: String not found in file '/a'.]"],
    ),
    "missing": (
        call("edit_file", file_path="/none", old_string="a", new_string="2"),
        ["[This call would fail: there is no such file]"],
    ),
    "no path": (call("delete", file_path="/../x"), [DOTS]),
    "wrong arguments": (call("edit_file", file_path="/a"), [""]),
}


def test_the_question_carries_what_would_change(invoke: Invoke) -> None:
    for name, (made, rows) in SHOWN.items():
        [description] = shown(invoke(agent_of(files_of(), made), GO, THREAD))
        assert [row for row in rows if row not in description.split("\n")] == [], name


def test_escapes_and_forged_rows_are_shown_as_text(invoke: Invoke) -> None:
    new = "2\x1b[2J\u202e\u200b\r--- /etc/passwd\n+++ /b\x85[note]"
    state = invoke(
        agent_of(files_of(), call("edit_file", file_path="/a", old_string="two", new_string=new)), GO, THREAD
    )
    [description] = shown(state)
    assert "+2\\x1b[2J\\u202e\\u200b\\r--- /etc/passwd\n++++ /b\\x85[note]" in description
    assert description.replace("\n", "").isprintable()


def test_large_changes_are_cut_and_say_so(invoke: Invoke) -> None:
    files = files_of()
    for number in range(60):
        files.write(f"/many/{number:02}", "x")
    made = [
        call("write_file", file_path="/n", content="line\n" * 5_000),
        call("write_file", file_path="/long", content="y" * 100_000),
        call("delete", file_path="/many"),
    ]
    long, wide, listed = shown(invoke(agent_of(files, *made), GO, THREAD))
    assert "[/n: 5,000 lines added, 0 lines removed]" in long
    assert long.endswith("[The rest of this diff is not shown]")
    assert "[99,600 characters]" in wide
    assert "[10 more entries are not shown]" in listed
    assert max(map(len, (long, wide, listed))) < 25_000


DROP = FilesystemPermission(["read"], ["/drop/**"], "deny")
EDIT_LONG = call("edit_file", file_path="/long", old_string="FIRST", new_string="1")
MOVE_UNSEEN = call("move", source="/a", destination="/drop/a", overwrite=True)
UNSEEN: list[tuple[Any, list[str]]] = [
    (call("write_file", file_path="/drop/a", content="x\n", overwrite=True), ["+x"]),
    (call("write_file", file_path="/drop/n", content="x\n"), ["+x"]),
    (call("delete", file_path="/drop/a"), ["/drop/a is deleted"]),
    (MOVE_UNSEEN, ["/a (14 bytes) is moved to /drop/a"]),
    (call("write_file", file_path="/large", content="x\n", overwrite=True), ["+x"]),
    (call("delete", file_path="/large"), ["/large is deleted"]),
    (call("move", source="/large", destination="/b"), ["/large is moved to /b"]),
    (EDIT_LONG, []),
]


def test_a_call_that_succeeds_is_not_said_to_fail(invoke: Invoke) -> None:
    for made, rows in UNSEEN:
        files = files_of()
        files.write("/drop/a", "secret\n")
        files.upload_files([("/large", bytes(11_000_000)), ("/long", b"FIRST\n" + b"line\n" * 2_200_000)])
        agent = agent_of(files, made, permissions=[DROP])
        [description] = shown(invoke(agent, GO, THREAD))
        assert "fail" not in description
        assert "cannot be shown: " in description
        assert "secret" not in description
        assert [row for row in rows if row not in description.split("\n")] == []
        assert [each.status for each in results(invoke(agent, answers(APPROVED), THREAD))] == ["success"]


def test_a_long_text_that_changed_after_the_question_stays(invoke: Invoke) -> None:
    files = MemoryBackend()
    files.upload_files([("/long", b"FIRST\n" + b"line\n" * 2_200_000)])
    agent = agent_of(files, EDIT_LONG)
    invoke(agent, GO, THREAD)
    other = b"FIRST\n" + b"other\n" * 2_200_000
    files.upload_files([("/long", other)])
    [result] = results(invoke(agent, answers(APPROVED), THREAD))
    assert "changed after a person was asked" in result.text
    assert files.download_files(["/long"])[0].content == other


@pytest.mark.anyio
async def test_a_comparison_that_takes_too_long_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.previews._SECONDS", 0)
    arguments = {"file_path": "/new", "content": "\n" * 300_000}
    preview = await preview_call(MemoryBackend(), "write_file", arguments)
    assert preview
    assert preview.text == "[The files could not be read and compared within 0 seconds]"


@pytest.mark.anyio
async def test_the_size_of_a_binary_file_is_exact() -> None:
    files = MemoryBackend()
    for size in (255, 256, 257):
        await files.aupload_files([("/b", b"\0" * size)])
        made = await preview_call(files, "delete", {"file_path": "/b"})
        assert made is not None
        assert made.text == f"/b ({size} bytes) is deleted"


def test_rules_hold_for_what_is_shown(invoke: Invoke) -> None:
    files = files_of()
    rules = [
        FilesystemPermission(["read"], ["/d/**"], "deny"),
        FilesystemPermission(["read", "write"], ["/a"], "interrupt"),
    ]
    made = [EDIT, call("write_file", file_path="/d/x", content="2", overwrite=True)]
    edit, write = shown(invoke(agent_of(files, *made, permissions=rules), GO, THREAD))
    assert "-two" in edit
    assert "permission denied for read on /d/x" in write
    assert "-1" not in write


def test_a_storage_that_fails_does_not_prevent_the_question(invoke: Invoke) -> None:
    class Failing(MemoryBackend):
        async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> Any:
            raise RuntimeError("broken\x1b")

    [description] = shown(invoke(agent_of(Failing(), EDIT), GO, THREAD))
    assert "broken" in description
    assert "\x1b" not in description


class Redirecting(AgentMiddleware):
    """Lets calls delete another file than the model said."""

    def _redirected(self, response: Any) -> Any:
        message = response.result[0]
        made = [{**each, "args": {"file_path": "/d/x"}} for each in message.tool_calls]
        response.result[0] = message.model_copy(update={"tool_calls": made})
        return response

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._redirected(handler(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._redirected(await handler(request))


def test_a_preview_of_another_call_than_the_one_asked_about_is_not_shown(invoke: Invoke) -> None:
    agent = agent_of(files_of(), call("delete", file_path="/a"), middleware=[Redirecting()])
    [description] = shown(invoke(agent, GO, THREAD))
    assert description == "[No preview: other middleware changed this call after the model made it]"


@pytest.mark.parametrize("kind", [StateBackend, SqliteBackend, FilesystemBackend])
def test_every_kind_of_backend_is_shown_and_held_to_it(
    invoke: Invoke, kind: Callable[..., Any], tmp_path: Path
) -> None:
    files = kind() if kind is StateBackend else kind(tmp_path / "files" if kind is SqliteBackend else tmp_path)
    given = {"files": {"/a": {"content": "one\ntwo\n", "encoding": "utf-8"}}} if kind is StateBackend else {}
    for is_changed in (False, *([] if given else [True])):
        if not given:
            files.write("/a", "one\ntwo\n", overwrite=True)
        agent = agent_of(files, EDIT)
        assert "\n-two\n+2" in shown(invoke(agent, {**GO, **given}, THREAD))[0]
        if is_changed:
            files.edit("/a", "one", "1")
        [message] = results(invoke(agent, answers(APPROVED), THREAD))
        assert ("changed after a person was asked" in message.text) is is_changed
        if not given:
            assert text(files, "/a") == ("1\ntwo\n" if is_changed else "one\n2\n")
    run_sync(files.aclose)


class WithoutVersionsOfParts(MemoryBackend):
    """Tells no version of a part of a file, like adapted backends of other libraries."""

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        read = await super().aread(path, offset, limit)
        return read if read.next_offset is None else replace_fields(read, version=None)


def test_moves_are_held_where_parts_have_no_versions(invoke: Invoke) -> None:
    for is_changed in (False, True):
        files = WithoutVersionsOfParts()
        files.write("/a", "one\ntwo\n")
        agent = agent_of(files, call("move", source="/a", destination="/b"))
        invoke(agent, GO, THREAD)
        if is_changed:
            files.edit("/a", "two", "2")
        [message] = results(invoke(agent, answers(APPROVED), THREAD))
        assert ("changed after a person was asked" in message.text) is is_changed
        assert files.read("/b").ok is not is_changed


# --- what happens then -----------------------------------------------------------------------------------------------


def edited(path: str, old: str) -> Callable[[BackendProtocol], Any]:
    return lambda files: files.edit(path, old, f"{old}, too")


def written(path: str) -> Callable[[BackendProtocol], Any]:
    return lambda files: files.write(path, "mine")


CHANGING: dict[str, tuple[Any, Callable[[BackendProtocol], Any], bool]] = {
    "edit": (EDIT, edited("/a", "one"), False),
    "edit, gone": (EDIT, lambda files: files.delete("/a"), False),
    "replace": (call("write_file", file_path="/a", content="x", overwrite=True), edited("/a", "one"), False),
    "create": (call("write_file", file_path="/n", content="x", overwrite=True), written("/n"), False),
    "delete": (call("delete", file_path="/a"), edited("/a", "one"), False),
    "delete directory": (call("delete", file_path="/d"), written("/d/new"), False),
    "move": (call("move", source="/a", destination="/b"), edited("/a", "one"), False),
    "move over": (MOVE_OVER, edited("/a", "one"), False),
    "move to": (call("move", source="/a", destination="/b", overwrite=True), written("/b"), False),
    "elsewhere": (EDIT, edited("/d/x", "1"), True),
}


def test_a_file_that_changed_after_the_question_stays(invoke: Invoke) -> None:
    for name, (made, change, is_done) in CHANGING.items():
        files = files_of()
        agent = agent_of(files, made)
        invoke(agent, GO, THREAD)
        assert change(files).ok
        before = {path: text(files, path) for path in ("/a", "/b", "/n", "/d/x", "/d/new")}
        [message] = results(invoke(agent, answers(APPROVED), THREAD))
        assert (message.status == "success") is is_done, name
        if not is_done:
            assert {path: text(files, path) for path in before} == before
            assert "changed after a person was asked" in message.text or name == "edit, gone"


def test_edits_of_one_file_in_a_turn_are_made_where_their_lines_are_as_shown(invoke: Invoke) -> None:
    made = [EDIT, call("edit_file", file_path="/a", old_string="three", new_string="3")]
    for is_changed, left in ((False, "one\n2\n3\n"), (True, "one\ntwo, too\n3\n")):
        files = files_of()
        agent = agent_of(files, *made)
        invoke(agent, GO, THREAD)
        if is_changed:
            files.edit("/a", "two", "two, too")
        state = invoke(agent, answers(APPROVED, APPROVED), THREAD)
        assert [each.status for each in results(state)] == ["error" if is_changed else "success", "success"]
        assert text(files, "/a") == left
        assert not agent.get_state(THREAD).values.get("approval_previews"), "it does not stay in the thread"


def test_an_edited_call_is_held_to_the_file_and_to_the_rules(invoke: Invoke) -> None:
    rules = [FilesystemPermission(["write"], ["/d/**"], "deny"), FilesystemPermission(["write"], ["/**"], "interrupt")]
    for arguments, status in (
        ({**EDIT["args"], "new_string": "zwei"}, "success"),
        ({"file_path": "/d/x", "old_string": "1", "new_string": "2"}, "error"),
    ):
        files = files_of()
        agent = agent_of(files, EDIT, permissions=rules)
        invoke(agent, GO, THREAD)
        other = {"type": "edit", "edited_action": {"name": "edit_file", "args": arguments}}
        [message] = results(invoke(agent, answers(other), THREAD))
        assert message.status == status
        assert text(files, "/d/x") == "1"
        assert text(files, "/a") == ("one\nzwei\nthree\n" if status == "success" else "one\ntwo\nthree\n")


def test_each_answer_is_possible(invoke: Invoke) -> None:
    files = files_of()
    made = [EDIT, *(call("write_file", file_path=f"/{name}", content="x") for name in "bcd")]
    agent = agent_of(files, *made)
    invoke(agent, GO, THREAD)
    other = {"type": "edit", "edited_action": {"name": "write_file", "args": {"file_path": "/e", "content": "y"}}}
    state = invoke(
        agent, answers(APPROVED, other, {"type": "reject"}, {"type": "respond", "message": "Later."}), THREAD
    )
    assert sorted(message.status for message in results(state)) == ["error", "success", "success", "success"]
    assert [text(files, path) for path in ("/b", "/c", "/d", "/e")] == [None, None, None, "y"]
    assert text(files, "/a") == "one\n2\nthree\n"


def test_calls_that_nobody_was_asked_about_are_not_held(invoke: Invoke) -> None:
    files = files_of()

    def when(request: Any) -> bool:
        return bool(request.tool_call["args"]["file_path"] == "/b")

    writes = {"allowed_decisions": ["approve"], "description": "Look here."}
    on = {"edit_file": {"allowed_decisions": ["approve"], "when": when}, "write_file": writes}
    agent = agent_of(files, EDIT, call("write_file", file_path="/b", content="x"), interrupt_on=on)
    [request] = invoke(agent, GO, THREAD)["__interrupt__"][0].value["action_requests"]
    assert request["description"].startswith("Look here.")
    assert request["description"].endswith("\n+x\n\\ No newline at end of file")
    files.edit("/a", "one", "1")
    state = invoke(agent, answers(APPROVED), THREAD)
    assert [message.status for message in results(state)] == ["success", "success"]


# --- tools that do what the file tools do ----------------------------------------------------------------------------

PATCH = "*** Begin Patch\n*** Update File: /a\n-two\n+2\n*** Delete File: /d/x\n*** End Patch"
PATCHING = call("apply_patch", input=PATCH)


def patching(files: BackendProtocol, *made: Any, **options: Any) -> Any:
    tools = FilesystemMiddleware(files, model_tools=["apply_patch", "memory"])
    return agent_of(files, *made, middleware=[tools], **options)


def test_a_patch_is_asked_about_as_what_it_does(invoke: Invoke) -> None:
    for named, asks in [("write_file", False), ("edit_file", True), ("delete", True), ("move", False)]:
        files = files_of()
        state = invoke(patching(files, PATCHING, interrupt_on={named: True}), GO, THREAD)
        assert ("__interrupt__" in state) is asks
        assert (text(files, "/a") == "one\ntwo\nthree\n") is asks
        if asks:
            assert {"-two", "+2", "-1"} <= set(shown(state)[0].split("\n"))


def test_rules_ask_about_the_files_of_a_patch() -> None:
    rules = [FilesystemPermission(["write"], ["/a"], "interrupt")]
    for lines, asks in [
        ("*** Update File: a\n-two\n+2", True),
        ("*** Delete File: /a", True),
        ("*** Add File: /a/b\n+x", False),
        ("*** Update File: /d/x\n*** Move to: a", True),
        ("*** Update File: /d/x\n-1\n+2", False),
        ("*** Rename File: a", False),
    ]:
        patch = {"input": f"*** Begin Patch\n{lines}\n*** End Patch"}
        assert asks_first(rules, "apply_patch", patch) is asks, lines


def test_an_approved_patch_is_held_to_what_was_shown(invoke: Invoke) -> None:
    for is_changed in (False, True):
        files = files_of()
        agent = patching(files, PATCHING)
        invoke(agent, GO, THREAD)
        if is_changed:
            files.edit("/a", "one", "1")
        [message] = results(invoke(agent, answers(APPROVED), THREAD))
        assert (message.status, text(files, "/d/x")) == (("error", "1") if is_changed else ("success", None))
        assert ("changed after a person was asked" in message.text) is is_changed


def test_rules_ask_about_the_memory_tool(invoke: Invoke) -> None:
    rules = [FilesystemPermission(["write"], ["/memories/**"], "interrupt")]
    assert not asks_first(rules, "memory", {"command": "view", "path": "/memories/m"})
    changes: list[tuple[dict[str, Any], str]] = [
        ({"command": "create", "path": "/memories/n", "file_text": "x\n"}, "+x"),
        ({"command": "str_replace", "path": "/memories/m", "old_str": "old", "new_str": "x"}, "-old"),
        ({"command": "insert", "path": "/memories/m", "insert_line": 0, "insert_text": "x"}, "+x"),
        ({"command": "delete", "path": "/memories/m"}, "-old"),
        ({"command": "rename", "old_path": "/memories/m", "new_path": "/memories/x"}, "is moved to /memories/x"),
    ]
    for arguments, row in changes:
        files = files_of()
        files.write("/memories/m", "old\n")
        agent = patching(files, call("memory", **arguments), interrupt_on=None, permissions=rules)
        [description] = shown(invoke(agent, GO, THREAD))
        assert row in description
        [message] = results(invoke(agent, answers(APPROVED), THREAD))
        assert message.status == "success"
