"""Searches by the index of a `SqliteBackend` find what searches in memory find, whichever way is chosen."""

import random
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepfs import BackendProtocol, MemoryBackend, SqliteBackend
from deepfs.backends.sqlite import search as planner

_NAMES: Final = (
    "src", "docs", "test_models", "modelß", "K\u212aelvin", "long\u017f", "İstanbul", "e\u0301", "𝒜𝒷", "a-b",
)  # fmt: skip
_WORDS: Final = (
    *("import", "class", "Kelvin", "\u212aelvin", "mass", "ma\u017fs", "straße", "STRASSE", "İi", "ıI", "café"),
    *("cafe\u0301", "𝒜𝒷𝒸", "😀😀😀", 'say "no"', "it's", "100%_", "a\\b", "tab\there", "x", "yz", "ÅÅngström"),
    *("\ufffe\uffff!", "{}[]()"),
)


def _files(count: int, seed: int) -> list[tuple[str, bytes]]:
    chooser = random.Random(seed)
    found: dict[str, bytes] = {}
    for number in range(count):
        directories = chooser.choices(_NAMES, k=chooser.randint(0, 3))
        name = f"{chooser.choice(_NAMES)}_{number}.{chooser.choice(('py', 'md', 'txt', 'png', 'K'))}"
        found["/" + "/".join([*directories, name])] = _content(chooser)
    return list(found.items())


def _content(chooser: random.Random) -> bytes:
    lines = [" ".join(chooser.choices(_WORDS, k=chooser.randint(0, 4))) for _ in range(chooser.randint(0, 5))]
    text = chooser.choice(("\n", "\r\n")).join(lines)
    kind = chooser.random()
    if kind < 0.02:
        return text.encode() + b"\0\xff"
    if kind < 0.023:
        return text.encode() + b"-" * 300_000
    return (b"\xef\xbb\xbf" if kind < 0.06 else b"") + text.encode()


@pytest.fixture(scope="module", params=["index", "sample", "walk"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The same files in memory and in a database; the index is always used, used where it pays, or never."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "sample":
            patch.setattr(planner, "_SAMPLE", 7)
            patch.setattr(planner, "_SHORT_WALK", 0 if request.param == "index" else 10**9)
            patch.setattr(planner, "_MANY", 10**9)
            patch.setattr(planner, "_CANDIDATES_IN_PAGE", 16)
            patch.setattr(planner, "_UNINDEXED_IN_PAGE", 3)
        memory = MemoryBackend()
        with SqliteBackend(tmp_path_factory.mktemp("search") / "files.db", "ada") as stored:
            other = SqliteBackend(stored._file, "ada-2")
            for number, backend in enumerate((memory, stored, other)):
                files = _files(2000, number // 2)
                assert all(outcome.error is None for outcome in backend.upload_files(files))
            yield memory, stored


def _same(both: tuple[BackendProtocol, BackendProtocol], operation: str, *arguments: Any, **options: Any) -> None:
    memory, stored = (getattr(backend, operation)(*arguments, **options) for backend in both)
    assert (stored.error, stored.truncated) == (memory.error, memory.truncated)
    if memory.matches is not None:
        assert [match.path for match in stored.matches] == [match.path for match in memory.matches]
        assert [getattr(match, "line", 0) for match in stored.matches] == [
            getattr(match, "line", 0) for match in memory.matches
        ]
    assert getattr(stored, "skipped", 0) == getattr(memory, "skipped", 0)


_texts = st.one_of(
    st.sampled_from(_WORDS),
    st.lists(st.sampled_from(_WORDS), min_size=1, max_size=3).map(" ".join),
    st.tuples(st.sampled_from(_WORDS), st.integers(0, 5), st.integers(1, 9)).map(
        lambda at: at[0][at[1] : at[1] + at[2]]
    ),
    st.text(min_size=1, max_size=5).filter(lambda text: not re.search("[\0\n\r\ud800-\udfff]", text)),
)
_pieces = st.one_of(
    _texts.map(re.escape),
    st.sampled_from(
        [".", ".*", r"\w+", r"\b", "[a-z]", "(?i)", "^", "$", "[Kk]elvin", "(import|class)", "ma(s|\u017f)s", "(x|yz)?"]
    ),
)
_globs = st.one_of(
    st.none(),
    st.sampled_from(
        ["*.py", "**/*.md", "*_1*.txt", "src/**", "/docs/*", "**/test_models/**/*.K", "{src,docs}/**/*.py"]
    ),
    st.sampled_from(_NAMES).map(lambda name: f"*{name}*"),
    st.sampled_from(_NAMES).map(lambda name: f"**/{name}/*"),
    st.integers(0, 1999).map(lambda number: f"**/*_{number}.*"),
)
_roots = st.sampled_from(["/", None, "/src", "/docs/src", "/modelß", "/nowhere", "/𝒜𝒷"])
_many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_many
@given(pattern=_texts, path=_roots, glob=_globs, ignore_case=st.booleans(), max_count=st.none() | st.integers(0, 9))
def test_texts(
    both: Any, pattern: str, path: str | None, glob: str | None, ignore_case: bool, max_count: int | None
) -> None:
    if pattern:
        _same(both, "grep", pattern, path, glob, ignore_case=ignore_case, max_count=max_count)


@_many
@given(pieces=st.lists(_pieces, min_size=1, max_size=4), path=_roots, glob=_globs, ignore_case=st.booleans())
def test_regular_expressions(
    both: Any, pieces: list[str], path: str | None, glob: str | None, ignore_case: bool
) -> None:
    _same(both, "grep", "".join(pieces), path, glob, regex=True, ignore_case=ignore_case)


@_many
@given(glob=_globs.filter(bool), path=_roots.filter(bool))
def test_globs(both: Any, glob: str, path: str) -> None:
    _same(both, "glob", glob, path)


def test_letters_with_other_cases_are_found(both: Any) -> None:
    for pattern in ("kelvin", "mass", "KELVIN", "MASS", "straße", "STRASSE", "café", "cafe\u0301"):
        for options in ({}, {"ignore_case": True}, {"regex": True, "ignore_case": True}):
            _same(both, "grep", pattern, **options)


def test_a_file_may_be_the_root_of_a_grep(both: Any) -> None:
    for path in [match.path for match in both[0].glob("*_1*.md").matches][:5]:
        _same(both, "grep", "import", path)
        _same(both, "grep", "import", path, "*.py")
