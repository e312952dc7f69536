from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deepfs.errors import ErrorCode, InvalidPatternError
from deepfs.search.globs import MAX_ALTERNATIVES, MAX_PATTERN, MAX_SEGMENTS, compile_glob

FILES = [
    *(".env", ".git/config.py", ".github/.hidden/x.yml", ".github/ci.yml", ".github/workflows/ci.yml", "README.md"),
    *("docs/.env", "docs/README.md", "main.py", "src/.cache/a.py", "src/app/main.py", "src/app/tests/test_main.py"),
    *("src/main.py", "src/main.pyc"),
]


def matched(pattern: str) -> list[str]:
    glob = compile_glob(pattern)
    return [path for path in FILES if glob.matches(path)]


MATCHED = [
    # a name at any depth
    ("*.py", ["main.py", "src/app/main.py", "src/app/tests/test_main.py", "src/main.py"]),
    ("README.md", ["README.md", "docs/README.md"]),
    ("[^m]*", ["README.md", "docs/README.md", "src/app/tests/test_main.py"]),
    ("*", [path for path in FILES if not path.startswith(".") and "/." not in path]),
    # a path from the start
    ("/main.py", ["main.py"]),
    # any directories
    ("**/**/main.py", ["main.py", "src/app/main.py", "src/main.py"]),
    ("src/**", ["src/app/main.py", "src/app/tests/test_main.py", "src/main.py", "src/main.pyc"]),
    ("**/app/**/*.py", ["src/app/main.py", "src/app/tests/test_main.py"]),
    ("s**c/*.py", ["src/main.py"]),
    ("src/ma**.py", ["src/main.py"]),
    # dot-names
    (".*", [".env", "docs/.env"]),
    (".github/*.yml", [".github/ci.yml"]),
    (".github/**/.*/*.yml", [".github/.hidden/x.yml"]),
    # braces
    ("*.{md,pyc}", ["README.md", "docs/README.md", "src/main.pyc"]),
    ("*.py{,c}", ["main.py", "src/app/main.py", "src/app/tests/test_main.py", "src/main.py", "src/main.pyc"]),
    ("{*.md,src/*.py}", ["README.md", "docs/README.md", "src/main.py"]),
    ("{*,a}*/main.py", ["main.py", "src/app/main.py", "src/main.py"]),
]


def test_matches() -> None:
    assert [(pattern, files) for pattern, files in MATCHED if matched(pattern) != files] == []


ODD_NAMES = [
    (r"\*.py", "*.py"),
    (r"\{a,b\}", "{a,b}"),
    ("[]a]", "a"),
    (r"[a\-z]", "-"),
    ("[--0]", "-"),
    ("[*?]", "?"),
    ("[&&||~~]", "~"),
    ("(a|b)+$", "(a|b)+$"),
    ("a?b", "a\nb"),
    ("é?", "é日"),
    (r"..\]", "..]"),
]


def test_matches_an_odd_name() -> None:
    assert [(pattern, name) for pattern, name in ODD_NAMES if not compile_glob(pattern).matches(name)] == []


REFUSED = [
    (".", "names no file"),
    ("a/../b", r"'\.\.' is not allowed"),
    ("a/.{.,x}", r"'\.\.' is not allowed"),
    (r"..\*.py", r"'\.\.' is not allowed"),
    ("a\ud800", "surrogate"),
    ("[a", r"'\[' opens no set"),
    (r"[\d]", r"'\[' opens no set"),
    ("[z-a]", "'z-a' is the wrong way round"),
    ("[[:alpha:]]", "named sets"),
    ("{a,b", "'{' is not closed"),
    ("a}", "'}' closes nothing"),
    ("*.{py}", "need a comma"),
    (r"*\.py", "separate names with '/'"),
    ("a\\", "separate names with '/'"),
    ("**/", "only files are matched"),
    ("!*.py", "exclusion"),
    ("{a,b}" * 400, "more than 500 alternatives"),
    ("{" + "a," * 300 + "b}" + "x" * 100, "more than 8,192 characters"),
    ("x/" + "**/{a,b}/" * 6 + "**/a/" * 40 + "**/q", "more than 8,192 characters"),
    ("{b,c,d}/" + "**/*a/" * 45 + "e", "it stands for too much"),
    ("*a" * 400, "it stands for too much"),
    ("*/" * MAX_SEGMENTS + "a", "more than 100 segments"),
    ("a" * (MAX_PATTERN + 1), "2,049 characters, the limit is 2,048"),
]


def test_refused_with_its_reason(subtests: pytest.Subtests) -> None:
    for pattern, reason in REFUSED:
        with subtests.test(pattern=pattern, reason=reason):
            with pytest.raises(InvalidPatternError, match=reason) as caught:
                compile_glob(pattern)
            assert caught.value.code is ErrorCode.INVALID_PATTERN
            assert str(caught.value).startswith("Error: Invalid glob pattern '")


