"""Enormous files, lines, directories and patterns take bounded memory and time; the result says what it leaves out."""

import gc
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.search import flat as _flat_search
from support.counts import few_or_many, telling
from support.processes import started, until_idle

Record = Callable[[str, object], None]

MB = 1024 * 1024

# Calls the sync methods of FilesystemBackend, and prints for each call its seconds, the peak growth of the process in
# megabytes, and the outcome. The limit of 4 GB makes a runaway call fail instead of exhausting the machine.
MEASURE = """
import json, resource, sys, time
from deepfs.backends.filesystem import FilesystemBackend

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

def kilobytes(field):
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(field)).split()[1])

def outcome(answer):
    if isinstance(answer, list):
        return {"codes": [item.error for item in answer]}
    found = {"code": answer.code, "ok": answer.ok}
    for name in ("truncated", "skipped", "next_offset", "total_lines", "occurrences"):
        if hasattr(answer, name):
            found[name] = getattr(answer, name)
    for name in ("matches", "entries"):
        if getattr(answer, name, None) is not None:
            found["count"] = len(getattr(answer, name))
    return found

root, options, calls = json.loads(sys.stdin.read())
backend = FilesystemBackend(root, **options)
backend.grep("x", "/nothing", regex=True)
backend.ls("/nothing")
for name, arguments, given in calls:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before, begun = kilobytes("VmRSS"), time.perf_counter()
    answer = getattr(backend, name)(*arguments, **given)
    seconds = time.perf_counter() - begun
    megabytes = (kilobytes("VmHWM") - before) / 1024
    print(json.dumps([seconds, megabytes, outcome(answer)]), flush=True)
    del answer
"""


class Measured:
    """The outcome of one call, with its time and memory."""

    def __init__(self, seconds: float, megabytes: float, outcome: dict[str, Any]) -> None:
        self.seconds = seconds
        self.megabytes = megabytes
        self.outcome = outcome

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self.outcome.items())
        return f"{self.seconds * 1000:,.0f} ms, {self.megabytes:.0f} MB more, {shown}"


def measured(root: Path, *calls: tuple[Any, ...], **options: Any) -> list[Measured]:
    """Run `calls`, each a name with its arguments, on the directory `root` in a new process, and measure each call."""
    given = [(name, arguments, {}) for name, *arguments in calls]
    with started(MEASURE) as process:
        output, _ = process.communicate(json.dumps([str(root), options, given]))
        assert process.returncode == 0
    return [Measured(*json.loads(line)) for line in output.splitlines()]


def report_all(record_property: Record, what: str, calls: list[tuple[Any, ...]], results: list[Measured]) -> None:
    for (name, *_), result in zip(calls, results, strict=True):
        telling(record_property)(f"{what}: {name}: {result}")


# --- enormous files ---


@pytest.fixture
def enormous(tmp_path: Path) -> Path:
    """Two sparse files of 10 GB, one of them with text at its beginning, beside a small file."""
    for name, head in (("sparse", b""), ("headed", b"a line of text\n" * 100_000)):
        with (tmp_path / name).open("wb") as file:
            file.write(head)
            file.truncate(10 * 1024 * MB)
    (tmp_path / "small.txt").write_text("needle\n")
    return tmp_path


def test_a_file_of_10_gb_is_refused_or_read_in_part(enormous: Path, record_property: Record) -> None:
    calls: list[tuple[Any, ...]] = [
        ("read", "/sparse"),
        ("read", "/headed"),
        ("read", "/headed", 50_000, 10),
        ("read", "/headed", 10**9, 10),
        ("grep", "needle"),
        ("glob", "*"),
        ("edit", "/sparse", "a", "b"),
        ("edit", "/headed", "a line", "b"),
        ("read_raw", "/sparse"),
        ("download_files", ["/sparse", "/small.txt"]),
        (
            "write",
            "/sparse",
            "new",
        ),
        ("move", "/sparse", "/moved"),
        ("delete", "/moved"),
    ]
    results = measured(enormous, *calls)
    report_all(record_property, "10 GB", calls, results)
    for result in results:
        assert result.megabytes < 40
        assert result.seconds < 5
    codes = [result.outcome.get("code") for result in results]
    too_large = "too_large"
    assert codes == [
        *[too_large, None, None, too_large, None, None, too_large, too_large, too_large],
        *[None, "already_exists", None, None],
    ]
    assert results[1].outcome["next_offset"] == 2000
    assert (results[4].outcome["count"], results[4].outcome["skipped"]) == (1, 2)
    assert results[9].outcome["codes"] == [too_large, None]


