"""`deepfs sync`, and what `cp` does with links: what is copied and deleted, what stays, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from support.command_line import deepfs
from support.copies import contents, fill

SOURCE = {"a": b"1", "dir/b": b"2", "dir/deep/c.log": b"3", ".hid": b"4"}
TARGET = {"a": b"old", "dir/b": b"2", "gone/x": b"5", "gone/y.log": b"6"}


def held(root: Path) -> dict[str, bytes]:
    """The contents of the files and, with a slash behind their names, the empty directories."""
    empty = [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return contents(root) | {f"{path.relative_to(root)}/": b"" for path in empty}


MIRRORED: list[tuple[list[str], dict[str, bytes]]] = [
    ([], {**TARGET, **SOURCE}),
    (["--delete"], SOURCE),
    (["--delete", "--exclude", "*.log"], {"a": b"1", "dir/b": b"2", ".hid": b"4", "gone/y.log": b"6"}),
    (["--delete", "--exclude", "gone", "--exclude", "deep"], {**TARGET, "a": b"1", ".hid": b"4"}),
    (["--include", "dir"], {**TARGET, "dir/deep/c.log": b"3"}),
    (["--include", "*.log", "--delete"], {"a": b"old", "dir/b": b"2", "dir/deep/c.log": b"3", "gone/x": b"5"}),
    (["--include", "dir/**", "--exclude", "dir/deep/**"], TARGET),
    (["--dry-run", "--delete"], TARGET),
]


@pytest.mark.parametrize(("options", "expected"), MIRRORED, ids=lambda value: " ".join(value) or "plain")
def test_a_directory_becomes_like_another(tmp_path: Path, options: list[str], expected: dict[str, bytes]) -> None:
    source, target = fill(tmp_path / "source", SOURCE), fill(tmp_path / "target", TARGET)
    assert deepfs("sync", *options, source, target).status == 0
    assert held(target) == expected
    assert held(source) == SOURCE
    database = f"sqlite:///{tmp_path}/files.db"
    assert deepfs("cp", "-rT", fill(tmp_path / "again", TARGET), f"{database}#/t").status == 0
    assert deepfs("sync", *options, source, f"{database}#/t").status == 0
    assert deepfs("cp", "-rT", f"{database}#/t", tmp_path / "result").status == 0
    assert held(tmp_path / "result") == expected


DOTTED = ("build/k", "build/.env", "build/.cache/x", "sub/build/k", "sub/build/.h", ".debug.log", "z")
LEFT_ALONE: list[tuple[str, set[str]]] = [
    ("build/**", {"build/k", "build/.env", "build/.cache/x"}),
    ("build/*", {"build/k", "build/.env", "build/.cache/x"}),
    ("build/", {"build/k", "build/.env", "build/.cache/x", "sub/build/k", "sub/build/.h"}),
    ("/build/", {"build/k", "build/.env", "build/.cache/x"}),
    ("{build/.cache/,z}", {"build/.cache/x", "z"}),
    ("*.log", {".debug.log"}),
    ("*", {*DOTTED}),
]


@pytest.mark.parametrize(("pattern", "stays"), LEFT_ALONE)
def test_what_is_excluded_stays_also_if_its_name_has_a_dot(tmp_path: Path, pattern: str, stays: set[str]) -> None:
    source, target = fill(tmp_path / "source", {"a": b""}), fill(tmp_path / "target", dict.fromkeys(DOTTED, b""))
    assert deepfs("sync", "--delete", "--exclude", pattern, source, target).status == 0
    assert held(target).keys() - {"a"} == stays
    assert deepfs("sync", "--include", pattern, target, tmp_path / "back").status == 0
    assert held(tmp_path / "back").keys() - {"a"} == stays


def test_a_dry_run_tells_what_the_run_does(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", SOURCE), fill(tmp_path / "target", TARGET)
    told = deepfs("sync", "-n", "--delete", source, target).lines
    copied = [f"copy {source}/{name}" for name in (".hid", "a", "dir/deep/c.log")]
    assert sorted(told) == sorted([*copied, f"delete {target}/gone/x", f"delete {target}/gone/y.log"])
    done = json.loads(deepfs("sync", "--json", "--delete", source, target).out)
    assert (done["files"], done["skipped"], done["deleted"]) == (3, 1, 2)
    assert deepfs("sync", "-n", "--delete", source, target).out == ""
    assert deepfs("sync", "-n", source, f"sqlite:///{tmp_path}/none.db").status == 1
    assert deepfs("sync", "-n", source, tmp_path / "none").status == 0
    assert not {"none", "none.db"} & {path.name for path in tmp_path.iterdir()}


def test_nothing_is_deleted_where_that_may_be_a_mistake(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", SOURCE), fill(tmp_path / "target", TARGET)
    (tmp_path / "empty").mkdir()
    (source / "link").symlink_to("nowhere")
    for given, why in (
        ([source, target], "nothing is deleted, since not all was copied"),
        ([tmp_path / "empty", target], "has no files"),
        ([f"sqlite:///{tmp_path}/files.db?namespace=typo", target], "no database"),
        ([source / "dir", source], "lies in"),
        ([source, source / "dir"], "into itself"),
        ([source, source], "are the same file"),
        ([source / "a", target], "Not a directory"),
        ([source, target, "--exclude", "[z-a]"], "z-a"),
    ):
        outcome = deepfs("sync", "--delete", *given)
        assert (outcome.status, why in outcome.err) == (1, True), outcome
        assert {**TARGET, "a": b""}.keys() <= held(target).keys()
    assert held(source) == SOURCE


def test_what_cannot_be_read_is_not_deleted_as_if_it_were_gone(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", SOURCE), fill(tmp_path / "target", SOURCE)
    os.mkfifo(source / "pipe")
    (source / "dir/b").unlink()
    assert deepfs("sync", "--delete", source, target).status == 1
    assert held(target) == SOURCE


@pytest.mark.parametrize("command", [["cp", "-rT"], ["sync"]], ids=lambda command: command[0])
def test_links_are_left_out_or_followed(tmp_path: Path, command: list[str]) -> None:
    source = fill(tmp_path / "source", {"dir/a": b"1"})
    (source / "dir/a").chmod(0o600)
    (source / "to_file").symlink_to("dir/a")
    assert deepfs(*command, "--links=skip", source, tmp_path / "skipped").status == 0
    assert held(tmp_path / "skipped") == {"dir/a": b"1"}
    assert deepfs(*command, "--links=follow", source, tmp_path / "followed").status == 0
    assert held(tmp_path / "followed") == {"dir/a": b"1", "to_file": b"1"}
    assert (tmp_path / "followed/to_file").lstat().st_mode & 0o7777 == 0o600
    assert not (tmp_path / "followed/to_file").is_symlink()
    assert deepfs("sync", source, tmp_path / "told").status == 1
    (source / "to_directory").symlink_to("dir")
    assert deepfs(*command, "--links=follow", source, tmp_path / "followed").status == 1
