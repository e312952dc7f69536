import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepfs.errors import InvalidPatternError
from deepfs.search.globs import MAX_PATTERN
from deepfs.search.literals import Clause, PathNeeds, folds_case, path_needs, required_text
from deepfs.search.query import compile_query, search
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest

KELVIN, LONG_S, BOM = "\u212a", "\u017f", "\ufeff"


def clauses_of(pattern: str, *, ignore_case: bool = False) -> tuple[Clause, ...]:
    return required_text(GrepRequest(pattern, regex=True, ignore_case=ignore_case))


# --- what content must contain ---------------------------------------------------------------------------------------


LITERAL = [
    ("TODO(me)", False, (("TODO(me)",),)),
    ("TODO(me)", True, (("todo(me)",),)),
    ("", False, ()),
    ("größer", True, (("gr",), ("er",))),
    ("a" * 2000 + "\r" + "b" * 2000, False, (("a" * 256,), ("a" * 208,), ("b" * 47,))),
    (f"{BOM}a", False, (("a",),)),
    ("x" * 300 + "y" * 300, False, (("x" * 256,), ("x" * 44 + "y" * 212,), ("y" * 88,))),
]


def test_literal_patterns() -> None:
    assert [
        (pattern, ignore_case, clauses)
        for pattern, ignore_case, clauses in LITERAL
        if required_text(GrepRequest(pattern, ignore_case=ignore_case)) != clauses
    ] == []


REGULAR = [
    # runs, and what ends them
    (r"^def \w+\(", (("def ",), ("(",))),
    (r"foo\Cbar\dbaz\pNqux\P{Greek}x", (("foo",), ("bar",), ("baz",), ("qux",), ("x",))),
    # repetition
    ("colou?r", (("colo",), ("r",))),
    ("(foo)+bar(x)*", (("foo",), ("bar",))),
    ("a+(?i)*", ()),
    # groups and alternatives
    ("foo|a+long b", (("foo", "long b"),)),
    ("(?P<size>a)(?<i>b)(?:c)(?s:d)(?U-m)e(?)", (("abcde",),)),
    ("x(a|b.*|)y", (("x",), ("y",))),
    (r"class\s+(Foo|Bar)\b", (("class",), ("Foo", "Bar"))),
    ("((a|b)(c|d)|e)f", (("acf", "adf", "bcf", "bdf", "ef"),)),
    # sets
    ("[Ff]oo", (("Foo", "foo"),)),
    (r"[\x41\n]b", (("b",),)),
    ("x[^a]y[a-c]z[[:alpha:]]u[\\d]v[abcde]w", (("x",), ("y",), ("z",), ("u",), ("v",), ("w",))),
    # escapes
    (r"a\.b\*\_\-", (("a.b*_-",),)),
    (r"\x41\x{1F600}\101\012b\t", (("A\U0001f600A",), ("b\t",))),
    (r"\Qa.b", (("a.b",),)),
    (r"a\rb\x{FEFF}c\x{D800}d\x00e", (("a",), ("b",), ("c",), ("d",), ("e",))),
    # case
    ("(?i)FooäBAR", (("foo",), ("bar",))),
    ("(?i)[Ff]oo[kK]", (("fook",),)),
    # unknown or beyond the limits
    (r"foo\1", ()),
    (r"foo\x{110000}", ()),
    ("foo{,5}", ()),
    ("foo{02}", ()),
    (r"[\b]foo", (("foo",),)),
    ("(?=foo)", ()),
    ("foo)", ()),
    ("foo[", ()),
    ("|".join(f"n{number}" for number in range(65)), ()),
    ("a" * 257 + "b", (("a" * 256,), ("ab",))),
]


def test_regular_expressions() -> None:
    assert [(pattern, clauses) for pattern, clauses in REGULAR if clauses_of(pattern) != clauses] == []