def test_the_limits_are_allowed() -> None:
    assert compile_glob("a" * MAX_PATTERN).matches("a" * MAX_PATTERN)
    assert compile_glob("a/" * (MAX_SEGMENTS - 1) + "*").matches("a/" * MAX_SEGMENTS + "b") is False
    assert compile_glob("a/" * (MAX_SEGMENTS - 1) + "*").may_enter("a/" * (MAX_SEGMENTS - 2) + "a")
    most = compile_glob("{0,1,2,3,4}" + "{0,1,2,3,4,5,6,7,8,9}" * 2)
    assert sum(most.matches(f"{number:03}") for number in range(2000)) == MAX_ALTERNATIVES
    endings = compile_glob(f"*.{{{','.join(f'{number:03}' for number in range(MAX_ALTERNATIVES))}}}")
    assert endings.matches("a/b.499")


ENTERED = [
    ("*.py", ["", "src", "src/app"], [".git", "src/.cache", "src/.cache/a"]),
    ("src/*.py", ["", "src"], ["docs", "src/app", "sr"]),
    ("src/**/*.py", ["src", "src/app", "src/app/tests"], ["docs", "docs/src", "src/.cache", ".src"]),
    ("**/.github/*.yml", ["src", "src/.github"], [".git", ".github/a", "a/.github/b", "a/.github/.github"]),
    ("a/**/.b/c/**/.d/*", ["a", "a/x", "a/x/.b", "a/.b/c/y/.d"], ["a/.d", "a/.b/x", "a/.b/c/.b", "a/.b/c/.d/e"]),
    ("{src,docs/*}/*.md", ["src", "docs", "docs/a"], ["lib", "src/a", "docs/a/b"]),
]


def test_a_pattern_that_is_not_a_string_raises_type_error() -> None:
    for thing in [None, 3, b"*.py"]:
        with pytest.raises(TypeError):
            compile_glob(thing)


def test_may_enter(subtests: pytest.Subtests) -> None:
    for pattern, entered, passed_by in ENTERED:
        with subtests.test(pattern=pattern, entered=entered, passed_by=passed_by):
            glob = compile_glob(pattern)
            assert [directory for directory in entered + passed_by if glob.may_enter(directory)] == entered


def test_beneath_stays_within_the_limits() -> None:
    glob = compile_glob("s/{" + ",".join(f"name{number}" for number in range(150)) + "}{x,y}")
    rests = glob.beneath("s")
    assert len(rests) == 300
    assert all(compile_glob(rest) for rest in rests)


# --- an oracle: patterns as trees, expanded by a product and matched by trying everything ----------------------------

Element = tuple[str, str]
"""A kind (`text` for one character, `any`, `star`, `slash`, `set`, `other`) and its text."""

SPECIAL = frozenset("*?[]{},!\\")
elements = (
    st.sampled_from("aab..-]*,").map(lambda character: ("text", character))
    | st.sampled_from([("any", "?"), ("star", "*"), ("star", "*"), ("slash", "/"), ("slash", "/")])
    | st.tuples(st.sampled_from(["set", "other"]), st.sampled_from(["a", "ab", "a-b", ".", "-", "+-9", r"\]", "]a"]))
)
common = st.sampled_from(["**/", "/**/", "**/a", "*.a", "/.a/", ".a", "a/**"]).map(
    lambda text: [({"*": "star", "/": "slash"}.get(character, "text"), character) for character in text]
)
sequences = st.lists(elements.map(lambda element: [element]) | common, max_size=5).map(lambda parts: joined(parts))
trees = st.recursive(
    sequences,
    lambda inner: st.lists(sequences | st.lists(inner, min_size=2, max_size=3).map(tuple), max_size=4),
    max_leaves=8,
)


def joined(parts: Iterable[list[Element]]) -> list[Element]:
    return list(chain.from_iterable(parts))


def written(tree: Any) -> str:
    if isinstance(tree, list):
        return "".join(map(written, tree))
    kind, held = tree if isinstance(tree[0], str) else ("choice", tree)
    if kind == "choice":
        return "{" + ",".join(map(written, held)) + "}"
    if kind in ("set", "other"):
        return f"[{'!' if kind == 'other' else ''}{held}]"
    return f"\\{held}" if kind == "text" and held in SPECIAL else held


def expanded(tree: Any) -> Iterator[list[Element]]:
    if isinstance(tree, list):
        for parts in product(*map(list, map(expanded, tree))):
            yield joined(parts)
    elif isinstance(tree[0], str):
        yield [tree]
    else:
        for option in tree:
            yield from expanded(option)


def segmented(alternative: list[Element]) -> list[list[Element]]:
    segments: list[list[Element]] = [[]]
    for element in alternative:
        if element[0] == "slash":
            segments.append([])
        else:
            segments[-1].append(element)
    return segments


