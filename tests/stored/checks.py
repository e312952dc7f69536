"""Checks of stored files, for every kind of storage."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from deepfs import BackendProtocol
from deepfs.policy import HistoryBackend
from stored.contents import STORE, STORE_V1, VERSIONS

__all__ = [
    "CHANGED",
    "check_and_change",
    "check_and_change_v1",
    "check_files",
    "check_history",
    "lines_with",
    "text_of",
]

UNICODE: Final = next(path for path in STORE if path.startswith("/日本"))


async def check_files(
    backend: BackendProtocol, files: Mapping[str, bytes], *, missing: Sequence[str] = (), beside: Sequence[str] = ()
) -> None:
    """Glob, download and listing find exactly these files; the listing also has the empty directories `beside`."""
    found = await backend.aglob("/**")
    assert [info.path for info in found.matches or ()] == sorted(files)
    assert [info.size for info in found.matches or ()] == [len(files[path]) for path in sorted(files)]
    downloaded = await backend.adownload_files(list(files))
    assert {each.path: each.content for each in downloaded} == files
    listed = await backend.als("/")
    assert [info.path for info in listed.entries or ()] == sorted({*_children(files), *beside})
    for path in missing:
        assert (await backend.aread(path)).code == "file_not_found"


def _children(files: Mapping[str, bytes]) -> set[str]:
    parts = [path[1:].partition("/") for path in files]
    return {f"/{name}{below}" for name, below, _ in parts}


async def lines_with(backend: BackendProtocol, text: str, **options: Any) -> list[tuple[str, int, str]]:
    found = await backend.agrep(text, **options)
    assert found.error is None
    return [(match.path, match.line, match.text) for match in found.matches or ()]


async def text_of(backend: BackendProtocol, path: str) -> str:
    read = await backend.aread(path)
    assert read.error is None
    return read.file_data.content


async def check_and_change(backend: BackendProtocol) -> None:
    """Check the files of STORE, change them in every way, and add files of this version."""
    await check_files(backend, STORE, missing=["/docs/b.md", "/docs/c.md"])
    assert await text_of(backend, "/bom.txt") == "bom\n"
    image = (await backend.aread("/image.png")).file_data
    assert (image.encoding, image.mime_type) == ("base64", "image/png")
    assert await lines_with(backend, "größe") == [(UNICODE, 1, "größe")]
    assert await lines_with(backend, "two", glob="*.txt") == [("/crlf.txt", 2, "two")]
    before = (await backend.aread_raw("/docs/a.md")).data
    assert datetime.fromisoformat(before.created_at) < datetime.fromisoformat(before.modified_at)
    version = (await backend.aread("/docs/a.md")).version
    assert (await backend.aedit("/docs/a.md", "edited", "edited again", if_match=version)).error is None
    after = (await backend.aread_raw("/docs/a.md")).data
    assert after.created_at == before.created_at
    assert after.modified_at > before.modified_at
    assert (await backend.awrite("/docs/a.md", "x", if_match=version)).code == "conflict"
    assert (await backend.awrite("/crlf.txt", "x")).code == "already_exists"
    assert (await backend.awrite("/docs", "x")).code == "is_directory"
    assert (await backend.aedit("/crlf.txt", "one\ntwo", "1\n2")).error is None
    assert (await backend.aedit("/bom.txt", "bom", "mark")).error is None
    assert (await backend.awrite("/docs/new.md", "new\n")).error is None
    assert (await backend.amove("/docs", "/papers")).error is None
    assert (await backend.acopy("/image.png", "/papers/image.png")).error is None
    assert (await backend.adelete("/image.png")).error is None
    assert (await backend.awrite("/empty.txt", "full", overwrite=True)).error is None
    await check_files(backend, CHANGED, missing=["/docs/a.md"])


CHANGED: Final = {
    "/bom.txt": b"\xef\xbb\xbfmark\n",
    "/crlf.txt": b"1\r\n2\r\n",
    "/empty.txt": b"full",
    "/papers/a.md": b"# A\n\nedited again\n",
    "/papers/image.png": STORE["/image.png"],
    "/papers/moved.md": b"# B\n",
    "/papers/new.md": b"new\n",
    UNICODE: STORE[UNICODE],
}


async def check_and_change_v1(backend: BackendProtocol) -> None:
    """Check and change the files of STORE_V1, in the older format."""
    await check_files(backend, STORE_V1, missing=["/c.txt"])
    assert await lines_with(backend, "T") == [("/a.txt", 2, "TWO")]
    read = await backend.aread("/a.txt", 1, 1)
    assert (read.file_data.content, read.total_lines, read.next_offset) == ("TWO\n", 3, 2)
    assert (await backend.aedit("/a.txt", "TWO\nthree", "2\n3")).error is None
    assert (await backend.adelete("/b.txt")).error is None
    await check_files(backend, {"/a.txt": b"one\n2\n3\n"})


async def check_history(history: HistoryBackend, versions: BackendProtocol | None = None) -> None:
    """Read and restore every version; new changes continue the numbering."""
    for path, held in VERSIONS.items():
        kept = await history.ahistory(path)
        assert [(each.number, each.size) for each in kept] == [(n + 1, len(held[n])) for n in range(len(held))]
        assert [await history.aread_version(path, each.number) for each in kept] == held
    await check_files(
        history, {"/plan.md": b"four\n", "/there.txt": b"moved\n", "/größe.txt": "ß\n".encode()}, missing=["/gone.bin"]
    )
    assert "-two\n+four\n" in await history.adiff("/plan.md", 2)
    assert (await history.aedit("/plan.md", "four", "five")).error is None
    assert (await history.arestore("/plan.md", 3)).error is None
    assert (await history.arestore("/gone.bin", 1)).error is None
    assert (await history.arestore("/moved.txt", 1)).error is None
    assert (await history.adownload_files(["/plan.md", "/gone.bin", "/moved.txt"]))[0].content == b"three\r\n"
    kept = await history.ahistory("/plan.md")
    assert [each.number for each in kept] == [1, 2, 3, 4, 5]
    now = [await history.aread_version("/plan.md", each.number) for each in kept]
    assert now == [*VERSIONS["/plan.md"], b"four\n", b"five\n"]