def test_there_are_few_clauses_and_alternatives() -> None:
    clauses = clauses_of(".".join(f"{'x' * (number % 20)}{number}" for number in range(100)))
    assert len(clauses) == 16
    assert min(len(clause[0]) for clause in clauses) == 18  # The longest are kept.
    clauses = clauses_of("[ab]" * 20)
    assert {len(clause) for clause in clauses} <= {2**6, 2**2}
    assert {len(text) for clause in clauses for text in clause} <= {6, 2}
    assert {len(text) for clause in clauses_of("[ab]" * 6 + "x" * 99) for text in clause} == {32, 73}


FOLDED = [
    (GrepRequest("a", ignore_case=True), True),
    (GrepRequest("(?-i)a", regex=True, ignore_case=True), True),
    (GrepRequest("(?i)a"), False),
    (GrepRequest("(?i)a", regex=True), True),
    (GrepRequest("b(?s:(?mi-U:a))", regex=True), True),
    (GrepRequest("(?P<i>a)(?s-i:b)", regex=True), False),
]


def test_case_is_folded_if_a_part_ignores_it() -> None:
    assert [(request_, folds) for request_, folds in FOLDED if folds_case(request_) is not folds] == []


def check(request: GrepRequest, content: bytes) -> bool:
    """Check the clauses if the request finds a match; returns whether it does."""
    clauses = required_text(request)
    try:
        hits = search(compile_query(request), "/f", content)
    except InvalidPatternError:
        return False
    if not hits.matches and not hits.skipped:
        return False
    folds = folds_case(request)
    stored = content
    if folds:  # Only ASCII letters of bytes change.
        stored = content.lower().replace(KELVIN.encode(), b"k").replace(LONG_S.encode(), b"s")
    for clause in clauses:
        assert any(text.encode() in stored for text in clause), (request.pattern, clauses, content)
    return True


Matching = tuple[str, str]
"""A pattern, and a text that it most likely matches."""

LETTERS = "abkKsSé{}],-_Ä😀" + KELVIN + LONG_S
TEXTS = st.text(LETTERS, max_size=3)

ATOMS: st.SearchStrategy[Matching] = st.one_of(
    TEXTS.map(lambda text: (text, text)),
    TEXTS.map(lambda text: (rf"\Q{text}.\E", f"{text}.")),
    st.sampled_from(
        [
            (r"\x41", "A"),
            (r"\x{6b}", "k"),
            (r"\x{000e9}", "é"),
            (r"\x{FEFF}", BOM),
            (r"\101", "A"),
            (r"\0101", "\x081"),
            (r"\t\r", "\t\r"),
            ("\r", "\r"),
            (r"\.\*\_\{", ".*_{"),
            (".", "x"),
            (r"\d\s\w\W", "1 a-"),
            (r"\D\S", "x."),
            (r"\pN\p{Greek}\P{^Lu}\PN", "1αAx"),
            (r"\C", "x"),
            (r"\b", ""),
            (r"\B", ""),
            ("^", ""),
            ("$", ""),
            (r"\A", ""),
            (r"\z", ""),
            ("(?i)", ""),
            ("(?s-i)", ""),
            (r"\Q\E", ""),
            ("()", ""),
            ("{x", "{x"),
            ("[a]", "a"),
            ("[Kk]", "K"),
            ("[ab-]", "b"),
            ("[a-c]", "c"),
            ("[^a]", "k"),
            ("[]x]", "]"),
            ("[^]x]", "["),
            (r"[\]a\\]", "\\"),
            (r"[\d\x41[:alpha:]]", "7"),
            ("[[:^alpha:]é]", "é"),
            ("[[:]", ":"),
            ("[é]", "É"),
        ]
    ),
)
SUFFIXES = [("+", 1, 3), ("*", 0, 2), ("?", 0, 1), ("{2}", 2, 2), ("{0,2}", 0, 2), ("{1,}", 1, 2), ("{0}", 0, 0)]
OPENINGS = ["(", "(?:", "(?P<ik>", "(?<s>", "(?i:", "(?-i:", "(?sU:"]


