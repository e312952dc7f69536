"""The commands that list, search, read and change files."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deepfs import SqliteBackend
from support.command_line import COMMAND, deepfs, deepfs_process, interruptible, on_terminal

FILES = {
    "a.txt": "one\ntwo\n",
    "dir/b.py": "def f():\n    return 2\n",
    "dir/.hidden": "two\n",
    "dir/c/d.txt": "x" * 2000,
}


@pytest.fixture(params=["sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a directory with `FILES`; that of a disk where a test asks for it."""
    if request.param == "disk":
        for name, content in FILES.items():
            (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "files" / name).write_text(content)
        return f"file://{tmp_path}/files#"
    with SqliteBackend(tmp_path / "files.db", "ada") as backend:
        for name, content in FILES.items():
            assert backend.write(f"/{name}", content).ok
    return f"sqlite:///{tmp_path}/files.db?namespace=ada#"


on_both = pytest.mark.parametrize("place", ["disk", "sqlite"], indirect=True)


# --- what is where ---------------------------------------------------------------------------------------------------


@on_both
def test_ls(place: str) -> None:
    assert deepfs("ls", f"{place}/").lines == ["a.txt", "dir/"]
    assert deepfs("ls", f"{place}/dir").lines == ["b.py", "c/"]
    assert deepfs("ls", "-a", f"{place}/dir").lines == [".hidden", "b.py", "c/"]
    assert deepfs("ls", f"{place}/a.txt").lines == ["/a.txt"]
    assert re.fullmatch(r" +2000  \d{4}-\d\d-\d\d \d\d:\d\d  d\.txt\n", deepfs("ls", "-l", f"{place}/dir/c").out)
    assert deepfs("ls", "-lh", f"{place}/dir/c").out.startswith("    2.0K  ")
    assert deepfs("ls", on=f"{place}").lines == ["a.txt", "dir/"]


def test_ls_of_several_directories(place: str) -> None:
    outcome = deepfs("ls", f"{place}/dir/c", f"{place}/none", f"{place}/dir")
    assert outcome.lines == ["/dir/c:", "d.txt", "", "/dir:", "b.py", "c/"]
    assert (outcome.status, outcome.err) == (2, "deepfs ls: File '/none' not found\n")


def test_json_names_paths_as_the_user_does(place: str) -> None:
    entries = [json.loads(line) for line in deepfs("ls", "--json", f"{place}/dir").lines]
    assert [(entry["path"], entry["is_dir"]) for entry in entries] == [("/dir/b.py", False), ("/dir/c/", True)]
    found = [json.loads(line) for line in deepfs("grep", "--json", "f", f"{place}/dir").lines]
    assert [(match["path"], match["line"], match["text"]) for match in found] == [("/dir/b.py", 1, "def f():")]


def test_paths_of_this_machine_are_shown_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/a.txt").write_text("text\n")
    monkeypatch.chdir(tmp_path)
    assert deepfs("ls").lines == ["dir/"]
    assert deepfs("glob", "*.txt").lines == ["dir/a.txt"]
    assert deepfs("grep", "tex", "dir").lines == ["dir/a.txt:1:text"]
    assert deepfs("grep", "tex", "../" + tmp_path.name).lines == [f"../{tmp_path.name}/dir/a.txt:1:text"]
    assert deepfs("cat", "dir/a.txt").out == "text\n"
    assert deepfs("cat", "none", "dir").err == "deepfs cat: File 'none' not found\ndeepfs cat: 'dir' is a directory\n"


def test_tree(place: str) -> None:
    assert deepfs("tree", f"{place}/").out == (
        "/\n├── a.txt\n└── dir/\n    ├── b.py\n    └── c/\n        └── d.txt\n\n2 directories, 3 files\n"
    )
    assert deepfs("tree", "-L1", f"{place}/dir").out == "/dir\n├── b.py\n└── c/\n\n1 directory, 1 file\n"
    assert deepfs("tree", f"{place}/none").status == 2


