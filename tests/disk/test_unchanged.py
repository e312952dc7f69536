"""Which files have not changed since a moment: each way to change a file, or where its path leads, counts."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepfs.disk import Disk, UnchangedFiles, unchanged
from deepfs.errors import DeadlineError
from deepfs.text.access import Role
from deepfs.threads.deadline import Deadline
from support.deadlines import ScriptedDeadline
from support.disks import open_descriptors
from support.trees import write

FILES = {"/top", "/a/one", "/a/two", "/a/b/three", "/c/four"}


@pytest.fixture(autouse=True)
def _no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count changes from the first moment on; the tests need not wait for two seconds."""
    monkeypatch.setattr(unchanged, "_SLACK_NS", 0)


def tick() -> None:
    """Wait until the file system gives other times."""
    time.sleep(0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = write(tmp_path / "root", {name[1:]: b"text\n" for name in FILES})
    write(tmp_path / "outside", {name[1:]: b"text\n" for name in FILES})
    tick()
    return made


def begun(root: Path) -> UnchangedFiles:
    found = Disk(str(root)).select_unchanged("/")
    assert found is not None
    tick()
    return found


def select(since: UnchangedFiles, limit: int = 100) -> set[str]:
    return since.select_plain(FILES, limit, Deadline())


def test_files_that_do_not_change_are_selected(root: Path) -> None:
    since, descriptors = begun(root), open_descriptors()
    assert select(since) == FILES
    assert since.select_plain(["/a/one", "/none", "/none/none"], 100, Deadline()) == {"/a/one"}
    assert open_descriptors() == descriptors


def swap(root: Path) -> None:
    """Replace a directory by a symlink to another, and put it back."""
    (root / "a").rename(root / "kept")
    (root / "a").symlink_to(root.parent / "outside" / "a")
    (root / "a").unlink()
    (root / "kept").rename(root / "a")


def write_and_set_back(root: Path) -> None:
    status = (root / "a" / "one").stat()
    (root / "a" / "one").write_bytes(b"TEXT\n")
    os.utime(root / "a" / "one", ns=(status.st_atime_ns, status.st_mtime_ns))


IN_A = {"/a/one", "/a/two", "/a/b/three"}
CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a file is written": (lambda root: (root / "a" / "one").write_bytes(b"more\n"), {"/a/one"}),
    "a file is written, and its time set back": (write_and_set_back, {"/a/one"}),
    "a file is replaced": (lambda root: os.replace(root / "c" / "four", root / "a" / "one"), FILES - {"/top"}),
    "a name is new": (lambda root: (root / "a" / "new").touch(), IN_A),
    "a name is new further down": (lambda root: (root / "a" / "b" / "new").touch(), {"/a/b/three"}),
    "a name is gone": (lambda root: (root / "c" / "four").unlink(), {"/c/four"}),
    "a directory leads elsewhere for a moment": (swap, FILES),
    "the root has a new name": (lambda root: (root / "new").touch(), FILES),
    "a file becomes a link": (
        lambda root: (root / "c" / "four").unlink() or (root / "c/four").symlink_to("x"),
        {"/c/four"},
    ),
    "a directory becomes a link": (
        lambda root: (root / "a").rename(root / "z") and (root / "a").symlink_to("z"),
        FILES,
    ),
    "a name is linked": (lambda root: os.link(root / "top", root / "c" / "linked"), {"/top", "/c/four"}),
}


@pytest.mark.parametrize(("change", "changed"), CHANGES.values(), ids=CHANGES)
def test_changed_files_are_not_selected(root: Path, change: Callable[[Path], object], changed: set[str]) -> None:
    since = begun(root)
    assert select(since) == FILES
    change(root)
    assert select(since) == FILES - changed


