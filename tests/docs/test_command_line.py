"""The console sessions in the documentation of the command line print what it says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_MARK = "end-of-the-output"


def _sessions(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page, each with its output."""
    for block in re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, output = [], []
            for line in part.splitlines():
                (command if not command or (line.startswith("> ") and not output) else output).append(line)
            yield "\n".join(line.removeprefix("> ") for line in command), "\n".join(output)


@pytest.mark.parametrize("page", ["command-line.md", "agent-command.md"])
def test_commands_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    sessions = list(_sessions(page))
    assert sessions
    program = tmp_path / "bin/deepfs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m deepfs "$@"\n')
    program.chmod(0o755)
    script = "".join(f"{command}\necho {_MARK}\n" for command, _ in sessions)
    env = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, text=True, check=True, stdout=-1, stderr=subprocess.STDOUT
    )
    outputs = [output.strip("\n") for output in done.stdout.split(f"{_MARK}\n")[:-1]]
    assert list(zip((command for command, _ in sessions), outputs, strict=True)) == sessions
