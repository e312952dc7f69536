import mmap
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.disk import Disk, ReadLimits, modified_at
from deepfs.disk import reading as files
from deepfs.disk import reading as windows
from deepfs.errors import ConflictError, DeadlineError, InvalidContentError, PermissionDeniedError, TooLargeError
from deepfs.text import lines as text
from support.deadlines import ScriptedDeadline
from support.disks import public_directory, seen_by_nobody

MIB = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def disk(root: Path) -> Disk:
    return Disk(str(root))


# --- whole files ---


def test_a_file_that_reports_size_zero_is_read_to_its_end_or_limit() -> None:
    disk = Disk("/", confined=False)
    data, status = disk.read_file("/proc/self/status")
    assert status.st_size == 0
    assert b"Pid:" in data
    with pytest.raises(TooLargeError):
        disk.read_file("/proc/self/status", limit=10)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_devices_are_refused(device: str) -> None:
    with pytest.raises(PermissionDeniedError, match="not a regular file"):
        Disk("/", confined=False).read_file(device)


def test_reading_without_permission_is_refused() -> None:
    with public_directory() as root:
        (root / "closed").mkdir()
        (root / "closed" / "file").write_bytes(b"")
        (root / "closed").chmod(0)
        (root / "file").write_bytes(b"")
        (root / "file").chmod(0)
        disk = Disk(str(root))
        with seen_by_nobody():
            for path in ("/file", "/closed/file"):
                with pytest.raises(PermissionDeniedError) as caught:
                    disk.read_file(path)
                assert str(caught.value) == f"Error: Permission denied for '{path}'"
            with pytest.raises(PermissionDeniedError):
                disk.list_directory("/closed")
        (root / "closed").chmod(0o700)


# --- windows ---

LINES = st.lists(st.sampled_from(["a", "bc\r", "", "é", "😀x", "\r"]), max_size=30).map("\n".join)


@given(content=LINES, bom=st.booleans(), offset=st.integers(-1, 32), limit=st.integers(-1, 32), block=st.integers(1, 9))
def test_a_window_of_a_streamed_file_equals_the_window_of_its_text(
    tmp_path_factory: pytest.TempPathFactory, content: str, bom: bool, offset: int, limit: int, block: int
) -> None:
    content = text.BOM + content if bom else content
    if text.line_count(content) == 0:
        return
    root = tmp_path_factory.mktemp("window")
    (root / "file").write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MAX_WHOLE", 0)
        patch.setattr(files, "BLOCK", block)
        if max(offset, 0) >= text.line_count(content):
            with pytest.raises(InvalidContentError) as caught:
                Disk(str(root)).read_window("/file", offset, limit)
            with pytest.raises(InvalidContentError) as expected:
                text.window(content, offset, limit)
            assert str(caught.value) == str(expected.value)
        else:
            assert Disk(str(root)).read_window("/file", offset, limit).shown == text.window(content, offset, limit)


def test_lines_are_counted_only_up_to_a_file_size(root: Path, disk: Disk) -> None:
    (root / "log").write_bytes(b"line\n" * 400_000)
    assert disk.read_window("/log", 0, 2).shown.total_lines == 400_000
    beyond = disk.read_window("/log", 0, 2, ReadLimits(judged=MIB)).shown
    assert (beyond.text, beyond.total_lines, beyond.next_offset) == ("line\nline\n", None, 2)
    end = disk.read_window("/log", 399_999, 2, ReadLimits(judged=MIB)).shown
    assert (end.text, end.total_lines, end.next_offset) == ("line\n", 400_000, None)
    with pytest.raises(InvalidContentError, match="400000 lines"):
        disk.read_window("/log", 400_000, 1, ReadLimits(judged=MIB))


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"\xc3"])
def test_a_large_file_with_junk_at_its_end_is_binary(root: Path, disk: Disk, junk: bytes) -> None:
    content = b"line\n" * 400_000 + junk
    (root / "log").write_bytes(content)
    assert disk.read_window("/log", 0, 2).shown == content
    with pytest.raises(TooLargeError):
        disk.read_window("/log", 0, 2, ReadLimits(binary=MIB))
    assert disk.read_window("/log", 0, 2, ReadLimits(judged=MIB)).shown.text == "line\nline\n"


