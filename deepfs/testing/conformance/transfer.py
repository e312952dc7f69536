"""`upload_files` and `download_files`: bytes, one outcome for each item, in order; and streams of one file."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.testing.expect import listing, only, shown, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["ReadOnlyTransfer", "TransferConformance"]

_CONTENTS: Final = {
    "/up/empty": b"",
    "/up/text.txt": "héllo\r\nwörld\n".encode(),
    "/up/mark.txt": b"\xef\xbb\xbfwith a mark",
    "/up/nul.txt": b"a\x00b",
    "/up/latin.txt": "é".encode("latin-1"),
    "/up/all.bin": bytes(range(256)) * 40,
    "/up/name.png": b"text by its bytes",
    "/up/deep/er/x.pdf": b"%PDF-1.7\n\x00",
    "/up/surrogate.txt": b"\xed\xa0\x80",
    "/up/large.txt": b"0123456789abcdef\n" * 20_000,
}


class ReadOnlyTransfer(BackendSuite):
    """Downloads."""

    async def test_downloads_fetch_the_bytes(self, backend: BackendProtocol) -> None:
        await self.put(_CONTENTS)
        responses = await backend.adownload_files(list(_CONTENTS))
        assert [(item.path, item.content, item.error) for item in responses] == [
            (path, content, None) for path, content in _CONTENTS.items()
        ]

    async def test_downloads_succeed_and_fail_one_by_one(self, backend: BackendProtocol) -> None:
        await self.put({"/a": "a", "/dir/b": b"\x00"})
        paths = ["/none", "/a", "/dir", "/../a", "/dir/b", "/a/beneath", "/", "/dir/none", "/a"]
        responses = await backend.adownload_files(paths)
        assert [(item.path, item.content, item.error) for item in responses] == [
            ("/none", None, "file_not_found"),
            ("/a", b"a", None),
            ("/dir", None, "is_directory"),
            ("/../a", None, "invalid_path"),
            ("/dir/b", b"\x00", None),
            ("/a/beneath", None, "file_not_found"),
            ("/", None, "is_directory"),
            ("/dir/none", None, "file_not_found"),
            ("/a", b"a", None),
        ]


class TransferConformance(ReadOnlyTransfer):
    """Any bytes can be uploaded and downloaded unchanged."""

    async def test_uploads_store_the_bytes(self, backend: BackendProtocol) -> None:
        responses = await backend.aupload_files(list(_CONTENTS.items()))
        assert [(item.path, item.error) for item in responses] == [(path, None) for path in _CONTENTS]
        assert {path: await self.raw_peek(path) for path in _CONTENTS} == _CONTENTS

    async def test_an_upload_overwrites(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a longer text", "/b.bin": b"\x00"})
        responses = await backend.aupload_files([("/a.txt", b"\x00"), ("/b.bin", b"text")])
        assert [item.error for item in responses] == [None, None]
        assert await self.raw_peek("/a.txt") == b"\x00"
        assert shown(await backend.aread("/b.bin")) in ("text", "dGV4dA==")

    async def test_uploads_succeed_and_fail_one_by_one(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/x": "kept"})
        responses = await backend.aupload_files(
            [
                ("/new/a", b"a"),
                ("/../up", b"x"),
                ("/dir", b"x"),
                ("/new/b", b"b"),
                ("/", b"x"),
                ("~/home", b"x"),
                ("/file", b"replaced"),
            ]
        )
        assert [(item.path, item.error) for item in responses] == [
            ("/new/a", None),
            ("/../up", "invalid_path"),
            ("/dir", "is_directory"),
            ("/new/b", None),
            ("/", "is_directory"),
            ("~/home", "invalid_path"),
            ("/file", None),
        ]
        assert [await self.raw_peek(path) for path in ("/new/a", "/new/b", "/file", "/dir/x")] == [
            b"a",
            b"b",
            b"replaced",
            b"kept",
        ]

    async def test_nothing_is_uploaded_beneath_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept"})
        responses = await backend.aupload_files([("/file/beneath", b"x"), ("/other", b"o")])
        assert responses[0].error in ("not_a_directory", "invalid_path")
        assert responses[1].error is None
        assert [await self.raw_peek(path) for path in ("/file", "/file/beneath", "/other")] == [b"kept", None, b"o"]

    async def test_uploads_of_a_batch_are_stored_in_order(self, backend: BackendProtocol) -> None:
        responses = await backend.aupload_files([("/a", b"first"), ("/d/x", b"x"), ("/a", b"second"), ("/d", b"d")])
        assert [item.error for item in responses] == [None, None, None, "is_directory"]
        assert [await self.raw_peek(path) for path in ("/a", "/d/x")] == [b"second", b"x"]

    async def test_the_last_upload_to_a_path_wins(self, backend: BackendProtocol) -> None:
        files = [(f"/{number % 3}", str(number).encode() * (40 - number)) for number in range(30)]
        assert [item.error for item in await backend.aupload_files(files)] == [None] * 30
        assert [await self.raw_peek(path) for path, _ in files[-3:]] == [content for _, content in files[-3:]]

    async def test_an_empty_batch_has_no_outcomes(self, backend: BackendProtocol) -> None:
        assert await backend.aupload_files([]) == []
        assert await backend.adownload_files([]) == []

    async def test_a_batch_may_have_many_items(self, backend: BackendProtocol) -> None:
        files = [(f"/many/{number % 10}/{number}", str(number).encode()) for number in range(300)]
        assert [item.error for item in await backend.aupload_files(files)] == [None] * len(files)
        downloads = await backend.adownload_files([path for path, _ in reversed(files)])
        assert [item.content for item in downloads] == [content for _, content in reversed(files)]
        assert len(await listing(backend, "/many/3")) == 30

    async def test_a_large_binary_file_goes_in_and_out(self, backend: BackendProtocol) -> None:
        content = bytes(range(256)) * 4096 * 3
        upload = only(await backend.aupload_files([("/large.bin", content)]))
        download = only(await backend.adownload_files(["/large.bin"]))
        assert (upload.error, download.error) == (None, None)
        assert download.content == content, "three megabytes come back as they were"

    async def test_uploaded_files_can_be_read_and_edited(self, backend: BackendProtocol) -> None:
        await backend.aupload_files([("/a.txt", b"one\ntwo\n")])
        assert shown(await backend.aread("/a.txt", 1, 1)) == "two\n"
        succeeded(await backend.aedit("/a.txt", "two", "2"))
        download = only(await backend.adownload_files(["/a.txt"]))
        assert download.content == b"one\n2\n"

    async def test_streams_carry_the_bytes(self, backend: BackendProtocol) -> None:
        for path, content in self.some(_CONTENTS.items()):
            outcome = await backend.aupload_stream(path, _chunks(content))
            assert (outcome.path, outcome.error) == (path, None)
            assert await self.raw_peek(path) == content
            assert b"".join([chunk async for chunk in backend.adownload_stream(path, chunk_size=1000)]) == content

    async def test_a_failed_download_stream_raises_and_an_upload_stream_returns_its_code(
        self, backend: BackendProtocol
    ) -> None:
        await self.put({"/dir/x": "kept"})
        for path, code in {"/none": ErrorCode.FILE_NOT_FOUND, "/../x": ErrorCode.INVALID_PATH}.items():
            with pytest.raises(DeepFSError) as caught:
                [chunk async for chunk in backend.adownload_stream(path)]
            assert caught.value.code is code
        assert (await backend.aupload_stream("/../x", _chunks(b"x"))).error == "invalid_path"
        assert (await backend.aupload_stream("/dir", _chunks(b"x"))).error == "is_directory"
        assert await self.raw_peek("/dir/x") == b"kept"


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 7_000):
        yield content[start : start + 7_000]
