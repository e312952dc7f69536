import re
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.errors import AmbiguousMatchError, InvalidContentError, NoMatchError
from deepfs.text.edits import Replacement, replace
from deepfs.text.lines import BOM

texts = st.text(st.sampled_from("ab\n\r\t "), max_size=40)
line_texts = st.lists(st.text("ab", max_size=3), max_size=8).map("\n".join)
mixed_texts = st.lists(st.tuples(st.text("ab", max_size=2), st.sampled_from(["\n", "\r\n"])), max_size=8).map(
    lambda lines: "".join(line + end for line, end in lines)
)
small_olds = st.text(st.sampled_from("ab\n"), min_size=1, max_size=4)


def with_crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def with_spans_applied(content: str, replacement: Replacement) -> str:
    for span in reversed(replacement.spans):
        content = content[: span.start] + span.text + content[span.end :]
    return content


# --- places ---


def test_an_edit_that_changes_nothing_is_an_error() -> None:
    for old, new in [("", "x"), ("same", "same")]:
        with pytest.raises(InvalidContentError, match=r"^Error: The text to replace"):
            replace("/f", "same", old, new, replace_all=True)


def test_new_text_must_be_text(subtests: pytest.Subtests) -> None:
    for new in ["a\0", "\ud800"]:
        with subtests.test(new=new), pytest.raises(InvalidContentError, match="new text"):
            replace("/f", "old", "old", new)


SEVERAL_PLACES = [
    ("a b a", "a", 2),
    ("aaa", "aa", 2),
    ("abababa", "aba", 3),
    ("a\nb\na\r\nb\r\n", "a\nb", 2),
    ("a\r\nb\r\na\r\nb\r\n", "a\nb", 2),
    ("a" * 10_000, "a", 10_000),
    ("ab" * 50_000, "ab", 50_000),
]


def test_several_places_are_counted_including_overlaps() -> None:
    for content, old, places in SEVERAL_PLACES:
        with pytest.raises(AmbiguousMatchError, match=rf"appears {places} times in file '/f' \(multiple"):
            replace("/f", content, old, "new")


@given(texts, st.text(st.sampled_from("ab\n\r"), min_size=1, max_size=3), texts)
def test_overlapping_matches_count_as_ambiguous(content: str, old: str, new: str) -> None:
    while "\r\n" in content:  # In a CRLF file, an LF also matches a CRLF.
        content = content.replace("\r\n", "\n")
    places = sum(content.startswith(old, i) for i in range(len(content)))
    if old == new:
        return
    if places == 1:
        assert replace("/f", content, old, new).occurrences == 1
    else:
        with pytest.raises(NoMatchError if places == 0 else AmbiguousMatchError):
            replace("/f", content, old, new)


@given(texts, st.text("ab ", min_size=1, max_size=2), st.text("abc", max_size=3))
def test_replace_all_agrees_with_str_replace(content: str, old: str, new: str) -> None:
    if old != new and old in content:
        done = replace("/f", content, old, new, replace_all=True)
        assert (done.content, done.occurrences) == (content.replace(old, new), content.count(old))


# --- line ends ---


@given(line_texts, small_olds, line_texts)
def test_a_crlf_file_is_edited_like_the_same_file_with_lf(content: str, old: str, new: str) -> None:
    if old == new or old not in content:
        return
    expected = content.replace(old, new)
    done = replace("/f", with_crlf(content), old, new, replace_all=True)
    # Without a line end in the file, new line ends stay LF.
    assert done.content == (with_crlf(expected) if "\n" in content else expected)
    assert done.occurrences == content.count(old)


