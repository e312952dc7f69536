"""`deepfs://`: fsspec's own suites, URLs, and the libraries that read them."""

import importlib
import io
import os
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
    BaseAbstractFixtures,
)

from deepfs import FilesystemBackend, MemoryBackend
from deepfs.backends import register_backend, unregister_backend
from deepfs.backends.fsspec._filesystem import DeepFSFileSystem
from deepfs.types import FileDownloadResponse


class _Fixtures(BaseAbstractFixtures):
    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return "scenario"

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_join(self) -> Any:
        return os.path.join

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def fs_sanitize_path(self) -> Any:
        return lambda path: path

    @pytest.fixture
    def supports_empty_directories(self, fs: DeepFSFileSystem) -> bool:
        return fs.backend.capabilities.keeps_empty_directories


class _Memory(_Fixtures):
    @pytest.fixture
    def fs(self) -> DeepFSFileSystem:
        return DeepFSFileSystem(backend=MemoryBackend())


class _Disk(_Fixtures):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> DeepFSFileSystem:
        (tmp_path / "root").mkdir()
        return DeepFSFileSystem(backend=FilesystemBackend(tmp_path / "root"))


class TestMemoryCopies(_Memory, AbstractCopyTests):
    pass


class TestMemoryGets(_Memory, AbstractGetTests):
    pass


class TestMemoryPuts(_Memory, AbstractPutTests):
    pass


class TestMemoryOpens(_Memory, AbstractOpenTests):
    pass


class TestMemoryPipes(_Memory, AbstractPipeTests):
    pass


class TestDiskCopies(_Disk, AbstractCopyTests):
    pass


class TestDiskPuts(_Disk, AbstractPutTests):
    pass


# --- URLs, and what else fsspec offers ------------------------------------------------------------------------------


@pytest.fixture
def notes() -> Iterator[MemoryBackend]:
    """A backend that is registered as `notes`."""
    backend = MemoryBackend()
    register_backend("notes", backend)
    yield backend
    unregister_backend("notes")


def test_urls_name_registered_backends(notes: Any) -> None:
    notes.write("/dir/a.csv", "a,b\n1,2\n")
    with fsspec.open("deepfs://notes/dir/a.csv", "r") as file:
        assert file.read() == "a,b\n1,2\n"
    [opened] = fsspec.open_files("deepfs://notes/dir/*.csv")
    assert opened.full_name == "deepfs://notes/dir/a.csv"
    filesystem, path = fsspec.url_to_fs("deepfs://notes/dir")
    assert path == "notes/dir"
    assert filesystem.ls("deepfs://notes/dir", detail=False) == ["notes/dir/a.csv"]
    assert filesystem.find("") == ["notes/dir/a.csv"]
    assert filesystem.ls("", detail=False) == ["notes"]
    assert filesystem.isdir("notes")
    with pytest.raises(FileNotFoundError):
        filesystem.cat("deepfs://nobody/a")
    with pytest.raises(PermissionError):
        filesystem.pipe("deepfs://nobody/a", b"x")


def test_names_are_checked_and_forgotten(notes: Any) -> None:
    for name in ("", "a/b", "-a", "a b", "ü"):
        with pytest.raises(ValueError, match="a name has"):
            register_backend(name, notes)
    with pytest.raises(TypeError):
        register_backend(7, notes)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        register_backend("notes", object())  # type: ignore[arg-type]
    unregister_backend("notes")
    unregister_backend("notes")
    with pytest.raises(FileNotFoundError):
        fsspec.open("deepfs://notes/a").open()


def test_the_entry_point_names_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["fsspec.specs"]["deepfs"].partition(":")
    assert getattr(importlib.import_module(module), name) is DeepFSFileSystem


