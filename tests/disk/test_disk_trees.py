import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend
from deepfs.disk import Deadline, Disk, FileRun, is_temporary, relocation
from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ConflictError,
    DeadlineError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.types import FileInfo
from support.deadlines import ScriptedDeadline
from support.disks import open_descriptors, public_directory, seen_by_nobody, tree, walk
from support.processes import started

UNFINISHED = ".~deepfs-0123456789abcdef"
NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "dir" / "sub").mkdir(parents=True)
    (root / "dir" / "file").write_bytes(b"1")
    (root / "dir" / "sub" / "deep").write_bytes(b"22")
    (root / "dir.txt").write_bytes(b"333")
    return root


@pytest.fixture
def disk(root: Path) -> Disk:
    return Disk(str(root))


def names(disk: Disk, path: str) -> list[str]:
    return [entry.path.removeprefix(f"{path.rstrip('/')}/") for entry in disk.list_directory(path).entries]


def walked(disk: Disk, path: str = "/") -> list[str]:
    return [found.path for found in walk(disk, path)]


# --- list ---


def test_links_are_listed_with_the_kind_and_size_of_targets_inside(root: Path, disk: Disk) -> None:
    for name, target in {
        "to-dir": "dir",
        "to-file": "dir/sub/deep",
        "dangling": "nothing",
        "loop": "loop",
        "out-dir": "../outside",
        "out-file": "../outside/secret",
        "out-missing": "../outside/missing",
    }.items():
        (root / name).symlink_to(target)
    listed = {entry.path.strip("/"): (entry.is_dir, entry.size) for entry in disk.list_directory("/").entries}
    assert listed.pop("to-dir") == (True, None)
    assert listed.pop("to-file") == (False, 2)
    del listed["dir"], listed["dir.txt"]
    assert set(listed.values()) == {(False, None)}
    assert len(listed) == 5


def test_temporary_files_and_names_that_are_not_utf8_are_hidden(root: Path, disk: Disk) -> None:
    for name in (UNFINISHED, NOT_UTF8, ".~deepfs-notes", ".~deepfs-my-notes-of-may1", "naïve"):
        (root / "dir" / name).write_bytes(b"")
    (root / "dir" / UNFINISHED.replace("0", "1")).mkdir()
    own = [".~deepfs-my-notes-of-may1", ".~deepfs-notes"]
    assert names(disk, "/dir") == [*own, "file", "naïve", "sub/"]
    assert walked(disk, "/dir") == [f"/dir/{name}" for name in [*own, "file", "naïve", "sub/deep"]]


def test_special_files_are_listed_without_size_and_not_walked(root: Path, disk: Disk) -> None:
    os.mkfifo(root / "dir" / "fifo")
    assert names(disk, "/dir") == ["fifo", "file", "sub/"]
    assert disk.list_directory("/dir").entries[0].size is None
    assert walked(disk, "/dir") == ["/dir/file", "/dir/sub/deep"]