@given(mixed_texts, small_olds, line_texts, st.booleans())
def test_in_a_file_with_mixed_line_ends_only_the_replaced_text_changes(
    content: str, old: str, new: str, replace_all: bool
) -> None:
    folded = content.replace("\r\n", "\n")
    if old == new or old not in folded or (not replace_all and len(re.findall(f"(?={re.escape(old)})", folded)) > 1):
        return
    done = replace("/f", content, old, new, replace_all)
    assert done.content.replace("\r\n", "\n") == folded.replace(old, new)
    assert done.content.count("\r") == done.content.count("\r\n")
    kept = 0
    for span in done.spans:
        assert content[span.start : span.end].replace("\r\n", "\n") == old
        assert kept <= span.start
        kept = span.end
    assert with_spans_applied(content, done) == done.content


def test_each_replaced_place_keeps_its_own_line_ends() -> None:
    done = replace("/f", "a\nb\n--\r\na\r\nb\r\n", "a\nb\n", "x\ny\nz\n", replace_all=True)
    assert done.content == "x\ny\nz\n--\r\nx\r\ny\r\nz\r\n"


def test_an_unchanged_line_keeps_its_line_end_in_a_mixed_file() -> None:
    assert replace("/f", "a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc").content == "a\r\nB\nc\r\n"


def test_further_line_ends_follow_the_last_one_replaced() -> None:
    assert replace("/f", "a\r\nb\nc\r\n", "a\nb\nc", "1\n2\n3\n4\n5").content == "1\r\n2\n3\n4\n5\r\n"


def test_replacing_a_line_end_at_the_start_replaces_its_cr_too() -> None:
    assert replace("/f", "a\r\nb\r\nc\n", "\nb", "b").content == "ab\r\nc\n"
    assert replace("/f", "a\r\nb\r\n", "\nb", "b").content == "ab\r\n"


NEW_LINES = [
    ("a\r\nb\r\n", "a\r\nb1\r\nb2\r\n"),
    ("a\nb\n", "a\nb1\nb2\n"),
    ("a\r\nc\r\nb\n", "a\r\nc\r\nb1\r\nb2\n"),
    ("a\nc\nb\r\n", "a\nc\nb1\nb2\r\n"),
    ("b", "b1\nb2"),
]


def test_a_new_line_end_is_spelt_like_most_of_the_file(subtests: pytest.Subtests) -> None:
    for content, expected in NEW_LINES:
        with subtests.test(content=content, expected=expected):
            assert replace("/f", content, "b", "b1\nb2").content == expected


def test_crlf_in_the_new_text_is_not_doubled() -> None:
    assert replace("/f", "a\r\nb\r\n", "a\nb", "a\r\nx\nb").content == "a\r\nx\r\nb\r\n"
    assert replace("/f", "a\r\nb\n", "a\nb", "a\r\nx\nb").content == "a\r\nx\r\nb\n"


def test_old_text_with_cr_matches_exactly() -> None:
    assert replace("/f", "a\r\nb\r\n", "a\r\nb", "a\nb").content == "a\nb\r\n"
    with pytest.raises(NoMatchError, match="line ends"):
        replace("/f", "a\nb\n", "a\r\nb", "c")


def test_a_bom_and_a_missing_final_newline_are_kept() -> None:
    assert replace("/f", f"{BOM}a\r\nb", "a\nb", "c\nd").content == f"{BOM}c\r\nd"


# --- spans ---


# --- cost ---


@pytest.mark.parametrize(
    ("content", "old"),
    [
        ("a" * 10_000_000, "a"),
        ("a" * 10_000_000, "a" * 5_000_000),
        ("a" * 10_000_000, "a" * 9_000_000 + "b"),
        ("abc, def; " * 2_000_000, "abc,  def;"),
        ("x = 1\n" * 1_000_000, "x  = 2\ny"),
        ("\n" * 5_000_000, " \n" * 1000 + "q"),
    ],
)
def test_a_failed_edit_of_a_large_file_takes_bounded_time(content: str, old: str) -> None:
    begun = thread_time()
    with pytest.raises((NoMatchError, AmbiguousMatchError)):
        replace("/f", content, old, "new")
    assert thread_time() - begun < 5