@pytest.mark.parametrize("is_looked_at", [stat.S_ISREG, stat.S_ISDIR])
def test_a_change_while_paths_are_looked_at_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_looked_at: Callable[[int], bool]
) -> None:
    """The root is looked at last, so a change of what its names lead to is seen there."""
    since, real = begun(root), os.lstat

    def swapping(path: str) -> os.stat_result:
        status = real(path)
        if is_looked_at(status.st_mode):
            monkeypatch.undo()
            swap(root)
        return status

    monkeypatch.setattr(os, "lstat", swapping)
    assert select(since) == set()


def test_a_file_written_before_it_is_opened_is_not_selected(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    since, real = begun(root), os.lstat

    def write(path: str) -> os.stat_result:
        status = real(path)
        if path.endswith("/a/one"):
            (root / "a" / "one").write_bytes(b"more\n")
        return status

    monkeypatch.setattr(os, "lstat", write)
    assert select(since) == FILES - {"/a/one"}


def test_files_that_changed_just_before_are_not_selected(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a file system may be coarse."""
    monkeypatch.setattr(unchanged, "_SLACK_NS", 300_000_000)
    time.sleep(0.4)
    (root / "a" / "one").write_bytes(b"more\n")
    assert select(begun(root)) == FILES - {"/a/one"}
    (root / "new").touch()
    assert Disk(str(root)).select_unchanged("/") is None


@pytest.mark.parametrize("content", [b"a\r\n", b"\xef\xbb\xbfa\n", b"\xe9\n", b"a\0\n", b"x" * 101])
def test_files_with_other_lines_and_large_ones_are_not_selected(root: Path, content: bytes) -> None:
    (root / "a" / "one").write_bytes(content)
    (root / "c" / "four").write_bytes("é 日本\n".encode())
    tick()
    for _ in range(2):
        assert select(begun(root)) == FILES - {"/a/one"}
    (root / "a" / "one").write_bytes(b"text\n")
    tick()
    assert select(begun(root)) == FILES, "a known file has changed"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("two", path)])
def test_only_regular_files_are_selected(root: Path, make: Callable[[Path], None]) -> None:
    (root / "a" / "one").unlink()
    make(root / "a" / "one")
    tick()
    assert select(begun(root)) == FILES - {"/a/one"}


def test_what_is_remembered_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "_MAX_REMEMBERED", 2)
    unchanged._plain.clear()
    assert select(begun(root)) == FILES
    assert 0 < len(unchanged._plain) <= 2


def test_a_clock_that_is_set_ends_the_comparison(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    since = begun(root)
    real = unchanged._clock
    for step in (-3_000_000_000, 3_000_000_000):
        monkeypatch.setattr(unchanged, "_clock", lambda step=step: real() + step)
        assert select(since) == set()


def test_another_file_system_is_not_trusted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (0x6969, None):  # NFS, and a system that does not say.
        with monkeypatch.context() as patched:
            patched.setattr(unchanged, "file_system_type", lambda _, known=known: known)
            assert Disk(str(root)).select_unchanged("/") is None
    since = begun(root)
    monkeypatch.setattr(since, "_device", -1)
    assert select(since) == set(), "a directory may be on another device than the root"


def test_the_start_must_be_without_links_and_judges(root: Path, tmp_path: Path) -> None:
    disk = Disk(str(root))
    (root / "c" / "link").symlink_to("../a")
    tick()
    assert disk.select_unchanged("/a/b") is not None
    assert disk.select_unchanged("/c/link") is None
    assert disk.select_unchanged("/c/link/b") is None
    assert Disk(str(tmp_path / "none")).select_unchanged("/") is None
    assert begun(root).select_plain(["/a/one", "/c/link/one", "/c/link/b/three"], 100, Deadline()) == {"/a/one"}

    class Permissive:
        def check(self, path: str, role: Role, shown: str) -> None:
            pass

    assert disk.with_access(Permissive()).select_unchanged("/") is None


def test_selecting_can_be_stopped(root: Path) -> None:
    since = begun(root)
    with pytest.raises(DeadlineError):
        since.select_plain(FILES, 100, ScriptedDeadline(cancelled=lambda: True))