@st.composite
def repeated(draw: st.DrawFn, inner: st.SearchStrategy[Matching]) -> Matching:
    pattern, text = draw(inner)
    suffix, least, most = draw(st.sampled_from(SUFFIXES))
    pattern = f"{draw(st.sampled_from(OPENINGS))}{pattern})" if draw(st.booleans()) else pattern
    last = text if pattern.endswith(")") else text[-1:]
    times = draw(st.integers(least, most))
    return f"{pattern}{suffix}{draw(st.sampled_from(['', '?']))}", text.removesuffix(last) + last * times


def concatenated(parts: list[Matching]) -> Matching:
    return "".join(pattern for pattern, _ in parts), "".join(text for _, text in parts)


@st.composite
def either(draw: st.DrawFn, inner: st.SearchStrategy[Matching]) -> Matching:
    parts = draw(st.lists(inner, min_size=2, max_size=3))
    pattern = "|".join(pattern for pattern, _ in parts)
    return f"{draw(st.sampled_from(OPENINGS))}{pattern})", draw(st.sampled_from(parts))[1]


EXPRESSIONS: st.SearchStrategy[Matching] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.lists(inner, max_size=4).map(concatenated), repeated(inner), either(inner)),
    max_leaves=12,
)
CHANGES: list[Callable[[str], str]] = [
    str,
    str.upper,
    str.lower,
    str.swapcase,
    lambda text: text.replace("k", KELVIN).replace("s", LONG_S),
    lambda text: text.replace(KELVIN, "k").replace(LONG_S, "S"),
]
SURROUNDINGS = [b"%s", b"\xef\xbb\xbf%s", b"a\r\n%s\r\nb", b"a\n%s\r\r\nk", b"\xff\0%s", b"x %s y"]


@given(EXPRESSIONS, st.sampled_from(CHANGES), st.sampled_from(SURROUNDINGS), st.booleans())
@example(("(?:ab|)+c", "c"), str, b"%s", False)
@example((r"a\Q\E*b", "b"), str, b"%s", False)
@example(("a*(?i)+b", "b"), str, b"%s", False)
def test_a_match_holds_all_clauses(
    expression: Matching, change: Callable[[str], str], surroundings: bytes, ignore_case: bool
) -> None:
    pattern, text = expression
    request = GrepRequest(pattern, regex=True, ignore_case=ignore_case)
    check(request, surroundings % change(text).encode())


# --- bounds ----------------------------------------------------------------------------------------------------------

SETS = "[ab]" * 6
HOSTILE = [
    "(" * 1_000_000,
    "(" * 1000 + "a" + ")" * 1000,
    "(a|b." * 300 + ")" * 300,
    "a" * 1_000_000,
    "[ab]" * 512,
    (SETS + "x" * 20) * 46,
    ".".join([SETS + "y" * 26] * 40),
    f"({'|'.join(f'ab{number:02}' for number in range(64))}){'y' * 1600}",
    "|".join("abc" for _ in range(500)),
    "[[:a:]" * 341,
    r"\Q\E" * 512,
    rf"\x{{{'0' * 2000}41}}",
    "(?" * 1024,
    "(?" + "i" * 2000,
    "a+" * 1024,
]


def steps_of(operation: Callable[[], object]) -> int:
    """The number of calls that an operation makes."""
    steps = 0

    def count(_frame: FrameType, _event: str, _argument: Any) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        operation()
    finally:
        sys.setprofile(before)
    return steps


def test_hostile_patterns_take_few_steps(subtests: pytest.Subtests) -> None:
    for pattern in HOSTILE:
        with subtests.test(pattern=pattern):
            for request in (GrepRequest(pattern, regex=True), GrepRequest(pattern)):
                assert steps_of(lambda request=request: required_text(request)) < 400_000  # type: ignore[misc]
                assert steps_of(lambda request=request: folds_case(request)) < 100  # type: ignore[misc]


# --- what paths must have --------------------------------------------------------------------------------------------