def test_an_entry_whose_stat_fails_is_listed_without_size(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mute:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name = entry.name
            self.is_dir = entry.is_dir

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("deepfs.disk.walking._checking_deadline", lambda children, *_: map(Mute, children))
    assert disk.list_directory("/").entries == [FileInfo("/dir.txt", False), FileInfo("/dir/", True)]


def test_a_listing_can_be_cancelled(root: Path, disk: Disk) -> None:
    for number in range(2100):
        (root / "dir" / "sub" / str(number)).touch()
    asked = iter([False, True])
    with pytest.raises(DeadlineError):
        disk.list_directory("/dir/sub", deadline=ScriptedDeadline(cancelled=lambda: next(asked)))


# --- walk ---


@given(st.sets(st.lists(st.sampled_from(["a", "a.b", "a b", "a-", "A", "é", "a/"]), min_size=1, max_size=3).map(tuple)))
def test_a_walk_is_sorted_by_path(tmp_path_factory: pytest.TempPathFactory, wanted: set[tuple[str, ...]]) -> None:
    root = tmp_path_factory.mktemp("sorted")
    for parts in sorted(wanted):
        path = root.joinpath(*parts)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    expected = sorted(f"/{path.relative_to(root)}" for path in root.rglob("*") if path.is_file())
    assert walked(Disk(str(root))) == expected


def looked_at(runs: Iterable[FileRun]) -> list[tuple[str, int | None, bytes]]:
    """The path, size and content of each file."""
    return [
        (info.path, info.size, file.read())
        for run in runs
        for info, file in zip(run.infos(run.names, Deadline()), run, strict=True)
    ]


def test_a_file_found_by_a_walk_can_be_read_after_the_walk(disk: Disk) -> None:
    before = open_descriptors()
    seen = looked_at(list(disk.walk_runs("/")))
    assert seen == [("/dir.txt", 3, b"333"), ("/dir/file", 1, b"1"), ("/dir/sub/deep", 2, b"22")]
    assert open_descriptors() == before


class EvenFilesAndOddDirectories:
    """What a walk shall visit; keeps what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def files(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        self.asked += [directory + name for name in names]
        return [name for name in names if int(name[1:]) % 2 == 0]

    def directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        return [name for name in names if int(name[1:]) % 2]


@pytest.mark.parametrize("run", [1, 1000])
def test_a_walk_of_many_children_visits_what_is_chosen_sorted_by_path(
    tmp_path: Path, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepfs.disk.walking._RUN", run)
    for number in range(300):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / f"f{number + 1}").touch()
        (tmp_path / f"{'bf'[number % 2]}{number * 2 // 3}").touch()
    choice = EvenFilesAndOddDirectories()
    found = [file.path for run in Disk(str(tmp_path)).walk_runs("/", choice) for file in run]
    files = [f"/{path.relative_to(tmp_path)}" for path in tmp_path.rglob("*") if path.is_file()]
    expected = [path for path in files if int(path[2:].split("/")[0]) % 2 == path.count("/") - 1]
    assert found == sorted(expected)
    assert len(choice.asked) == len(set(choice.asked))


def test_links_in_a_run_are_followed_for_their_size(root: Path, disk: Disk) -> None:
    (root / "dir" / "file").unlink()
    (root / "dir" / "file").symlink_to("sub/deep")
    walk = disk.walk_runs("/dir")
    run = next(walk)
    (root / "dir" / "file").unlink()
    (root / "dir" / "file").symlink_to("../../outside/secret")
    late = [(info.path, info.size) for info in run.infos(run.names, Deadline())]
    walk.close()
    assert late == [("/dir/file", None)]


def test_a_walk_yields_links_to_files_inside_and_no_other_links(root: Path, disk: Disk) -> None:
    for name, target in {
        "file-link": "file",
        "dir-link": "sub",
        "cycle": "..",
        "self": ".",
        "dangling": "nothing",
        "out": "../../outside/secret",
        "out-dir": "../../outside",
    }.items():
        (root / "dir" / name).symlink_to(target)
    assert walked(disk) == ["/dir.txt", "/dir/file", "/dir/file-link", "/dir/sub/deep"]
    assert walked(disk, "/dir/cycle/dir/sub") == ["/dir/cycle/dir/sub/deep"]


def test_a_walk_that_is_closed_or_cancelled_leaves_no_descriptor_open(disk: Disk) -> None:
    before = open_descriptors()
    files = walk(disk, "/")
    assert next(files).path == "/dir.txt"
    assert next(files).path == "/dir/file"
    files.close()
    asked = iter([False, True])
    with pytest.raises(DeadlineError):
        list(walk(disk, "/", deadline=ScriptedDeadline(cancelled=lambda: next(asked))))
    assert open_descriptors() == before


# --- delete ---


def test_deleting_removes_a_file_or_a_whole_directory(root: Path, disk: Disk) -> None:
    (root / "dir" / UNFINISHED).write_bytes(b"")
    (root / "dir" / NOT_UTF8).mkdir()
    (root / "dir" / "out").symlink_to("../../outside")
    os.mkfifo(root / "dir" / "sub" / "fifo")
    before = open_descriptors()
    disk.delete("/dir")
    assert tree(root) == {"dir.txt": b"333"}
    disk.delete("/dir.txt")
    assert tree(root) == {}
    assert (root.parent / "outside" / "secret").exists()
    assert open_descriptors() == before


def test_the_root_cannot_be_deleted(root: Path, disk: Disk) -> None:
    before = tree(root)
    (root / "self").symlink_to(".")
    for path in ("/", "/."):
        with pytest.raises(PermissionDeniedError, match="the root cannot be deleted"):
            disk.delete(path)
    disk.delete("/self")
    assert tree(root) == before


def test_deleting_continues_past_failures_and_names_the_remaining_files() -> None:
    with public_directory() as root, seen_by_nobody():
        for name in ("a", "kept", "z"):
            (root / "dir" / name).mkdir(parents=True)
            (root / "dir" / name / "file").touch()
            (root / "dir" / name / "file2").touch()
        (root / "dir" / "kept").chmod(0o555)
        (root / "dir" / "unlistable").mkdir(mode=0)
        with pytest.raises(PermissionDeniedError) as caught:
            Disk(str(root)).delete("/dir")
        assert str(caught.value) in {
            f"Error: Permission denied for '/dir': '/dir/kept/{file}' and 1 more could not be deleted "
            "(Permission denied), the rest is gone"
            for file in ("file", "file2")
        }
        assert tree(root) == {"dir": None, "dir/kept": None, "dir/kept/file": b"", "dir/kept/file2": b""}
        (root / "dir" / "kept").chmod(0o755)


def test_a_disk_error_during_a_delete_names_the_remaining_file(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def fail(name: str, **where: int) -> None:
        if name == "deep":
            raise OSError(errno.EIO, "injected")
        unlink(name, **where)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(
        BackendError, match="'/dir': it was not deleted completely: '/dir/sub/deep' could not be deleted"
    ):
        disk.delete("/dir")
    assert sorted(tree(root)) == ["dir", "dir.txt", "dir/sub", "dir/sub/deep"]


def test_entries_created_during_a_delete_are_deleted_too(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir, arrivals = os.rmdir, iter(["one", "two", "three"])

    def arrive(name: str, **where: int) -> None:
        for arrival in arrivals:
            (root / "dir" / arrival).mkdir(exist_ok=True)
            break
        rmdir(name, **where)

    monkeypatch.setattr(os, "rmdir", arrive)
    disk.delete("/dir")
    assert tree(root) == {"dir.txt": b"333"}


FEW_DESCRIPTORS = """
import os, resource, sys
from deepfs.disk import (Disk, Deadline)

root = sys.argv[1]
top = os.open(root, os.O_RDONLY)
os.mkdir("dir", dir_fd=top)
directory = os.open("dir", os.O_RDONLY, dir_fd=top)
for number in range(1500):
    for name in "ad":
        os.mkdir(name, dir_fd=directory)
    for name in "be":
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    below = os.open("d", os.O_RDONLY, dir_fd=directory)
    os.close(directory)
    directory = below
os.close(directory)
os.close(top)
Disk(root).stat("/dir")
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 32,) * 2)
disk = Disk(root)
missed = []
for path in "/dir", "/copy":
    if path == "/copy":
        disk.copy("/dir", "/copy")
    read = 0
    for run in disk.walk_runs(path, unreadable=lambda path, _: missed.append(path)):
        for info, file in zip(run.infos(run.names, Deadline()), run, strict=True):
            read += info.size == 0 and file.read() == b""
    print(read, missed)