def test_a_line_of_200_mb_is_refused_or_searched_in_part(tmp_path: Path, record_property: Record) -> None:
    with (tmp_path / "line").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * MB)
    with (tmp_path / "text").open("wb") as file:
        file.write(b"x" * (9 * MB))
    calls: list[tuple[Any, ...]] = [
        ("read", "/line"),
        ("read", "/line", 1, 10),
        ("grep", "x"),
        ("grep", "y"),
        ("copy", "/line", "/copied"),
        ("read", "/text"),
        ("edit", "/text", "yx", "z"),
        ("edit", "/text", "x" * 1000, "z", True),
        ("delete", "/copied"),
    ]
    results = measured(tmp_path, *calls)
    report_all(record_property, "a line of 200 MB", calls, results)
    for result in results:
        assert result.megabytes < 80
        assert result.seconds < 5
    assert [result.outcome["code"] for result in results] == [
        *["too_large", "invalid_content", None, None, None, None, "no_match", None, None],
    ]
    # The line of 9 MB is found, and the match shows its first 5,000 characters; the file of 200 MB is skipped.
    assert (results[2].outcome["count"], results[2].outcome["skipped"]) == (1, 1)


# --- enormous directories ---


@pytest.mark.parametrize("entries", few_or_many(50_000, 1_000_000))
def test_a_directory_of_very_many_files_is_handled_in_bounded_memory_and_time(
    tmp_path: Path, entries: int, record_property: Record
) -> None:
    """A listing cannot be marked as truncated, so it is complete, with bounded memory per entry; searches are cut."""
    directory = tmp_path / "many"
    directory.mkdir()
    for number in range(entries):
        (directory / f"{number:07}.txt").touch()
    calls: list[tuple[Any, ...]] = [
        ("glob", "*.py"),
        ("glob", "*.txt"),
        ("read", "/many/0000001.txt"),
        ("grep", "needle"),
        ("ls", "/many"),
        ("write", "/many/new.txt", "new"),
        ("delete", "/many"),
    ]
    results = measured(tmp_path, *calls, search_timeout=30)
    report_all(record_property, f"{entries:,} files", calls, results)
    none, found, read, searched, listed, written, deleted = results
    for result in results:
        assert result.outcome["ok"]
        assert result.megabytes < 60 + entries * 1.5 / 1024
    assert (none.outcome["count"], none.outcome["truncated"]) == (0, False)
    assert found.outcome["count"] == min(entries, 100_000)
    assert found.outcome["truncated"] == (entries > 100_000)
    assert searched.outcome["count"] == 0
    assert searched.seconds < 35
    assert listed.outcome["count"] == entries
    assert read.seconds < 1
    assert written.seconds < 2
    assert deleted.seconds < 60
    assert not directory.exists()


def test_a_search_that_times_out_is_marked_truncated(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}.txt").write_text("needle\n" * 100)
    [found, listed] = measured(tmp_path, ("grep", "needle"), ("glob", "*.txt"), search_timeout=0.001)
    assert found.outcome["truncated"]
    assert listed.outcome["truncated"]


@pytest.fixture
def deep_root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # Pytest removes directories recursively, and a tree left here would be too deep for that.
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


@pytest.mark.parametrize("depth", [60])
def test_every_operation_works_in_a_deep_tree(deep_root: Path, depth: int, record_property: Record) -> None:
    """A copy holds a few file descriptors for each level of depth, and the process may open 256."""
    deep = "/d" * depth
    calls: list[tuple[Any, ...]] = [
        ("write", f"{deep}/f", "needle"),
        ("read", f"{deep}/f"),
        ("edit", f"{deep}/f", "needle", "a needle"),
        ("ls", deep),
        ("glob", "f"),
        ("grep", "needle"),
        ("copy", "/d", "/c"),
        ("move", "/c", "/m"),
        ("delete", "/m"),
        ("delete", "/d"),
    ]
    results = measured(deep_root, *calls)
    report_all(record_property, f"{depth:,} levels", calls, results)
    assert [result.outcome["code"] for result in results] == [None] * len(calls)
    assert [results[number].outcome["count"] for number in (3, 4, 5)] == [1, 1, 1]
    assert max(result.seconds for result in results) < 10
    assert list(deep_root.iterdir()) == []


# --- pathological patterns ---

LETTERS, NEWLINES = b"ab" * (5 * MB - 1), b"\n" * (10 * MB - 1)
LINES = b"the quick brown fox jumps over it\n" * (9 * MB // 34)

GREPS: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "every line": (NEWLINES, "", {}),
    "every line with context": (NEWLINES, "", {"context_lines": 1000}),
    "every line by regex": (NEWLINES, "^", {"regex": True, "context_lines": 1000}),
    "every letter": (LETTERS, "a", {"context_lines": 1000}),
    "nested stars": (LETTERS, "(a*)*c", {"regex": True}),
    "nested repeats": (LETTERS, "((a{0,30}){0,30}){0,1}c", {"regex": True}),
    "large classes": (LETTERS, r"(\pL{1,5}.){20}\d", {"regex": True}),
    "large classes, many lines": (LINES, r"(\pL{1,5}.){20}\d", {"regex": True}),
    "borders, line by line": (NEWLINES, r"\A.*q\z", {"regex": True}),
    "counted": (LETTERS, "[ab]{900}c", {"regex": True}),
    "ignoring case": (LETTERS, "ba" * 2000 + "c", {"ignore_case": True}),
    "a long needle": (LETTERS, "ba" * 500_000 + "c", {}),
}

