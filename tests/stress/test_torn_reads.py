"""A file is replaced again and again while threads and tasks read it: no reader sees a mixture of two versions."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from support.counts import few_or_many, telling

LINES = 1024
READERS = 4


def version(number: int, width: int) -> str:
    """One line that identifies a version, `width` characters long; the file repeats it."""
    return f"{number:010}".ljust(width, ".").replace(".", "x")[: width - 1] + "\n"


class Readers:
    """Checks that each read returned exactly one complete version."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.reads: Counter[str] = Counter()

    def judge(self, how: str, content: str) -> None:
        first, count = content[: self.width], content.count("\n")
        assert count == LINES, f"{how}: {count} lines"
        assert content == first * LINES, f"{how}: torn"
        self.reads[how] += 1

    def read(self, backend: FilesystemBackend) -> None:
        """Read the file in every way."""
        read = backend.read("/file.txt")
        assert read.file_data is not None, read.error
        assert read.total_lines == LINES
        self.judge("read", read.file_data.content)
        [download] = backend.download_files(["/file.txt"])
        assert download.content is not None, download.error
        self.judge("download", download.content.decode())
        found = backend.grep("x", context_lines=0)
        assert found.matches is not None, found.error
        self.judge("grep", "".join(f"{match.text}\n" for match in found.matches))


@contextmanager
def reading(work: Callable[[], None], threads: int) -> Iterator[list[BaseException]]:
    """Run `work` in threads until the block ends; the yielded list then has their exceptions."""
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield errors
    finally:
        done.set()
        for thread in running:
            thread.join()


# One file is read in one piece; the other is over a mebibyte, so it is read in blocks.
WIDTHS = [1000, 1200]


@pytest.mark.parametrize("width", WIDTHS, ids=["1.0 MB", "1.2 MB"])
@pytest.mark.parametrize("replacements", few_or_many(60, 1_000))
def test_no_thread_reads_a_torn_file(
    tmp_path: Path, replacements: int, width: int, record_property: Callable[[str, object], None]
) -> None:
    readers = Readers(width)
    writer, other = FilesystemBackend(tmp_path), FilesystemBackend(tmp_path)
    assert writer.write("/file.txt", version(0, width) * LINES).ok
    with reading(lambda: readers.read(other), READERS) as errors:
        for number in range(1, replacements + 1):
            replace(writer, number, width)
    assert errors == []
    assert sum(readers.reads.values()) >= READERS
    reads = ", ".join(f"{count} by {how}" for how, count in readers.reads.items())
    telling(record_property)(f"{replacements} replacements under {READERS} threads: reads {reads}, none torn")


def replace(backend: FilesystemBackend, number: int, width: int) -> None:
    """Replace the file by edit, write or upload."""
    new = version(number, width)
    if number % 3 == 0:
        assert backend.edit("/file.txt", version(number - 1, width), new, replace_all=True).ok
    elif number % 3 == 1:
        assert backend.write("/file.txt", new * LINES, overwrite=True).ok
    else:
        assert backend.upload_files([("/file.txt", (new * LINES).encode())])[0].error is None


@pytest.mark.anyio
@pytest.mark.parametrize("replacements", few_or_many(40, 1_000))
async def test_no_task_reads_a_torn_file(
    tmp_path: Path, replacements: int, record_property: Callable[[str, object], None]
) -> None:
    readers, width = Readers(1000), 1000
    writer, other = FilesystemBackend(tmp_path), FilesystemBackend(tmp_path)
    assert (await writer.awrite("/file.txt", version(0, width) * LINES)).ok

    async def read() -> None:
        while True:
            result = await other.aread("/file.txt")
            assert result.file_data is not None, result.error
            readers.judge("read", result.file_data.content)

    async with anyio.create_task_group() as tasks:
        for _ in range(READERS):
            tasks.start_soon(read)
        for number in range(1, replacements + 1):
            written: Any = await writer.awrite("/file.txt", version(number, width) * LINES, overwrite=True)
            assert written.ok
        tasks.cancel_scope.cancel()
    assert readers.reads["read"] >= READERS
    telling(record_property)(
        f"{replacements} replacements under {READERS} tasks: {readers.reads['read']} reads, none torn"
    )
