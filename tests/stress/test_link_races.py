"""A directory or file is swapped for a symlink to the outside while the backend performs all its operations on it.

Inside and outside have files of the same names. The contents outside are secret, and so is the name `kept`.
"""

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from support.counts import few_or_many, telling
from support.disks import tree
from support.files import everything_in

pytestmark = pytest.mark.anyio

OUTSIDE = {"secret": b"SECRET", "inner": None, "inner/secret": b"SECRET", "kept": b"SECRET"}
AT_FDCWD, RENAME_EXCHANGE = -100, 2
PATHS = ("/dir/secret", "/dir/inner/secret")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path / "root" / "dir", b"public", is_file=False)
    make(tmp_path / "outside", b"SECRET", is_file=False)
    (tmp_path / "outside" / "kept").write_bytes(b"SECRET")
    return tmp_path / "root"


class Swapper:
    """A thread that keeps swapping `inside` for a symlink to `outside` and back, even if both are changed by others."""

    def __init__(self, inside: Path, outside: Path, trash: Path) -> None:
        self.count = 0
        self._inside = inside
        self._spare = inside.with_name(".link")
        self._outside = outside
        self._trash = trash
        self._trashed = count()
        self._exchange = ctypes.CDLL(None, use_errno=True).renameat2
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def start(self) -> None:
        self._trash.mkdir()
        self._mend()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _swap(self) -> None:
        here, there = os.fsencode(self._inside), os.fsencode(self._spare)
        while not self._stop.is_set():
            # Exchanged in one step: the name exists at every instant, so nothing can be created in between.
            if self._exchange(AT_FDCWD, here, AT_FDCWD, there, RENAME_EXCHANGE):
                self._mend()
            else:
                self.count += 1
                if self.count % 16 == 0:
                    self._mend()
                    time.sleep(0)

    def _mend(self) -> None:
        """Make exactly one of the two names the symlink again."""
        with suppress(OSError):
            is_link, spare_is_link = self._inside.is_symlink(), self._spare.is_symlink()
            if is_link and not (self._spare.exists() and not spare_is_link):
                self._spare.unlink(missing_ok=True)
                make(self._spare, b"public", is_file=self._outside.is_file())
            elif not is_link and not spare_is_link:
                with suppress(FileNotFoundError):
                    self._spare.rename(self._trash / str(next(self._trashed)))
                self._spare.symlink_to(self._outside)


def make(place: Path, content: bytes, *, is_file: bool) -> None:
    if is_file:
        place.write_bytes(content)
        return
    (place / "inner").mkdir(parents=True)
    for name in ("secret", "inner/secret"):
        (place / name).write_bytes(content)


@pytest.fixture
def swapper(root: Path, swapped: str) -> Iterator[Swapper]:
    outside = root.parent / f"outside/{swapped}".replace("/dir", "")
    swapper = Swapper(root / swapped, outside, root.parent / "trash")
    swapper.start()
    yield swapper
    swapper.stop()


class Watched:
    """A backend whose results are checked: none contains anything from the outside."""

    def __init__(self, root: Path) -> None:
        self._backend = FilesystemBackend(root)
        self._host = str(root.parent)
        self.answers: Counter[str] = Counter()

    async def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        answer = await getattr(self._backend, f"a{name}")(*arguments, **options)
        told = everything_in(answer)
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
        assert "kept" not in everything_in(listed.entries)


async def search(call: Watched, number: int) -> None:
    for path in ("/", "/dir", "/dir/inner"):
        for found in (
            await call("glob", "**", path),
            await call("grep", "SECRET", path),
            await call("grep", "[A-Z]{6}", path, regex=True),
            await call("grep", "secret", path, ignore_case=True),
            await call("grep", "p", path),
        ):
            assert "kept" not in everything_in(found.matches)


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
    swapper: Swapper,
    swapped: str,
    operations: Iterable[Callable[[Watched, int], Awaitable[None]]],
    swaps: int,
    record_property: Callable[[str, object], None],
) -> None:
    call = Watched(root)

    async def operate(operation: Callable[[Watched, int], Awaitable[None]]) -> None:
        for number in count():
            await operation(call, number)
            if swapper.count >= swaps and number >= 20:
                return

    async with anyio.create_task_group() as tasks:
        for operation in operations:
            tasks.start_soon(operate, operation)
    await anyio.to_thread.run_sync(swapper.stop)
    assert await anyio.to_thread.run_sync(tree, root.parent / "outside") == OUTSIDE
    inside = await anyio.to_thread.run_sync(tree, root)
    assert b"SECRET" not in inside.values()
    assert not [path for path in inside if ".~deepfs-" in path]
    telling(record_property)(
        f"{swapper.count:,} swaps of {swapped}: {call.answers['ok']:,} calls succeeded, {call.answers['refused']:,} "
        "were refused, nothing outside was reached"
    )
