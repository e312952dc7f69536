"""Trees as zip files, and zip files of others."""

import zipfile
from pathlib import Path

import anyio
import pytest

from deepfs import MemoryBackend
from deepfs.errors import AlreadyExistsError, DeepFSError, InvalidPathError, NotSupportedError, TooLargeError
from deepfs.text.entries import files_of
from deepfs.workspaces import export_zip, fork, import_zip

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


async def test_a_workspace_goes_into_a_zip_file_and_back(tmp_path: Path) -> None:
    tree = MemoryBackend(files={})
    large = bytes(range(256)) * 10_000
    await tree.aupload_files([("/a.md", b"one"), ("/sub/large", large), ("/gone", b""), ("/empty", b"")])
    work = fork(tree)
    await work.aedit("/a.md", "one", "two")
    await work.adelete("/gone")
    file = tmp_path / "out.zip"
    await anyio.Path(file).write_bytes(b"old")
    assert await export_zip(work, str(file)) == 3
    assert [path.name async for path in anyio.Path(tmp_path).iterdir()] == ["out.zip"]

    def check() -> None:
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None
            assert min(info.date_time[0] for info in archive.infolist()) > 2000

    await anyio.to_thread.run_sync(check)
    back = MemoryBackend()
    assert await import_zip(str(file), back) == 3
    contents = {each.path: each.content for each in await back.adownload_files(["/a.md", "/sub/large", "/empty"])}
    assert contents == {"/a.md": b"two", "/sub/large": large, "/empty": b""}
    with pytest.raises(AlreadyExistsError):
        await import_zip(str(file), back)
    assert await import_zip(str(file), back, overwrite=True) == 3


async def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    class Failing(MemoryBackend):
        async def adownload_stream(self, path, *, chunk_size=0):  # type: ignore[no-untyped-def]
            yield b"x"
            raise InvalidPathError(path, "it fails")

    tree = Failing()
    await tree.awrite("/a", "a")
    await anyio.Path(tmp_path / "out.zip").write_bytes(b"old")
    with pytest.raises(DeepFSError):
        await export_zip(tree, str(tmp_path / "out.zip"))
    assert [path.name async for path in anyio.Path(tmp_path).iterdir()] == ["out.zip"]
    assert await anyio.Path(tmp_path / "out.zip").read_bytes() == b"old"


def _link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    return info


def _packed(kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("packed")
    info.compress_type = kind
    return info


HOSTILE: list[tuple[list[str | zipfile.ZipInfo], type[Exception]]] = [
    (["../up"], InvalidPathError),
    (["a/../../up"], InvalidPathError),
    (["/absolute"], InvalidPathError),
    (["a//b"], InvalidPathError),
    (["C:/a"], InvalidPathError),
    (["..\\up"], InvalidPathError),
    (["twice", "twice"], InvalidPathError),
    (["a", "a/b"], InvalidPathError),
    ([_link()], NotSupportedError),
    ([_packed(zipfile.ZIP_LZMA)], NotSupportedError),
    (["1", "2", "3", "4"], TooLargeError),
]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("names", "error"), HOSTILE)
async def test_a_hostile_zip_file_stores_nothing(
    names: list[str | zipfile.ZipInfo], error: type[Exception], tmp_path: Path
) -> None:
    def make() -> None:
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name in ["good", *names]:
                archive.writestr(name, b"x")

    await anyio.to_thread.run_sync(make)
    tree = MemoryBackend()
    with pytest.raises(error):
        await import_zip(str(tmp_path / "x.zip"), tree, max_files=4)
    assert files_of((await tree.alist_tree("/")).entries) == []


async def test_no_more_is_unpacked_than_declared(tmp_path: Path) -> None:
    def make(declared: int) -> None:
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", bytes(10_000_000))
        content = (tmp_path / "x.zip").read_bytes()
        if declared:
            content = content.replace((10_000_000).to_bytes(4, "little"), declared.to_bytes(4, "little"))
        (tmp_path / "x.zip").write_bytes(content)

    await anyio.to_thread.run_sync(make, 0)
    with pytest.raises(TooLargeError):
        await import_zip(str(tmp_path / "x.zip"), MemoryBackend(), max_bytes=1_000_000)
    await anyio.to_thread.run_sync(make, 1_000)
    tree = MemoryBackend()
    with pytest.raises(DeepFSError):
        await import_zip(str(tmp_path / "x.zip"), tree, max_bytes=1_000_000)
    assert not (await tree.aread("/bomb")).ok
