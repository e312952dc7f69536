"""`read` and `read_raw`: text, binary, versions, timestamps, records."""

import re
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, shown, succeeded, text_of
from deepfs.testing.suite import BackendSuite
from deepfs.types import FileDataV2, ReadRawResult, ReadResult

__all__ = ["ReadOnlyReading", "ReadingConformance"]

_MEGABYTE: Final = 1024 * 1024
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(\+00:00|Z)")

_MIME_TYPES: Final = {
    "a.png": "image/png",
    "a.jpg": "image/jpeg",
    "a.JPEG": "image/jpeg",
    "a.gif": "image/gif",
    "a.webp": "image/webp",
    "a.heic": "image/heic",
    "a.mp3": "audio/mpeg",
    "a.wav": "audio/wav",
    "a.flac": "audio/flac",
    "a.mp4": "video/mp4",
    "a.mov": "video/quicktime",
    "a.avi": "video/x-msvideo",
    "a.pdf": "application/pdf",
}


def _data(result: ReadResult | ReadRawResult) -> FileDataV2:
    """The file of a successful read."""
    data = succeeded(result).file_data if isinstance(result, ReadResult) else succeeded(result).data
    assert isinstance(data, FileDataV2)
    return data


def _time(stamp: str | None) -> datetime:
    assert stamp is not None, "the timestamp is there"
    assert _TIMESTAMP.fullmatch(stamp), f"{stamp} is not ISO 8601, UTC, with microseconds"
    return datetime.fromisoformat(stamp)


