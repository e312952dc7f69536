"""`deepfs agent` for one task, in this process: what it writes, how it ends, and what it leaves."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepfs.cli.agent.output import as_toml
from deepfs.cli.agent.setup import ThreadLock
from deepfs.cli.app import app

EDIT = """
[[turn]]
text = "I look."
calls = [{ name = "read_file", args = { file_path = "/plan.md" } }]

[[turn]]
calls = [{ name = "edit_file", args = { file_path = "/plan.md", old_string = "Act", new_string = "Ask" } }]

[[turn]]
text = "The plan\\nis **tidy**."
"""
HOSTILE = """
[[turn]]
text = "\\u001b]0;owned\\u0007"
calls = [
    { name = "read_file", args = { file_path = "/\\u001b[2Jevil.md" } },
    { name = "no\\u001b[31mtool", args = {} },
    { name = "read_file", args = { file_path = "/plan.md" } },
]

[[turn]]
text = "\\u009b31m\\u202edone"
"""
TREE = """
url = "files"

[agent]
model = "scripted:script.toml"
"""


class Agent:
    """Runs `deepfs agent` in a directory with files and a script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.files.mkdir()
        (self.files / "plan.md").write_text("1. Think\n2. Act\n")

    def run(self, *arguments: str, script: str = EDIT, status: int = 0, stdin: str | None = None) -> tuple[str, str]:
        """Run the command. Returns what it writes to both streams."""
        (self.directory / "script.toml").write_text(script)
        given = ["agent", "--on", "files", "--model", "scripted:script.toml", "--threads", "threads.db", *arguments]
        done = CliRunner(catch_exceptions=False).invoke(app, given, input=stdin)
        assert done.exit_code == status, done.output
        return done.stdout, done.stderr

    def events(self, *arguments: str, script: str = EDIT, status: int = 0) -> list[dict[str, object]]:
        """What the command tells as JSON."""
        return [
            json.loads(line) for line in self.run("--json", *arguments, script=script, status=status)[0].splitlines()
        ]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.chdir(tmp_path)
    return Agent(tmp_path)


def test_the_answer_is_the_output_and_all_else_is_beside_it(agent: Agent) -> None:
    out, err = agent.run("tidy", "--yes", "--thread", "t")
    assert out == "I look.\nThe plan\nis **tidy**.\n"
    assert err == (
        "scripted:script.toml · files · thread t\n✓ read_file /plan.md  2 lines\n✓ edit_file /plan.md  1 replacement\n"
    )
    assert agent.run("tidy", "-yq") == (out, "")
    verbose = agent.run("-", "-yv", stdin="tidy")[1]
    assert "    new_string: Ask\n" in verbose
    assert "    1\t1. Think\n" in verbose


STAGED = """
[[turn]]
calls = [{ name = "write_file", args = { file_path = "/new.md", content = "new" } }]

[[turn]]
calls = [{ name = "commit_changes", args = {} }]

[[turn]]
text = "done"
"""


def test_staged_changes_ask_once_at_the_commit(agent: Agent) -> None:
    err = agent.run("x", "--staged", script=STAGED, status=3)[1]
    assert "not approved: commit_changes" in err
    assert "not approved: write_file" not in err
    assert not (agent.files / "new.md").exists()
    agent.run("x", "--staged", "--yes", script=STAGED)
    assert (agent.files / "new.md").read_text() == "new"


def test_nothing_is_approved_silently(agent: Agent) -> None:
    out, err = agent.run("tidy", status=3)
    assert out.endswith("is **tidy**.\n")
    assert "not approved: edit_file /plan.md\n" in err
    assert err.endswith("deepfs agent: a call was not approved; --yes approves all calls\n")
    assert (agent.files / "plan.md").read_text() == "1. Think\n2. Act\n"
    assert agent.events("tidy", status=3)[-1]["status"] == "refused"


