"""Compares a backend with a model: after each change of a random program, both must have the same tree."""

import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

import anyio.from_thread
import anyio.to_thread
import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import Struct

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.model import Model, ModelRefusesError, is_under, normal
from deepfs.testing.suite import BackendSuite, assert_ok, gather
from deepfs.types import ContentChange, FileDataV2, ReadResult, Result

__all__ = ["BackendStateMachine"]

# --- random programs ---

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
def _draw_mostly(draw: st.DrawFn, usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> Any:
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
    contents = _draw_mostly(_texts(), st.sampled_from(("\0", "a\ud800")))
    pieces = st.builds(Piece, st.integers(0, 12), st.sampled_from((1, 1, 2, 3, 8)))
    edit = {
        "path": _draw_mostly(files, paths),
        "old": _draw_mostly(pieces, st.sampled_from(_OLD)),
        "new": st.sampled_from(_NEW),
    }
    searched = {
        "path": _draw_mostly(st.one_of(st.none(), directories), places),
        "glob": st.one_of(st.none(), st.sampled_from(_GLOBS)),
        "ignore_case": flags,
        "context_lines": st.sampled_from((0, 1)),
        "max_count": st.sampled_from((None, 1, 1, 2)),
    }
    return st.one_of(
        _step("ls", path=_draw_mostly(directories, places)),
        _step("write", path=literal, content=contents, overwrite=flags, if_match=st.none()),
        _step("write", path=paths, content=contents, overwrite=flags, if_match=_matches()),
        _step("edit", **edit, replace_all=flags, if_match=st.none()),
        _step("edit", **edit, replace_all=st.just(True), if_match=_matches()),
        _step("delete", path=_draw_mostly(files, places), if_match=st.none()),
        _step("delete", path=_draw_mostly(files, places), if_match=_matches()),
        _step("move", src=_draw_mostly(files, places), dst=_draw_mostly(literal, paths), overwrite=flags),
        _step("move", src=directories, dst=literal, overwrite=flags),
        _step("copy", src=places, dst=paths, overwrite=flags),
        _upload(literal, 0),
        _upload(st.one_of(literal, files), 0),
        _change(paths),
        _step("read", path=_draw_mostly(files, paths), offset=st.integers(0, 3), limit=st.integers(1, 3)),
        _step("read_raw", path=_draw_mostly(files, places)),
        _step("download_files", paths=st.lists(_draw_mostly(files, paths), max_size=3)),
        _step("glob", pattern=st.sampled_from((*_GLOBS, "../*")), path=_draw_mostly(directories, places)),
        _step("grep", pattern=st.sampled_from(_PATTERNS), regex=st.just(False), **searched),
        _step("grep", pattern=st.sampled_from(_REGEXES), regex=st.just(True), **searched),
    )


def _matches() -> st.SearchStrategy[str | None]:
    return st.sampled_from((None, THIS_VERSION, THIS_VERSION, OTHER_VERSION))


def _upload(paths: st.SearchStrategy[Any], at_least: int) -> st.SearchStrategy[Step]:
    data = _draw_mostly(_texts().map(str.encode), st.sampled_from(_BINARY))
    return _step("upload_files", files=st.lists(st.tuples(paths, data), min_size=at_least, max_size=at_least + 4))


def _change(paths: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    data = st.one_of(st.none(), _texts().map(str.encode), st.sampled_from(_BINARY))
    return _step("change_files", files=st.lists(st.tuples(paths, data, st.booleans()), max_size=4))


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
    """The parts that could be cut from a program, last first: the files of its batches."""
    return [
        (index, number)
        for index, _ in steps_of(program)
        for number in reversed(range(len(program[index].arguments.get("files", ()))))
    ]


def without(program: Sequence[Step], index: int, file: int | None) -> list[Step]:
    """The program without one of its steps, or without one of the files of the step."""
    rest: list[Step] = []
    if file is not None:
        files = program[index].arguments["files"]
        rest.append(Step(program[index].operation, {"files": [*files[:file], *files[file + 1 :]]}))
    return [*program[:index], *rest, *program[index + 1 :]]


# --- one step ---


def _content(data: Any) -> bytes:
    assert isinstance(data, FileDataV2)
    return b64decode(data.content) if data.encoding == "base64" else data.content.encode()


def _read(result: ReadResult) -> tuple[Any, ...]:
    data = result.file_data
    assert data is not None
    if data.encoding == "base64":
        return "base64", b64decode(data.content)
    return "utf-8", data.content, result.start_line, result.end_line, result.next_offset


def _grep(result: Any) -> tuple[Any, ...]:
    def beside(lines: Any) -> list[str]:
        return [line.text for line in lines or ()]

    matches = [
        (match.path, match.line, match.text, beside(match.context_before), beside(match.context_after))
        for match in result.matches
    ]
    return matches, result.truncated, None if result.truncated else result.skipped


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "ls": lambda result: [(info.path, info.is_dir, None if info.is_dir else info.size) for info in result.entries],
    "read": _read,
    "read_raw": lambda result: _content(result.data),
    "write": lambda result: result.path,
    "edit": lambda result: (result.path, result.occurrences),
    "glob": lambda result: [info.path for info in result.matches],
    "grep": _grep,
    "delete": lambda result: result.path,
    "move": lambda result: result.path,
    "copy": lambda result: result.path,
    "upload_files": lambda result: [item.error for item in result],
    "change_files": lambda result: [item.error for item in result],
    "download_files": lambda result: [(item.content, item.error) for item in result],
}
"""The parts of each result that are compared with the model."""


def concrete(model: Model, step: Step) -> Step:
    """The step with the paths and texts that are chosen only when it runs."""
    arguments = {name: _pick_paths(model, value) for name, value in step.arguments.items()}
    if step.operation == "change_files":
        arguments["files"] = _apart(arguments["files"])
    piece = arguments.get("old")
    if isinstance(piece, Piece):
        text = model.files.get(normal(arguments["path"]), b"").decode(errors="replace")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n") or "a"
        start = piece.start % len(text)
        arguments["old"] = text[start : start + piece.length]
    return Step(step.operation, arguments)


def _apart(files: Sequence[tuple[str, Any, bool]]) -> list[tuple[str, Any, bool]]:
    """The changes without those of a path at, above or beneath that of an earlier one.

    Whether a directory stays when its last file is deleted is seen in the listings only, after the whole call.
    """
    kept: list[tuple[str, Any, bool]] = []
    for file in files:
        path, others = normal(file[0]), [normal(other) for other, _, _ in kept]
        if not any(path == other or is_under(path, other) or is_under(other, path) for other in others):
            kept.append(file)
    return kept


def _pick_paths(model: Model, value: Any) -> Any:
    """`value` with each `Pick` in it replaced by a path."""
    if isinstance(value, list):
        return [_pick_paths(model, item) for item in value]
    if isinstance(value, tuple):
        return tuple(_pick_paths(model, item) for item in value)
    if not isinstance(value, Pick):
        return value
    there = sorted(model.files if value.kind == "file" else model.directories() - {"/"})
    return there[value.number % len(there)] if there else "/a"


def of_model(model: Model, step: Step) -> Any:
    """The value that the model returns, or the error codes that it allows."""
    arguments = {name: _in_model(name, value) for name, value in step.arguments.items()}
    try:
        return getattr(model, step.operation)(**arguments)
    except ModelRefusesError as refused:
        return refused.codes


def _in_model(name: str, value: Any) -> Any:
    """An argument as the model takes it: paths in their only spelling, a version as whether it is that of the file."""
    if value is None:
        return None
    if name in ("path", "src", "dst"):
        return normal(value)
    if name == "if_match":
        return value == THIS_VERSION
    if name == "files":
        return [(normal(path), *rest) for path, *rest in value]
    return [normal(path) for path in value] if name == "paths" else value


async def of_backend(backend: BackendProtocol, step: Step) -> Any:
    """The value that the backend returns, or a set with its error code."""
    arguments = dict(step.arguments)
    if arguments.get("if_match") == THIS_VERSION:
        arguments["if_match"] = (await backend.aread(arguments["path"])).version or OTHER_VERSION
    if step.operation == "change_files":
        arguments["files"] = [ContentChange(*file) for file in arguments["files"]]
    call: Callable[..., Awaitable[Any]] = getattr(backend, f"a{step.operation}")
    result = await call(**arguments)
    if isinstance(result, Result) and not result.ok:
        return {str(result.code)}
    return _VALUES[step.operation](result)


def _describe(value: Any) -> str:
    return " or ".join(sorted(map(str, value))) if isinstance(value, set | frozenset) else repr(value)


def agree(actual: Any, expected: Any) -> bool:
    """Whether the backend returned what the model expects; any error code that the model allows is right."""
    if isinstance(expected, frozenset):
        return isinstance(actual, set) and actual <= expected
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(_agree_item, actual, expected))
    return bool(actual == expected)


