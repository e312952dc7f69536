import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.disk import Disk
from deepfs.errors import (
    ConflictError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.text.lines import version
from support.disks import open_descriptors, tree, walk
from support.promises import keeps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two files, beside a directory outside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"deep")
    (root / "top").write_bytes(b"top")
    return root


@pytest.fixture
def disk(root: Path) -> Disk:
    return Disk(str(root))


def read(disk: Disk, path: str) -> bytes:
    return disk.read_file(path)[0]


# --- the root ---


def test_a_missing_root_is_empty_until_the_first_write(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "new" / "root"))
    assert disk.list_directory("/").entries == []
    assert list(walk(disk, "/")) == []
    with pytest.raises(NotFoundError):
        disk.read_file("/x")
    assert not (tmp_path / "new").exists()
    disk.write_file("/x", b"1")
    assert tree(tmp_path) == {"new": None, "new/root": None, "new/root/x": b"1"}


# --- links that lead outside, nowhere or in circles ---


OUTSIDE = (
    *("/etc/passwd", "../outside/secret", "../outside/missing", "a/../../outside/secret", "../root/top", "..", "/"),
    *("{root}/../outside/secret", "{root}/../outside/missing", "{root}-2/x"),
)


def test_a_link_that_leads_outside_is_refused_and_reveals_nothing(root: Path, disk: Disk) -> None:
    told = set()
    for number, target in enumerate(OUTSIDE):
        (root / f"link{number}").symlink_to(target.format(root=root))
        for path in (f"/link{number}", f"/link{number}/secret"):
            with pytest.raises(PermissionDeniedError) as caught:
                disk.read_file(path)
            told.add(str(caught.value).replace(path, "PATH"))
    assert told == {"Error: Permission denied for 'PATH': a link leads outside"}


@keeps("nothing outside `root_dir` is read, listed or changed")
def test_no_operation_follows_a_link_that_leads_outside(root: Path, disk: Disk) -> None:
    (root / "link").symlink_to("../outside")
    before = tree(root.parent)
    calls = [
        lambda: disk.read_file("/link/secret"),
        lambda: disk.open_file("/link/secret"),
        lambda: disk.read_window("/link/secret", 0, 1),
        lambda: disk.stat("/link/secret"),
        lambda: disk.list_directory("/link"),
        lambda: list(walk(disk, "/link")),
        lambda: disk.write_file("/link/new", b""),
        lambda: disk.write_file("/link/secret", b"", overwrite=True),
        lambda: disk.edit_file("/link/secret", bytes.upper),
        lambda: disk.delete("/link/secret"),
        lambda: disk.move("/link/secret", "/stolen"),
        lambda: disk.copy("/link/secret", "/stolen"),
        lambda: disk.move("/top", "/link/top"),
        lambda: disk.copy("/top", "/link/top"),
    ]
    for call in calls:
        with pytest.raises(PermissionDeniedError):
            call()
    assert tree(root.parent) == before


@pytest.mark.parametrize("target", ["loop", "./loop/x", "a/../loop"])
def test_a_loop_of_links_is_an_error(root: Path, disk: Disk, target: str) -> None:
    (root / "loop").symlink_to(target)
    with pytest.raises(PermissionDeniedError, match="too many links"):
        disk.read_file("/loop")
    with pytest.raises(PermissionDeniedError, match="too many links"):
        disk.write_file("/loop/new", b"")


# --- changes through links ---


def test_writing_through_a_dangling_link_creates_its_target(root: Path, disk: Disk) -> None:
    (root / "link").symlink_to("a/new/file")
    disk.write_file("/link", b"new")
    assert (root / "a" / "new" / "file").read_bytes() == b"new"
    assert (root / "link").is_symlink()


def test_deleting_or_moving_a_link_affects_only_the_link(root: Path, disk: Disk) -> None:
    for target in ("a", "../outside", "nothing"):
        (root / "link").symlink_to(target)
        disk.move("/link", "/moved")
        assert tree(root)["moved"] == f"-> {target}"
        disk.delete("/moved")
    assert {"a/b/file": b"deep", "top": b"top"}.items() <= tree(root).items()
    assert (root.parent / "outside" / "secret").exists()