BACKENDS = ["filesystem", "memory"]


@pytest.fixture(params=BACKENDS)
def holding(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bytes], BackendProtocol]:
    """Return a function that makes a backend with one file of the given content and a search timeout of 2 seconds."""
    monkeypatch.setattr(_flat_search, "SEARCH_SECONDS", 2)

    def make(content: bytes) -> BackendProtocol:
        backend = FilesystemBackend(tmp_path, search_timeout=2) if request.param == "filesystem" else MemoryBackend()
        assert backend.upload_files([("/file", content)])[0].error is None
        return backend

    return make


@pytest.mark.parametrize(("content", "pattern", "options"), GREPS.values(), ids=GREPS)
def test_a_grep_is_bounded(
    holding: Callable[[bytes], BackendProtocol],
    content: bytes,
    pattern: str,
    options: dict[str, Any],
    record_property: Record,
) -> None:
    backend = holding(content)
    begun = time.perf_counter()
    result = backend.grep(pattern, **options)
    seconds = time.perf_counter() - begun
    lines = sum(1 + len(match.context_before or ()) + len(match.context_after or ()) for match in result.matches or ())
    telling(record_property)(
        f"{seconds:.2f} s, {lines:,} lines, truncated {result.truncated}, skipped {result.skipped}, {result.code}"
    )
    assert seconds < 6
    assert lines <= 100_000
    finds_all = result.ok and not result.truncated and not result.skipped
    assert finds_all or result.truncated or result.skipped or result.code == "invalid_pattern"


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["every line with context", "large classes, many lines", "borders, line by line"])
async def test_a_grep_does_not_block_the_event_loop_and_ends_when_cancelled(
    holding: Callable[[bytes], BackendProtocol], name: str, record_property: Record
) -> None:
    content, pattern, options = GREPS[name]
    backend = await anyio.to_thread.run_sync(holding, content)
    pauses: list[float] = []
    measured = anyio.Event()
    gc.freeze()  # A garbage collection would scan the objects of all earlier tests and block every thread meanwhile.

    async def tick() -> None:
        while True:
            # CPU time of this thread, so that the load of the machine does not count.
            begun = time.thread_time()
            await anyio.sleep(0.001)
            pauses.append(time.thread_time() - begun)
            measured.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with anyio.move_on_after(0.3):
            await backend.agrep(pattern, **options)
        await measured.wait()
        seconds = await until_idle()
        tasks.cancel_scope.cancel()
    telling(record_property)(
        f"the loop worked {max(pauses) * 1000:.0f} ms at a time at most, threads {seconds * 1000:.0f} ms more"
    )
    assert seconds < 0.5
    assert max(pauses) < 0.1


GLOBS = [
    "*a" * 120 + "b",
    "**/" * 99 + "b",
    "?" * 255,
    "{a,b}" * 9 + "*c",
    "[a-b]" * 200,
    "*" * 4000,
    "**a**" * 50 + "c",
]


@pytest.mark.parametrize("pattern", GLOBS, ids=[pattern[:8] for pattern in GLOBS])
def test_a_glob_is_bounded(holding: Callable[[bytes], BackendProtocol], pattern: str, record_property: Record) -> None:
    backend = holding(b"")
    names = [f"/{'a/' * 40}{'a' * number}" for number in range(1, 250)]
    backend.upload_files([(name, b"") for name in names])
    begun = time.perf_counter()
    result = backend.glob(pattern)
    found = backend.grep("", glob=pattern)
    seconds = time.perf_counter() - begun
    telling(record_property)(f"{pattern[:20]}: {seconds * 1000:.0f} ms")
    assert result.ok or result.code == "invalid_pattern"
    assert found.ok == result.ok
    assert seconds < 3


# --- edits that find nothing, or too much ---

EDITS: dict[str, tuple[bytes, str, str]] = {
    "nothing like it": (LINES, "the quick brown fix\n" * 3, "no_match"),
    "a long text": (LINES, "the quick brown fix\n" * 50_000, "no_match"),
    "in one line": (LETTERS, "ba" * 5_000 + "c", "no_match"),
    "everywhere": (NEWLINES, "\n", "ambiguous_match"),
    "overlapping everywhere": (LETTERS, "ab" * 100_000, "ambiguous_match"),
}


@pytest.mark.parametrize(("content", "old", "code"), EDITS.values(), ids=EDITS)
def test_an_edit_that_cannot_apply_is_refused_quickly(
    holding: Callable[[bytes], BackendProtocol], content: bytes, old: str, code: str, record_property: Record
) -> None:
    backend = holding(content)
    begun = time.perf_counter()
    result = backend.edit("/file", old, "new")
    seconds = time.perf_counter() - begun
    telling(record_property)(f"{seconds:.2f} s, {len(result.error or ''):,} characters")
    assert result.code == code
    assert seconds < 5
    assert len(result.error or "") < 5_000