def _agree_item(actual: Any, expected: Any) -> bool:
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        return len(actual) == len(expected) and all(map(_agree_item, actual, expected))
    return actual in expected if isinstance(expected, frozenset) else bool(actual == expected)


# --- the machine ---

_CHANGING: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files", "change_files"})


class BackendStateMachine(BackendSuite):
    """Random programs on the backend and on a model of it, with a new seed in each run.

    Inherit from it beside or instead of `BackendConformance`; the fixtures and hooks are the same.
    """

    mounts: ClassVar[Sequence[str]] = ()
    """Where other backends are mounted in the tree under test; they always exist and cannot be moved or deleted."""
    steps: ClassVar[int] = 2000
    """The least number of operations to try."""
    seed: ClassVar[int | None] = None
    """The seed of a run; set it to the seed in the note of a failure, to repeat that run."""

    async def renew(self, backend: BackendProtocol) -> BackendProtocol:
        """Return the backend without its files, for the next program; override it if a new backend costs less."""
        await self._empty(backend, "/")
        return backend

    async def _empty(self, backend: BackendProtocol, directory: str) -> None:
        for entry in assert_ok(await backend.als(directory)).entries or ():
            path = entry.path.rstrip("/")
            if any(f"{mount}/".startswith(f"{path}/") for mount in self.mounts):
                await self._empty(backend, path)
            else:
                await backend.adelete(path)

    # Hypothesis would warn of a driver that uses `random` on the event loop while another thread draws a program.
    @pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
    async def test_random_programs_give_the_same_results_as_the_model(self, backend: BackendProtocol) -> None:
        seed = secrets.randbits(64) if self.seed is None else self.seed
        played, found = 0, list[AssertionError]()

        def play(program: list[Step]) -> None:
            nonlocal played
            played += len(program)
            # Hypothesis runs a failed program again. If a race made it fail, it may pass then, and Hypothesis would
            # only report that; so the first difference is kept, and the program does not run again.
            if not found and (difference := anyio.from_thread.run(self._difference, backend, program)):
                found.append(difference)
            assert not found

        given = hypothesis.given(programs(self.mounts))
        check: Callable[[], None] = hypothesis.seed(seed)(self._settings()(given(play)))
        try:
            await anyio.to_thread.run_sync(check)
        except AssertionError as error:
            difference = found[0] if found else error
            difference.add_note(f"To repeat this run, set `seed = {seed}` in {type(self).__name__}.")
            raise difference from difference.__cause__
        assert played >= self.steps

    def _settings(self) -> hypothesis.settings:
        return hypothesis.settings(
            max_examples=-(-self.steps // MIN_STEPS),
            phases=[hypothesis.Phase.generate],
            derandomize=False,
            database=None,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
        )

    async def _difference(self, backend: BackendProtocol, program: Sequence[Step]) -> AssertionError | None:
        """Return the first difference between the backend and the model, if any, with a short program that shows it."""
        played: list[Step] = []
        difference = await self._play(backend, program, played)
        if difference is not None:
            played, difference = await self._shorten(backend, played, difference)
            difference.add_note("A program that shows it, on an empty backend:")
            difference.add_note("\n".join(f"    await backend.a{step!r}" for step in played))
        return difference

    async def _shorten(
        self, backend: BackendProtocol, program: list[Step], difference: AssertionError
    ) -> tuple[list[Step], AssertionError]:
        """Return the program without the steps that the difference does not need, and its difference."""
        # Shrinking by Hypothesis would take hundreds of runs, which may be slow.
        for cuts in (steps_of, files_of, steps_of):
            for index, file in cuts(program):
                if index >= len(program):
                    continue  # An earlier cut made the program fail earlier, so it is shorter.
                played: list[Step] = []
                still = await self._play(backend, without(program, index, file), played)
                if still is not None:
                    program, difference = played, still
        return program, difference

    async def _play(
        self, backend: BackendProtocol, program: Sequence[Step], played: list[Step]
    ) -> AssertionError | None:
        """Run the program on the backend and on a model; return their first difference, if any.

        The steps are added to `played`, with the paths that were picked for them.
        """
        backend = await self.renew(backend)
        model = Model(self.mounts)
        try:
            await self._check_tree(backend, model)
        except AssertionError as error:
            return _because(error, "after all its files were deleted")
        for step in program:
            step = concrete(model, step)
            played.append(step)
            try:
                expected = of_model(model, step)
                actual = await of_backend(backend, step)
                if not agree(actual, expected):
                    return AssertionError(
                        f"{step!r}: the model says {_describe(expected)}, the backend {_describe(actual)}"
                    )
                if step.operation in _CHANGING or len(played) == len(program):
                    await self._check_tree(backend, model)
            except Exception as error:
                return _because(error, repr(step))
        return None

    async def _check_tree(self, backend: BackendProtocol, model: Model) -> None:
        """Compare every listing, and the content of every file, with the model."""
        sizes: dict[str, int | None] = {}
        seen, level = {"/"}, ["/"]
        while level:
            listings = await gather(partial(backend.als, directory) for directory in level)
            entries = [entry for listing in listings for entry in assert_ok(listing).entries or ()]
            level = [entry.path.rstrip("/") for entry in entries if entry.is_dir]
            assert not seen.intersection(level), "a directory is listed again"
            seen.update(level)
            sizes |= {entry.path: entry.size for entry in entries if not entry.is_dir}
        if backend.capabilities.keeps_empty_directories:
            model.empty = frozenset(seen - model.implied_directories())
        assert seen == model.directories(), "the directories of the backend, and of the model"
        expected = {path: len(data) for path, data in model.files.items()}
        assert sizes == expected, "the files of the backend, and of the model"
        stored = await gather(partial(self.raw_peek, path) for path in model.files)
        assert dict(zip(model.files, stored, strict=True)) == model.files, "what is stored, and what the model holds"


def _because(error: Exception, where: str) -> AssertionError:
    difference = AssertionError(f"{where}: {error!r}")
    difference.__cause__ = error
    return difference