print(len(disk.list_tree("/dir", Deadline()).entries))
disk.delete("/dir")
disk.delete("/copy")
print(os.listdir(root))
"""


def test_a_very_deep_tree_needs_few_descriptors(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()
    try:
        with started(FEW_DESCRIPTORS, root) as process:
            output, _ = process.communicate(timeout=100)
    finally:
        # Pytest removes leftover directories recursively, and this tree would be too deep for that.
        subprocess.run(["rm", "-rf", "--", root], check=True)
    assert output.splitlines() == ["3000 []", "3000 []", "6001", "[]"]


@pytest.fixture
def deep(root: Path) -> Path:
    """A directory of twenty levels; each has a file and a directory that sort before and after the next level."""
    path = root / "deep"
    for _ in range(20):
        for name in ("a", "z"):
            (path / name).mkdir(parents=True)
            (path / f"{name}.txt").touch()
        path = path / "d"
    path.mkdir()
    return root / "deep"


def call_before(monkeypatch: pytest.MonkeyPatch, call: str, at: int, change: Callable[[], object]) -> None:
    """Call `change` just before the `at`-th call of the function of `os`, as if another process did it."""
    real, left = getattr(os, call), iter(range(at))

    def watched(*args: object, **where: object) -> object:
        if next(left, at) == at - 1:
            change()
        return real(*args, **where)

    monkeypatch.setattr(os, call, watched)


def test_a_file_that_becomes_a_directory_during_a_delete_is_deleted(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace() -> None:
        (root / "dir.txt").unlink()
        (root / "dir.txt").mkdir()
        (root / "dir.txt" / "new").touch()

    call_before(monkeypatch, "unlink", 1, replace)
    disk.delete("/dir.txt")
    assert not (root / "dir.txt").exists()


@pytest.mark.parametrize("change", ["write", "copy", "copy a link", "move"])
def test_a_file_that_others_create_just_before_is_not_replaced(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (root / "link").symlink_to("dir.txt")
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: disk.write_file("/new", b"mine"),
        "copy": lambda: disk.copy("/dir.txt", "/new"),
        "copy a link": lambda: disk.copy("/link", "/new"),
        "move": lambda: disk.move("/dir.txt", "/new"),
    }
    call_before(monkeypatch, "link", 1, lambda: (root / "new").write_bytes(b"of others"))
    with pytest.raises(AlreadyExistsError):
        calls[change]()
    assert (root / "new").read_bytes() == b"of others"
    assert (root / "dir.txt").read_bytes() == b"333"


def test_a_link_that_becomes_a_file_is_copied_as_a_file(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link").symlink_to("dir.txt")
    real = relocation.link_target

    def replaced(directory: int, name: str) -> str | None:
        (root / "link").unlink()
        (root / "link").write_bytes(b"new")
        return real(directory, name)

    monkeypatch.setattr(relocation, "link_target", replaced)
    disk.copy("/link", "/copy")
    assert tree(root)["copy"] == b"new"


SOMEWHERE = ["d", "d/d/d/d/d/d/d/d", "d/" * 15 + "d"]


@pytest.mark.parametrize("where", SOMEWHERE)
def test_deleting_spares_the_new_place_of_a_directory_that_others_move(
    root: Path, disk: Disk, deep: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (root / "other").mkdir()
    (root / "other" / "kept").touch()
    call_before(monkeypatch, "rmdir", 5, lambda: os.rename(deep / where, root / "other" / "d"))
    with suppress(DeepFSError):
        disk.delete("/deep")
    monkeypatch.undo()
    assert (root / "other" / "kept").exists()
    disk.delete("/other")
    if deep.exists():
        disk.delete("/deep")
    assert "deep" not in tree(root)


@pytest.mark.parametrize("where", SOMEWHERE)
def test_deleting_succeeds_although_others_delete_a_part_of_the_tree(
    root: Path, disk: Disk, deep: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    remove = shutil.rmtree
    call_before(monkeypatch, "rmdir", 5, lambda: (monkeypatch.undo(), remove(deep / where)))
    disk.delete("/deep")
    assert not deep.exists()


@pytest.mark.parametrize("where", SOMEWHERE)
def test_a_walk_finds_every_file_although_others_move_a_directory(
    root: Path, disk: Disk, deep: Path, where: str
) -> None:
    (root / "other").mkdir()
    missed: list[str] = []
    files = walk(disk, "/deep", unreadable=lambda path, _: missed.append(path))
    found = [next(files).path for _ in range(20)]
    os.rename(deep / where, root / "other" / "d")
    found += [file.path for file in files]
    shown = [f"/deep/{'d/' * level}{name}.txt" for level in range(20) for name in "az"]
    assert found == sorted(shown)
    assert missed == []


def test_a_copy_of_a_tree_that_others_change_is_complete_or_fails(
    root: Path, disk: Disk, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(deep)
    call_before(monkeypatch, "mkdir", 45, lambda: os.rename(deep / "d/d/d", root / "dir" / "d"))
    with suppress(DeepFSError):
        disk.copy("/deep", "/copy")
    monkeypatch.undo()
    if (root / "copy").exists():
        assert tree(root / "copy") == before
    assert not [name for name in os.listdir(root) if is_temporary(name)]


# --- move and copy ---

RELOCATIONS: list[Callable[..., None]] = [Disk.move, Disk.copy]


@pytest.fixture(params=RELOCATIONS, ids=["move", "copy"])
def relocate(request: pytest.FixtureRequest) -> Callable[..., None]:
    return request.param


def test_a_directory_is_transferred_with_all_its_contents(
    root: Path, disk: Disk, relocate: Callable[..., None]
) -> None:
    (root / "dir" / "link").symlink_to("../../outside/secret")
    (root / "dir" / "file").chmod(0o444)
    (root / "dir" / "sub").chmod(0o750)
    (root / "dir" / NOT_UTF8).write_bytes(b"4")
    relocate(disk, "/dir", "/new")
    assert {name: content for name, content in tree(root).items() if name.startswith("new")} == {
        "new": None,
        f"new/{NOT_UTF8}": b"4",
        "new/file": b"1",
        "new/link": "-> ../../outside/secret",
        "new/sub": None,
        "new/sub/deep": b"22",
    }
    assert (root / "new" / "file").stat().st_mode & 0o777 == 0o444
    assert (root / "new" / "sub").stat().st_mode & 0o777 == 0o750
    assert (root / "dir").exists() == (relocate is Disk.copy)


REFUSED = [
    ("/missing", "/new", False, NotFoundError("/missing")),
    ("/missing", "/missing", False, NotFoundError("/missing")),
    ("/dir.txt/x", "/new", False, NotFoundError("/dir.txt/x")),
    ("/dir.txt", "/dir/file", False, AlreadyExistsError("/dir/file")),
    ("/dir.txt", "/dir", False, AlreadyExistsError("/dir", is_directory=True)),
    ("/dir.txt", "/", True, IsDirectoryError("/")),
    ("/dir/sub", "/dir", True, IsDirectoryError("/dir")),
    ("/dir", "/dir.txt", True, NotDirectoryError("/dir.txt")),
    ("/dir/file", "/dir.txt/new/deep", True, NotDirectoryError("/dir.txt")),
    ("/dir", "/dir/sub/new", False, InvalidPathError("/dir/sub/new", "it lies inside /dir")),
    ("/dir.txt", "/dir.txt/new", False, InvalidPathError("/dir.txt/new", "it lies inside /dir.txt")),
    ("/", "/new", False, InvalidPathError("/new", "it lies inside /")),
    ("/dir", "/link/new/deep", False, InvalidPathError("/link/new/deep", "it lies inside /dir")),
]


def test_a_refused_transfer_changes_nothing(root: Path, disk: Disk, relocate: Callable[..., None]) -> None:
    (root / "link").symlink_to("dir/sub")
    before, open_before = tree(root.parent), open_descriptors()
    for src, dst, overwrite, error in REFUSED:
        with pytest.raises(type(error)) as caught:
            relocate(disk, src, dst, overwrite=overwrite)
        assert str(caught.value) == str(error)
        assert tree(root.parent) == before, (src, dst)
        assert open_descriptors() == open_before, (src, dst)


def test_copies_keep_links_and_refuse_special_files(root: Path, disk: Disk) -> None:
    (root / "link").symlink_to("dir/sub")
    disk.copy("/link", "/copy")
    assert tree(root)["copy"] == "-> dir/sub"
    assert disk.read_file("/copy/deep")[0] == b"22"
    os.mkfifo(root / "dir" / "sub" / "fifo")
    before = tree(root / "dir" / "sub")
    with pytest.raises(PermissionDeniedError, match="'/dir/sub/fifo': it is not a regular file"):
        disk.copy("/dir", "/new")
    assert sorted(os.listdir(root)) == ["copy", "dir", "dir.txt", "link"]
    assert tree(root / "dir" / "sub").keys() == before.keys()


@pytest.fixture
def two_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renaming and linking fail as between two file systems, except for temporary files."""

    def apart(call: Callable[..., None]) -> Callable[..., None]:
        def cross(source: str, target: str, **where: int) -> None:
            if "/" not in str(source) and not source.startswith(".~"):
                raise OSError(errno.EXDEV, "another file system")
            call(source, target, **where)

        return cross

    monkeypatch.setattr(os, "rename", apart(os.rename))
    monkeypatch.setattr(os, "link", apart(os.link))


