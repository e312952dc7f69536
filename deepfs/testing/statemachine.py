"""A backend against a model: random programs, after each change of which both must hold the same tree."""

import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import anyio.from_thread
import anyio.to_thread
import hypothesis

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.expect import succeeded
from deepfs.testing.model import Model, RefusedError, normal
from deepfs.testing.programs import MIN_STEPS, OTHER_VERSION, THIS_VERSION, Pick, Piece, Step, programs
from deepfs.testing.suite import BackendSuite
from deepfs.testing.tasks import at_once
from deepfs.types import FileDataV2, ReadResult, Result

__all__ = ["BackendStateMachine"]

_PATHS: Final = frozenset({"path", "src", "dst"})
_CHANGING: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files"})


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
    "download_files": lambda result: [(item.content, item.error) for item in result],
}
"""What of each result is compared with the model."""


class BackendStateMachine(BackendSuite):
    """Random programs on the backend and on a model of it, with a new seed in each run.

    Inherit from it beside or instead of `BackendConformance`; the fixtures and hooks are the same.
    """

    mounts: ClassVar[Sequence[str]] = ()
    """Where other backends are mounted in the tree under test; they always exist and cannot be moved or deleted."""
    steps: ClassVar[int] = 2000
    """How many operations to try at least."""
    seed: ClassVar[int | None] = None
    """Set it to what a failure told, to repeat that run."""

    async def emptied(self, backend: BackendProtocol) -> BackendProtocol:
        """The backend without its files, for the next program; override it where a new backend costs less."""
        await self._empty(backend, "/")
        return backend

    async def _empty(self, backend: BackendProtocol, directory: str) -> None:
        for entry in succeeded(await backend.als(directory)).entries or ():
            path = entry.path.rstrip("/")
            if any(f"{mount}/".startswith(f"{path}/") for mount in self.mounts):
                await self._empty(backend, path)
            else:
                await backend.adelete(path)

    async def test_random_programs_do_what_a_model_does(self, backend: BackendProtocol) -> None:
        seed = secrets.randbits(64) if self.seed is None else self.seed
        played, found = 0, list[AssertionError]()

        def play(program: list[Step]) -> None:
            nonlocal played
            played += len(program)
            # Hypothesis plays a program that failed once more; where a race had failed it, that would be all it tells.
            found.extend([] if found else anyio.from_thread.run(self._differences, backend, program))
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
            suppress_health_check=list(hypothesis.HealthCheck),
        )

    async def _differences(self, backend: BackendProtocol, program: Sequence[Step]) -> list[AssertionError]:
        """How the backend and the model first differ, if they do, with a short program that shows it."""
        played: list[Step] = []
        difference = await self._play(backend, program, played)
        if difference is not None:
            played, difference = await self._shortened(backend, played, difference)
            difference.add_note("A program that shows it, on an empty backend:")
            difference.add_note("\n".join(f"    await backend.a{step!r}" for step in played))
        return [difference] if difference else []

    async def _shortened(
        self, backend: BackendProtocol, program: list[Step], difference: AssertionError
    ) -> tuple[list[Step], AssertionError]:
        """The program without the steps that a difference does not need, and the difference."""
        # Shrinking by Hypothesis would take hundreds of plays, and these may be slow.
        for cuts in (_steps_of, _files_of, _steps_of):
            for cut in cuts(program):
                played: list[Step] = []
                still = await self._play(backend, _without(program, *cut), played)
                if still is not None:
                    program, difference = played, still
        return program, difference

    async def _play(
        self, backend: BackendProtocol, program: Sequence[Step], played: list[Step]
    ) -> AssertionError | None:
        """Run the program on the backend and on a model; how they first differ, if they do.

        The steps go to `played` with the paths that were picked for them.
        """
        backend = await self.emptied(backend)
        model = Model(self.mounts)
        try:
            await self._check_tree(backend, model)
        except AssertionError as error:
            return _because(error, "after all its files were deleted")
        for step in program:
            step = _concrete(model, step)
            played.append(step)
            try:
                expected = _of_model(model, step)
                actual = await _of_backend(backend, step)
                if not _agree(actual, expected):
                    return AssertionError(f"{step!r}: the model says {_told(expected)}, the backend {_told(actual)}")
                if step.operation in _CHANGING or len(played) == len(program):
                    await self._check_tree(backend, model)
            except Exception as error:
                return _because(error, repr(step))
        return None

    async def _check_tree(self, backend: BackendProtocol, model: Model) -> None:
        """Compare every listing and every content with the model."""
        sizes: dict[str, int | None] = {}
        seen, level = {"/"}, ["/"]
        while level:
            listings = await at_once(partial(backend.als, directory) for directory in level)
            entries = [entry for listing in listings for entry in succeeded(listing).entries or ()]
            level = [entry.path.rstrip("/") for entry in entries if entry.is_dir]
            assert not seen.intersection(level), "a directory is listed again"
            seen.update(level)
            sizes |= {entry.path: entry.size for entry in entries if not entry.is_dir}
        if backend.capabilities.keeps_empty_directories:
            model.empty = frozenset(seen - Model.directories(_without_empty(model)))
        assert seen == model.directories(), "the directories of the backend, and of the model"
        expected = {path: len(data) for path, data in model.files.items()}
        assert sizes == expected, "the files of the backend, and of the model"
        stored = await at_once(partial(self.raw_peek, path) for path in model.files)
        assert dict(zip(model.files, stored, strict=True)) == model.files, "what is stored, and what the model holds"


