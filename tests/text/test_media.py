import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.text.media import is_binary_name, mime_type, sniff

UNKNOWN = ["", "/", "/Makefile", "/png", "/.png", "/..png", "/a.", "/a.unknown", "/x.png/file", "/a.png.", "/a.pn g"]


def test_a_name_without_a_known_extension_has_no_type() -> None:
    assert [path for path in UNKNOWN if (mime_type(path), is_binary_name(path)) != (None, False)] == []


@given(st.text())
def test_every_binary_name_has_a_type(path: str) -> None:
    assert mime_type(path) is not None or not is_binary_name(path)


FIRST_BYTES = [
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
    (b"GIF89a\1\0\1\0", "image/gif"),
    (b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
    (b"RIFF\x24\0\0\0AVI LIST", "video/x-msvideo"),
    (b"RIFF\x24\0\0\0????", "application/octet-stream"),
    (b"FORM\0\0\0\x2eAIFFCOMM", "audio/aiff"),
    (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "image/heic"),
    (b"\0\0\0\x18ftypmif1\0\0\0\0", "image/heif"),
    (b"\0\0\0\x18ftypavif\0\0\0\0", "image/avif"),
    (b"\0\0\0\x14ftypqt  \0\0\0\0", "video/quicktime"),
    (b"\0\0\0\x18ftyp3gp4\0\0\0\0", "video/3gpp"),
    (b"\0\0\0\x18ftypM4A \0\0\0\0", "audio/mp4"),
    (b"\0\0\0\x20ftypisom\0\0\2\0", "video/mp4"),
    (b"\x1aE\xdf\xa3\x9fB\x86\x81\1B\x82\x84webm", "video/webm"),
    (b"\x1aE\xdf\xa3\xa3B\x86\x81\1B\x82\x88matroska", "video/x-matroska"),
    (b"\0\0\1\xba\x44", "video/mpeg"),
    (b"FLV\1\5\0\0\0\x09", "video/x-flv"),
    (b"ID3\4\0\0", "audio/mpeg"),
    (b"\xff\xfb\x90\x64", "audio/mpeg"),
    (b"\xff\xf1\x50\x80", "audio/aac"),
    (b"OggS\0\2", "audio/ogg"),
    (b"fLaC\0\0\0\x22", "audio/flac"),
    (b"%PDF-1.7\n%\xe2\xe3", "application/pdf"),
    (b"\x7fELF\2\1\1", "application/x-elf"),
    (b"\0asm\1\0\0\0", "application/wasm"),
    (b"PK\3\4\x14\0", "application/zip"),
    (b"a".ljust(257, b"\0") + b"ustar\x0000", "application/x-tar"),
    (b"RIFF\x26\0\0\0WAVEfmt ", "audio/wav"),
    (b"SQLite format 3\0\x10\0", "application/vnd.sqlite3"),
    (b"\x1f\x8b\x08\0", "application/gzip"),
    (b"", "application/octet-stream"),
    (b"\0", "application/octet-stream"),
    (b"caf\xe9", "application/octet-stream"),
    (b"text \x89PNG\r\n\x1a\n", "application/octet-stream"),
]


def test_the_type_is_detected_from_the_first_bytes(subtests: pytest.Subtests) -> None:
    for data, kind in FIRST_BYTES:
        with subtests.test(data=data, kind=kind):
            assert sniff(data) == kind
            assert sniff(data + bytes(1000)) == kind


@given(st.binary())
def test_any_bytes_have_a_type(data: bytes) -> None:
    assert "/" in sniff(data)
