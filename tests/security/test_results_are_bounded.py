"""What an operation makes is bounded before it is made: in bytes, not in lines or matches alone."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import TooLargeError
from deepfs.middleware.tools import filesystem_tools
from deepfs.search import disk, request
from deepfs.text.edits import MAX_SPANS, replace
from deepfs.types import GrepResult
from support.every_backend import Storage, storage

__all__ = ["storage"]

MEGABYTE = 1024 * 1024


def peak(call: Callable[[], Any]) -> int:
    """The most bytes that Python had allocated for `call` at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- edits ---

GROWING = {
    "plain": ("a" * MEGABYTE, "a", "b" * 1000),
    "wide": ("a" * MEGABYTE, "a", "\N{PILE OF POO}" * 250),
    "crlf": ("a\r\n" * 300_000, "a\n", "b" * 1000 + "\n"),
    "mixed": ("a\r\na\n" * 30_000, "a\n", "b" * 5000 + "\n"),
    "mixed, each place spelt differently": ("a\r\na\na\r\na\r\na\na\n" * 30_000, "a\n" * 5, "b" * 9000 + "\n" * 5),
    "mixed, nothing but line ends": ("aa\r\na\n" * 30_000, "a", "\n" * 3000),
}


@pytest.mark.parametrize("case", GROWING)
def test_an_edit_that_would_grow_beyond_the_limit_is_refused_before_it_is_made(case: str) -> None:
    content, old, new = GROWING[case]

    def attempt() -> None:
        with pytest.raises(TooLargeError) as refused:
            replace("/a", content, old, new, replace_all=True)
        assert refused.value.limit == 256 * MEGABYTE
        assert refused.value.size is not None
        assert refused.value.size > 256 * MEGABYTE

    assert peak(attempt) < 64 * MEGABYTE


def test_the_limit_of_an_edit_is_exact() -> None:
    for content, old, new in (("aaaa\n", "a", "\u20acb"), ("a\r\na\n", "a\n", "\u20ac\n\n"), ("aaaa", "a", "bb\n")):
        size = len(replace("/a", content, old, new, replace_all=True).content.encode())
        assert replace("/a", content, old, new, replace_all=True, limit=size)
        with pytest.raises(TooLargeError) as refused:
            replace("/a", content, old, new, replace_all=True, limit=size - 1)
        assert refused.value.size == size


def test_a_file_over_the_limit_may_be_made_smaller() -> None:
    for content in ["abcabc", "abc\r\nabc\n"]:
        assert "abc" not in replace("/a", content, "abc", "x", replace_all=True, limit=3).content
        assert "abc" not in replace("/a", content, "abc", "xyz", replace_all=True, limit=3).content


def test_many_places_of_a_file_with_both_line_ends_are_one_span() -> None:
    for count in (MAX_SPANS, MAX_SPANS + 1):
        content = "x\n" + "a\r\n" * count + "y"
        done = replace("/a", content, "a\n", "bb\n", replace_all=True)
        assert done.content == content.replace("a\r\n", "bb\r\n")
        joined, end = "", 0
        for span in done.spans:
            joined, end = joined + content[end : span.start] + span.text, span.end
        assert joined + content[end:] == done.content
        assert len(done.spans) == (count if count <= MAX_SPANS else 1)


def test_growth_beyond_the_limit_changes_nothing_on_any_backend(storage: Storage) -> None:
    content = b"a" * MEGABYTE
    for prefix in storage.prefixes:
        path = f"{prefix}/a.txt"
        assert storage.backend.upload_files([(path, content)])[0].error is None
        result = storage.backend.edit(path, "a", "b" * 1000, replace_all=True)
        assert (result.code, storage.peek(path)) == ("too_large", content)
        assert "1,048,576,000 bytes" in (result.error or "")


# --- windows ---


def test_no_window_of_text_is_over_ten_megabytes(storage: Storage) -> None:
    line = ("x" * 40_000 + "\n").encode()
    content = line * 300
    for prefix in storage.prefixes:
        path = f"{prefix}/a.txt"
        assert storage.backend.upload_files([(path, content)])[0].error is None
        assert storage.backend.read(path).code == "too_large"
        assert storage.backend.read(path, 20, 1_000_000).code == "too_large"
        read = storage.backend.read(path, 50, 100)
        assert read.file_data is not None
        assert (read.file_data.content, read.next_offset) == ((line * 100).decode(), 150)


# --- searches ---

BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda _: MemoryBackend(),
    "disk": FilesystemBackend,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    return BACKENDS[request.param](tmp_path / "files")


def characters(found: GrepResult) -> int:
    lines = [
        line
        for match in found.matches or ()
        for line in (match, *(match.context_before or ()), *(match.context_after or ()))
    ]
    return sum(len(line.text) for line in lines)


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize("regex", [False, True])
def test_no_grep_returns_more_text_than_its_limit(
    backend: BackendProtocol, context: int, regex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "MAX_GREP_CHARS", 100_000)
    content = ("x" * 6_000 + "\n").encode() * 30
    backend.upload_files([(f"/d/{number}", content) for number in range(5)])
    found = backend.grep("x", "/d", regex=regex, context_lines=context)
    assert found.truncated
    assert 50_000 < characters(found) <= 100_000
    (backend.delete("/d/1"), backend.delete("/d/2"), backend.delete("/d/3"), backend.delete("/d/4"))
    backend.upload_files([("/d/0", ("x" * 6_000 + "\n").encode() * 5)])
    found = backend.grep("x", "/d", regex=regex, context_lines=context)
    assert not found.truncated
    assert len(found.matches or ()) == 5


def test_no_glob_returns_longer_paths_than_its_limit(backend: BackendProtocol, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/d/{number:02}{'x' * 200}" for number in range(40)]
    backend.upload_files([(name, b"") for name in names])
    assert [info.path for info in backend.glob("*", "/d").matches or ()] == names
    for module in (request, disk):
        monkeypatch.setattr(module, "MAX_GLOB_CHARS", 4_000)
    found = backend.glob("*", "/d")
    assert (found.truncated, found.truncation_reason) == (True, "budget")
    assert 3_600 < sum(len(info.path) for info in found.matches or ()) <= 4_000
    assert [info.path for info in found.matches or ()] == names[: len(found.matches or ())]


# --- tools ---


def test_no_result_of_a_file_tool_is_over_its_budget() -> None:
    backend = MemoryBackend()
    for number in range(300):
        backend.write(f"/{'d' * 200}/{'n' * 200}{number}\n", "needle" * 2_000 + "\x1b\n")
    for budget in (400, 5_000, 60_000):
        by_name = {tool.name: tool for tool in filesystem_tools(backend, max_result_chars=budget)}
        for name, arguments in {
            "ls": {"path": f"/{'d' * 200}"},
            "glob": {"pattern": "**"},
            "grep": {"pattern": "needle", "output_mode": "content", "context_lines": 2},
            "read_file": {"file_path": f"/{'d' * 200}/{'n' * 200}7\n"},
        }.items():
            shown = by_name[name].invoke(arguments)
            assert 0 < len(shown) <= budget, name