@pytest.mark.usefixtures("two_file_systems")
def test_a_move_to_another_file_system_deletes_only_what_it_copied(root: Path, disk: Disk) -> None:
    os.link(root / "dir" / "file", root / "dir" / "twin")
    (root / "dir" / "link").symlink_to("file")
    (root / "dir" / "sub" / UNFINISHED).touch()
    written = False

    def write() -> bool:
        nonlocal written
        if (root / "new").exists() and not written:
            written = True
            (root / "dir" / "sub" / "deep").write_bytes(b"edited")
            (root / "dir" / "sub" / "added").write_bytes(b"added")
        return False

    before = open_descriptors()
    with pytest.raises(ConflictError, match=r"'/dir/sub/.*' changed .* and 1 more stay; .* is in '/new'"):
        disk.move("/dir", "/new", deadline=ScriptedDeadline(cancelled=write))
    assert open_descriptors() == before
    found = tree(root)
    assert {name: found[name] for name in found if name.startswith("dir/")} == {
        "dir/sub": None, "dir/sub/added": b"added", "dir/sub/deep": b"edited",
    }  # fmt: skip
    assert {name: found[name] for name in found if name.startswith("new/")} == {
        "new/file": b"1", "new/twin": b"1", "new/link": "-> file", "new/sub": None, "new/sub/deep": b"22",
    }  # fmt: skip


