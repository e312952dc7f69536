"""`deepfs sync`, and what `cp` does with links: what is copied and deleted, what stays, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from support.command_line import deepfs
from support.copies import contents, fill

SOURCE = {"a": "1", "dir/b": "2", "dir/deep/c.log": "3", ".hid": "4"}
GONE = {"gone/x": "5", "gone/y.log": "6", "gone/.env": "7", "gone/.cache/k": "8"}
TARGET = {"a": "old", "dir/b": "2", **GONE}


def lay(root: Path, files: dict[str, str]) -> Path:
    return fill(root, {name: content.encode() for name, content in files.items()})


def held(root: Path) -> dict[str, str]:
    """The contents of the files and, with a slash behind their names, the empty directories."""
    found = {name: content.decode() for name, content in contents(root).items()}
    empty = [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return found | {f"{path.relative_to(root)}/": "" for path in empty}


MIRRORED: list[tuple[list[str], dict[str, str]]] = [
    ([], {**TARGET, **SOURCE}),
    (["--delete"], SOURCE),
    (["--delete", "--exclude", "*.log"], {"a": "1", "dir/b": "2", ".hid": "4", "gone/y.log": "6"}),
    (["--delete", "--exclude", "gone", "--exclude", "deep"], {**TARGET, "a": "1", ".hid": "4"}),
    (["--delete", "--exclude", "*"], TARGET),
    (["--delete", "--exclude", "gone/**", "--exclude", ".*"], {"a": "1", **GONE, "dir/b": "2", "dir/deep/c.log": "3"}),
    (["--delete", "--exclude", "gone/", "--include", "**"], {**SOURCE, **GONE}),
    (["--include", "dir"], {**TARGET, "dir/deep/c.log": "3"}),
    (
        ["--include", "*.log", "--delete"],
        {
            "a": "old",
            "dir/b": "2",
            "dir/deep/c.log": "3",
            **{name: GONE[name] for name in GONE if name != "gone/y.log"},
        },
    ),
    (["--include", "dir/**", "--exclude", "dir/deep/**"], TARGET),
    (["--dry-run", "--delete"], TARGET),
]


@pytest.mark.parametrize(("options", "expected"), MIRRORED, ids=lambda value: " ".join(value) or "plain")
def test_a_directory_becomes_like_another(tmp_path: Path, options: list[str], expected: dict[str, str]) -> None:
    source, target = lay(tmp_path / "source", SOURCE), lay(tmp_path / "target", TARGET)
    assert deepfs("sync", *options, source, target).status == 0
    assert held(target) == expected
    assert held(source) == SOURCE
    database = f"sqlite:///{tmp_path}/files.db"
    assert deepfs("cp", "-rT", lay(tmp_path / "again", TARGET), f"{database}#/t").status == 0
    assert deepfs("sync", *options, source, f"{database}#/t").status == 0
    assert deepfs("cp", "-rT", f"{database}#/t", tmp_path / "result").status == 0
    assert held(tmp_path / "result") == expected


def test_a_dry_run_tells_what_the_run_does(tmp_path: Path) -> None:
    source, target = lay(tmp_path / "source", SOURCE), lay(tmp_path / "target", TARGET)
    told = deepfs("sync", "-n", "--delete", source, target).lines
    copied = [f"copy {source}/{name}" for name in (".hid", "a", "dir/deep/c.log")]
    assert sorted(told) == sorted([*copied, *(f"delete {target}/{name}" for name in GONE)])
    done = json.loads(deepfs("sync", "--json", "--delete", source, target).out)
    assert (done["files"], done["skipped"], done["deleted"]) == (3, 1, 4)
    assert deepfs("sync", "-n", "--delete", source, target).out == ""
    assert deepfs("sync", "-n", source, f"sqlite:///{tmp_path}/none.db").status == 1
    assert deepfs("sync", "-n", source, tmp_path / "none").status == 0
    assert not {"none", "none.db"} & {path.name for path in tmp_path.iterdir()}


def test_nothing_is_deleted_where_that_may_be_a_mistake(tmp_path: Path) -> None:
    source, target = lay(tmp_path / "source", SOURCE), lay(tmp_path / "target", TARGET)
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
        assert {**TARGET, "a": ""}.keys() <= held(target).keys()
    assert held(source) == SOURCE


def test_what_cannot_be_read_is_not_deleted_as_if_it_were_gone(tmp_path: Path) -> None:
    source, target = lay(tmp_path / "source", SOURCE), lay(tmp_path / "target", SOURCE)
    os.mkfifo(source / "pipe")
    (source / "dir/b").unlink()
    assert deepfs("sync", "--delete", source, target).status == 1
    assert held(target) == SOURCE


@pytest.mark.parametrize("command", [["cp", "-rT"], ["sync"]], ids=lambda command: command[0])
def test_links_are_left_out_or_followed(tmp_path: Path, command: list[str]) -> None:
    source = lay(tmp_path / "source", {"dir/a": "1"})
    (source / "dir/a").chmod(0o600)
    (source / "to_file").symlink_to("dir/a")
    assert deepfs(*command, "--links=skip", source, tmp_path / "skipped").status == 0
    assert held(tmp_path / "skipped") == {"dir/a": "1"}
    assert deepfs(*command, "--links=follow", source, tmp_path / "followed").status == 0
    assert held(tmp_path / "followed") == {"dir/a": "1", "to_file": "1"}
    assert (tmp_path / "followed/to_file").lstat().st_mode & 0o7777 == 0o600
    assert not (tmp_path / "followed/to_file").is_symlink()
    assert deepfs("sync", source, tmp_path / "told").status == 1
    (source / "to_directory").symlink_to("dir")
    assert deepfs(*command, "--links=follow", source, tmp_path / "followed").status == 1
