"""Commands with hostile names and contents, without their streams, and with an editor or a pager that fails."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepfs import DeleteResult, FilesystemBackend, SqliteBackend
from support.command_line import COMMAND, deepfs


def test_tree_of_any_depth_enters_no_link(tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(".")
    (tmp_path / "a/there").mkdir(parents=True)
    (tmp_path / "a/there/up").symlink_to("../..")
    (tmp_path / "a/b.txt").write_text("")
    drawn = ["├── a/", "│   ├── b.txt", "│   └── there/", "│       └── up/", "└── here/"]
    assert deepfs("tree", f"file://{tmp_path}#/").lines[1:-2] == drawn
    assert deepfs("tree", f"{tmp_path}/here").lines[1:-2] == drawn
    with SqliteBackend(tmp_path / "deep.db") as backend:
        assert backend.write("/a" * 1200, "").ok
    assert len(deepfs("tree", f"sqlite:///{tmp_path}/deep.db").lines) == 1203


def test_ls_of_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("")
    assert (deepfs("ls", tmp_path).status, deepfs("tree", "-L", "1", f"{tmp_path}/none").status) == (2, 2)


def test_what_an_editor_leaves_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/tmp")
    for script, told in [
        ("exit 3", "nothing is stored"),
        ("printf 'mine\\377' > \"$1\"", "no text in UTF-8"),
        ('printf mine > "$1"; exit 3', "nothing is stored"),
    ]:
        shutil.rmtree(tmp_path / "tmp", ignore_errors=True)
        (tmp_path / "tmp").mkdir()
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(0o700)
        (tmp_path / "a.txt").write_text("text")
        outcome = deepfs("edit", tmp_path / "a.txt")
        assert (outcome.status, told in outcome.err, (tmp_path / "a.txt").read_text()) == (1, True, "text")
        kept = [Path(path) for path in re.findall(r"your text is in (\S+)", outcome.err)]
        assert [file.read_bytes()[:4] for file in kept] == [b"mine"] * ("mine" in script)
        assert {file.parent for file in kept} == set((tmp_path / "tmp").iterdir())


def test_ctrl_c_in_an_editor_is_for_the_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nkill -INT $PPID\nsleep 0.1\nprintf mine > "$1"\n')
    editor.chmod(0o700)
    env = {**os.environ, "VISUAL": str(editor)}
    done = subprocess.run([*COMMAND, "edit", "new.txt"], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (done.returncode, (tmp_path / "new.txt").read_text()) == (0, "mine")


def test_names_in_a_diff_forge_nothing(tmp_path: Path) -> None:
    """A name with line breaks would otherwise be a second file in the patch."""
    forged = "x\n--- victim\n+++ victim\n@@ -1 +1 @@\n-safe\n+hacked\n"
    names = ['tab\tand "quotes"', "back\\slash\n", '"q"', " blank ", forged]
    for side, text in (("old", "1\n"), ("new", "2\n")):
        (tmp_path / side).mkdir()
        for name in names:
            (tmp_path / side / name).write_text(text)
        (tmp_path / side / "victim").write_text("safe\n")
    patch = tmp_path / "all.patch"
    patch.write_text(deepfs("diff", f"file://{tmp_path}/old#/", f"file://{tmp_path}/new#/").out)
    assert deepfs("patch", patch, on=f"file://{tmp_path}/old").status == 0
    assert deepfs("diff", f"file://{tmp_path}/old#/", f"file://{tmp_path}/new#/") == (0, "", "")
    assert (tmp_path / "old/victim").read_text() == "safe\n"


def test_closed_streams_are_no_files(tmp_path: Path) -> None:
    """Without standard streams, nothing is written into a file that takes their numbers, and nothing is read."""
    command = " ".join(COMMAND)
    script = f"""
        {command} write a.txt text >&- 2>&- ; echo $?
        {command} cat none >&- ; echo $?
        {command} cat none 2>&- ; echo $?
        {command} write b.txt <&- ; echo $?
        {command} ls >/dev/full ; echo $?
        {command} --help >/dev/full ; echo $?
    """
    # With a buffer, the interpreter tries to write what is left when it ends.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "1", "1", "1", "2", "1"]
    assert done.stderr.splitlines() == [
        "deepfs cat: File 'none' not found",
        "deepfs write: Bad file descriptor",
        "deepfs ls: No space left on device",
        "deepfs: No space left on device",
    ]
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "text")]


def test_colours_of_matches_take_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "a.txt").write_text("b" + "a" * 200 + "!\n")
    found = deepfs("grep", "b|(a+)+$", f"file://{tmp_path}#/a.txt")
    assert found.out.endswith(":\x1b[1;31mb\x1b[0m" + "a" * 200 + "!\n")


def test_the_root_of_the_machine_is_refused_by_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion is replaced: a test that failed would otherwise delete the machine it runs on."""
    deleted: list[str] = []

    async def adelete(backend: object, path: str, **options: object) -> DeleteResult:
        deleted.append(path)
        return DeleteResult(path=path)

    monkeypatch.setattr(FilesystemBackend, "adelete", adelete)
    (tmp_path / "tree.toml").write_text("url = '/'")
    (tmp_path / "link").symlink_to("/")
    for url in ("file:////", "file:///tmp/..", f"file://{tmp_path}/link", f"tree://{tmp_path}/tree.toml"):
        outcome = deepfs("rm", "-rf", "--no-preserve-root", f"{url}#/")
        assert (outcome.status, outcome.err) == (1, "deepfs rm: refusing to remove '/', the root of this machine\n")
    assert deleted == []


def test_an_empty_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a variable that is not set, which must not mean the current directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for command in ("rm -rf", "cp -r new", "cp -t", "mv new", "cat", "write", "edit", "ls", "grep x"):
        outcome = deepfs(*command.split(), "")
        assert (outcome.status, "empty address" in outcome.err) == (2, True), command
        assert (tmp_path / "here").is_dir()


def test_mcp_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("deepfs.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    outcome = deepfs("mcp", ".")
    assert (outcome.status, "pip install 'deepfs[mcp]'" in outcome.err) == (1, True)