def test_a_cancelled_read_ends(root: Path, disk: Disk) -> None:
    (root / "log").write_bytes(b"line\n" * 400_000)
    asked = iter([False, True])
    with pytest.raises(DeadlineError):
        disk.read_window("/log", 0, 1, deadline=ScriptedDeadline(cancelled=lambda: next(asked)))


# --- versions ---


SIZES = [1, 100_000, windows.MAX_WHOLE + 10]


def version(disk: Disk, path: str = "/file") -> str:
    read = disk.read_window(path, 0, 10)
    assert read.version == disk.read_whole(path, 1 << 30).version
    return read.version


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    at = time.time_ns() + 3_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: at)


@pytest.mark.parametrize("size", SIZES)
def test_a_version_depends_only_on_the_content(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = b"line\n" * (size // 5) + b"x"
    (root / "file").write_bytes(content)
    seen = {version(disk)}
    now = time.time_ns()
    for seconds, change in enumerate(
        [
            lambda path: None,
            lambda path: os.utime(path, (1_000_000_000, 1_000_000_000)),
            lambda path: path.chmod(0o600),
            lambda path: os.link(path, root / "linked"),
            lambda path: (root / "copy").write_bytes(path.read_bytes()),
            lambda path: os.replace(root / "copy", path),
        ]
    ):
        change(root / "file")
        at = now + seconds * 3_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda at=at: at)
        seen |= {version(disk), version(disk)}
    assert seen == {text.version(content)}


def test_what_a_program_changes_through_its_memory_is_read_as_it_is(root: Path, disk: Disk, later: None) -> None:
    (root / "file").write_bytes(b"line\n" * 1000)
    with (root / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:1] = b"L"  # From here on, the kernel sets no new times until it stores the page.
        assert disk.read_window("/file", 0, 10).shown.total_lines == 1000
        before = os.stat(root / "file")
        memory[:2500] = b"x" * 2500
        changed = disk.read_window("/file", 0, 900)
        assert os.stat(root / "file") == before
        assert changed.shown == text.Window("x" * 2500 + "line\n" * 500, 1, 500, 500, None)
        assert changed.version == text.version(bytes(memory))


def test_a_version_computed_while_the_file_changes_is_not_cached(
    root: Path, disk: Disk, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").write_bytes(old := b"a" * 100_000)
    read = windows.read_descriptor

    def and_then_change(*args: object) -> bytes:
        data = read(*args)
        with (root / "file").open("r+b") as file:
            file.write(b"b")
        return data

    with monkeypatch.context() as patch:
        patch.setattr(windows, "read_descriptor", and_then_change)
        assert disk.read_whole("/file", 1 << 20).version == text.version(old)
    assert version(disk) == text.version(b"b" + old[1:])


def test_the_version_of_a_partly_read_file_depends_on_its_status(root: Path, disk: Disk) -> None:
    (root / "file").write_bytes(content := b"line\n" * 400_000)
    limits = ReadLimits(judged=1000)
    known = disk.read_window("/file", 0, 10, limits).version
    assert known.startswith("s-")
    assert disk.read_window("/file", 0, 10, limits).version == known
    disk.write_file("/file", content, if_match=known)
    with pytest.raises(ConflictError):
        disk.write_file("/file", b"", if_match=known)
    # The hash of the content is accepted as a version too, until the content changes.
    disk.edit_file("/file", lambda data: data, if_match=text.version(content))
    (root / "file").write_bytes(b"")
    with pytest.raises(ConflictError):
        disk.write_file("/file", b"", if_match=text.version(content))


def test_comparing_a_version_takes_bounded_memory_and_can_be_cancelled(root: Path, disk: Disk) -> None:
    with (root / "file").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ConflictError):
            disk.write_file("/file", b"", if_match="0" * 32)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    asked = iter([False] * 5 + [True])
    with pytest.raises(DeadlineError):
        disk.write_file("/file", b"", if_match="0" * 32, deadline=ScriptedDeadline(cancelled=lambda: next(asked)))


def test_times_are_iso_8601_in_utc(root: Path) -> None:
    (root / "file").write_bytes(b"")
    os.utime(root / "file", ns=(0, 1_700_000_000_123_456_789))
    assert modified_at((root / "file").stat()) == "2023-11-14T22:13:20.123456+00:00"
    os.utime(root / "file", ns=(0, -1))
    assert modified_at((root / "file").stat()) == "1969-12-31T23:59:59.999999+00:00"
