"""Copies and moves between two names of one file or directory: links, linked directories, hard links, mounts."""

import fcntl
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from deepfs.disk import Deadline, Disk
from deepfs.errors import DeepFSError, InvalidPathError
from support.deadlines import ScriptedDeadline
from support.disks import open_descriptors, tree, when_free
from support.mounts import bound

FILES = {"f": b"content of f", "d/g": b"content of g", "other": b"content of other"}
LINKS = {
    "link": "f",
    "chain": "link",
    "absolute": "{root}/f",
    "d/up": "../f",
    "d/self": "up",
    "dir": "d",
    "dir2": "dir",
    "d/loop": ".",
    "dangling": "missing",
    "beneath": "missing/deep",
    "round": "round",
}
NAMES = [
    "/f", "/link", "/chain", "/absolute", "/d/up", "/dir/up", "/twin", "/dir/twin", "/d/g", "/d/loop/g", "/d", "/dir",
    "/d/loop", "/dangling", "/missing", "/round", "/dir/new", "/",
]  # fmt: skip


def made(root: Path) -> Path:
    """Make a tree in which most files have several names, and return its root."""
    (root / "d").mkdir(parents=True)
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    for twin in ("twin", "d/twin"):
        os.link(root / "f", root / twin)
    for name, target in LINKS.items():
        (root / name).symlink_to(target.format(root=root))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "root")


def content_of(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read_file(path)[0]
    except DeepFSError:
        return None


def contents_of(found: dict[str, bytes | str | None]) -> set[bytes]:
    """The contents of all files, without the links."""
    return {content for content in found.values() if isinstance(content, bytes)}


def is_same(root: Path, src: str, dst: str) -> bool:
    """Whether os.path.realpath resolves both paths to the same entry."""
    return os.path.realpath(f"{root}{src}") == os.path.realpath(f"{root}{dst}")


@pytest.mark.parametrize("overwrite", [False, True], ids=["keeping", "overwriting"])
@pytest.mark.parametrize("operation", [Disk.move, Disk.copy], ids=["move", "copy"])
def test_transfers_between_any_two_names_lose_no_content(
    tmp_path: Path, root: Path, operation: Callable[..., None], overwrite: bool
) -> None:
    """Only the content of a replaced destination may be lost, and only if it was another file than the source."""
    place, before, descriptors = root, tree(root), open_descriptors()
    for number, (src, dst) in enumerate(product(NAMES, NAMES)):
        if tree(place) != before:
            place = made(tmp_path / str(number))
            before = tree(place)
        disk = Disk(str(place))
        content, replaced, one = content_of(disk, src), content_of(disk, dst), is_same(place, src, dst)
        is_link = os.path.islink(f"{place}{src}")
        try:
            operation(disk, src, dst, overwrite=overwrite, deadline=Deadline(1))
        except DeepFSError:
            assert tree(place) == before, (src, dst)
            continue
        lost = contents_of(before) - contents_of(tree(place))
        assert lost <= ({replaced} if overwrite and not one else set()), (src, dst)
        if one:
            assert tree(place) == before, (src, dst)
        elif content is not None and not is_link:
            assert content_of(disk, dst) == content, (src, dst)
            assert operation is not Disk.move or not os.path.lexists(f"{place}{src}"), (src, dst)
    assert open_descriptors() == descriptors


# --- single cases with their results ---


def test_a_file_can_be_renamed_to_a_name_that_differs_only_in_case(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a file system that ignores case, where both names are one entry."""
    stat_of = os.stat

    def ignoring_case(name: str, **options: object) -> os.stat_result:
        return stat_of("other" if name == "OTHER" and "OTHER" not in os.listdir(root) else name, **options)

    monkeypatch.setattr(os, "stat", ignoring_case)
    Disk(str(root)).move("/other", "/OTHER")
    monkeypatch.undo()
    assert tree(root)["OTHER"] == FILES["other"]
    assert "other" not in tree(root)


# --- one directory mounted at two places ---


@pytest.fixture
def bound_root(root: Path) -> Iterator[Path]:
    """The root, with the directory `/d` bind-mounted at `/m`."""
    (root / "m").mkdir()
    with bound(root / "d", root / "m", root) as seen:
        yield seen


def test_a_directory_mounted_twice_counts_as_one(bound_root: Path) -> None:
    disk, before = Disk(str(bound_root)), tree(bound_root)
    disk.move("/d/g", "/m/g", overwrite=True)
    disk.move("/m/g", "/d/g")
    disk.copy("/d/g", "/m/g", overwrite=True)
    for operation in (disk.move, disk.copy):
        for dst in ("/m/new", "/m/new/deep"):
            with pytest.raises(InvalidPathError, match="it lies inside /d"):
                operation("/d", dst)
    assert tree(bound_root) == before


def test_a_move_checks_its_ends_again_after_waiting_for_a_lock(root: Path) -> None:
    """Two hard links of one file become two files while the move waits for the lock."""
    waiting = os.open(root / "twin", os.O_RDWR)
    fcntl.flock(waiting, fcntl.LOCK_EX)

    def change() -> bool:
        if (root / "f").stat().st_nlink > 1:
            (root / "f").unlink()
            (root / "f").write_bytes(b"another")
            fcntl.flock(waiting, fcntl.LOCK_UN)
        return False

    try:
        when_free(Disk(str(root)).move, "/twin", "/f", overwrite=True, deadline=ScriptedDeadline(cancelled=change))
    finally:
        os.close(waiting)
    assert (root / "f").read_bytes() == FILES["f"]
    assert not (root / "twin").exists()