@pytest.mark.usefixtures("two_file_systems")
def test_a_file_written_during_its_move_to_another_file_system_stays(root: Path, disk: Disk) -> None:
    def write() -> bool:
        if (root / "new").exists():
            (root / "dir.txt").write_bytes(b"written meanwhile")
        return False

    (root / "new").write_bytes(b"old")
    with pytest.raises(ConflictError, match=r"'/dir.txt' changed .* stays"):
        disk.move("/dir.txt", "/new", overwrite=True, deadline=ScriptedDeadline(cancelled=write))
    assert (root / "dir.txt").read_bytes() == b"written meanwhile"
    assert (root / "new").read_bytes().startswith(b"333")


@pytest.mark.usefixtures("two_file_systems")
def test_a_file_locked_by_others_during_a_move_to_another_file_system_stays(root: Path, disk: Disk) -> None:
    with (root / "dir" / "sub" / "deep").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError) as caught:
            disk.move("/dir", "/new", deadline=Deadline(0))
    assert (caught.value.path, caught.value.other) == ("/dir/sub/deep", "/new")
    assert caught.value.reason == "it could not be deleted (others use it); all of it is in '/new' as well"
    found = tree(root)
    assert {name for name in found if name.startswith("dir/")} == {"dir/sub", "dir/sub/deep"}
    assert found["new/sub/deep"] == found["dir/sub/deep"]