PATHS = [
    (None, "/", PathNeeds("/")),
    (None, "/src", PathNeeds("/src/")),
    ("**/name.py", "/", PathNeeds("/", (("/name.py",),), ("/name.py",))),
    ("test_*", "/a/b", PathNeeds("/a/b/", (("/test_",),))),
    ("/a.py", "/src", PathNeeds("/src/a.py", (), ("/a.py",))),
    ("src/**/a?b[cd]e*", "/", PathNeeds("/src/", (("/a",), ("b",), ("e",)))),
    ("*.{py,js}", "/", PathNeeds("/", ((".py", ".js"),), (".py", ".js"))),
    ("{src,lib}/**/*.{py,js}", "/", PathNeeds("/", (("/src/", "/lib/"), (".py", ".js")), (".py", ".js"))),
    ("src/{aa,ab}/*_x*", "/", PathNeeds("/src/a", (("_x",), ("/src/aa/", "/src/ab/")))),
    ("src/{a,b}/*_much_longer*", "/", PathNeeds("/src/", (("_much_longer",), ("/src/a/", "/src/b/")))),
    ("{/aaab*,/aaa?c}", "/", PathNeeds("/aaa", (("/aaab", "c"),))),
    ("{*.py,README*}", "/", PathNeeds("/", ((".py", "/README"),))),
    (r"\*x{\,,\{}[]]", "/", PathNeeds("/", (("/*x,", "/*x{"),))),
    ("{" + ",".join(f"*{number}" for number in range(65)) + "}", "/", PathNeeds("/")),
    ("*" + "x" * 300, "/", PathNeeds("/", (("x" * 256,),), ("x" * 256,))),
]


def test_paths() -> None:
    assert [
        (glob, root, needs)
        for glob, root, needs in PATHS
        if path_needs(FileFilter(GrepRequest("x", root, glob))) != needs
    ] == []


GLOB_PARTS = [
    ("a", "a"),
    ("Ab", "Ab"),
    (".x", ".x"),
    ("*", ""),
    ("*", "ab"),
    ("?", "b"),
    ("[ab]", "b"),
    ("[!a]", "b"),
    ("[]a]", "]"),
    (r"\*", "*"),
    (r"\,", ","),
    ("{a,b}", "b"),
    ("{a*,}", ""),
    ("{a*,.b}", "ab"),
    ("{a/b,b}", "a/b"),
    ("{a/**/b,b/*}", "a/b"),
]
NAMES = st.lists(st.sampled_from(GLOB_PARTS), min_size=1, max_size=4).map(concatenated)
ANY_DIRECTORIES = st.sampled_from([("**/", ""), ("**/", "a/"), ("**/", "b/Ab/"), ("/", "")])
GLOBS = st.lists(st.one_of(ANY_DIRECTORIES, NAMES.map(lambda name: (f"{name[0]}/", f"{name[1]}/"))), max_size=3)


@given(GLOBS, NAMES, st.sampled_from(["/", "/a", "/a/*"]))
def test_a_selected_path_has_what_is_needed(directories: list[Matching], name: Matching, root: str) -> None:
    pattern, text = concatenated([*directories, name])
    try:
        files = FileFilter(GlobRequest(pattern, root))
    except InvalidPatternError:
        return
    path = f"{root.rstrip('/')}/{text}"
    if path in files:
        needs = path_needs(files)
        assert path.startswith(needs.prefix)
        assert all(any(text in path for text in clause) for clause in needs.clauses)
        assert not needs.suffix or path.endswith(needs.suffix)


def test_the_largest_globs_take_few_steps() -> None:
    numbers = ",".join(f"*{number}?" for number in range(200))
    for pattern in ["{a,b}" * 7 + "*x", f"{{{numbers}}}", "a*" * (MAX_PATTERN // 6)]:
        files = FileFilter(GlobRequest(pattern))
        assert steps_of(lambda files=files: path_needs(files)) < 500_000  # type: ignore[misc]