def test_events(agent: Agent) -> None:
    found = agent.events("tidy", "--thread", "t", status=3)
    kinds = [event["event"] for event in found if event["event"] != "text"]
    calls = ["tool_call", "tool_result"]
    assert kinds == ["start", "message", *calls, "tool_call", "approval", "tool_result", "message", "end"]
    assert "".join(str(event["text"]) for event in found if event["event"] == "text") == "I look.The plan\nis **tidy**."
    approval = next(event for event in found if event["event"] == "approval")
    assert approval["preview"].splitlines()[-2:] == ["-2. Act", "+2. Ask"]
    assert {**approval, "preview": ""} == {
        "event": "approval",
        "agent": None,
        "name": "edit_file",
        "args": {"file_path": "/plan.md", "old_string": "Act", "new_string": "Ask"},
        "preview": "",
        "decision": "reject",
        "message": "Nobody is here to approve this call, so it was not run.",
    }
    assert found[-1] == {
        "event": "end",
        "status": "refused",
        "thread": "t",
        "answer": "The plan\nis **tidy**.",
        "error": None,
    }


DELEGATING = """
[[turn]]
when = "book"
calls = [{ name = "task", args = { description = "Chapter 1.", subagent_type = "writer" } }]

[[turn]]
when = "Chapter 1"
text = "It was night.\\nIt rained."
calls = [{ name = "write_file", args = { file_path = "/1.md", content = "It was night.\\n" } }]

[[turn]]
when = "Chapter 1"
text = "Written."

[[turn]]
when = "book"
text = "There is a book."
"""


def test_lines_of_a_subagent_have_its_name(agent: Agent) -> None:
    settings = TREE + '[[agent.subagents]]\nname = "writer"\ndescription = "Writes."\n'
    (agent.directory / "tree.toml").write_text(settings)
    out, err = agent.run("Write a book", "--on", "tree.toml", "--yes", script=DELEGATING)
    assert out == "There is a book.\n"
    assert [line for line in err.splitlines() if line.startswith("[writer] ")] == [
        "[writer] It was night.",
        "[writer] It rained.",
        "[writer] ✓ write_file /1.md  1 line",
        "[writer] Written.",
    ]


def test_settings_of_a_tree(agent: Agent) -> None:
    tree = agent.directory / "tree.toml"
    asked = ["read_file", "write_file", "edit_file", "delete", "execute"]
    tree.write_text(f'{TREE}interrupt_on = {asked}\nmemory = ["/plan.md"]\nsystem_prompt = "Be brief."\n')
    err = agent.run("tidy", "--on", "tree.toml", status=3)[1]
    assert "not approved: read_file /plan.md" in err
    tree.write_text(
        TREE + "interrupt_on = []\n\n" + '[[permissions]]\noperations=["write"]\npaths=["/**"]\nmode="interrupt"\n'
    )
    assert "not approved: edit_file" in agent.run("tidy", "--trust", "--on", "tree.toml", status=3)[1]
    for wrong, told in (('modell = "x"', "unknown field `modell`"), ("memory = 1", "Expected `array`, got `int`")):
        tree.write_text(f"[agent]\n{wrong}\n")
        err = agent.run("tidy", "--on", "tree.toml", status=2)[1]
        assert err.startswith(f"deepfs agent: {tree}: [agent]: ")
        assert told in err


def test_a_file_switches_no_approvals_off_and_sends_no_key_unless_it_is_trusted(agent: Agent) -> None:
    every = "write_file = true, edit_file = true, delete = true, execute = true"
    for setting, told in [
        ("interrupt_on = []", "interrupt_on does not ask before write_file"),
        ("interrupt_on = { write_file = true, edit_file = ['reject'], delete = false }", "not ask before delete"),
        ("interrupt_on = { write_file = ['approve'] }", "does not let write_file be rejected"),
        (f"interrupt_on = {{ {every}, move = false }}", "does not ask before move"),
        ('model_options = { base_url = "http://127.0.0.1:9" }', "model_options has base_url"),
    ]:
        (agent.directory / "tree.toml").write_text(f"{TREE}{setting}\n")
        err = agent.run("tidy", "--on", "tree.toml", status=2)[1]
        assert told in err
        assert "--trust" in err


def test_control_characters_reach_no_output(agent: Agent) -> None:
    (agent.files / "plan.md").write_text("\x1b[2J\x9b31m\u202e\n")
    out, err = agent.run("x", "-v", script=HOSTILE)
    assert out == "\\x1b]0;owned\\x07\n\\x9b31m\\u202edone\n"
    assert "✗ read_file /\\x1b[2Jevil.md" in err
    assert "✗ no\\x1b[31mtool" in err
    assert "    1\t\\x1b[2J\\x9b31m\\u202e" in err
    as_json = agent.run("x", "--json", script=HOSTILE)[0]
    assert as_json.isascii()
    assert all(line.isprintable() for line in as_json.splitlines())


