import re

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


LINE_ENDS = [
    # Each replaced place keeps its own line ends, and an unchanged line its line end.
    ("a\nb\n--\r\na\r\nb\r\n", "a\nb\n", "x\ny\nz\n", "x\ny\nz\n--\r\nx\r\ny\r\nz\r\n"),
    ("a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc", "a\r\nB\nc\r\n"),
    # Further line ends follow the last one replaced.
    ("a\r\nb\nc\r\n", "a\nb\nc", "1\n2\n3\n4\n5", "1\r\n2\n3\n4\n5\r\n"),
    # A line end at the start is replaced with its CR.
    ("a\r\nb\r\nc\n", "\nb", "b", "ab\r\nc\n"),
    ("a\r\nb\r\n", "\nb", "b", "ab\r\n"),
    # A new line end is spelt like most of the file.
    ("a\r\nb\r\n", "b", "b1\nb2", "a\r\nb1\r\nb2\r\n"),
    ("a\nb\n", "b", "b1\nb2", "a\nb1\nb2\n"),
    ("a\r\nc\r\nb\n", "b", "b1\nb2", "a\r\nc\r\nb1\r\nb2\n"),
    ("a\nc\nb\r\n", "b", "b1\nb2", "a\nc\nb1\nb2\r\n"),
    ("b", "b", "b1\nb2", "b1\nb2"),
    # CRLF in the new text is not doubled.
    ("a\r\nb\r\n", "a\nb", "a\r\nx\nb", "a\r\nx\r\nb\r\n"),
    ("a\r\nb\n", "a\nb", "a\r\nx\nb", "a\r\nx\r\nb\n"),
    # A BOM and a missing final line end are kept.
    (f"{BOM}a\r\nb", "a\nb", "c\nd", f"{BOM}c\r\nd"),
]


def test_line_ends_are_kept_place_by_place() -> None:
    made = [replace("/f", content, old, new, content.count("--") > 0).content for content, old, new, _ in LINE_ENDS]
    assert made == [expected for *_, expected in LINE_ENDS]


def test_old_text_with_cr_matches_exactly() -> None:
    assert replace("/f", "a\r\nb\r\n", "a\r\nb", "a\nb").content == "a\nb\r\n"
    with pytest.raises(NoMatchError, match="line ends"):
        replace("/f", "a\nb\n", "a\r\nb", "c")