@on_both
def test_stat(place: str) -> None:
    facts = json.loads(deepfs("stat", "--json", f"{place}/a.txt").out)
    assert (facts["path"], facts["type"], facts["size"]) == ("/a.txt", "file", 8)
    assert deepfs("edit", "--if-match", facts["version"], f"{place}/a.txt", "one", "1").status == 0
    assert deepfs("edit", "--if-match", facts["version"], f"{place}/a.txt", "two", "2").status == 1
    outcome = deepfs("stat", f"{place}/dir", f"{place}/none", f"{place}/")
    assert (outcome.status, outcome.err) == (1, "deepfs stat: File '/none' not found\n")
    assert [line.split() for line in outcome.lines if "type" in line] == [["type:", "directory"]] * 2


@on_both
def test_find_goes_where_there_are_no_absolute_paths(place: str) -> None:
    assert deepfs("find", f"{place}/", "-name", "*.txt").lines == ["/a.txt", "/dir/c/d.txt"]
    assert deepfs("find", f"{place}/dir", "-type", "f", "-size", "-1k").lines == []
    assert deepfs("find", f"{place}/dir", "-size", "+1c", "-mtime", "-1", "-maxdepth", "1").lines == [
        "/dir/.hidden",
        "/dir/b.py",
    ]
    assert deepfs("find", f"{place}/none", f"{place}/dir/c", "-type", "d")[:2] == (1, "/dir/c\n")
    assert deepfs("find", f"{place}/", "-size", "1x").status == 2


@on_both
def test_glob_and_du(place: str) -> None:
    assert deepfs("glob", "*.txt", f"{place}/").lines == ["/a.txt", "/dir/c/d.txt"]
    assert deepfs("glob", "*.rs", f"{place}/") == (1, "", "")
    assert deepfs("glob", "*", f"{place}/none").status == 2
    assert deepfs("du", "-b", "-d1", f"{place}/").lines == ["2026    /dir", "2034    /"]
    assert deepfs("du", f"{place}/dir/c", f"{place}/a.txt").lines == ["2.0K    /dir/c", "8       /a.txt"]


# --- grep ------------------------------------------------------------------------------------------------------------


def test_grep_has_the_exit_status_of_grep(place: str) -> None:
    assert deepfs("grep", "two|def", f"{place}/") == (0, "/a.txt:2:two\n/dir/b.py:1:def f():\n", "")
    assert deepfs("grep", "three", f"{place}/") == (1, "", "")
    assert deepfs("grep", "two", f"{place}/", f"{place}/none")[:2] == (2, "/a.txt:2:two\n")
    assert deepfs("grep", "(", f"{place}/").status == 2
    assert deepfs("grep", "-q", "two", f"{place}/") == (0, "", "")


def test_options_of_grep(place: str) -> None:
    assert deepfs("grep", "-F", "f():", f"{place}/").lines == ["/dir/b.py:1:def f():"]
    assert deepfs("grep", "-F", "f.*", f"{place}/").status == 1
    assert deepfs("grep", "-i", "DEF", f"{place}/").status == 0
    assert deepfs("grep", "-l", "o", f"{place}/").lines == ["/a.txt"]
    assert deepfs("grep", "-c", "o", f"{place}/").lines == ["/a.txt:2"]
    assert deepfs("grep", "-g", ".*", "two", f"{place}/").lines == ["/dir/.hidden:1:two"]
    assert deepfs("grep", "-m1", "o", f"{place}/") == (0, "/a.txt:1:one\n", "")
    assert deepfs("grep", "-C1", "return", f"{place}/").lines == ["/dir/b.py-1-def f():", "/dir/b.py:2:    return 2"]
    assert deepfs("grep", "-w", "retur|f", f"{place}/").lines == ["/dir/b.py:1:def f():"]
    assert deepfs("grep", "-w", "-F", "f()", f"{place}/").lines == ["/dir/b.py:1:def f():"]
    assert deepfs("grep", "-vw", "-m1", "two", f"{place}/").lines == ["/a.txt:1:one"]
    assert [json.loads(line)["text"] for line in deepfs("grep", "-o", "--json", "[e-o]+", f"{place}/a.txt").lines] == [
        "one",
        "o",
    ]
    for refused in (["-w", "a)(b"], ["-w", "("], ["-v", "("], ["-ov", "x"], ["-m0", "x"]):
        assert deepfs("grep", *refused, f"{place}/").status == 2, refused