def test_a_failing_model_is_an_error(agent: Agent) -> None:
    (agent.files / "a").mkdir()
    (agent.files / "a/[b].md").touch()
    listings = [f'{{ name = "ls", args = {{ path = "{path}" }} }}' for path in ("/", "/a")]
    out, err = agent.run("x", script=f"[[turn]]\ncalls = [{', '.join(listings)}]\n", status=1)
    assert out == ""
    assert "✓ ls /  2 paths\n" in err
    assert "✓ ls /a  1 path\n" in err
    assert "deepfs agent: ScriptEndedError: the script has no turn for request 2" in err
    end = agent.events("x", script="turn = []\n", status=1)[-1]
    assert (end["status"], "no turn for request 1" in str(end["error"])) == ("failed", True)


def test_wrong_use(agent: Agent) -> None:
    wrong: list[tuple[list[str], str]] = [
        ([], "there is no task: give one, or - to read it from the standard input"),
        ([" "], "the task is empty"),
        (["x", "--model", "nobody:knows"], "model='nobody:knows'"),
        (["x", "--model", "scripted:none.toml"], "No such file or directory: 'none.toml'"),
        (["x", "--on", "nothing.toml"], "No such file or directory"),
        (["x", "--thread", "a\x1b[2J"], r"the name of a thread has 1 to 200 characters that print: 'a\x1b[2J'"),
        (["--continue"], "there is no thread with these files to continue"),
        (["x", "--threads", "script.toml"], "script.toml cannot be used as a database of threads: file is not a data"),
    ]
    for arguments, told in wrong:
        out, err = agent.run(*arguments, status=2)
        assert out == ""
        assert told in err
        assert err.startswith("deepfs agent: ")
        assert "Traceback" not in err


def test_threads_go_on_and_are_listed(agent: Agent) -> None:
    said = '[[turn]]\ntext = "{}"\n'
    agent.run("first task", "--thread", "one", script=said.format("A."))
    agent.run("second task", "--thread", "two", script=said.format("B."))
    agent.run("third task", "--thread", "one", script=said.format("C."))
    agent.run("elsewhere", "--thread", "other", "--on", ".", script=said.format("D."))
    assert "thread one" in agent.run("fourth task", "-c", script=said.format("E."))[1]
    rows = agent.run("--list-threads")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["one", "other", "two"]
    assert rows[0].endswith("files  first task")
    listed = [json.loads(line) for line in agent.run("--list-threads", "--json")[0].splitlines()]
    assert [each["title"] for each in listed] == ["first task", "elsewhere", "second task"]
    assert (agent.directory / "threads.db").stat().st_mode & 0o077 == 0
    err = agent.run("-c", status=1)[1]
    assert "this thread has nothing to go on with: give a task" in err


def test_another_process_is_kept_from_a_thread(agent: Agent) -> None:
    agent.run("x", "--thread", "one", script='[[turn]]\ntext = "A."\n')
    holding = "import sys; from deepfs.cli.agent.setup import ThreadLock as L; l = L('threads.db'); l.take('one')"
    command = [sys.executable, "-c", f"{holding}; print(); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        lock = ThreadLock("threads.db")
        lock.take("two")
        with pytest.raises(ValueError, match="another process works on the thread 'one'"):
            lock.take("one")
        lock.close()
        assert "another process works on the thread 'one'" in agent.run("x", "--thread", "one", status=2)[1]
        other.kill()
    agent.run("x", "--thread", "one", script='[[turn]]\ntext = "B."\n')
    assert not os.path.exists("threads.db-journal")


ARGUMENTS = st.dictionaries(
    st.text(min_size=1),
    st.recursive(
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
)


@settings(max_examples=100)
@given(ARGUMENTS)
@example({"content": 'a"""b\\\r\n\t\x00\x1b\x7f\u202e"'})
def test_arguments_are_edited_as_they_are(args: dict[str, object]) -> None:
    text = as_toml(args)
    assert tomllib.loads(text) == args
    assert all(character in "\n\t" or character >= " " for character in text)


def test_arguments_that_no_file_can_hold_are_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be edited as text"):
        as_toml({"content": "a\ud800b"})
