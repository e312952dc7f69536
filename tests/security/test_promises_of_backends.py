"""What SECURITY.md promises of every backend, each promise by one test over all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs import run_sync
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.types import Result
from support.every_backend import Storage, storage
from support.promises import keeps

__all__ = ["storage"]

_NOT_PATHS = ("/a/../b", "~/a", "~", "a\0b", "/\ud800", "C:/a", "C:\\b", "/" + "n" * 256)


def _on_a_path(backend: Any, path: str) -> Iterator[Result]:
    """Every operation on one path."""
    yield from (backend.ls(path), backend.read(path), backend.read_raw(path), backend.edit(path, "a", "b"))
    yield from (backend.write(path, "x", overwrite=True), backend.delete(path), backend.grep("x", path))
    yield from (backend.glob("*", path), backend.copy(path, "/new"), backend.move(path, "/new"))
    yield from (backend.copy("/kept", path, overwrite=True), backend.move("/kept", path, overwrite=True))


@keeps("All of the above, within the process.", "A path is normalised once", "and nothing is touched")
def test_what_is_no_path_is_refused_and_touches_nothing(storage: Storage) -> None:
    storage.put("/kept", b"kept")
    for path in _NOT_PATHS:
        assert {result.code for result in _on_a_path(storage.backend, path)} == {"invalid_path"}, ascii(path)
        batches = *storage.backend.upload_files([(path, b"x")]), *storage.backend.download_files([path])
        assert [item.error for item in batches] == ["invalid_path"] * 2, ascii(path)
    listed = storage.backend.glob("**").matches or ()
    assert [info.path for info in listed if not info.is_dir] == ["/kept"]
    assert storage.peek("/kept") == b"kept"
    assert storage.backend.read("//./kept/").ok


@keeps("**Errors** are data.", "no error text shows a path of the host")
def test_no_call_of_a_model_raises_or_names_the_host(storage: Storage, tmp_path: Path) -> None:
    storage.put("/a", b"text")
    texts = ["", "\0", "(", "[", "\ud800", "x" * 70_000, "{" * 60, "*" * 999, "/a/beneath", "/missing"]
    for text in texts:
        results = [
            *_on_a_path(storage.backend, text),
            *(storage.backend.grep(text), storage.backend.glob(text), storage.backend.edit("/a", text, text)),
            storage.backend.write("/missing/new", text, if_match=text),
        ]
        assert not [result.error for result in results if str(tmp_path) in str(result.error)]


@keeps("A reader sees the old file or the new one", "no work goes on behind its back")
def test_a_cancelled_change_is_whole_or_was_not_made(storage: Storage) -> None:
    run_sync(_cancelled_changes, storage.backend)


async def _cancelled_changes(backend: Any) -> None:
    versions = [letter * 300_000 for letter in "abcdefgh"]
    assert (await backend.awrite("/file", versions[0])).ok
    for turn, text in enumerate(versions):
        with anyio.move_on_after(0.0005 * turn):
            await backend.awrite("/file", text, overwrite=True)
        found = (await backend.adownload_files(["/file"]))[0].content.decode()
        assert found.lower() in versions
        await anyio.sleep(0.01)
        assert (await backend.adownload_files(["/file"]))[0].content.decode() == found, (
            "nothing goes on behind its back"
        )
        with anyio.fail_after(20):  # Its locks are free.
            assert (await backend.aedit("/file", found[:9], found[:9].swapcase(), replace_all=True)).ok, (
                "its locks are free"
            )


@keeps("exactly those that reported success are in the file", "The locks belong to the storage")
def test_edits_at_the_same_time_add_up(storage: Storage) -> None:
    storage.put("/file", b"".join(b"<%d>\n" % number for number in range(20)))
    done = run_sync(_edited_at_once, storage.backend)
    text = (storage.peek("/file") or b"").decode()
    assert {number for number in range(20) if f"[{number}]" in text} == done
    assert len(done) == 20


async def _edited_at_once(backend: Any) -> set[int]:
    done = set()

    async def edit(number: int) -> None:
        if (await backend.aedit("/file", f"<{number}>", f"[{number}]")).ok:
            done.add(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(edit, number)
    return done


@pytest.mark.anyio
async def test_edits_by_two_backends_over_one_directory_add_up(tmp_path: Path) -> None:
    backends = FilesystemBackend(tmp_path), FilesystemBackend(tmp_path)
    assert (await backends[0].awrite("/file", "".join(f"<{number}>" for number in range(20)))).ok
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(backends[number % 2].aedit, "/file", f"<{number}>", "+")
    assert (await backends[0].adownload_files(["/file"]))[0].content == b"+" * 20


@keeps("in time linear in the input")
def test_patterns_cannot_take_exponential_time(storage: Storage) -> None:
    storage.put("/file", b"a" * 20_000 + b"!\n")
    for pattern in ("(a*)*$", "(a|a)*b", "(a+)+[^!]", "(?:a?){999}a{999}b"):
        assert not storage.backend.grep(pattern, regex=True).truncated


@keeps("100,000 lines or 100,000 files with `truncated`", "counted in `skipped`")
def test_a_search_stops_and_says_so(storage: Storage) -> None:
    storage.put("/lines", b"needle\n" * 100_001)
    found = storage.backend.grep("needle")
    assert (len(found.matches or ()), found.truncated) == (100_000, True)
    storage.put("/lines", b"needle\n\xff\0")
    found = storage.backend.grep("needle")
    assert ([match.path for match in found.matches or ()], found.skipped) == ([], 1)


# --- mounts ---


@keeps("A mount hides what lies beneath it.")
@pytest.mark.anyio
async def test_a_mount_hides_what_lies_beneath_it() -> None:
    default, mount = MemoryBackend(), MemoryBackend()
    tree = CompositeBackend(default, {"/mount/": mount})
    await default.awrite("/mount/hidden", "needle")
    await mount.awrite("/seen", "needle")
    assert [match.path for match in (await tree.agrep("needle")).matches or ()] == ["/mount/seen"]
    assert {result.code for result in [await tree.aread("/mount/hidden"), await tree.adelete("/mount/hidden")]} == {
        "file_not_found"
    }
    assert (await default.aread("/mount/hidden")).ok


class _Failing(MemoryBackend):
    async def agrep(self, *args: Any, **options: Any) -> Any:
        raise OSError("unreachable")


@keeps("A failing mount is named")
@pytest.mark.anyio
async def test_a_failing_mount_is_named_and_hides_no_other() -> None:
    default = MemoryBackend()
    await default.awrite("/seen", "needle")
    found = await CompositeBackend(default, {"/failing/": _Failing()}).agrep("needle")
    assert [match.path for match in found.matches or ()] == ["/seen"]
    assert "/failing/" in str(found.error)