DOT, STAR, ANY = ("text", "."), ("star", "*"), [("star", "*")] * 2


def understood(alternative: list[Element]) -> list[list[Element]] | None:
    """The segments to match from the start, or None if the alternative is refused."""
    segments = segmented(alternative)
    kept = [segment for segment in segments if segment not in ([], [DOT])]
    goes_up = any(segment[:2] == [DOT, DOT] and segment[2:3] in ([], [("text", "*")]) for segment in kept)
    if not kept or goes_up or segments[-1] in ([], [DOT]):
        return None
    return kept if len(segments) > 1 else [ANY, *kept]


def fits(segments: list[list[Element]], names: list[str]) -> bool:
    if not segments:
        return not names
    first, rest = segments[0], segments[1:]
    if first == ANY and rest:
        return fits(rest, names) or (bool(names) and names[0][0] != "." and fits(segments, names[1:]))
    if first == ANY:
        return bool(names) and all(name[0] != "." for name in names)
    if not names or (names[0][0] == "." and first[0] != DOT):
        return False
    return fits_name(first, names[0]) and fits(rest, names[1:])


def fits_name(segment: list[Element], name: str) -> bool:
    if not segment:
        return not name
    (kind, held), rest = segment[0], segment[1:]
    if kind == "star":
        return any(fits_name(rest, name[at:]) for at in range(len(name) + 1))
    return bool(name) and fits_character(kind, held, name[0]) and fits_name(rest, name[1:])


def fits_character(kind: str, held: str, character: str) -> bool:
    members = {"a-b": "ab", "+-9": "+,-.0123456789", r"\]": "]"}.get(held, held)
    if kind == "text":
        return character == held
    return kind == "any" or (character in members) == (kind == "set")


NAMES = ["a", "b", ".a", "a.a", "-", "]"]
PATHS = [list(names) for depth in (1, 2, 3, 4) for names in product(NAMES[: 7 - depth], repeat=depth)]


@given(trees)
def test_matches_what_the_oracle_matches(tree: object) -> None:
    alternatives = [alternative for alternative in islice(expanded(tree), 100) if alternative]
    assume(len(alternatives) < 99)
    readings = [understood(alternative) for alternative in alternatives]
    if not readings or None in readings:
        with pytest.raises(InvalidPatternError):
            compile_glob(written(tree))
        return
    try:
        glob = compile_glob(written(tree))
    except InvalidPatternError as refusal:
        assume("stands for too much" not in str(refusal))  # Few alternatives may be long ones.
        raise
    expected = [names for names in PATHS if any(fits(reading, names) for reading in readings if reading)]
    assert [names for names in PATHS if glob.matches("/".join(names))] == expected
    above = {"/".join(names[:depth]) for names in expected for depth in range(len(names))}
    assert [directory for directory in above if not glob.may_enter(directory)] == []
    for directory in ("a", ".a", "a.a/b"):
        rests = [compile_glob(rest) for rest in glob.beneath(directory)]
        assert [
            names
            for names in PATHS
            if any(rest.matches("/".join(names)) for rest in rests) != glob.matches("/".join([directory, *names]))
        ] == []


# --- cost ------------------------------------------------------------------------------------------------------------

deep = "/".join(["a"] * 2000)


HOSTILE = [
    ("*a*a*a*a*a*b", "a" * 255),
    ("*a" * 360 + "b*b", "a" * 255 + "b"),
    ("*?" * 100 + "b*b", "a" * 255 + "b"),
    ("*[ab]" * 60 + "c*b", "a" * 255 + "b"),
    ("**/**/**/**/x", deep + "/ax"),
    ("**/a/" * 48 + "**/b/x", deep + "/x"),
    ("a/" + "**/a/" * 48 + "**/.b/x", deep + "/.a/x"),
    ("**/*a*/" * 48 + "**/b/*x", deep + "/x"),
    ("**" + "/a*" * 97 + "/b/x", deep + "/x"),
    ("a/**" + "/*" * 96 + "/.b/x", deep + "/.a/x"),
    ("{" + ",".join(["**/*a/*" * 6 + f"/b{number}/**/x" for number in range(10)]) + "}", deep + "/x"),
    ("{" + ",".join("*a" * 15 + "b*b" + str(number) for number in range(20)) + "}", "a" * 255 + "b7"),
]


@pytest.mark.timeout(60)
def test_a_hostile_pattern_is_matched_fast(subtests: pytest.Subtests) -> None:
    """A match that tries all ways would take years."""
    for pattern, path in HOSTILE:
        with subtests.test(pattern=pattern, path=path):
            glob = compile_glob(pattern)
            assert not glob.matches(path)
            glob.may_enter(path)
            glob.may_enter(path + "/.a")
