"""What a composite makes of its mounts: at once, in time, in order, and with those that fail named."""

import math
from pathlib import Path

import anyio
import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.policy import WrapperBackend
from deepfs.testing import FaultyBackend, LatencyBackend
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
    """Counts the searches that end, those that are cancelled, and tells the limit that each had."""

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
async def test_a_search_tells_what_it_found_and_which_mount_failed(error: Exception) -> None:
    broken = FaultyBackend(MemoryBackend(), {"grep": error, "glob": error})
    tree = CompositeBackend(await needles(), {"/broken/": broken, "/good/": await needles()})
    for found in (await tree.agrep("needle"), await tree.aglob("*.txt")):
        assert [match.path for match in found.matches or ()] == ["/f0.txt", "/good/f0.txt"]
        assert found.error is not None
        assert "'/broken/'" in found.error
        assert found.code == "backend_error"


async def test_a_mount_that_does_not_answer_in_time_is_told() -> None:
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


async def test_a_search_of_nothing_but_a_mount_that_hangs_ends_as_well() -> None:
    tree = CompositeBackend(MemoryBackend(), {"/slow/": LatencyBackend(await needles(), 60)}, route_timeout=0.05)
    with anyio.fail_after(5):
        assert (await tree.agrep("needle", "/slow")).code == "timeout"


@pytest.mark.parametrize("operation", ["upload_files", "download_files"])
async def test_a_batch_tells_the_outcomes_of_the_mounts_that_answer(operation: str) -> None:
    broken = FaultyBackend(MemoryBackend(), {operation: RuntimeError("a bug")})
    tree = CompositeBackend(await needles(), {"/broken/": broken})
    if operation == "upload_files":
        outcomes = await tree.aupload_files([("/a", b"a"), ("/broken/b", b"b"), ("/c", b"c"), ("../d", b"d")])
        assert [outcome.error for outcome in outcomes] == [None, "backend_error", None, "invalid_path"]
    else:
        downloads = await tree.adownload_files(["/f0.txt", "/broken/b", "/none"])
        assert [outcome.error for outcome in downloads] == [None, "backend_error", "file_not_found"]
        assert downloads[0].content == b"needle\n"


async def test_cancelling_a_search_cancels_the_search_of_each_mount() -> None:
    mounts = {f"/m{number}/": Counting(LatencyBackend(await needles(), 60)) for number in range(5)}
    tree = CompositeBackend(MemoryBackend(), mounts)
    with anyio.move_on_after(0.05):
        await tree.agrep("needle")
    assert [mount.cancelled for mount in mounts.values()] == [1] * 5


# --- many at once ---


async def test_mounts_are_searched_at_once() -> None:
    """Each waits until all have begun."""
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


@pytest.mark.parametrize("max_count", [1, 3, 4])
async def test_enough_matches_end_the_search_of_the_mounts_that_sort_behind(max_count: int) -> None:
    first, endless = await needles(5), Counting(LatencyBackend(await needles(), math.inf))
    tree = CompositeBackend(MemoryBackend(), {"/a/": first, "/b/": endless})
    with anyio.fail_after(5):
        found = await tree.agrep("needle", max_count=max_count)
    assert [match.path for match in found.matches or ()] == [f"/a/f{number}.txt" for number in range(max_count)]
    assert found.truncated
    assert found.ok
    assert endless.cancelled == 1
    assert endless.limits == [max_count]


async def test_matches_of_a_mount_that_sorts_before_are_waited_for() -> None:
    slow = LatencyBackend(await needles(2), 0.05)
    tree = CompositeBackend(MemoryBackend(), {"/a/": slow, "/b/": await needles(5)})
    found = await tree.agrep("needle", max_count=3)
    assert [match.path for match in found.matches or ()] == ["/a/f0.txt", "/a/f1.txt", "/b/f0.txt"]


# --- what is seen ---


async def test_only_mounts_under_the_searched_path_are_searched() -> None:
    beside = Counting(await needles())
    tree = CompositeBackend(await needles(), {"/in/deep/": await needles(), "/beside/": beside})
    found = await tree.agrep("needle", "/in")
    assert [match.path for match in found.matches or ()] == ["/in/deep/f0.txt"]
    assert beside.limits == []


async def test_a_mount_hides_what_lies_beneath_it(tmp_path: Path) -> None:
    disk = FilesystemBackend(tmp_path)
    for path in ("/seen.txt", "/mount/hidden.txt", "/mount"):
        await disk.awrite(path, "needle\n")
    tree = CompositeBackend(disk, {"/mount/": await needles()})
    assert [info.path for info in (await tree.als("/")).entries or ()] == ["/mount/", "/seen.txt"]
    assert [info.path for info in (await tree.aglob("*.txt")).matches or ()] == ["/mount/f0.txt", "/seen.txt"]
    found = await tree.agrep("needle", max_count=2)
    assert [match.path for match in found.matches or ()] == ["/mount/f0.txt", "/seen.txt"]
    assert (await tree.aread("/mount/hidden.txt")).code == "file_not_found"


async def test_hidden_matches_use_up_no_limit() -> None:
    inner = await holding(a="needle\n" * 5, z="needle\n")
    outer = MemoryBackend()
    for number in range(5):
        await outer.awrite(f"/m/{number}.txt", "needle\n")
    await outer.awrite("/z.txt", "needle\n")
    tree = CompositeBackend(outer, {"/m/": MemoryBackend(), "/x/": inner})
    found = await tree.agrep("needle", glob="z.txt", max_count=1)
    assert [match.path for match in found.matches or ()] == ["/x/z.txt"]
    found = await tree.agrep("needle", max_count=6)
    assert [(match.path, match.line) for match in found.matches or ()] == [
        *[("/x/a.txt", line) for line in range(1, 6)],
        ("/x/z.txt", 1),
    ]
    assert found.truncated


async def test_a_hundred_mounts_at_any_depth_appear_in_order() -> None:
    routes = {f"/{'d/' * (number % 7)}m{number:03}/": await needles() for number in range(100)}
    tree = CompositeBackend(MemoryBackend(), routes)
    found = await tree.agrep("needle")
    assert [match.path for match in found.matches or ()] == sorted(f"{route}f0.txt" for route in routes)
    listed = [info.path for info in (await tree.als("/d")).entries or ()]
    assert listed == sorted({"/d/d/", *[route for route in routes if route.count("/") == 3]})
