"""`deepfs agent` on a terminal: what a person sees, answers by keys, Ctrl-C, and what outlives a killed process."""

from pathlib import Path

import pytest

from support.terminals import Terminal

EDIT = 'calls = [{ name = "edit_file", args = { file_path = "/plan.md", old_string = "Act", new_string = "Ask" } }]\n'
ROWS = "row\\n" * 30
SCRIPT = f"""
[[turn]]
when = "tidy"
text = "I look at **all** the notes, one after the other, before I change any of them, as a careful editor has to."
calls = [{{ name = "ls", args = {{ path = "/" }} }}]

[[turn]]
when = "tidy"
calls = [
    {{ name = "edit_file", args = {{ file_path = "/plan.md", old_string = "Act", new_string = "Ask\\u001b[2J" }} }},
    {{ name = "write_file", args = {{ file_path = "/new.md", content = "{ROWS}" }} }},
]

[[turn]]
when = "tidy"
text = "All is **tidy**:\\n\\n- `plan.md`\\n\\nThe [end](https://example.org)."

[[turn]]
when = "more"
calls = [{{ name = "write_file", args = {{ file_path = "/a.md", content = "a" }} }}]

[[turn]]
when = "more"
calls = [{{ name = "write_file", args = {{ file_path = "/b.md", content = "b" }} }}]

[[turn]]
when = "more"
text = "Both are there."
"""
WORDS = "word " * 200
DELEGATING = f"""
[[turn]]
when = "book"
calls = [{{ name = "task", args = {{ description = "Chapter", subagent_type = "general-purpose" }} }}]

[[turn]]
when = "Chapter"
text = "{WORDS}"
{EDIT}
"""
ENDING = """
[[turn]]
when = "Chapter"
text = "Written."

[[turn]]
when = "book"
text = "The book is done."
"""
SLOW = """
url = "files"

[agent]
model = "scripted:slow.toml"
model_options = { delay = 0.05 }
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with files and scripts."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "plan.md").write_text("1. Think\n2. Act\n")
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "slow.toml").write_text(DELEGATING)
    (tmp_path / "slow-tree.toml").write_text(SLOW)
    return tmp_path


ON_FILES = ["agent", "--on", "files", "--model", "scripted:script.toml", "--threads", "t.db"]
SLOWLY = ["agent", "--trust", "--on", "slow-tree.toml", "--threads", "t.db", "--thread", "t"]
PROMPT = "> "
KEYS = "show all"


def test_a_talk(place: Path) -> None:
    """Tasks, answers by each key, an editor, and commands, at 80 columns."""
    editor = place / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/Ask/Wait/' \"$1\"\n")
    editor.chmod(0o700)
    with Terminal(ON_FILES, place, variables={"EDITOR": str(editor)}) as terminal:
        terminal.type("tidy\n", after=PROMPT)
        terminal.type("e", after=KEYS)
        terminal.type("a", after=KEYS)
        terminal.wait_for("  +row\n  … 10 more rows: ? shows all\n")
        terminal.type("?", after=KEYS)
        terminal.type("r", after=KEYS)
        terminal.type("too long\n", after="Why?")
        terminal.wait_for("The end (https://example.org).\n")
        terminal.type("more\n", after=PROMPT)
        terminal.type("A", after=KEYS)
        terminal.wait_for("Both are there.\n")
        terminal.type("/files\n", after=PROMPT)
        terminal.wait_for("        1  /b.md\n")
        terminal.type("/nothing\n", after=PROMPT)
        terminal.type("/new\n", after="There is no such command. /help lists them.\n> ")
        terminal.type("/threads\n", after=PROMPT)
        terminal.type("/continue\n", after="files  tidy\n> ")
        terminal.type("\x04", after="Nothing was cut off.\n> ")
        assert terminal.status() == 0
    shown = terminal.screen
    assert (
        "I look at all the notes, one after the other, before I change any of them, as a\n"
        "careful editor has to.\n"
        "✓ ls /  1 path\n"
    ) in shown, shown
    assert "  -2. Act\n  +2. Wait\\x1b[2J\n" in shown
    assert "changed and approved: edit_file /plan.md\n" in shown
    assert "not approved: write_file /new.md\n✓ edit_file /plan.md  1 replacement\n\nAll is tidy:\n" in shown, shown
    assert "\x1b[2J" not in terminal.written.decode()
    assert (place / "files" / "plan.md").read_text() == "1. Think\n2. Wait\x1b[2J\n"
    assert sorted(each.name for each in (place / "files").iterdir()) == ["a.md", "b.md", "plan.md"]


def test_killed_within_a_call_and_within_a_question(place: Path) -> None:
    with Terminal(SLOWLY, place) as terminal:
        terminal.type("Write a book\n", after=PROMPT)
        terminal.wait_for("word word")
        terminal.kill()
    (place / "slow.toml").write_text(DELEGATING.replace(WORDS, "Again."))
    with Terminal(SLOWLY, place) as terminal:
        terminal.wait_for("The last turn was cut off within task. /continue goes on; ")
        terminal.type("/continue\n", after=PROMPT)
        terminal.wait_for(KEYS)
        terminal.kill()
    assert "Act" in (place / "files" / "plan.md").read_text()
    (place / "slow.toml").write_text(ENDING)
    with Terminal([*SLOWLY[:-2], "--continue"], place) as terminal:
        terminal.type("a", after=KEYS)
        terminal.wait_for("The book is done.\n")
        terminal.type("/quit\n", after=PROMPT)
        assert terminal.status() == 0
    assert "general-purpose │ ✓ edit_file /plan.md  1 replacement\n" in terminal.screen
    assert (place / "files" / "plan.md").read_text() == "1. Think\n2. Ask\n"


def test_ctrl_c_stops_the_turn_and_not_the_program(place: Path) -> None:
    with Terminal(SLOWLY, place) as terminal:
        terminal.type("half a line", after=PROMPT)
        terminal.wait_for("half a line")
        terminal.interrupt(until=PROMPT)
        terminal.type("Write a book\n", after=PROMPT)
        terminal.type("\x03", after="word word")
        terminal.type("Another task\n", after="Stopped. /continue goes on.\n> ")
        terminal.wait_for("The last turn was cut off within task. The new task leaves that.\n")
        terminal.wait_for("Error: ScriptEndedError: the script has no turn for request")
        terminal.type("\x04", after="\n> ")
        assert terminal.status() == 0
