"""What an operation makes is bounded before it is made: in bytes, not in lines or matches alone."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from deepfs.errors import TooLargeError
from deepfs.text.edits import MAX_SPANS, replace
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


@pytest.mark.parametrize("content", ["abcabc", "abc\r\nabc\n"])
def test_a_file_over_the_limit_may_be_made_smaller(content: str) -> None:
    assert "abc" not in replace("/a", content, "abc", "x", replace_all=True, limit=3).content
    assert "abc" not in replace("/a", content, "abc", "xyz", replace_all=True, limit=3).content


def test_an_edit_in_a_file_with_both_line_ends_takes_memory_in_proportion_to_the_file() -> None:
    content = "a" * MEGABYTE + "\r\n\n"
    done = replace("/a", content, "a", "b\n", replace_all=True)
    assert (done.occurrences, len(done.spans)) == (MEGABYTE, 1)
    assert peak(lambda: replace("/a", content, "a", "b\n", replace_all=True)) < 25 * len(content)


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
