"""A composite searches its mounts concurrently, within a timeout and in order, and names the mounts that fail."""

import asyncio
import math
from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.compat.adapters import FactoryBackend
from deepfs.errors import BackendError, ErrorCode
from deepfs.operations import Operation
from deepfs.policy import FilesystemPermission, PermissionedBackend, WrapperBackend
from deepfs.testing import FaultyBackend, LatencyBackend
from deepfs.text.entries import Omission, TreeListing
from deepfs.types import GrepResult

pytestmark = pytest.mark.anyio


async def holding(**files: str) -> MemoryBackend:
    backend = MemoryBackend()
    for name, content in files.items():
        assert (await backend.awrite(f"/{name}.txt", content)).ok
    return backend


async def needles(count: int = 1) -> MemoryBackend:
    return await holding(**{f"f{number}": "needle\n" for number in range(count)})


class Counting(WrapperBackend):
    """Counts completed and cancelled searches, and records the `max_count` of each."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.limits: list[int | None] = []
        self.ended = 0
        self.cancelled = 0

    async def agrep(self, *args: object, max_count: int | None = None, **options: object) -> GrepResult:
        self.limits.append(max_count)
        try:
            result = await super().agrep(*args, max_count=max_count, **options)  # type: ignore[arg-type]
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        self.ended += 1
        return result


# --- failing and slow mounts ---


@pytest.mark.parametrize("error", [BackendError("the disk is on fire"), RuntimeError("a bug")], ids=["error", "bug"])
async def test_a_search_returns_its_matches_and_names_the_mount_that_failed(error: Exception) -> None:
    broken = FaultyBackend(MemoryBackend(), {"grep": error, "glob": error})
    tree = CompositeBackend(await needles(), {"/broken/": broken, "/good/": await needles()})
    for found in (await tree.agrep("needle"), await tree.aglob("*.txt")):
        assert [match.path for match in found.matches or ()] == ["/f0.txt", "/good/f0.txt"]
        assert found.error is not None
        assert "'/broken/'" in found.error
        assert found.code == "backend_error"


async def test_a_mount_that_times_out_is_named_in_the_error() -> None:
    slow = Counting(LatencyBackend(await needles(), 60))
    tree = CompositeBackend(await needles(), {"/slow/": slow, "/good/": await needles()}, route_timeout=0.05)
    with anyio.fail_after(5):
        found = await tree.agrep("needle")
        listed = await tree.aglob("*.txt")
    for result in (found, listed):
        assert [match.path for match in result.matches or ()] == ["/f0.txt", "/good/f0.txt"]
        assert result.code == "timeout"
        assert result.error == "Error: No answer within 0.05 s (in '/slow/')"
    assert slow.cancelled == 1


@pytest.mark.parametrize("operation", ["upload_files", "download_files"])
async def test_a_batch_returns_the_outcomes_of_working_mounts_beside_a_failing_one(operation: str) -> None:
    broken = FaultyBackend(MemoryBackend(), {operation: RuntimeError("a bug")})
    tree = CompositeBackend(await needles(), {"/broken/": broken})
    if operation == "upload_files":
        outcomes = await tree.aupload_files([("/a", b"a"), ("/broken/b", b"b"), ("/c", b"c"), ("../d", b"d")])
        assert [outcome.error for outcome in outcomes] == [None, "backend_error", None, "invalid_path"]
    else:
        downloads = await tree.adownload_files(["/f0.txt", "/broken/b", "/none"])
        assert [outcome.error for outcome in downloads] == [None, "backend_error", "file_not_found"]
        assert downloads[0].content == b"needle\n"


# --- concurrent searches ---


async def test_mounts_are_searched_concurrently() -> None:
    """Each mount waits until the searches of all mounts have begun."""
    begun = 0
    all_begun = anyio.Event()

    class Waiting(WrapperBackend):
        async def agrep(self, *args: object, **options: object) -> GrepResult:
            nonlocal begun
            begun += 1
            if begun == 8:
                all_begun.set()
            await all_begun.wait()
            return await super().agrep(*args, **options)  # type: ignore[arg-type]

    tree = CompositeBackend(MemoryBackend(), {f"/m{number}/": Waiting(await needles()) for number in range(8)})
    with anyio.fail_after(5):
        found = await tree.agrep("needle")
    assert [match.path for match in found.matches or ()] == [f"/m{number}/f0.txt" for number in range(8)]


async def test_enough_matches_cancel_the_search_of_later_mounts() -> None:
    max_count = 3
    first, endless = await needles(5), Counting(LatencyBackend(await needles(), math.inf))
    tree = CompositeBackend(MemoryBackend(), {"/a/": first, "/b/": endless})
    with anyio.fail_after(5):
        found = await tree.agrep("needle", max_count=max_count)
    assert [match.path for match in found.matches or ()] == [f"/a/f{number}.txt" for number in range(max_count)]
    assert found.truncated
    assert found.ok
    assert endless.cancelled == 1
    assert endless.limits == [max_count]


# --- visible files ---


async def test_a_mount_hides_the_files_of_the_default_backend_at_its_path(tmp_path: Path) -> None:
    disk = FilesystemBackend(tmp_path)
    for path in ("/seen.txt", "/mount/hidden.txt", "/mount"):
        await disk.awrite(path, "needle\n")
    tree = CompositeBackend(disk, {"/mount/": await needles()})
    assert [info.path for info in (await tree.als("/")).entries or ()] == ["/mount/", "/seen.txt"]
    assert [info.path for info in (await tree.aglob("*.txt")).matches or ()] == ["/mount/f0.txt", "/seen.txt"]
    found = await tree.agrep("needle", max_count=2)
    assert [match.path for match in found.matches or ()] == ["/mount/f0.txt", "/seen.txt"]
    assert (await tree.aread("/mount/hidden.txt")).code == "file_not_found"


# --- mounts that raise CancelledError or TimeoutError ---


class Cancelled(WrapperBackend):
    """Raises CancelledError, at once or later, like a backend whose own inner task or future was cancelled."""

    def __init__(self, inner: BackendProtocol, later: bool) -> None:
        super().__init__(inner)
        self._later = later

    async def run(self, operation: Operation) -> Any:
        if self._later:
            await anyio.sleep(0.01)
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("later", "mount_as", "seconds"),
    [(False, "route", None), (True, "route", 60), (True, "default", None), (False, "only", 60)],
)
async def test_a_mount_that_raises_cancelled_error_counts_as_failed(
    later: bool, mount_as: str, seconds: float | None
) -> None:
    broken, good = Cancelled(await needles(), later), await needles()
    default, routes = {
        "default": (broken, {"/good/": good}),
        "route": (good, {"/broken/": broken}),
        "only": (broken, {}),
    }[mount_as]
    tree = CompositeBackend(default, routes, route_timeout=seconds)
    expected = {"default": ["/good/f0.txt"], "route": ["/f0.txt"], "only": []}[mount_as]
    for found in (await tree.agrep("needle"), await tree.aglob("*.txt")):
        assert [match.path for match in found.matches or ()] == expected
        assert "Error: CancelledError" in (found.error or "")
        assert found.code == "backend_error"
    paths = [*expected, "/broken/f0.txt" if mount_as == "route" else "/x"]
    assert [each.error for each in await tree.adownload_files(paths)] == [None] * len(expected) + ["backend_error"]
    uploads = await tree.aupload_files([(path, b"x") for path in paths])
    assert [each.error for each in uploads] == [None] * len(expected) + ["backend_error"]


async def test_cancelling_the_caller_cancels_its_search() -> None:
    class Slow(WrapperBackend):
        async def agrep(self, *args: Any, **options: Any) -> GrepResult:
            await anyio.sleep_forever()
            raise AssertionError

    for seconds in (None, 60):
        tree = CompositeBackend(await needles(), {"/slow/": Slow(await needles())}, route_timeout=seconds)
        with anyio.move_on_after(0.05) as scope:
            await tree.agrep("needle")
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tree.agrep, "needle")
                await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()


# --- unreachable storage ---


def broken_factory(_: object) -> BackendProtocol:
    raise ValueError("no tenant")


async def test_an_unreachable_mount_does_not_hide_other_files() -> None:
    tree = CompositeBackend(await needles(), {"/broken/": FactoryBackend(broken_factory)})
    shown = PermissionedBackend(tree, [FilesystemPermission(["read"], ["/secret/**"], "deny")])
    assert [info.path for info in (await shown.als("/")).entries or ()] == ["/broken/", "/f0.txt"]
    assert await tree.aresolve_paths(["/f0.txt", "/broken/a"]) == ["/f0.txt", None]
    assert [match.path for match in (await shown.agrep("needle")).matches or ()] == ["/f0.txt"]


async def test_a_mount_that_cannot_be_listed_is_told_beside_the_others() -> None:
    class Down(WrapperBackend):
        async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
            raise BackendError(None, "The storage failed")

    composite = CompositeBackend(MemoryBackend(), {"/d/m/": Down(MemoryBackend()), "/d/n/": MemoryBackend()})
    for path in ("/d/a", "/d/m/b", "/d/n/c"):
        assert (await composite.awrite(path, "x")).ok
    listing = await composite.alist_tree("/")
    assert [entry.path for entry in listing.entries] == ["/", "/d", "/d/a", "/d/n", "/d/n/c"]
    assert listing.omission == Omission(1, ErrorCode.BACKEND_ERROR, "a backend mounted in it cannot be listed")
    assert (await composite.acopy("/d", "/e")).code == ErrorCode.BACKEND_ERROR
