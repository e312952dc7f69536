"""Random programs: operations on few paths, so that they get in each other's way."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st
from msgspec import Struct

__all__ = ["MIN_STEPS", "OTHER_VERSION", "THIS_VERSION", "Step", "programs"]

MIN_STEPS: Final = 20
_MAX_STEPS: Final = 30

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
)
_SPELLINGS: Final = ("{}", "{}", "{}", "{}", "{}/", "/{}", "/.{}")

_LINES: Final = ("", "a", "aa", "needle", "é", "É a", "Needle b", "a\rb", "x\x0cy", "a\u2028b")
_BINARY: Final = (b"\x00", b"a\x00needle\n", b"\xffneedle", b"\xed\xa0\x80a\n", b"\x89PNG\r\n\x1a\n")
_OLD: Final = ("a", "aa", "needle", "é", "\n", "a\n", "a\naa", "needle\n", "absent", "")
_NEW: Final = ("a", "X", "", "x\ny", "needle", "é\n", "\0", "\ud800")
_PATTERNS: Final = ("a", "aa", "needle", "é", "x\x0c", "\u2028", "absent", "A")
_REGEXES: Final = ("a+", "^a", "a$", "e{2}", "n..d", "^$", "é|b", "absent")
_GLOBS: Final = ("*", "*.txt", "a", "?", "**/a", "a/*", "a/**", "/a", "/*", "**/b/*", ".*", "**/.dir/*", "*.png", "**")


class Step(Struct, frozen=True):
    """One operation with its arguments."""

    operation: str
    arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.operation}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """A text whose lines all end alike."""
    lines = draw(st.lists(st.sampled_from(_LINES), max_size=4))
    end = draw(st.sampled_from(("\n", "\r\n")))
    mark = draw(st.sampled_from(("", "", "", "\ufeff")))
    return mark + end.join(lines) + draw(st.sampled_from(("", end)))


def _step(operation: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.fixed_dictionaries(arguments).map(lambda drawn: Step(operation, drawn))


def _steps(mounts: Sequence[str]) -> st.SearchStrategy[Step]:
    plain = [*_PATHS, *mounts, *(f"{mount}{path}" for mount in mounts for path in ("/a", "/a/b", "/b.txt"))]
    paths = st.builds(str.format, st.sampled_from(_SPELLINGS), st.sampled_from(plain))
    roots = st.one_of(paths, paths, st.just("/"))
    flags = st.booleans()
    matches = st.sampled_from((None, None, None, THIS_VERSION, OTHER_VERSION))
    contents = st.one_of(_texts(), _texts(), st.sampled_from(("\0", "a\ud800")))
    data = st.one_of(_texts().map(str.encode), st.sampled_from(_BINARY))
    creation = _step("write", path=paths, content=contents, overwrite=flags, if_match=matches)
    upload = _step("upload_files", files=st.lists(st.tuples(paths, data), max_size=4))
    grep_options = {
        "path": st.one_of(st.none(), roots),
        "glob": st.one_of(st.none(), st.sampled_from(_GLOBS)),
        "ignore_case": flags,
        "context_lines": st.sampled_from((0, 1)),
        "max_count": st.sampled_from((None, None, 1, 3)),
    }
    return st.one_of(
        creation,
        creation,
        upload,
        upload,
        _step("edit", path=paths, old=st.sampled_from(_OLD), new=st.sampled_from(_NEW), replace_all=flags, if_match=matches),
        _step("edit", path=paths, old=st.sampled_from(_OLD), new=st.sampled_from(_NEW), replace_all=flags, if_match=st.none()),
        _step("delete", path=roots),
        _step("move", src=roots, dst=roots, overwrite=flags),
        _step("copy", src=roots, dst=roots, overwrite=flags),
        _step("ls", path=roots),
        _step("read", path=paths, offset=st.integers(0, 3), limit=st.integers(1, 3)),
        _step("read_raw", path=roots),
        _step("download_files", paths=st.lists(paths, max_size=3)),
        _step("glob", pattern=st.sampled_from((*_GLOBS, "../*")), path=roots),
        _step("grep", pattern=st.sampled_from(_PATTERNS), regex=st.just(False), **grep_options),
        _step("grep", pattern=st.sampled_from(_REGEXES), regex=st.just(True), **grep_options),
    )


def programs(mounts: Sequence[str] = ()) -> st.SearchStrategy[list[Step]]:
    """Programs of at least `MIN_STEPS` steps, over a tree with backends mounted at `mounts`."""
    return st.lists(_steps(mounts), min_size=MIN_STEPS, max_size=_MAX_STEPS)