class ReadOnlyReading(BackendSuite):
    """Reads of files that are there."""

    async def test_a_text_is_shown_as_it_is_stored(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\r\ntwo\n😀\x0c"})
        read = succeeded(await backend.aread("/a.txt"))
        assert _data(read).encoding == "utf-8"
        assert _data(read).content == "one\r\ntwo\n😀\x0c"
        assert (read.start_line, read.end_line, read.total_lines, read.next_offset) == (1, 3, 3, None)

    async def test_a_window_has_its_line_numbers(self, backend: BackendProtocol) -> None:
        await self.put({"/ten.txt": "".join(f"line {number}\n" for number in range(1, 11))})
        read = succeeded(await backend.aread("/ten.txt", 3, 2))
        assert shown(read) == "line 4\nline 5\n"
        assert (read.start_line, read.end_line, read.next_offset) == (4, 5, 5)
        assert read.total_lines in (10, None)

    async def test_the_default_window_is_2000_lines(self, backend: BackendProtocol) -> None:
        await self.put({"/long.txt": "x\n" * 2001})
        read = succeeded(await backend.aread("/long.txt"))
        assert (shown(read), read.end_line, read.next_offset) == ("x\n" * 2000, 2000, 2000)
        rest = succeeded(await backend.aread("/long.txt", 2000))
        assert (shown(rest), rest.start_line, rest.end_line, rest.next_offset) == ("x\n", 2001, 2001, None)

    async def test_an_empty_file_is_empty_content(self, backend: BackendProtocol) -> None:
        await self.put({"/empty.txt": ""})
        read = succeeded(await backend.aread("/empty.txt"))
        assert (_data(read).content, _data(read).encoding, read.next_offset) == ("", "utf-8", None)

    async def test_a_byte_order_mark_is_not_shown(self, backend: BackendProtocol) -> None:
        await self.put({"/mark.txt": "\ufefffirst\nsecond"})
        assert await text_of(backend, "/mark.txt") == "first\nsecond"
        assert shown(await backend.aread("/mark.txt", 0, 1)) == "first\n"

    async def test_a_missing_file_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/none.txt", "/dir/none.txt", "/none/none.txt", "/dir/a.txt/beneath"):
            read = failed(await backend.aread(path), ErrorCode.FILE_NOT_FOUND)
            assert read.error == f"Error: File '{path}' not found"
            failed(await backend.aread_raw(path), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_cannot_be_read(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/dir", "/dir/", "/"):
            failed(await backend.aread(path), ErrorCode.IS_DIRECTORY)
            failed(await backend.aread_raw(path), ErrorCode.IS_DIRECTORY)

    async def test_binary_by_name_comes_as_base64_with_its_type(self, backend: BackendProtocol) -> None:
        content = b"text by its bytes"
        await self.put({f"/media/{name}": content for name in _MIME_TYPES})
        read = {name: _data(await backend.aread(f"/media/{name}")) for name in _MIME_TYPES}
        assert {name: data.mime_type for name, data in read.items()} == _MIME_TYPES
        assert {data.encoding for data in read.values()} == {"base64"}
        assert {b64decode(data.content) for data in read.values()} == {content}

    async def test_binary_by_content_comes_as_base64_with_a_type(self, backend: BackendProtocol) -> None:
        contents = {"/nul.txt": b"one\x00two\n", "/latin.txt": "é\n".encode("latin-1"), "/noname": bytes(range(256))}
        await self.put(contents)
        for path, content in contents.items():
            data = _data(await backend.aread(path))
            assert (data.encoding, b64decode(data.content)) == ("base64", content), path
            assert data.mime_type, f"{path} has a mime_type"

    async def test_binary_comes_whole_for_any_window(self, backend: BackendProtocol) -> None:
        content = b"\x00\n" * 100
        await self.put({"/data.bin": content})
        read = succeeded(await backend.aread("/data.bin", 50, 1))
        assert b64decode(shown(read)) == content
        assert read.next_offset is None

    async def test_svg_is_text_with_its_type(self, backend: BackendProtocol) -> None:
        await self.put({"/logo.svg": "<svg/>\n"})
        data = _data(await backend.aread("/logo.svg"))
        assert (data.encoding, data.content, data.mime_type) == ("utf-8", "<svg/>\n", "image/svg+xml")

    async def test_a_binary_over_ten_megabytes_is_too_large(self, backend: BackendProtocol) -> None:
        await self.put({"/large.bin": b"\x00" * (10 * _MEGABYTE + 1)})
        failed(await backend.aread("/large.bin"), ErrorCode.TOO_LARGE)

    async def test_read_raw_is_the_whole_file(self, backend: BackendProtocol) -> None:
        text = "\ufeff" + "line\r\n" * 3000
        await self.put({"/a.txt": text, "/a.bin": b"\x00\xff"})
        raw = _data(await backend.aread_raw("/a.txt"))
        assert (raw.encoding, raw.content) == ("utf-8", text)
        binary = _data(await backend.aread_raw("/a.bin"))
        assert (binary.encoding, b64decode(binary.content)) == ("base64", b"\x00\xff")


class ReadingConformance(ReadOnlyReading):
    """Text comes in windows, binary comes whole, and every read returns the version of the content."""

    async def test_the_version_identifies_the_content(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo\n"})
        first = succeeded(await backend.aread("/a.txt")).version
        assert first
        assert isinstance(first, str)
        assert succeeded(await backend.aread("/a.txt")).version == first, "it is stable"
        assert succeeded(await backend.aread("/a.txt", 1, 1)).version == first, "it is that of the whole file"
        succeeded(await backend.awrite("/a.txt", "one\nTWO\n", overwrite=True))
        assert succeeded(await backend.aread("/a.txt", 0, 1)).version != first, "it changes with the content"

    async def test_binary_has_a_version_too(self, backend: BackendProtocol) -> None:
        await backend.aupload_files([("/a.bin", b"\x00one")])
        first = succeeded(await backend.aread("/a.bin")).version
        await backend.aupload_files([("/a.bin", b"\x00two")])
        assert first
        assert succeeded(await backend.aread("/a.bin")).version not in (first, None)

    async def test_timestamps_are_current_and_utc_with_microseconds(self, backend: BackendProtocol) -> None:
        now = datetime.now(UTC)
        succeeded(await backend.awrite("/a.txt", "one"))
        raw = _data(await backend.aread_raw("/a.txt"))
        assert abs(_time(raw.modified_at) - now) < timedelta(minutes=5)
        if backend.capabilities.keeps_created_at:
            assert abs(_time(raw.created_at) - now) < timedelta(minutes=5)

    async def test_modified_at_moves_on_and_created_at_stays(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/a.txt", "one"))
        first = _data(await backend.aread_raw("/a.txt"))
        succeeded(await backend.aedit("/a.txt", "one", "two"))
        succeeded(await backend.awrite("/a.txt", "three", overwrite=True))
        await backend.aupload_files([("/a.txt", b"four")])
        last = _data(await backend.aread_raw("/a.txt"))
        assert _time(last.modified_at) >= _time(first.modified_at)
        if backend.capabilities.keeps_created_at:
            assert last.created_at == first.created_at