def test_ranges_are_those_of_python(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    content = b"\0\xff\r\n5678\n"
    filesystem.pipe("a.bin", content)
    for start, end in product((None, 0, 3, 8, 9, 100, -3), (None, 0, 5, 9, 100, -2)):
        assert filesystem.cat_file("a.bin", start, end) == content[start:end], (start, end)


@pytest.mark.parametrize("start", [None, "start,"])
def test_what_two_writers_add_to_a_text_at_once_is_kept(start: str | None) -> None:
    class Raced(MemoryBackend):
        others = 2

        async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
            answers = await super().adownload_files(paths)
            if self.others:
                self.others -= 1
                before = (answers[0].content or b"").decode()
                await super().awrite("/log.txt", f"{before}other,", overwrite=True)
            return answers

    backend = Raced()
    if start is not None:
        backend.write("/log.txt", start)
    with DeepFSFileSystem(backend).open("log.txt", "ab") as file:
        file.write(b"own,")
    assert backend.read("/log.txt").file_data.content == f"{start or ''}other,other,own,"


def test_every_byte_is_kept(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    content = bytes(range(256)) * 1000
    with filesystem.open("a.bin", "wb") as file:
        file.write(content[:1000])
        assert not filesystem.exists("a.bin")  # Stored as a whole, at the end.
        file.write(content[1000:])
    with filesystem.open("a.bin", "ab") as file:
        file.write(b"\r\n")
    with filesystem.open("a.bin", "rb") as file:
        file.seek(255)
        assert file.read(2) == b"\xff\0"
        assert file.size == len(content) + 2
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert filesystem.tail("a.bin", 4) == b"\xfe\xff\r\n"
    assert filesystem.read_block("a.bin", 0, 10, delimiter=b"\n") == content[:11]


def test_what_an_exception_interrupts_is_not_stored(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    with pytest.raises(ZeroDivisionError), filesystem.open("a", "wb") as file:  # noqa: PT012
        file.write(b"half")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), filesystem.transaction:  # noqa: PT012
        filesystem.pipe_file("kept", b"x")  # fsspec's own `pipe_file` is part of no transaction.
        with filesystem.open("b", "wb") as file:
            file.write(b"whole")
        raise ZeroDivisionError
    assert filesystem.find("") == ["kept"]
    with filesystem.transaction:
        with filesystem.open("b", "wb") as file:
            file.write(b"whole")
        assert not filesystem.exists("b")
    assert filesystem.cat("b") == b"whole"


def test_create_only(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    for name, content in (("text.txt", b"one"), ("image.png", b"\x89PNG"), ("text.png", b"text")):
        filesystem.pipe_file(name, content, mode="create")
        with pytest.raises(FileExistsError):
            filesystem.pipe_file(name, b"two", mode="create")
        with pytest.raises(FileExistsError):
            filesystem.open(name, "xb")
        assert filesystem.cat(name) == content
    with filesystem.open("late", "xb") as file:
        file.write(b"mine")
        filesystem.pipe("late", b"theirs")
        with pytest.raises(FileExistsError):
            file.close()
    assert filesystem.cat("late") == b"theirs"


def test_failures_are_errors_of_the_system(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    filesystem.pipe("dir/a", b"x")
    calls: list[tuple[type[OSError], Any, list[Any]]] = [
        (FileNotFoundError, filesystem.cat_file, ["no"]),
        (FileNotFoundError, filesystem.cat_file, ["no", 0, 3]),
        (FileNotFoundError, filesystem.info, ["no"]),
        (FileNotFoundError, filesystem.ls, ["no"]),
        (FileNotFoundError, filesystem.rm, ["no"]),
        (FileNotFoundError, filesystem.modified, ["no"]),
        (FileNotFoundError, filesystem.checksum, ["no"]),
        (FileNotFoundError, filesystem.mv, ["no", "other"]),
        (IsADirectoryError, filesystem.cat_file, ["dir"]),
        (IsADirectoryError, filesystem.pipe_file, ["dir", b"x"]),
        (IsADirectoryError, filesystem.open, ["dir", "wb"]),
        (NotADirectoryError, filesystem.pipe_file, ["dir/a/b", b"x"]),
        (FileExistsError, filesystem.mkdir, ["dir"]),
        (FileExistsError, filesystem.makedirs, ["dir/a"]),
        (OSError, filesystem.rmdir, ["dir"]),
        (OSError, filesystem.rm, ["dir"]),
        (OSError, filesystem.cat_file, ["../a"]),
        (OSError, filesystem.open, ["a", "r+b"]),
    ]
    for error, call, arguments in calls:
        with pytest.raises(error):
            call(*arguments)
    assert filesystem.find("") == ["dir/a"]
    assert filesystem.find("no") == []
    assert not filesystem.exists("dir/a/b")


def test_a_checksum_is_that_of_the_content(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    found = []
    for content in (b"one", b"two", b"one"):
        filesystem.pipe("a", content)
        found.append((filesystem.checksum("a"), filesystem.ukey("a")))
    assert found[0] == found[2] != found[1]
    assert filesystem.modified("a").tzinfo is not None


def test_files_move_into_a_directory(notes: Any) -> None:
    filesystem = DeepFSFileSystem(backend=notes)
    for name in ("dir/a", "b", "c"):
        filesystem.pipe(name, b"x")
    filesystem.mv("b", "dir")
    filesystem.mv("c", "new/")
    filesystem.mv("dir", "moved", recursive=True)
    assert filesystem.find("") == ["moved/a", "moved/b", "new/c"]
