import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deepfs.errors import InvalidPatternError
from deepfs.operations import Grep
from deepfs.search.query import FileHits, Query, compile_query, search
from deepfs.text.lines import BOM
from deepfs.types import ContextLine, GrepMatch

contents = st.text(st.sampled_from("aAb1 _\n\r\t\f\u2028éÉ"), max_size=40)
files = st.tuples(st.booleans(), contents).map(lambda parts: (BOM if parts[0] else "") + parts[1])
literals = st.text(st.sampled_from("aAb \r.é\u2028"), max_size=3)

# Syntax that RE2 and `re` understand alike, with ASCII classes.
borders = ["^", "$", r"\b", r"\B", r"\A"]
classes = [".", "[^a]", "[ab]", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D"]
atoms = st.sampled_from(["a", "A", "b", "é", " ", r"\r", *classes, *borders])
repeats = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "*?"])


def quantified(atom: str, repeat: str) -> str:
    return atom if atom in borders else atom + repeat


pieces = st.builds(quantified, atoms, repeats)
regexes = st.recursive(
    st.lists(pieces, max_size=3).map("".join),
    lambda inner: st.builds("(?:{}|{})".format, inner, inner) | st.builds("({}){}".format, inner, inner),
    max_leaves=4,
)


def split_lines(content: str) -> list[str]:
    """The lines of `content` without their terminators, split in the simplest way."""
    lines = content.removeprefix(BOM).split("\n")
    last = lines.pop()
    return [line.removesuffix("\r") for line in lines] + ([last] if last else [])


def grep(query: Query, data: bytes | str, limit: int | None = None) -> list[tuple[int, str]]:
    hits = search(query, "/f.txt", data, limit)
    assert not hits.skipped
    return [(match.line, match.text) for match in hits.matches]


# --- against a plain oracle ---


@given(files, literals)
def test_a_literal_finds_the_lines_that_contain_it(content: str, pattern: str) -> None:
    expected = [(number, line) for number, line in enumerate(split_lines(content), 1) if pattern in line]
    query = compile_query(Grep(pattern))
    assert grep(query, content) == expected
    assert grep(query, content.encode()) == expected


@given(files, literals)
def test_a_literal_can_ignore_case(content: str, pattern: str) -> None:
    expected = [
        (number, line) for number, line in enumerate(split_lines(content), 1) if pattern.casefold() in line.casefold()
    ]
    query = compile_query(Grep(pattern, ignore_case=True))
    assert grep(query, content) == grep(query, content.encode()) == expected


@given(files, regexes, st.booleans())
def test_a_regex_finds_the_lines_that_re_finds(content: str, pattern: str, ignore_case: bool) -> None:
    # Only ASCII letters fold alike in both; no content has VT, which `re` alone counts as white space.
    oracle = re.compile(pattern, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    assume(not (ignore_case and "é" in pattern))
    # Before Python 3.14, `\B` of `re` does not match an empty text, but that of RE2 does.
    assume(not (r"\B" in pattern and "" in split_lines(content)))
    expected = [(number, line) for number, line in enumerate(split_lines(content), 1) if oracle.search(line)]
    query = compile_query(Grep(pattern, regex=True, ignore_case=ignore_case))
    assert grep(query, content) == grep(query, content.encode()) == expected


@given(files, literals, st.integers(0, 4))
def test_the_limit_keeps_the_first_matches(content: str, pattern: str, limit: int) -> None:
    query = compile_query(Grep(pattern))
    assert grep(query, content, limit) == grep(query, content)[:limit]


@given(files, literals, st.integers(1, 4))
def test_context_lines_surround_the_match(content: str, pattern: str, count: int) -> None:
    lines = [ContextLine(number, line) for number, line in enumerate(split_lines(content), 1)]
    expected = [
        GrepMatch("/f", at + 1, line.text, lines[max(0, at - count) : at], lines[at + 1 : at + 1 + count])
        for at, line in enumerate(lines)
        if pattern in line.text
    ]
    assert search(compile_query(Grep(pattern, context_lines=count)), "/f", content).matches == expected


# --- by line ---


ONE_LINE = [
    (r"a\s+b", "a\nb\na  b\n", [3]),
    (r"[^x]", "\n\nx\n", []),
    (r"(?s)a.b", "a\nb", []),
    (r"a\x0ab", "a\nb", []),
    (r"a\Cb", "a\nb", []),
    (r"^$", "a\n\nb\n", [2]),
    (r"$", "a\r\nb", [1, 2]),
    (r"a$", "a\r\nb\r\n", [1]),
    (r"\Ab|c\z", "a\nb\nac\n", [2, 3]),
    (r"(?-m)^b$", "a\nb\nc\n", [2]),
    (r"(?i-m)^B", "a\nb\n", [2]),
    (r"\s$", "a\r\nb \r\n", [2]),
    (r"\r$", "a\r\nb\r\r\n", [2]),
    (r"^a", f"{BOM}a\n", [1]),
    ("", "a\n\nb", [1, 2, 3]),
    ("", "", []),
    ("x*", "a\n", [1]),
]


def test_a_regex_sees_one_line_at_a_time() -> None:
    assert [
        (pattern, content, lines)
        for pattern, content, lines in ONE_LINE
        if [line for line, _ in grep(compile_query(Grep(pattern, regex=True)), content)] != lines
    ] == []


@pytest.mark.parametrize("regex", [False, True])
def test_long_lines_are_clipped_by_characters(regex: bool) -> None:
    long = "é" * 6000
    (match,) = search(compile_query(Grep("é", regex=regex)), "/f", f"{long}\n").matches
    assert match.text == "é" * 5000
    (match,) = search(compile_query(Grep("é", regex=regex), max_line=3), "/f", long.encode()).matches
    assert match.text == "ééé"


# --- binary ---


def test_a_binary_file_counts_as_skipped_only_if_it_would_match(subtests: pytest.Subtests) -> None:
    for data in [b"\0needle", b"needle\xff", b"\xff\xfeneedle\n", "needle\0", "needle\ud800"]:
        for options in [{}, {"regex": True}, {"ignore_case": True}]:
            with subtests.test(options=options, data=data):
                assert search(compile_query(Grep("needle", **options)), "/f", data) == FileHits(skipped=True)
                assert search(compile_query(Grep("absent", **options)), "/f", data) == FileHits()


# --- queries ---


def test_a_pattern_that_no_line_can_contain_is_refused() -> None:
    for pattern in ["a\nb", "\n", "a\0", "\ud800"]:
        for regex in [False, True]:
            with pytest.raises(InvalidPatternError, match=r"^Error: Invalid search pattern: it holds"):
                compile_query(Grep(pattern, regex=regex))


@pytest.mark.parametrize("pattern", ["(", "[a", "*a", "a(?=b)", r"(a)\1", "a{2000}", "x" * 1_000_000])
def test_an_invalid_regex_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPatternError, match=r"^Invalid regex pattern: [^:]") as raised:
        compile_query(Grep(pattern, regex=True))
    assert "(?m)" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_context_lines_have_a_range() -> None:
    for context_lines in [-1, 1001]:
        with pytest.raises(InvalidPatternError, match=f"from 0 to 1000, not {context_lines}"):
            compile_query(Grep("a", context_lines=context_lines))
