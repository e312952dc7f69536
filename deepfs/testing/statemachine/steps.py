"""Runs one step on the backend and on the model, and compares the results."""

from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.statemachine.model import Model, RefusedError
from deepfs.testing.statemachine.naive import normal
from deepfs.testing.statemachine.programs import OTHER_VERSION, THIS_VERSION, Pick, Piece, Step
from deepfs.types import FileDataV2, ReadResult, Result

__all__ = ["agree", "concrete", "of_backend", "of_model", "told"]

_PATHS: Final = frozenset({"path", "src", "dst"})


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
"""The parts of each result that are compared with the model."""


def concrete(model: Model, step: Step) -> Step:
    """The step with the paths and texts that are chosen only when it runs."""
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


def of_model(model: Model, step: Step) -> Any:
    """The value that the model returns, or the error codes that it allows."""
    arguments = {name: _in_model(name, value) for name, value in step.arguments.items()}
    try:
        return getattr(model, step.operation)(**arguments)
    except RefusedError as refused:
        return refused.codes


def _in_model(name: str, value: Any) -> Any:
    """An argument as the model takes it: paths in their only spelling, a version as whether it is that of the file."""
    if value is None:
        return None
    if name in _PATHS:
        return normal(value)
    if name == "if_match":
        return value == THIS_VERSION
    if name == "files":
        return [(normal(path), data) for path, data in value]
    return [normal(path) for path in value] if name == "paths" else value


async def of_backend(backend: BackendProtocol, step: Step) -> Any:
    """The value that the backend returns, or a set with its error code."""
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


def told(value: Any) -> str:
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
