"""A failure injected at each system call of each change leaves the old or the new content, and nothing else."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deepfs.disk import Disk
from deepfs.errors import DeepFSError
from support.disks import Faults, open_descriptors, tree

CALLS = [
    *("close", "dup", "fchmod", "fchown", "fstat", "fsync", "link", "lseek", "mkdir", "open", "read", "readlink"),
    *("rename", "rmdir", "scandir", "stat", "symlink", "unlink", "write"),
]

Tree = dict[str, bytes | str | None]

BEFORE: Tree = {
    "dir": None,
    "dir/file": b"old",
    "dir/link": "-> file",
    "dir/sub": None,
    "dir/sub/deep": b"deep",
    "other": b"other",
}


def changed(changes: Tree, *removed: str) -> Tree:
    return {path: content for path, content in (BEFORE | changes).items() if path not in removed}


MOVED: Tree = {f"moved{path[3:]}": content for path, content in BEFORE.items() if path.startswith("dir")}

CHANGES: dict[str, tuple[Callable[[Disk], None], Tree]] = {
    "create": (lambda disk: disk.write_file("/new", b"new"), changed({"new": b"new"})),
    "create deep": (
        lambda disk: disk.write_file("/x/y/new", b"new"),
        changed({"x": None, "x/y": None, "x/y/new": b"new"}),
    ),
    "overwrite": (lambda disk: disk.write_file("/dir/file", b"new", overwrite=True), changed({"dir/file": b"new"})),
    "overwrite through a link": (
        lambda disk: disk.write_file("/dir/link", b"new", overwrite=True),
        changed({"dir/file": b"new"}),
    ),
    "edit": (lambda disk: disk.edit_file("/dir/file", bytes.upper), changed({"dir/file": b"OLD"})),
    "copy": (lambda disk: disk.copy("/other", "/x/new"), changed({"x": None, "x/new": b"other"})),
    "copy over": (lambda disk: disk.copy("/other", "/dir/file", overwrite=True), changed({"dir/file": b"other"})),
    "copy a tree": (lambda disk: disk.copy("/dir", "/moved"), changed(MOVED)),
    "move": (lambda disk: disk.move("/other", "/x/new"), changed({"x": None, "x/new": b"other"}, "other")),
    "move over": (
        lambda disk: disk.move("/other", "/dir/file", overwrite=True),
        changed({"dir/file": b"other"}, "other"),
    ),
    "move a tree": (lambda disk: disk.move("/dir", "/moved"), {"other": b"other", **MOVED}),
    "delete": (lambda disk: disk.delete("/other"), changed({}, "other")),
}

FAILURES: dict[str, Callable[[], BaseException]] = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, "injected"),
    "EIO": lambda: OSError(errno.EIO, "injected"),
    "EACCES": lambda: PermissionError(errno.EACCES, "injected"),
    "KeyboardInterrupt": KeyboardInterrupt,
}


def fill(root: Path) -> None:
    for path, content in BEFORE.items():
        if content is None:
            (root / path).mkdir(parents=True)
        elif isinstance(content, bytes):
            (root / path).write_bytes(content)
        else:
            (root / path).symlink_to(content.removeprefix("-> "))


@pytest.mark.parametrize(("failure", "durable"), [("ENOSPC", True), ("EACCES", False), ("KeyboardInterrupt", True)])
@pytest.mark.parametrize(("change", "after"), CHANGES.values(), ids=CHANGES)
def test_a_failure_of_any_system_call_leaves_the_old_or_the_new_content(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Disk], None],
    after: Tree,
    failure: str,
    durable: bool,
) -> None:
    faults = Faults(monkeypatch, os, CALLS)
    before = open_descriptors()
    for at in range(1000):
        root = tmp_path / str(at)
        root.mkdir()
        fill(root)
        disk = Disk(str(root), durable=durable)
        faults.arm(at, FAILURES[failure])
        try:
            change(disk)
            failed = False
        except (DeepFSError, KeyboardInterrupt):
            failed = True
        finally:
            faults.disarm()
        allowed = [BEFORE, after] if failed else [after]
        assert tree(root) in allowed, f"call {at}, {faults.hit}"
        assert open_descriptors() == before, f"call {at}, {faults.hit}"
        if faults.hit is None:
            break
    assert 5 < at < 1000


def test_an_error_from_close_fails_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may report a full disk only when the written file descriptor is closed."""
    fill(tmp_path)
    dup, close, written = os.dup, os.close, set[int]()

    def note(descriptor: int) -> int:
        written.add(copy := dup(descriptor))
        return copy

    def fail(descriptor: int) -> None:
        close(descriptor)
        if descriptor in written:
            written.remove(descriptor)
            raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(os, "dup", note)
    monkeypatch.setattr(os, "close", fail)
    disk = Disk(str(tmp_path))
    for change in (lambda: disk.write_file("/new", b"new"), lambda: disk.edit_file("/dir/file", bytes.upper)):
        with pytest.raises(DeepFSError, match="No space is left"):
            change()
    assert tree(tmp_path) == BEFORE


def test_a_failure_to_lock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    faults = Faults(monkeypatch, fcntl, ["flock"])
    faults.arm(0, FAILURES["EIO"])
    with pytest.raises(DeepFSError):
        Disk(str(tmp_path)).edit_file("/dir/file", bytes.upper)
    assert tree(tmp_path) == BEFORE


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "Error: '/dir/file': No space is left on the disk"),
        (errno.EDQUOT, "Error: '/dir/file': The disk quota is used up"),
        (errno.EROFS, "Error: Permission denied for '/dir/file': the file system is read-only"),
        (errno.EIO, "Error: '/dir/file': The disk failed to read or write"),
        (errno.EMFILE, "Error: '/dir/file': Too many files are open"),
        (errno.ESTALE, "Error: '/dir/file': Stale file handle"),
    ],
)
def test_an_error_names_its_cause_and_the_virtual_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    fill(tmp_path)
    faults = Faults(monkeypatch, os, ["rename"])
    faults.arm(0, lambda: OSError(number, "injected", str(tmp_path)))
    with pytest.raises(DeepFSError) as caught:
        Disk(str(tmp_path)).edit_file("/dir/file", bytes.upper)
    assert str(caught.value) == text
    assert isinstance(caught.value.__cause__, OSError)
