import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from deepfs.disk import Deadline, Disk, is_temporary
from deepfs.disk.file_locks import LockHeldError
from deepfs.disk.usage import BoundedDisk, DiskUse
from deepfs.errors import AlreadyExistsError, PermissionDeniedError, TooLargeError
from support.disks import open_descriptors, public_directory, recorded_modes, seen_by_nobody, tree, when_free

STALE = ".~deepfs-0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"old")
    (root / "dir").mkdir()
    return root


@pytest.fixture
def disk(root: Path) -> Disk:
    return Disk(str(root))


def version(disk: Disk, path: str = "/file") -> str:
    return disk.read_whole(path, 1 << 20).version


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- write ---


def test_data_is_written_completely_despite_short_writes(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    disk.write_file("/new", bytes(range(256)))
    assert (root / "new").read_bytes() == bytes(range(256))


def test_replacing_a_file_does_not_change_its_hard_links(root: Path, disk: Disk) -> None:
    os.link(root / "file", root / "twin")
    disk.write_file("/file", b"new", overwrite=True)
    assert (root / "twin").read_bytes() == b"old"


# --- mode, owner, permissions ---


def test_the_mode_of_a_new_file_respects_the_umask(root: Path, disk: Disk) -> None:
    old = os.umask(0o027)
    try:
        disk.write_file("/new/file", b"")
    finally:
        os.umask(old)
    assert mode(root / "new" / "file") == 0o640
    assert mode(root / "new") == 0o750


def put(disk: Disk, path: str, data: bytes) -> None:
    with closing(disk.upload(path)) as upload:
        upload.write(data)
        upload.put(Deadline())


PRIVATE: dict[str, Callable[[Disk], object]] = {
    "write": lambda disk: disk.write_file("/file", b"new", overwrite=True),
    "edit": lambda disk: disk.edit_file("/file", bytes.upper),
    "stream": lambda disk: put(disk, "/file", b"new"),
    "copy": lambda disk: disk.copy("/file", "/copy"),
    "copy over a file": lambda disk: disk.copy("/dir/public", "/file", overwrite=True),
    "copy of a tree": lambda disk: disk.copy("/secrets", "/copy"),
    "new file": lambda disk: disk.with_file_mode(0o600).write_file("/new", b"new"),
    "new stream": lambda disk: put(disk.with_file_mode(0o600), "/new", b"new"),
    "new stream within a limit": lambda disk: put(bounded(disk).with_file_mode(0o600), "/new", b"new"),
    "new file under a rule": lambda disk: under_rule(disk).write_file("/new", b"new"),
}


def bounded(disk: Disk) -> Disk:
    return BoundedDisk(disk.host_path, DiskUse(disk.host_path, 1 << 20))


class AllowsAll:
    def check(self, path: str, role: str, shown: str) -> None: ...


def under_rule(disk: Disk) -> Disk:
    """A view of a view: the first one was made before the mode was set."""
    access = AllowsAll()
    disk.with_access(access)
    return disk.with_file_mode(0o600).with_access(access)


@pytest.mark.parametrize("change", PRIVATE.values(), ids=PRIVATE)
def test_the_content_of_a_private_file_is_never_open_to_others(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, change: Callable[[Disk], object]
) -> None:
    (root / "secrets").mkdir(mode=0o700)
    (root / "secrets" / "key").write_bytes(b"key")
    (root / "dir" / "public").write_bytes(b"public")
    for path in (root / "file", root / "secrets" / "key"):
        path.chmod(0o600)
    modes = recorded_modes(monkeypatch, root)
    change(disk)
    assert modes == {0o600}


def test_a_stream_whose_file_is_deleted_meanwhile_has_its_mode(root: Path, disk: Disk) -> None:
    (root / "file").chmod(0o640)
    upload = disk.upload("/file")
    (root / "file").unlink()
    upload.put(Deadline())
    upload.close()
    assert mode(root / "file") == 0o640


ACL = "system.posix_acl_access"


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An access control list of tags, permissions and ids, as the system stores it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF
OPEN_TO_ONE = acl((1, 6, NO_ID), (2, 4, 12345), (4, 0, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID))
"""The owner reads and writes, user 12345 reads, the group and others may do nothing."""

REPLACING: dict[str, Callable[[Disk], object]] = {
    name: PRIVATE[name] for name in ("edit", "stream", "copy over a file")
}


@pytest.mark.parametrize("change", REPLACING.values(), ids=REPLACING)
def test_replacing_keeps_access_control_lists_and_user_attributes(
    root: Path, disk: Disk, change: Callable[[Disk], object]
) -> None:
    (root / "dir" / "public").write_bytes(b"public")
    os.setxattr(root / "file", ACL, OPEN_TO_ONE)
    os.setxattr(root / "file", "user.origin", b"here")
    change(disk)
    assert (root / "file").read_bytes() != b"old"
    assert os.getxattr(root / "file", ACL) == OPEN_TO_ONE
    assert os.getxattr(root / "file", "user.origin") == b"here"
    assert mode(root / "file") == 0o640


@pytest.mark.parametrize("change", REPLACING.values(), ids=REPLACING)
def test_replacing_lets_nobody_in_by_the_default_list_of_a_directory(
    root: Path, disk: Disk, change: Callable[[Disk], object]
) -> None:
    (root / "dir" / "public").write_bytes(b"public")
    (root / "file").chmod(0o640)
    os.setxattr(root, "system.posix_acl_default", OPEN_TO_ONE)
    change(disk)
    assert ACL not in os.listxattr(root / "file")
    assert mode(root / "file") == 0o640


@pytest.mark.parametrize("change", REPLACING.values(), ids=REPLACING)
def test_a_file_whose_attributes_cannot_be_kept_is_not_replaced(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, change: Callable[[Disk], object]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no attributes here")

    (root / "dir" / "public").write_bytes(b"public")
    os.setxattr(root / "file", "user.origin", b"here")
    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(PermissionDeniedError, match=r"'/file'.*user\.origin cannot be kept"):
        change(disk)
    assert tree(root) == {"dir": None, "dir/public": b"public", "file": b"old"}


def test_a_file_without_write_permission_is_not_replaced() -> None:
    with public_directory() as root, seen_by_nobody():
        (root / "file").write_bytes(b"old")
        (root / "file").chmod(0o444)
        (root / "other").write_bytes(b"other")
        disk = Disk(str(root))
        changes: list[Callable[[], None]] = [
            lambda: disk.write_file("/file", b"new", overwrite=True),
            lambda: disk.write_file("/file", b"new", if_match=version(disk)),
            lambda: disk.edit_file("/file", bytes.upper),
            lambda: disk.copy("/other", "/file", overwrite=True),
            lambda: disk.move("/other", "/file", overwrite=True),
        ]
        for change in changes:
            with pytest.raises(PermissionDeniedError, match="'/file'"):
                change()
        assert tree(root) == {"file": b"old", "other": b"other"}


# --- features that a file system may lack ---


def test_without_hard_links_a_file_is_still_created_once(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    disk.write_file("/new", b"new")
    disk.move("/new", "/moved")
    with pytest.raises(AlreadyExistsError):
        disk.write_file("/moved", b"")
    with pytest.raises(AlreadyExistsError):
        disk.move("/moved", "/file")
    assert tree(root) == {"dir": None, "file": b"old", "moved": b"new"}


def test_without_file_locks_threads_still_exclude_each_other(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("deepfs.disk.file_locks._process_locks._has_warned", False)
    assert edits_by_threads(root, 4, 25) == 100
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_durable_changes_sync_the_file_and_its_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append("temporary" if is_temporary(os.path.basename(path)) else os.path.relpath(path, root))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    Disk(str(root)).write_file("/file", b"", overwrite=True)
    assert synced == []
    disk = Disk(str(root), durable=True)
    for change in (
        lambda: disk.write_file("/dir/new", b"1"),
        lambda: disk.write_file("/dir/new", b"2", overwrite=True),
        lambda: disk.edit_file("/dir/new", bytes.upper),
        lambda: disk.copy("/dir/new", "/dir/copy"),
    ):
        synced.clear()
        change()
        assert synced == ["temporary", "dir"]
    synced.clear()
    disk.move("/dir/new", "/moved")
    assert sorted(synced) == [".", "dir"]


# --- edit ---


def test_a_failed_edit_keeps_the_file_and_releases_its_lock(root: Path, disk: Disk) -> None:
    def fail(_: bytes) -> bytes:
        raise ValueError

    before = open_descriptors()
    for error in (ValueError, TooLargeError):
        with pytest.raises(error):
            disk.edit_file("/file", fail, limit=2 if error is TooLargeError else None)
    disk.edit_file("/file", bytes.upper, deadline=Deadline(0))
    assert tree(root) == {"dir": None, "file": b"OLD"}
    assert open_descriptors() == before


def edits_by_threads(root: Path, threads: int, edits: int) -> int:
    """Let threads, each with its own Disk, append `edits` lines each; return the number of lines in the file."""
    (root / "log").write_bytes(b"")
    errors: list[BaseException] = []

    def add() -> None:
        disk = Disk(str(root))
        try:
            for _ in range(edits):
                when_free(disk.edit_file, "/log", lambda data: data + b"line\n")
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=add) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []
    return (root / "log").read_bytes().count(b"line\n")


# --- locks of others ---


@pytest.fixture
def others(root: Path) -> object:
    """The file descriptor that holds the lock of the file, as another process would."""
    descriptor = os.open(root / "file", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_a_lock_on_a_replaced_file_does_not_block_changes(root: Path, disk: Disk, others: int) -> None:
    os.rename(root / "file", root / "aside")
    (root / "file").write_bytes(b"another")
    disk.edit_file("/file", bytes.upper, deadline=Deadline(0))
    assert (root / "file").read_bytes() == b"ANOTHER"


def test_an_edit_that_waited_changes_the_file_that_replaced_the_old_one(root: Path, disk: Disk, others: int) -> None:
    with pytest.raises(LockHeldError):
        disk.edit_file("/file", bytes.upper)
    (root / "next").write_bytes(b"replaced")
    os.rename(root / "next", root / "file")
    disk.edit_file("/file", bytes.upper)
    assert (root / "file").read_bytes() == b"REPLACED"


# --- temporary files ---


def test_temporary_files_of_a_killed_process_are_removed_by_a_later_write(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / STALE).write_bytes(b"unfinished")
    directory = root / STALE.replace("0", "1")
    (directory / "deep").mkdir(parents=True)
    (root / ".~deepfs-keep").write_bytes(b"a file of the user")
    disk = Disk(str(root))
    disk.write_file("/dir/elsewhere", b"")
    disk.write_file("/new", b"")
    assert (root / STALE).exists()
    hour_later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: hour_later)
    disk.write_file("/again", b"")
    assert (root / STALE).exists()
    Disk(str(root)).write_file("/by-another", b"")
    assert sorted(os.listdir(root)) == sorted([".~deepfs-keep", "again", "by-another", "dir", "file", "new"])


def test_a_temporary_file_in_use_is_not_removed(root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(root / STALE, os.O_CREAT | os.O_WRONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    hour_later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: hour_later)
    disk.write_file("/new", b"")
    assert (root / STALE).exists()
    os.close(descriptor)