def test_what_is_cut_off_a_long_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 6_000 + "needle\n")
    for option in ("-v", "-o"):
        outcome = deepfs("grep", option, "needle", tmp_path / "long")
        assert (outcome.status, "only 5,000 characters are looked at" in outcome.err) == (2, True), option


# --- contents --------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_searched_are_counted(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    outcome = deepfs("grep", "needle", tmp_path)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == f"deepfs grep: {tmp_path}: 1 file could not be searched\n"


@on_both
def test_cat_and_head(place: str) -> None:
    assert deepfs("cat", f"{place}/a.txt", f"{place}/dir/b.py").out == FILES["a.txt"] + FILES["dir/b.py"]
    assert deepfs("cat", "-n", f"{place}/a.txt").out == "     1\tone\n     2\ttwo\n"
    assert deepfs("head", "-n1", f"{place}/a.txt").out == "one\n"
    assert deepfs("head", "-n0", f"{place}/a.txt").out == ""
    assert deepfs("head", "-c5", f"{place}/a.txt").out == "one\nt"
    assert deepfs("head", "-n1", f"{place}/a.txt", f"{place}/none")[:2] == (1, f"==> {place}/a.txt <==\none\n")


def test_write(place: str) -> None:
    assert deepfs("write", f"{place}/new/file", "text") == (0, "", "")
    assert deepfs("cat", f"{place}/new/file").out == "text"
    refused = deepfs("write", f"{place}/new/file", "other")
    assert refused == (1, "", "deepfs write: '/new/file' already exists; -f replaces it\n")
    assert deepfs("write", "-f", f"{place}/new/file", "other").status == 0
    assert deepfs("write", "-f", "--if-match", "0", f"{place}/new/file", "late").status == 1
    assert deepfs("cat", f"{place}/new/file").out == "other"


def test_mkdir(tmp_path: Path, place: str) -> None:
    new = tmp_path / "new/deep"
    refused = f"deepfs mkdir: cannot create directory '{new}': No such file or directory\n"
    assert deepfs("mkdir", new) == (1, "", refused)
    assert deepfs("mkdir", "-p", new, new) == (0, "", "")
    assert new.is_dir()
    (new / "file").write_text("")
    assert "File exists" in deepfs("mkdir", new).err
    assert "File exists" in deepfs("mkdir", "-p", new / "file").err
    assert "Not a directory" in deepfs("mkdir", "-p", new / "file/x").err
    assert "no empty directory is kept there" in deepfs("mkdir", f"{place}/x").err
    assert deepfs("mkdir", "-p", f"{place}/x/y") == (0, "", "")
    assert "Not a directory" in deepfs("mkdir", "-p", f"{place}/a.txt/y").err


