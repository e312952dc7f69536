"""The scripts that sandboxes run are valid for every supported shell and Python, and shipped with the package."""

import ast
import os
import subprocess
from importlib.resources import files
from pathlib import Path

import anyio
import pytest

from deepfs.sandboxes.wire import Records, command_text, parse_frame
from support.machines import Machine, Outcome

SCRIPTS = files("deepfs.sandboxes")


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(shell, marks=pytest.mark.needs(shell[0]), id=shell[0])
        for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"])
    ],
)
def test_every_shell_parses_the_script(shell: list[str]) -> None:
    checked = subprocess.run([*shell, "-n"], input=SCRIPTS.joinpath("script.sh").read_bytes(), capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_an_old_python_parses_the_script() -> None:
    ast.parse(SCRIPTS.joinpath("script.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("engine", ["", "py", "sh"])
def test_arguments_and_content_are_never_interpreted_by_a_shell(engine: str) -> None:
    hostile = b"'; touch /evil; $(touch /evil) `touch /evil` \n@deepfs.payload\ntouch /evil"
    command = command_text(engine, [hostile], hostile)
    assert command.replace(command_text(engine, [b""], b""), "").count("evil") == 0
    assert b"evil" not in command.encode()


@pytest.mark.needs("boxes of bubblewrap")
@pytest.mark.parametrize("engine", ["py", "sh"])
def test_leftovers_that_cannot_be_removed_are_ignored(engine: str, tmp_path: Path) -> None:
    for name in (".~deepfs-1", ".~deepfs-2", ".~deepfs-3"):
        inner = tmp_path / name / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.chmod(0o500 if name.endswith("2") else 0o700)
        os.utime(inner.parent, (1, 1))
    command = command_text(engine, [b"nonce", b"1000", b"stage", b"new", b"0"], b"content")

    async def run() -> Outcome:
        return await (await Machine(tmp_path).start("sh", "-c", command)).wait(30)

    frame = parse_frame(anyio.run(run).stdout.decode(), "nonce")
    assert Records(frame.part, frame.checksum).words() == [b"ok"]
    assert sorted(path.name for path in tmp_path.iterdir() if "lock" not in path.name) == [".~deepfs-2", ".~deepfs-new"]
    (tmp_path / ".~deepfs-2" / "inner").chmod(0o700)
