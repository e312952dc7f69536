"""Enormous files, lines, directories and patterns take bounded memory and time; the result says what it leaves out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.search import flat as _flat_search
from support.processes import started

pytestmark = pytest.mark.both_loops

MB = 1024 * 1024

# Calls the sync methods of FilesystemBackend, and prints for each call the peak growth of the process in megabytes and
# the outcome. The limit of 4 GB makes a runaway call fail instead of exhausting the machine.
MEASURE = """
import json, resource, sys
from deepfs.backends.filesystem import FilesystemBackend

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

def kilobytes(field):
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(field)).split()[1])

def outcome(answer):
    if isinstance(answer, list):
        return {"code": [item.error for item in answer]}
    found = {name: getattr(answer, name, None) for name in ("code", "truncated", "skipped", "next_offset")}
    return found | {"count": len(getattr(answer, "matches", None) or getattr(answer, "entries", None) or ())}

root, options, calls = json.loads(sys.stdin.read())
backend = FilesystemBackend(root, **options)
backend.grep("x", "/nothing", regex=True)
for name, *arguments in calls:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = kilobytes("VmRSS")
    answer = getattr(backend, name)(*arguments)
    print(json.dumps([(kilobytes("VmHWM") - before) / 1024, outcome(answer)]), flush=True)
    del answer
"""


def measured(root: Path, *calls: tuple[Any, ...], megabytes: float, **options: Any) -> list[dict[str, Any]]:
    """The outcomes of `calls`, each a name with its arguments, in a new process; none takes more memory than that."""
    with started(MEASURE) as process:
        output, _ = process.communicate(json.dumps([str(root), options, calls]))
        assert process.returncode == 0
    results = [json.loads(line) for line in output.splitlines()]
    taken = [(name, grown) for (name, *_), (grown, _) in zip(calls, results, strict=True) if grown >= megabytes]
    assert taken == []
    return [outcome for _, outcome in results]


def codes(outcomes: list[dict[str, Any]]) -> list[Any]:
    return [outcome["code"] for outcome in outcomes]


def test_a_file_of_10_gb_is_refused_or_read_in_part(tmp_path: Path) -> None:
    """The files are sparse; one has text at its beginning."""
    for name, head in (("sparse", b""), ("headed", b"a line of text\n" * 100_000)):
        with (tmp_path / name).open("wb") as file:
            file.write(head)
            file.truncate(10 * 1024 * MB)
    (tmp_path / "small.txt").write_text("needle\n")
    reads = [("read", "/sparse"), ("read", "/headed"), ("read", "/headed", 50_000, 10), ("read", "/headed", 10**9, 10)]
    others: list[tuple[Any, ...]] = [
        *[("grep", "needle"), ("glob", "*"), ("edit", "/sparse", "a", "b"), ("edit", "/headed", "a line", "b")],
        *[("read_raw", "/sparse"), ("download_files", ["/sparse", "/small.txt"]), ("write", "/sparse", "new")],
        *[("move", "/sparse", "/moved"), ("delete", "/moved")],
    ]
    results, large = measured(tmp_path, *reads, *others, megabytes=40), "too_large"
    assert codes(results[:4]) == [large, None, None, large]
    assert codes(results[4:]) == [None, None, large, large, large, [large, None], "already_exists", None, None]
    assert results[1]["next_offset"] == 2000
    assert (results[4]["count"], results[4]["skipped"]) == (1, 2)


def test_a_line_of_200_mb_is_refused_or_searched_in_part(tmp_path: Path) -> None:
    with (tmp_path / "line").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * MB)
    (tmp_path / "text").write_bytes(b"x" * (9 * MB))
    calls: list[tuple[Any, ...]] = [
        *[("read", "/line"), ("read", "/line", 1, 10), ("grep", "x"), ("grep", "y"), ("copy", "/line", "/copied")],
        *[("read", "/text"), ("edit", "/text", "yx", "z"), ("edit", "/text", "x" * 1000, "z", True)],
    ]
    results = measured(tmp_path, *calls, megabytes=80)
    assert codes(results) == ["too_large", "invalid_content", None, None, None, None, "no_match", None]
    assert (results[2]["count"], results[2]["skipped"]) == (1, 1), "the line of 9 MB is found"


def test_a_directory_of_very_many_files_is_handled_in_bounded_memory(tmp_path: Path) -> None:
    """A listing cannot be marked as truncated, so it is complete, with bounded memory per entry."""
    entries, directory = 20_000, tmp_path / "many"
    directory.mkdir()
    for number in range(entries):
        (directory / f"{number:07}.txt").touch()
    calls = [("glob", "*.py"), ("glob", "*.txt"), ("grep", "needle"), ("ls", "/many"), ("delete", "/many")]
    results = measured(tmp_path, *calls, megabytes=60 + entries * 1.5 / 1024, search_timeout=60)
    assert codes(results) == [None] * 5
    assert [result["count"] for result in results] == [0, entries, 0, entries, 0]
    assert not directory.exists()


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


@pytest.fixture(params=["filesystem", "memory"])
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


def test_a_grep_is_bounded(holding: Callable[[bytes], BackendProtocol]) -> None:
    for name, (content, pattern, options) in GREPS.items():
        result = holding(content).grep(pattern, **options)
        found = result.matches or ()
        lines = sum(1 + len(match.context_before or ()) + len(match.context_after or ()) for match in found)
        assert lines <= 100_000, name
        assert result.ok or result.code == "invalid_pattern", name
