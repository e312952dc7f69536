"""`unwrap()` and `match` give payloads without None. mypy and pyright check this file too: see `nox -s types`."""

from typing import assert_type

import pytest

from deepfs import CompositeBackend, MemoryBackend
from deepfs.errors import BackendError, ErrorCode, NotFoundError, error_class
from deepfs.testing import FaultyBackend
from deepfs.types import (
    FileDataV1,
    FileDataV2,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Result,
    WriteResult,
)


@pytest.fixture
def files() -> MemoryBackend:
    return MemoryBackend(files={"/a.txt": "one\ntwo\n", "/b.bin": b"\x00"})


def test_each_payload_has_its_type(files: MemoryBackend) -> None:
    entries = assert_type(files.ls("/").unwrap(), list[FileInfo])
    read = assert_type(files.read("/a.txt").unwrap(), FileDataV2)
    raw = assert_type(files.read_raw("/b.bin").unwrap(), FileDataV1 | FileDataV2)
    found = assert_type(files.grep("two").unwrap(), list[GrepMatch])
    globbed = assert_type(files.glob("*.txt").unwrap(), list[FileInfo])
    assert [entry.path for entry in entries] == ["/a.txt", "/b.bin"]
    assert (read.content, raw.content) == ("one\ntwo\n", "AA==")
    assert [(match.path, match.line) for match in found] == [("/a.txt", 2)]
    assert [info.path for info in globbed] == ["/a.txt"]


def test_a_change_gives_the_path(files: MemoryBackend) -> None:
    assert assert_type(files.write("c.txt", "x").unwrap(), str) == "/c.txt"
    assert assert_type(files.edit("//c.txt", "x", "y").unwrap(), str) == "/c.txt"
    assert assert_type(files.copy("/c.txt", "/d.txt").unwrap(), str) == "/d.txt"
    assert assert_type(files.move("/d.txt", "/e.txt").unwrap(), str) == "/e.txt"
    assert assert_type(files.delete("/e.txt").unwrap(), str) == "/e.txt"


def test_items_of_a_batch(files: MemoryBackend) -> None:
    [uploaded] = files.upload_files([("/c.bin", b"\x01")])
    [downloaded] = files.download_files(["/c.bin"])
    assert assert_type(uploaded.unwrap(), str) == "/c.bin"
    assert assert_type(downloaded.unwrap(), bytes) == b"\x01"
    [missing] = files.download_files(["/none"])
    with pytest.raises(NotFoundError, match="'/none'"):
        missing.unwrap()


def test_a_failure_raises_its_error(files: MemoryBackend) -> None:
    results: list[Result] = [files.read("/none"), files.glob("*", "/none"), files.move("/none", "/c")]
    for result in results:
        with pytest.raises(NotFoundError) as raised:
            result.unwrap()
        assert (raised.value.path, raised.value.code, str(raised.value)) == ("/none", result.code, result.error)


def test_a_text_from_elsewhere_is_raised_by_its_code() -> None:
    for code in ErrorCode:
        with pytest.raises(error_class(code), match="told elsewhere") as raised:
            LsResult("told elsewhere", code=code).unwrap()
        assert raised.value.code is code
        for item in (FileUploadResponse("/a", code), FileDownloadResponse("/a", error=code)):
            with pytest.raises(error_class(code), match="'/a'") as raised:
                item.unwrap()
            assert (raised.value.code, raised.value.path) == (code, "/a")
    with pytest.raises(BackendError, match="told elsewhere"):
        WriteResult("told elsewhere").unwrap()


def test_a_result_without_anything_is_an_error_of_the_backend() -> None:
    for result in (LsResult(), ReadResult(), ReadRawResult(), GrepResult(), GlobResult(), WriteResult()):
        with pytest.raises(BackendError, match=type(result).__name__):
            result.unwrap()
    with pytest.raises(BackendError):
        FileDownloadResponse("/a").unwrap()
    assert (GrepResult(matches=[]).unwrap(), FileDownloadResponse("/a", b"").unwrap()) == ([], b"")


def test_a_partial_result_raises_and_keeps_what_was_found(files: MemoryBackend) -> None:
    broken = FaultyBackend(MemoryBackend(), {"grep": BackendError(None, "down")})
    result = CompositeBackend(files, {"/broken/": broken}).grep("two")
    with pytest.raises(BackendError, match="down"):
        result.unwrap()
    assert [match.path for match in result.matches or ()] == ["/a.txt"]
