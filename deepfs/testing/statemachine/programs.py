"""Random programs: operations on a few paths, so that they interact."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from hypothesis import strategies as st
from msgspec import Struct

__all__ = [
    "MIN_STEPS",
    "OTHER_VERSION",
    "THIS_VERSION",
    "Pick",
    "Piece",
    "Step",
    "files_of",
    "programs",
    "steps_of",
    "without",
]

MIN_STEPS: Final = 20
_MAX_STEPS: Final = 24

THIS_VERSION: Final = "<the version that is there>"
OTHER_VERSION: Final = "<another version>"

_PATHS: Final = (
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/b/c/d",
    "/a/é.txt",
    "/a/.dot",
    "/a-b",
    "/b",
    "/b/a",
    "/b/.dir/x",
    "/.dot/b.txt",
    "/a/x.png",
    "/o_d %*'",
    "/c/a.txt",
    "/c/a",
    "/d",
    "/d.txt",
)
_SPELLINGS: Final = ("{}", "{}", "{}", "{}", "{}/", "/{}", "/.{}")

_LINES: Final = ("", "a", "aaa", "aaa", "needle", "é", "É a", "Needle b", "x\x0cy", "a\u2028b")
_BINARY: Final = (b"\x00", b"a\x00needle\n", b"\xffneedle", b"\xed\xa0\x80a\n", b"\x89PNG\r\n\x1a\n")
_OLD: Final = ("a", "aa", "needle", "é", "\n", "a\n", "a\naaa", "needle\n", "absent", "")
_NEW: Final = ("a", "X", "", "x\ny", "needle", "é\n", "longer than before", "a a", "\0", "\ud800")
_PATTERNS: Final = ("a", "aa", "needle", "é", "x\x0c", "\u2028", "absent", "A")
_REGEXES: Final = ("a+", "^a", "a$", "e{2}", "n..d", "^$", "é|b", "absent")
_GLOBS: Final = ("*", "*.txt", "a", "?", "**/a", "a/*", "a/**", "/a", "/*", "**/b/*", ".*", "**/.dir/*", "*.png", "**")


class Pick(Struct, frozen=True):
    """A path chosen when the program runs: one of the files or directories that exist then."""

    kind: Literal["file", "directory"]
    number: int


class Piece(Struct, frozen=True):
    """A part of the text of a file, chosen when the program runs."""

    start: int
    length: int


class Step(Struct, frozen=True):
    """One operation with its arguments; a path may still be a `Pick`, the text to replace a `Piece`."""

    operation: str
    arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.operation}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """A text whose lines all have the same line end."""
    lines = draw(st.lists(st.sampled_from(_LINES), max_size=4))
    end = draw(st.sampled_from(("\n", "\r\n")))
    mark = draw(st.sampled_from(("", "", "", "\ufeff")))
    return mark + end.join(lines) + draw(st.sampled_from(("", end)))


@st.composite
def _mostly(draw: st.DrawFn, usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> Any:
    """A value from `usual` four times in five, else from `other`."""
    return draw(usual if draw(st.integers(0, 4)) else other)


def _step(operation: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    drawn = st.fixed_dictionaries(arguments)
    return drawn.map(lambda values: Step(operation, {name: values[name] for name in arguments}))


def _paths(mounts: Sequence[str]) -> st.SearchStrategy[str]:
    plain = [*_PATHS, *mounts, *(f"{mount}{path}" for mount in mounts for path in ("/a", "/a/b", "/b.txt"))]
    return st.builds(str.format, st.sampled_from(_SPELLINGS), st.sampled_from(plain))


def _steps(mounts: Sequence[str]) -> st.SearchStrategy[Step]:
    literal, number = _paths(mounts), st.integers(0, 20)
    files, directories = st.builds(Pick, st.just("file"), number), st.builds(Pick, st.just("directory"), number)
    paths = st.one_of(literal, files, files, directories)
    places = st.one_of(files, directories, literal, st.just("/"))
    flags = st.booleans()
    contents = _mostly(_texts(), st.sampled_from(("\0", "a\ud800")))
    pieces = st.builds(Piece, st.integers(0, 12), st.sampled_from((1, 1, 2, 3, 8)))
    edit = {
        "path": _mostly(files, paths),
        "old": _mostly(pieces, st.sampled_from(_OLD)),
        "new": st.sampled_from(_NEW),
    }
    searched = {
        "path": _mostly(st.one_of(st.none(), directories), places),
        "glob": st.one_of(st.none(), st.sampled_from(_GLOBS)),
        "ignore_case": flags,
        "context_lines": st.sampled_from((0, 1)),
        "max_count": st.sampled_from((None, 1, 1, 2)),
    }
    return st.one_of(
        _step("ls", path=_mostly(directories, places)),
        _step("write", path=literal, content=contents, overwrite=flags, if_match=st.none()),
        _step("write", path=paths, content=contents, overwrite=flags, if_match=_matches()),
        _step("edit", **edit, replace_all=flags, if_match=st.none()),
        _step("edit", **edit, replace_all=st.just(True), if_match=_matches()),
        _step("delete", path=_mostly(files, places), if_match=st.none()),
        _step("delete", path=_mostly(files, places), if_match=_matches()),
        _step("move", src=_mostly(files, places), dst=_mostly(literal, paths), overwrite=flags),
        _step("move", src=directories, dst=literal, overwrite=flags),
        _step("copy", src=places, dst=paths, overwrite=flags),
        _upload(literal, 0),
        _upload(st.one_of(literal, files), 0),
        _step("read", path=_mostly(files, paths), offset=st.integers(0, 3), limit=st.integers(1, 3)),
        _step("read_raw", path=_mostly(files, places)),
        _step("download_files", paths=st.lists(_mostly(files, paths), max_size=3)),
        _step("glob", pattern=st.sampled_from((*_GLOBS, "../*")), path=_mostly(directories, places)),
        _step("grep", pattern=st.sampled_from(_PATTERNS), regex=st.just(False), **searched),
        _step("grep", pattern=st.sampled_from(_REGEXES), regex=st.just(True), **searched),
    )


def _matches() -> st.SearchStrategy[str | None]:
    return st.sampled_from((None, THIS_VERSION, THIS_VERSION, OTHER_VERSION))


def _upload(paths: st.SearchStrategy[Any], at_least: int) -> st.SearchStrategy[Step]:
    data = _mostly(_texts().map(str.encode), st.sampled_from(_BINARY))
    return _step("upload_files", files=st.lists(st.tuples(paths, data), min_size=at_least, max_size=at_least + 4))


def programs(mounts: Sequence[str] = ()) -> st.SearchStrategy[list[Step]]:
    """Programs of at least `MIN_STEPS` steps, the first uploads files; other backends are mounted at `mounts`."""
    start = _upload(_paths(mounts), 4)
    steps = st.lists(_steps(mounts), min_size=MIN_STEPS - 1, max_size=_MAX_STEPS - 1)
    return st.builds(lambda first, then: [first, *then], start, steps)


# --- shorter programs ---


def steps_of(program: Sequence[Step]) -> list[tuple[int, int | None]]:
    """The parts that could be cut from a program, last first: its steps."""
    return [(index, None) for index in reversed(range(len(program)))]


def files_of(program: Sequence[Step]) -> list[tuple[int, int | None]]:
    """The parts that could be cut from a program, last first: the files of its uploads."""
    return [
        (index, number)
        for index, _ in steps_of(program)
        for number in reversed(range(len(program[index].arguments.get("files", ()))))
    ]


def without(program: Sequence[Step], index: int, file: int | None) -> list[Step]:
    """The program without one of its steps, or without one of the files that the step uploads."""
    rest: list[Step] = []
    if file is not None:
        files = program[index].arguments["files"]
        rest.append(Step("upload_files", {"files": [*files[:file], *files[file + 1 :]]}))
    return [*program[:index], *rest, *program[index + 1 :]]