def test_a_cancelled_copy_leaves_nothing(root: Path, disk: Disk, relocate: Callable[..., None]) -> None:
    before = tree(root)
    asked = iter([False] * 2)
    with pytest.raises(DeadlineError):
        disk.copy("/dir", "/new/copy", deadline=ScriptedDeadline(cancelled=lambda: next(asked, True)))
    assert tree(root) == before


def test_the_deadline_for_locks_does_not_limit_the_work(root: Path, disk: Disk) -> None:
    disk.write_file("/dir/new", b"", deadline=Deadline(0))
    disk.delete("/dir/new", Deadline(0))
    disk.copy("/dir", "/copy", deadline=Deadline(0))
    disk.move("/copy", "/moved", deadline=Deadline(0))
    disk.delete("/dir", Deadline(0))
    assert sorted(tree(root)) == ["dir.txt", "moved", "moved/file", "moved/sub", "moved/sub/deep"]


def test_a_cancelled_deletion_ends(disk: Disk) -> None:
    before = open_descriptors()
    asked = iter([False])
    with pytest.raises(DeadlineError):
        disk.delete("/dir", ScriptedDeadline(cancelled=lambda: next(asked, True)))
    assert open_descriptors() == before


# --- trees for a transfer to another storage ---


def test_a_move_out_of_a_read_only_directory_names_the_source() -> None:
    with public_directory() as root, seen_by_nobody():
        (root / "in" / "d").mkdir(parents=True)
        (root / "in" / "a").write_bytes(b"x")
        (root / "in").chmod(0o555)
        disk = Disk(str(root))
        for name in ("a", "d"):
            with pytest.raises(PermissionDeniedError, match=f"'/in/{name}'"):
                disk.move(f"/in/{name}", f"/{name}")
        assert sorted(path.name for path in root.iterdir()) == ["in"]
        (root / "in").chmod(0o700)