def _without_empty(model: Model) -> Model:
    bare = Model(model.mounts)
    bare.files = model.files
    return bare


def _because(error: Exception, where: str) -> AssertionError:
    difference = AssertionError(f"{where}: {error!r}")
    difference.__cause__ = error
    return difference


def _steps_of(program: Sequence[Step]) -> list[tuple[int, int | None]]:
    """What could be cut from a program, the last first: its steps."""
    return [(index, None) for index in reversed(range(len(program)))]


def _files_of(program: Sequence[Step]) -> list[tuple[int, int | None]]:
    """What could be cut from a program, the last first: the files of its uploads."""
    return [
        (index, number)
        for index, _ in _steps_of(program)
        for number in reversed(range(len(program[index].arguments.get("files", ()))))
    ]


def _without(program: Sequence[Step], index: int, file: int | None) -> list[Step]:
    """The program without one of its steps, or without one of the files that the step uploads."""
    rest: list[Step] = []
    if file is not None:
        files = program[index].arguments["files"]
        rest.append(Step("upload_files", {"files": [*files[:file], *files[file + 1 :]]}))
    return [*program[:index], *rest, *program[index + 1 :]]


def _concrete(model: Model, step: Step) -> Step:
    """The step with what is chosen only now."""
    arguments = {name: _picked(model, value) for name, value in step.arguments.items()}
    piece = arguments.get("old")
    if isinstance(piece, Piece):
        text = model.files.get(normal(arguments["path"]), b"").decode(errors="replace")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n") or "a"
        start = piece.start % len(text)
        arguments["old"] = text[start : start + piece.length]
    return Step(step.operation, arguments)


def _picked(model: Model, value: Any) -> Any:
    """`value` with each `Pick` in it replaced by a path."""
    if isinstance(value, list):
        return [_picked(model, item) for item in value]
    if isinstance(value, tuple):
        return tuple(_picked(model, item) for item in value)
    if not isinstance(value, Pick):
        return value
    there = sorted(model.files if value.kind == "file" else model.directories() - {"/"})
    return there[value.number % len(there)] if there else "/a"


def _of_model(model: Model, step: Step) -> Any:
    """The value that the model gives, or the codes that it allows."""
    arguments = {name: _in_model(name, value) for name, value in step.arguments.items()}
    try:
        return getattr(model, step.operation)(**arguments)
    except RefusedError as refused:
        return refused.codes


def _in_model(name: str, value: Any) -> Any:
    if name in _PATHS and value is not None:
        return normal(value)
    if name == "if_match":
        return None if value is None else value == THIS_VERSION
    if name == "files":
        return [(normal(path), data) for path, data in value]
    return [normal(path) for path in value] if name == "paths" else value


async def _of_backend(backend: BackendProtocol, step: Step) -> Any:
    """The value that the backend gives, or the set of its one error code."""
    arguments = dict(step.arguments)
    if arguments.get("if_match") is not None:
        arguments["if_match"] = await _version(backend, step)
    call: Callable[..., Awaitable[Any]] = getattr(backend, f"a{step.operation}")
    result = await call(**arguments)
    if isinstance(result, Result) and not result.ok:
        return {str(result.code)}
    return _VALUES[step.operation](result)


async def _version(backend: BackendProtocol, step: Step) -> str:
    if step.arguments["if_match"] == OTHER_VERSION:
        return OTHER_VERSION
    return (await backend.aread(step.arguments["path"])).version or OTHER_VERSION


def _told(value: Any) -> str:
    return " or ".join(sorted(map(str, value))) if isinstance(value, set | frozenset) else repr(value)


def _agree(actual: Any, expected: Any) -> bool:
    """Whether the backend says what the model says; of several codes that the model allows, any."""
    if isinstance(expected, frozenset):
        return isinstance(actual, set) and actual <= expected
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(_agree_item, actual, expected))
    return bool(actual == expected)


def _agree_item(actual: Any, expected: Any) -> bool:
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        return len(actual) == len(expected) and all(map(_agree_item, actual, expected))
    return actual in expected if isinstance(expected, frozenset) else bool(actual == expected)