def test_the_version_of_a_link_is_that_of_its_target(root: Path, disk: Disk) -> None:
    (root / "link").symlink_to("top")
    (root / "to_dir").symlink_to("a")
    with pytest.raises(ConflictError):
        disk.delete("/link", if_match=version(b"other"))
    with pytest.raises(IsDirectoryError):
        disk.delete("/to_dir", if_match=version(b"top"))
    disk.delete("/link", if_match=version(b"top"))
    assert tree(root) == {"a": None, "a/b": None, "a/b/file": b"deep", "to_dir": "-> a", "top": b"top"}


def test_reserved_names_are_refused(root: Path, disk: Disk) -> None:
    name = ".~deepfs-0123456789abcdef"
    (root / name).write_bytes(b"")
    for call in (disk.read_file, lambda path: disk.write_file(path, b""), disk.delete, disk.list_directory):
        with pytest.raises(InvalidPathError):
            call(f"/{name}")
        with pytest.raises(InvalidPathError):
            call(f"/{name}/x")
    disk.write_file("/.~deepfs-notes", b"fine")


# --- unconfined ---


def test_an_unconfined_disk_uses_host_paths_and_follows_every_link(root: Path) -> None:
    disk = Disk("ignored", confined=False)
    (root / "out").symlink_to("../outside")
    (root / "absolute").symlink_to(root.parent / "outside" / "secret")
    assert read(disk, f"{root}/top") == b"top"
    assert read(disk, f"{root}/out/secret") == b"secret"
    assert read(disk, f"{root}/absolute") == b"secret"
    disk.write_file(f"{root}/absolute", b"written", overwrite=True)
    disk.write_file(f"{root}/out/new", b"new")
    outside = tree(root.parent / "outside")
    assert outside == {"secret": b"written", "new": b"new"}
    assert [found.path for found in walk(disk, f"{root}/a")] == [f"{root}/a/b/file"]
    with pytest.raises(NotFoundError):
        disk.read_file(f"{root}/top/below")


# --- against the kernel ---

_BENEATH = 0x08
_OPENAT2 = 437


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def kernel_reads(root: Path, path: str) -> bytes | None:
    """The content at `path` read by openat2 with RESOLVE_BENEATH, the confinement of Linux; None if it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory = os.open(root, os.O_PATH)
    try:
        how = _How(os.O_RDONLY | os.O_NONBLOCK, 0, _BENEATH)
        found = libc.syscall(_OPENAT2, directory, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if found < 0:
            return None
        try:
            return os.read(found, 1000)
        except IsADirectoryError:
            return None
        finally:
            os.close(found)
    finally:
        os.close(directory)


names = st.sampled_from(["a", "b", "c"])
# No target ends with `/.`: there the kernel requires a directory, while Disk also accepts a file.
targets = (
    st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4)
    .filter(lambda segments: segments[-1] != ".")
    .map("/".join)
)
places = st.lists(names, min_size=1, max_size=3).map("/".join)


@given(links=st.dictionaries(places, targets, max_size=6), files=st.sets(places, max_size=4), path=places)
def test_resolution_agrees_with_the_kernel(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], files: set[str], path: str
) -> None:
    root = tmp_path_factory.mktemp("beneath") / "root"
    root.mkdir()
    for outer in ("a", "b", "c"):
        (root.parent / outer).write_bytes(b"outside")
    for file in sorted(files):
        if not any(parent.is_file() for parent in (root / file).parents) and not (root / file).exists():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(file.encode())
    for link, target in sorted(links.items()):
        parent = (root / link).parent
        # A link made before may lead the parent out of the directories of this test.
        is_own = parent.is_dir() and parent.resolve().is_relative_to(root.parent.resolve())
        if is_own and not os.path.lexists(root / link):
            (root / link).symlink_to(target)
    before = open_descriptors()
    try:
        found = read(Disk(str(root)), f"/{path}")
    except DeepFSError:
        found = None
    assert found == kernel_reads(root, path)
    assert open_descriptors() == before