def test_a_tree_that_finds_no_place_for_its_directories_stays() -> None:
    memory = MemoryBackend()
    memory.write("/tree/sub/file", "x")
    with public_directory() as root, seen_by_nobody():
        (root / "closed").mkdir(mode=0o555)
        files = CompositeBackend(memory, {"/disk": FilesystemBackend(root)})
        for transfer in (files.copy, files.move):
            assert transfer("/tree", "/disk/closed/tree").code == "permission_denied"
    assert memory.read("/tree/sub/file").ok


def test_list_tree_counts_entries_that_cannot_be_listed_or_deleted() -> None:
    with public_directory() as root, seen_by_nobody():
        for name in ("closed", "kept"):
            (root / name).mkdir()
            (root / name / "file").touch()
        (root / "closed").chmod(0)
        (root / "kept").chmod(0o555)
        disk = Disk(str(root))
        omitted = [disk.list_tree("/", deleting=deleting).omission for deleting in (False, True)]
        assert [omission and omission.count for omission in omitted] == [1, 2]
        assert disk.list_tree("/kept").omission is None
        listed = disk.list_tree("/kept", deleting=True)
        assert [(entry.path, entry.kind) for entry in listed.entries] == [
            ("/kept", "directory"),
            ("/kept/file", "file"),
        ]
        assert listed.omission is not None
        for name in ("closed", "kept"):
            (root / name).chmod(0o700)
