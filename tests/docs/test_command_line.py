"""The console sessions in the documentation of the command line print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
_MARK = "end-of-the-output"


def _sessions(page: str) -> list[tuple[str, str]]:
    """The commands of a page, each with its output."""
    blocks = re.findall(r"^```console\n(\$ .*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [_command_and_output(part) for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def _command_and_output(text: str) -> tuple[str, str]:
    first, *rest = text.splitlines()
    more = next((number for number, line in enumerate(rest) if not line.startswith("> ")), len(rest))
    command = [first, *(line.removeprefix("> ") for line in rest[:more])]
    return "\n".join(command), "\n".join(rest[more:])


@pytest.mark.parametrize(
    ("page", "examples"),
    [("docs/quickstart.md", 9), ("docs/command-line.md", 0), ("docs/agent-command.md", 0), ("docs/workspaces.md", 0)],
)
def test_commands_print_what_the_page_says(
    page: str, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in [*Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / page).examples()][:examples]:
        example.evaluate()
    sessions = _sessions(page)
    assert sessions
    outputs = [output.strip("\n") for output in _run([command for command, _ in sessions], tmp_path)]
    assert list(zip((command for command, _ in sessions), outputs, strict=True)) == sessions


def _run(commands: list[str], directory: Path) -> list[str]:
    """What the commands print, in one shell."""
    program = directory / "bin/deepfs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m deepfs "$@"\n')
    program.chmod(0o755)
    script = "".join(f"{command}\necho {_MARK}\n" for command in commands)
    env = {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_STATE_HOME": str(directory / "state"),
    }
    done = subprocess.run(["bash"], input=script, env=env, text=True, check=True, stdout=-1, stderr=subprocess.STDOUT)
    return done.stdout.split(f"{_MARK}\n")[:-1]