def test_addresses(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree:x#1.toml").write_text('url = "sqlite:///files.db?namespace=ada"\n')
    for words in (
        ["cat", f"{place}/a.txt"],
        ["cat", "sqlite:///files.db/a.txt?namespace=ada"],
        ["cat", f"sqlite:///{tmp_path}/files.db/a.txt?namespace=ada"],
        ["--on", "tree:x#1.toml", "cat", "/a.txt"],
        ["cat", "a.txt", "--on", "sqlite:///files.db?namespace=ada"],
        ["--on", "sqlite:///none.db", "cat", "--on", "tree:x#1.toml", "a.txt"],
    ):
        assert deepfs(*words) == (0, FILES["a.txt"], ""), words
    assert deepfs("cat", "tree:x#1.toml").out == (tmp_path / "tree:x#1.toml").read_text()
    assert deepfs("write", "sqlite:///files.db/new", "x").status == 0
    assert deepfs("write", "sqlite:///new.db/x", "x").status == 1
    assert not (tmp_path / "new.db").exists()
    assert deepfs("write", "sqlite:///files.db#/what?.md", "x").status == 0
    assert "a path that has a '?' goes behind '#'" in deepfs("cat", "sqlite:///files.db/what?.md").err


def test_write_of_the_standard_input_is_exact(tmp_path: Path) -> None:
    for number, content in enumerate((b"line\r\n\xef\xbb\xbf" + bytes(range(256)), b"large" * 2_000_000)):
        address = f"sqlite:///{tmp_path}/files.db#/{number}"
        assert deepfs_process("write", address, stdin=content).status == 0
        assert subprocess.run([*COMMAND, "cat", address], capture_output=True, check=True).stdout == content
        assert deepfs_process("write", address, stdin=content).status == 1


def test_edit(place: str) -> None:
    assert deepfs("edit", f"{place}/a.txt", "two", "2").out == "/a.txt: 1 replaced\n"
    assert json.loads(deepfs("edit", "--json", "-a", f"{place}/a.txt", "\n", ";").out)["occurrences"] == 2
    assert deepfs("cat", f"{place}/a.txt").out == "one;2;"
    assert "not found" in deepfs("edit", f"{place}/a.txt", "nothing", "x").err
    assert deepfs("edit", f"{place}/a.txt", "one").status == 2


def test_edit_in_an_editor(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\nfile.write_text(file.read_text() + 'end')"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    monkeypatch.delenv("VISUAL", raising=False)
    assert deepfs("edit", f"{place}/a.txt") == (0, "", "")
    assert deepfs("edit", f"{place}/new.txt") == (0, "", "")
    assert (deepfs("cat", f"{place}/a.txt").out, deepfs("cat", f"{place}/new.txt").out) == ("one\ntwo\nend", "end")
    meanwhile = [sys.executable, "-m", "deepfs", "write", "-f", f"{place}/a.txt", "theirs"]
    editor.write_text(
        f"import pathlib, subprocess, sys\nsubprocess.run({meanwhile!r}, check=True)\n"
        "pathlib.Path(sys.argv[1]).write_text('mine')"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = deepfs("edit", f"{place}/a.txt")
    assert outcome.status == 1
    [kept] = re.findall(r"your text is in (\S+)", outcome.err)
    assert (Path(kept).read_text(), deepfs("cat", f"{place}/a.txt").out) == ("mine", "theirs")


def test_no_shell_reads_the_name_of_an_edited_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    edited: list[str] = []
    monkeypatch.setattr("click.edit", lambda *, filename: edited.append(Path(filename).name))
    for name in ("a$(touch pwned).txt", "b`touch pwned`.py", 'c";touch pwned;".md', "é ü-1.txt"):
        assert deepfs("write", f"{place}/{name}", "x").status == 0
        assert deepfs("edit", f"{place}/{name}").status == 0
    assert edited == ["a__touch pwned_.txt", "b_touch pwned_.py", "c__touch pwned__.md", "é ü-1.txt"]


def test_diff_of_two_backends(place: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n2\n")
    there = f"file://{tmp_path}#/a.txt"
    assert deepfs("diff", f"{place}/a.txt", there).out == "--- /a.txt\n+++ /a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert deepfs("diff", "-q", f"{place}/a.txt", there) == (1, "Files /a.txt and /a.txt differ\n", "")
    assert json.loads(deepfs("diff", "--json", f"{place}/a.txt", there).out) == {"path": "/a.txt", "change": "changed"}
    assert deepfs("diff", f"{place}/a.txt", f"{place}/none").status == 2


# --- as a process ----------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_text("line\n" * 500_000)
    command = f"{' '.join(COMMAND)} cat {tmp_path}/large.txt | head -n1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "line\n", "")


def test_watch_tells_changes_until_it_is_interrupted(tmp_path: Path) -> None:
    has_told = threading.Event()

    def change() -> None:
        while not has_told.wait(0.1):
            (tmp_path / "file.txt").write_text(os.urandom(4).hex())

    command = [*COMMAND, "watch", "--json", f"file://{tmp_path}#/"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible) as process:
        threading.Thread(target=change, daemon=True).start()
        assert process.stdout is not None
        told = next(line for line in process.stdout if json.loads(line)["path"] == "/file.txt")
        has_told.set()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (json.loads(told)["kind"] in ("created", "modified"), process.returncode, errors) == (True, 130, "")


@pytest.mark.parametrize("columns", [80, 140])
def test_on_a_terminal_lines_fit_and_nothing_forges_them(tmp_path: Path, columns: int) -> None:
    for number in range(30):
        (tmp_path / f"file-{number:02}.txt").write_text("needle \x1b[2J\x07 and needle\n" if number == 7 else "")
    (tmp_path / "evil\x1b[31m\n.txt").write_text("")
    listing = on_terminal(["ls"], columns=columns, cwd=tmp_path)
    assert max(map(len, listing.splitlines())) <= columns
    assert len(listing.splitlines()) < 31 / (columns // 24) + 2
    assert r"evil\x1b[31m\n.txt" in listing
    assert "\x1b" not in listing
    for words in (["find"], ["ls", "-R"], ["find", "-name", "evil*"]):
        assert "\x1b" not in on_terminal(words, columns=columns, cwd=tmp_path)
    assert on_terminal(["grep", "-o", "nee."], columns=columns, cwd=tmp_path, NO_COLOR="1") == (
        "file-07.txt\n1:need\n1:need\n"
    )
    found = on_terminal(["grep", "needle"], columns=columns, cwd=tmp_path)
    needle = "\x1b[1;31mneedle\x1b[0m"
    assert found == f"\x1b[35mfile-07.txt\x1b[0m\n\x1b[32m1\x1b[0m:{needle} \\x1b[2J\\x07 and {needle}\n"
    plain = on_terminal(["grep", "needle"], columns=columns, cwd=tmp_path, NO_COLOR="1")
    assert plain == "file-07.txt\n1:needle \\x1b[2J\\x07 and needle\n"


def test_each_column_is_as_wide_as_its_names(tmp_path: Path) -> None:
    for name in ("a", "b" * 50, "c", "d", "日本", "日本語"):
        (tmp_path / name).write_text("")
    assert on_terminal(["ls"], columns=60, cwd=tmp_path) == f"a{' ' * 51}d\n{'b' * 50}  日本\nc{' ' * 51}日本語\n"
    assert on_terminal(["ls"], columns=57, cwd=tmp_path).count("\n") == 6


def test_the_list_of_commands_cuts_nothing() -> None:
    assert "..." not in deepfs("--help").out.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    "command", [("cat",), ("head",), ("ls",), ("grep", "x"), ("rm",), ("cp",)], ids=lambda words: words[0]
)
def test_a_storage_that_cannot_be_reached_is_told_in_one_line(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "hunter2"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        for address in (
            f"postgresql://user:hunter2@{host}/x?sslmode=disable",
            f"store+postgresql://user:hunter2@{host}/x?sslmode=disable",
            f"s3://bucket/dir?endpoint=http://{host}&allow_http=true",
        ):
            more = (tmp_path / "copy",) if command == ("cp",) else ()
            done = deepfs(*command, f"{address}#/a", *more)
            assert done.status in (1, 2)
            assert done.out == ""
            assert done.err.endswith(" failed: connection refused\n")
            assert done.err.count("\n") == 1
