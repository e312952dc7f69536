"""`deepfs patch` and `deepfs diff`: the same tree as by git, or a refusal that says why."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from deepfs import SqliteBackend
from deepfs.cli.app import app
from support.command_line import deepfs
from support.counts import few_or_many
from support.patched_trees import as_files, lay, random_pairs

REFUSED = re.compile(r"changes a binary file|needs lines of context")
"""Why a diff that fits is refused. An insertion at the start of a file, without context, may be for an empty file."""


@pytest.mark.needs("git")
@pytest.mark.parametrize("pairs", few_or_many(40, 10_000, seconds=7_200))
def test_random_trees_become_what_git_makes_of_them(pairs: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    same = 0
    for seed, chance, before, after in random_pairs(pairs, request.config):
        lay(tmp_path / "old", before)
        lay(tmp_path / "new", after)
        options = [option for option in ("-M", "-C", "--binary") if chance.random() < 0.4]
        context = chance.choice([0, 1, 3, 3, 3])
        diff = git("diff", "--no-index", f"-U{context}", *options, "old", "new", cwd=tmp_path).stdout
        if not diff:
            continue
        ours, theirs = lay(tmp_path / "ours", before), lay(tmp_path / "theirs", before)
        patch = tmp_path / "of.patch"
        patch.write_bytes(diff)
        outcome = deepfs("patch", "-d", ours, "-p2", patch)
        if outcome.status == 0:
            git("apply", "-p2", *(["--unidiff-zero"] if context == 0 else []), cwd=theirs, given=diff)
            assert as_files(ours) == as_files(theirs), (seed, outcome)
            same += 1
        else:
            assert as_files(ours) == before, (seed, outcome)
            assert REFUSED.search(outcome.err), (seed, outcome)
    assert same > pairs / 3


def git(*arguments: str, cwd: Path, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run git without any configuration of this machine."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(["git", *arguments], cwd=cwd, input=given, capture_output=True, env=env, check=False)


def put(tmp_path: Path, **files: bytes) -> Path:
    return lay(tmp_path / "files", {name.replace("_", "."): (content, 0o644) for name, content in files.items()})


def contents(root: Path) -> dict[str, bytes]:
    return {name: content for name, (content, _) in as_files(root).items()}


def patched(tmp_path: Path, diff: str, *options: str) -> tuple[int, str]:
    """The status of the command, and what it says, of files by their names."""
    patch = tmp_path / "of.patch"
    patch.write_bytes(diff.encode())
    outcome = deepfs("patch", "-d", tmp_path / "files", *options, patch)
    return outcome.status, (outcome.out + outcome.err).strip().replace(f"{tmp_path}/files/", "")


CHANGE = "@@ -1,3 +1,3 @@\n 1\n-2\n+TWO\n 3\n"
OLD, NEW = b"1\n2\n3\n", b"1\nTWO\n3\n"


WRITTEN: list[tuple[str, dict[str, bytes], dict[str, bytes] | None]] = [
        (f"--- f\t(revision 1)\n+++ f\t(working copy)\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"--- f.orig\t2026-11-26 10:00\n+++ f\t2026-11-26 10:01\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"--- f.orig\n+++ f\n{CHANGE}", {"f": OLD, "f_orig": OLD}, {"f": NEW, "f.orig": OLD}),
        (f"--- f\n+++ g\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"--- a/f\n+++ b/f\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"--- /old/f\n+++ /new/f\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"--- old/dir/f\n+++ f\n{CHANGE}", {"f": OLD}, {"f": NEW}),
        (f"Hello\n\n--- a/f\n+++ b/f\n{CHANGE}-- \n2.39\n", {"f": OLD}, {"f": NEW}),
        (f"--- a/f\n+++ b/f\n{CHANGE}".replace("\n", "\r\n"), {"f": OLD}, {"f": NEW}),
        ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", {"f": b"x\n", "g": b""}, {"g": b""}),
        ("--- f\t2026-11-26 10:00:00.0 +0000\n+++ f\t1969-12-31 19:00:00.0 -0500\n@@ -1 +0,0 @@\n-x\n",
         {"f": b"x\n", "g": b""}, {"g": b""}),
        ("--- f\n+++ f\n@@ -1 +0,0 @@\n-x\n", {"f": b"x\n"}, {"f": b""}),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n", {"f": b"x"}, {"f": b"x\n"}),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-x\r\n+x\n", {"f": b"x\r\n"}, {"f": b"x\n"}),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-\ufeffx\n+x\n", {"f": b"\xef\xbb\xbfx\n"}, {"f": b"x\n"}),
        ("--- f\n+++ f\n@@ -1,2 +1,2 @@\n 1\n--- x\n+++ y\n", {"f": b"1\n-- x\n"}, {"f": b"1\n++ y\n"}),
        ("--- f\n+++ f\n@@ -3 +3 @@\n-x\n+y\n", {"f": b"x\nx\nx\nx\n"}, {"f": b"x\nx\ny\nx\n"}),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\n@@ -3 +3 @@\n-x\n+z\n", {"f": b"0\nx\n0\nx\n"}, None),
        (f"diff --git x/f y/f\nrename from x/f\nrename to y/f\n--- x/f\n+++ y/f\n{CHANGE}", {"f": OLD}, None),
        ("diff --git f g\nsimilarity index 100%\nrename from f\nrename to g\n", {"f": b"\0"}, {"g": b"\0"}),
        (f"diff --git a/f b/g\ncopy from f\ncopy to g\n--- a/f\n+++ b/g\n{CHANGE}", {"f": OLD}, {"f": OLD, "g": NEW}),
        ('diff --git "a/q\\"" "b/q\\""\nnew file mode 100644\n', {}, {'q"': b""}),
        ('diff --git a/f "b/q\\""\nrename from f\nrename to "q\\""\n', {"f": b""}, {'q"': b""}),
]  # fmt: skip


def test_what_programs_write_is_applied(tmp_path: Path) -> None:
    for number, (diff, before, after) in enumerate(WRITTEN):
        (tmp_path / str(number)).mkdir()
        root = put(tmp_path / str(number), **before)
        status, said = patched(tmp_path / str(number), diff)
        assert (status, contents(root)) == ((0, after) if after is not None else (1, before)), (diff, said)


REFUSALS: dict[str, tuple[str, str]] = {
    "other content than is deleted": ("--- f\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n", "does not fit"),
    "more content than is deleted": ("--- f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "has more than the patch removes"),
    "deleted though not empty": ("diff --git a/f b/f\ndeleted file mode 100644\n", "has more than the patch removes"),
    "other line ends": ("--- f\n+++ f\n@@ -1 +1 @@\n-1\r\n+x\r\n", "or other line ends"),
    "applied already": (f"--- f\n+++ f\n{CHANGE.replace('TWO', '3').replace('-2', '-4')}", "and not '4'"),
    "another spelling": ("--- n\n+++ n\n@@ -1 +1 @@\n-caf\xe9\n+x\n", "for '\\xe9', it stands on line 1"),
    "several places": ("--- r\n+++ r\n@@ -9 +9 @@\n-x\n+y\n", "in several other places"),
    "not at the end any more": ("--- f\n+++ f\n@@ -9,2 +9,2 @@\n 1\n-2\n+3\n", "does not fit"),
    "not at the start any more": ("--- f\n+++ f\n@@ -1,2 +1,2 @@\n-2\n+3\n 3\n", "does not fit"),
    "for an empty file": ("--- f\n+++ f\n@@ -0,0 +1 @@\n+x\n", "is for an empty file"),
    "created though there": ("--- /dev/null\n+++ f\n@@ -0,0 +1 @@\n+x\n", "is there already"),
    "more lines than told": (f"--- f\n+++ f\n{CHANGE}+4\n", "has more lines than its head announces"),
    "fewer lines than told": ("--- f\n+++ f\n@@ -1,3 +1,3 @@\n 1\n-2\n+TWO\n", "has not the lines"),
    "a hunk of no file": (CHANGE, "belongs to no file"),
    "no hunk": ("--- f\n+++ f\n", "has no hunk"),
    "lines behind the end": ("--- f\n+++ f\n@@ -1 +1 @@\n-1\n+x\n\\ No newline at end of file\n", "goes on where"),
    "no diff": ("*** f\n--- f\n***************\n*** 1 ****\n! 1\n--- 1 ----\n! x\n", "changes no file"),
    "binary": ("diff --git a/p b/p\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo\n", "changes a binary file"),
    "binary told by diff": ("Binary files old/p and new/p differ\n", "changes a binary file"),
    "a binary file": ("--- p\n+++ p\n@@ -1 +1 @@\n-1\n+x\n", "is binary"),
    "a link": ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+f\n", "is a link"),
    "a submodule": ("diff --git a/s b/s\nindex 1..2 160000\n--- a/s\n+++ b/s\n@@ -1 +1 @@\n-1\n+2\n", "a submodule"),
    "names of two depths": (f"--- a/f\n+++ b/f\n{CHANGE}--- r\n+++ r\n{CHANGE}", "Say it with -p"),
    "a path outside": (f"--- ../f\n+++ ../f\n{CHANGE}", "'..'"),
    "one of two missing": (f"--- f\n+++ f\n{CHANGE}--- none\n+++ none\n{CHANGE}", "not found"),
    "a name of other bytes": ('diff --git "a/\\377" "b/\\377"\nnew file mode 100644\n', "no text (UTF-8)"),
    "one file twice": (f"--- f\n+++ f\n{CHANGE}--- f\n+++ f\n{CHANGE}", "named 2 times"),
    "moved to what is there": ("diff --git a/f b/r\nrename from f\nrename to r\n", "is there already"),
}


def test_what_does_not_fit_is_refused_with_the_reason_and_changes_nothing(tmp_path: Path) -> None:
    root = put(tmp_path, f=OLD, r=b"x\nx\n", p=b"\0", n="cafe\u0301\n".encode())
    before = as_files(root)
    for name, (diff, why) in REFUSALS.items():
        status, said = patched(tmp_path, diff)
        assert (status, as_files(root)) == (1, before), name
        assert why in said, name


def test_leading_parts_of_names_are_left_off_as_told(tmp_path: Path) -> None:
    root = lay(tmp_path / "files", {"b/f": (OLD, 0o644), "f": (OLD, 0o644)})
    assert patched(tmp_path, f"--- b/f\n+++ b/f\n{CHANGE}") == (0, "Updated b/f")
    assert patched(tmp_path, f"--- b/f\n+++ b/f\n{CHANGE}", "-p1") == (0, "Updated f")
    assert contents(root) == {"b/f": NEW, "f": NEW}
    diff = "diff --git a/x/f b/x/g\nrename from x/f\nrename to x/g\n"
    assert patched(tmp_path, diff, "-p", "2") == (0, "Updated f, now g")
    assert patched(tmp_path, f"--- f\n+++ f\n{CHANGE}", "-p1")[0] == 1


def test_who_may_run_a_file_is_kept_or_told(tmp_path: Path) -> None:
    root = lay(tmp_path / "files", {"f": (OLD, 0o640), "g": (OLD, 0o755)})
    modes = (
        "diff --git a/f b/f\nold mode 100644\nnew mode 100755\ndiff --git a/g b/g\nold mode 100755\nnew mode 100644\n"
    )
    added = "diff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
    assert patched(tmp_path, modes + added) == (0, "Updated f\nUpdated g\nAdded n")
    assert {name: mode for name, (_, mode) in as_files(root).items()} == {"f": 0o750, "g": 0o644, "n": 0o755}
    patch = tmp_path / "of.patch"
    patch.write_text(added)
    with SqliteBackend(tmp_path / "files.db", "ada") as files:
        assert files.write("/f", "").ok
    outcome = deepfs("patch", patch, on=f"sqlite:///{tmp_path}/files.db?namespace=ada")
    assert outcome.out == "Added /n [whether it can be run is not kept here]\n"


def test_a_mode_is_set_back_where_the_rest_of_the_patch_fails(tmp_path: Path) -> None:
    root = lay(tmp_path / "files", {"f": (OLD, 0o644), "d/x": (b"x\n", 0o644)})
    mode = "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n"
    status, said = patched(tmp_path, f"{mode}diff --git a/d/x b/f/x\nrename from d/x\nrename to f/x\n")
    assert status == 1, said
    assert as_files(root) == {"f": (OLD, 0o644), "d/x": (b"x\n", 0o644)}


@pytest.mark.parametrize("pairs", few_or_many(40, 10_000, seconds=7_200))
def test_differences_of_trees_are_applied_whole(pairs: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    same = 0
    for seed, chance, before, after in random_pairs(pairs, request.config):
        lay(tmp_path / "files", before)
        lay(tmp_path / "new", after)
        form = chance.choice([f"{tmp_path}/{{}}", f"file://{tmp_path}/{{}}#/"])
        shown = CliRunner().invoke(app, ["diff", form.format("files"), form.format("new")])
        assert shown.exit_code == (before != after), (seed, shown.stderr)
        if before == after:
            continue
        status, said = patched(tmp_path, shown.stdout_bytes.decode())
        if status == 0:
            same += 1
        else:
            assert "changes a binary file" in said, (seed, said)
        assert as_files(tmp_path / "files") == (after if status == 0 else before), (seed, said)
    assert same > pairs / 3
