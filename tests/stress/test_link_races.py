"""A directory or file swapped for a link that leads outside, all the while the backend works on it in every way.

Inside and outside have files of the same names. The contents outside are secret, and so is the name `kept`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from support.counts import few_or_many, telling
from support.disks import Swapping, open_descriptors, tree

pytestmark = pytest.mark.anyio

OUTSIDE = {"secret": b"SECRET", "inner": None, "inner/secret": b"SECRET", "kept": b"SECRET"}
PATHS = ("/dir/secret", "/dir/inner/secret")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside, inside = tmp_path / "outside", tmp_path / "root" / "dir"
    for directory, content in ((outside, b"SECRET"), (inside, b"public")):
        (directory / "inner").mkdir(parents=True)
        (directory / "secret").write_bytes(content)
        (directory / "inner" / "secret").write_bytes(content)
    (outside / "kept").write_bytes(b"SECRET")
    return tmp_path / "root"


@pytest.fixture
def swapping(root: Path, swapped: str) -> Swapping:
    return Swapping(root / swapped, root.parent / f"outside/{swapped}".replace("/dir", ""))


class Watched:
    """A backend, each of whose answers is judged: nothing of the outside is in it."""

    def __init__(self, root: Path) -> None:
        self._backend = FilesystemBackend(root)
        self._host = str(root.parent)
        self.answers: Counter[str] = Counter()

    async def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        answer = await getattr(self._backend, f"a{name}")(*arguments, **options)
        told = repr(answer)
        assert "SECRET" not in told
        assert self._host not in told
        for outcome in answer if isinstance(answer, list) else [answer]:
            self.answers["ok" if outcome.error is None else "refused"] += 1
        return answer


async def read(call: Watched, number: int) -> None:
    for path in PATHS:
        await call("read", path)
        await call("read_raw", path)
    await call("download_files", [*PATHS, "/dir/kept"])
    assert not (await call("read", "/dir/kept")).ok


async def list_(call: Watched, number: int) -> None:
    for path in ("/", "/dir", "/dir/inner"):
        listed = await call("ls", path)
        assert "kept" not in repr(listed.entries)


async def search(call: Watched, number: int) -> None:
    for path in ("/", "/dir", "/dir/inner"):
        for found in (
            await call("glob", "**", path),
            await call("grep", "SECRET", path),
            await call("grep", "[A-Z]{6}", path, regex=True),
            await call("grep", "secret", path, ignore_case=True),
            await call("grep", "p", path),
        ):
            assert "kept" not in repr(found.matches)


async def write(call: Watched, number: int) -> None:
    for path in PATHS:
        await call("write", path, "public", overwrite=True)
        await call("edit", path, "public", "PUBLIC")
        await call("edit", path, "PUBLIC", "public")
        await call("upload_files", [(path, b"public")])
    await call("write", f"/dir/new-{number % 5}/file", "public")
    await call("upload_files", [(f"/dir/inner/new-{number % 5}", b"public")])


async def delete(call: Watched, number: int) -> None:
    await call("write", f"/dir/mine/{number % 5}", "public")
    for path in ("/dir/mine", "/dir/kept", "/dir/inner", *(("/dir",) if number % 10 == 0 else ())):
        await call("delete", path)
    await call("upload_files", [(path, b"public") for path in PATHS])


async def relocate(call: Watched, number: int) -> None:
    for name in ("move", "copy"):
        for src, dst in (("/dir/secret", "/moved"), ("/moved", "/dir/secret"), ("/dir/inner", "/dir/mine")):
            await call(name, src, dst, overwrite=True)
        await call("delete", "/dir/mine")
        await call("upload_files", [(path, b"public") for path in PATHS])


OPERATIONS: dict[str, Iterable[Callable[[Watched, int], Awaitable[None]]]] = {
    "look": [read, list_, search],
    "change": [write, delete, relocate],
    "both": [read, list_, search, write, delete, relocate],
}


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("swapped", ["dir", "dir/inner", "dir/secret"])
@pytest.mark.parametrize("swaps", few_or_many(1_000, 100_000))
async def test_nothing_outside_is_read_listed_or_touched(
    root: Path,
    swapping: Swapping,
    swapped: str,
    operations: Iterable[Callable[[Watched, int], Awaitable[None]]],
    swaps: int,
    record_property: Callable[[str, object], None],
) -> None:
    call, outside = Watched(root), root.parent / "outside"
    await call("ls", "/")
    before = await anyio.to_thread.run_sync(open_descriptors)

    async def operate(operation: Callable[[Watched, int], Awaitable[None]]) -> None:
        for number in count():
            await operation(call, number)
            if swapping.count >= swaps and number >= 20:
                return

    await anyio.to_thread.run_sync(swapping.__enter__)
    try:
        async with anyio.create_task_group() as tasks:
            for operation in operations:
                tasks.start_soon(operate, operation)
    finally:
        await anyio.to_thread.run_sync(swapping.__exit__)
    assert await anyio.to_thread.run_sync(tree, outside) == OUTSIDE
    inside = await anyio.to_thread.run_sync(tree, root)
    assert b"SECRET" not in inside.values()
    assert not [path for path in inside if ".~deepfs-" in path]
    assert await anyio.to_thread.run_sync(open_descriptors) == before
    telling(record_property)(
        f"{swapping.count:,} swaps of {swapped}: {call.answers['ok']:,} calls succeeded, {call.answers['refused']:,} "
        "were refused, nothing outside was reached"
    )
