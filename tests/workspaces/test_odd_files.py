"""Links, modes, odd names and odd contents below a workspace, and what a merge makes of them."""

import os
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.workspaces import fork
from support.merges import read_tree

pytestmark = pytest.mark.anyio

CONTENTS = {
    "/empty": b"",
    "/binary": bytes(range(256)) * 10,
    "/crlf": b"one\r\ntwo\r\nthree\r\n",
    "/bom": b"\xef\xbb\xbfone\ntwo\nthree\n",
    "/no-end": b"one\ntwo\nthree",
    "/mixed": b"one\r\ntwo\nthree\r",
    f"/{'n' * 255}": b"one\n",
    f"/{'é' * 127}": b"one\n",
    f"/{'d' * 255}/{'n' * 255}": b"one\n",
    "/ a\tb\n'\"\\*?[x]": b"one\n",
}


def make_files(root: Path) -> None:
    for path, content in CONTENTS.items():
        (root / path[1:]).parent.mkdir(exist_ok=True)
        (root / path[1:]).write_bytes(content)


async def test_odd_files_are_as_below_and_are_merged(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(make_files, tmp_path)
    below = FilesystemBackend(tmp_path)
    workspace = fork(below)
    assert await read_tree(workspace) == CONTENTS
    for path, content in CONTENTS.items():
        if b"two" in content:
            assert (await workspace.aedit(path, "one", "mine")).ok
            assert (await below.aedit(path, "three", "theirs")).ok
        else:
            assert (await workspace.aupload_files([(path, content + b"\0mine")]))[0].error is None
    assert (await workspace.amerge()).ok
    expected = {
        path: content.replace(b"one", b"mine").replace(b"three", b"theirs")
        if b"two" in content
        else content + b"\0mine"
        for path, content in CONTENTS.items()
    }
    assert await read_tree(below) == expected
    assert await workspace.achanges() == []


async def test_conflicts_of_odd_files_keep_both_sides(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(make_files, tmp_path)
    below = FilesystemBackend(tmp_path)
    workspace = fork(below)
    for path in CONTENTS:
        assert (await workspace.aupload_files([(path, b"mine")]))[0].error is None
        assert (await below.aupload_files([(path, b"theirs")]))[0].error is None
    result = await workspace.amerge()
    assert {conflict.path for conflict in result.conflicts} == set(CONTENTS)
    after = await read_tree(below)
    assert all([after[path] for path in each.kept] == [b"mine", b"theirs"] for each in result.conflicts), result
    assert (await workspace.amerge()).conflicts == result.conflicts


async def test_a_merge_keeps_modes(tmp_path: Path) -> None:
    def make() -> None:
        for name, mode in (("edited", 0o755), ("moved", 0o750), ("united", 0o755)):
            (tmp_path / name).write_text("one\ntwo\nthree\n")
            (tmp_path / name).chmod(mode)

    await anyio.to_thread.run_sync(make)
    below = FilesystemBackend(tmp_path)
    workspace = fork(below)
    assert (await workspace.aedit("/edited", "one", "1")).ok
    assert (await workspace.aedit("/united", "one", "1")).ok
    assert (await below.aedit("/united", "three", "3")).ok
    assert (await workspace.amove("/moved", "/d/moved")).ok
    assert (await workspace.amerge()).ok
    modes = {each.path: each.mode for each in (await below.alist_tree("/")).entries if each.kind == "file"}
    assert {path: mode & 0o777 for path, mode in modes.items() if mode is not None} == {
        "/edited": 0o755,
        "/united": 0o755,
        "/d/moved": 0o750,
    }


async def test_links_are_followed_within_the_tree_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"

    def make() -> None:
        (root / "d").mkdir(parents=True)
        outside.mkdir()
        (outside / "secret").write_text("secret")
        (root / "d/a").write_text("one")
        for name, target in (
            ("to-file", "d/a"),
            ("to-directory", "d"),
            ("out", str(outside / "secret")),
            ("out-directory", str(outside)),
            ("dangling", "nowhere"),
            ("loop", "loop"),
        ):
            os.symlink(target, root / name)

    await anyio.to_thread.run_sync(make)
    below = FilesystemBackend(root)
    workspace = fork(below)
    for path in ("/out", "/out-directory/secret", "/dangling", "/loop"):
        read, there = await workspace.aread(path), await below.aread(path)
        assert (read.ok, read.code) == (False, there.code), path
    for path in ("/out", "/out-directory/secret"):
        assert not (await workspace.awrite(path, "mine", overwrite=True)).ok
    for path in ("/to-file", "/to-directory/a", "/d/a"):
        assert (await workspace.aread(path)).file_data.content == "one"
    assert (await workspace.aedit("/to-file", "one", "two")).ok
    assert (await workspace.aread("/to-directory/a")).file_data.content == "two", "they are one file"
    assert (await workspace.awrite("/to-directory/new", "new")).ok
    result = await workspace.amerge()
    assert result.ok, result

    def look() -> tuple[str, str, set[str]]:
        links = {each.name for each in root.iterdir() if each.is_symlink()}
        return (root / "d/a").read_text(), (outside / "secret").read_text(), links

    links = {"to-file", "to-directory", "out", "out-directory", "dangling", "loop"}
    assert await anyio.to_thread.run_sync(look) == ("two", "secret", links)
    assert (await below.aread("/d/new")).ok
