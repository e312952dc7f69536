"""Rules about paths, and the one function that decides by them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from deepfs.errors import InvalidPathError
from deepfs.search.globs import compile_tree
from deepfs.text import paths

__all__ = [
    "ALLOWED",
    "Decision",
    "FilesystemOperation",
    "FilesystemPermission",
    "Mode",
    "checked_rules",
    "decide",
    "decide_beneath",
    "decide_told",
    "decisions_beneath",
]

FilesystemOperation: TypeAlias = Literal["read", "write", "execute"]
Mode: TypeAlias = Literal["allow", "deny", "interrupt"]

_OPERATIONS = get_args(FilesystemOperation)
_MODES = get_args(Mode)
_EVERYWHERE = "/**"


@dataclass(frozen=True)
class FilesystemPermission:
    """What happens to some operations on some paths; of several rules the first that matches counts.

    `"read"` is to list, read, search and fetch, `"write"` to create, change, delete and store, `"execute"` to run
    commands. `"interrupt"` asks a person first. Patterns start with `/` and read `* ** ? [abc] [!abc] {a,b}`; names
    that start with a dot are names like any other, `/a/**`, `/a/**/*` and `/a/` include `/a` itself. A command has no
    path, so a rule for `"execute"` is about all of them. Raises ValueError for what would match nothing in silence.
    """

    operations: Sequence[FilesystemOperation]
    paths: Sequence[str] = field(default_factory=lambda: [_EVERYWHERE])
    mode: Mode = "allow"

    def __post_init__(self) -> None:
        _check_list("operations", self.operations)
        _check_list("paths", self.paths)
        _check_known("operation", self.operations, _OPERATIONS)
        _check_known("mode", [self.mode], _MODES)
        for pattern in self.paths:
            if pattern.startswith("~") or "~" in pattern.split("/"):
                raise ValueError(f"'~' is not expanded in {pattern!r}; start the pattern with '/'")
            compile_tree(pattern)
        if "execute" in self.operations and any(pattern != _EVERYWHERE for pattern in self.paths):
            raise ValueError("a command has no path: a rule for 'execute' has no paths but '/**'")

    def matches(self, operation: FilesystemOperation, path: str) -> bool:
        """Whether the rule is about an operation on a path.

        Args:
            operation: The operation.
            path: The normalised path.
        """
        return operation in self.operations and any(compile_tree(pattern).matches(path) for pattern in self.paths)

    def may_match_beneath(self, operation: FilesystemOperation, directory: str) -> bool:
        """Whether the rule could be about something under a directory. False is certain, True is not.

        Args:
            operation: The operation.
            directory: The normalised path of the directory.
        """
        return operation in self.operations and any(
            compile_tree(pattern).may_match_beneath(directory) for pattern in self.paths
        )

    def covers(self, operation: FilesystemOperation, directory: str) -> bool:
        """Whether the rule is about a directory and everything under it. True is certain, False is not.

        Args:
            operation: The operation.
            directory: The normalised path of the directory.
        """
        return operation in self.operations and any(compile_tree(pattern).covers(directory) for pattern in self.paths)


def _check_list(name: str, given: object) -> None:
    if isinstance(given, str | bytes) or not isinstance(given, Collection):
        raise TypeError(f"{name} is a list of strings, not {given!r}")
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"{name} is a list of strings, and {each!r} is none")
    if not given:
        raise ValueError(f"{name} is empty: the rule would match nothing")


def _check_known(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    for each in given:
        if each not in known:
            raise ValueError(f"unknown {kind} {each!r}; known are {', '.join(known)}")


def checked_rules(given: Iterable[object]) -> tuple[FilesystemPermission, ...]:
    """The rules that are `given`; TypeError for what is none."""
    if not isinstance(given, Iterable):
        raise TypeError(f"rules is a list of FilesystemPermission, not {given!r}")
    rules = tuple(given)
    for rule in rules:
        if not isinstance(rule, FilesystemPermission):
            raise TypeError(f"rules is a list of FilesystemPermission of deepfs, and {rule!r} is none")
    return cast("tuple[FilesystemPermission, ...]", rules)


class Decision(NamedTuple):
    """What the rules say, and the rule that said it; None where none matched."""

    mode: Mode
    rule: FilesystemPermission | None = None


ALLOWED: Decision = Decision("allow")


def decide(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, path: str = "/") -> Decision:
    """The decision of the first rule that matches, to allow where none does.

    `path` is normalised first: InvalidPathError where that is not possible. ValueError for an unknown operation.
    """
    _check_known("operation", [operation], _OPERATIONS)
    return _decided(rules, operation, paths.normalize(path))


def decide_told(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, path: str) -> Decision:
    """`decide` for a path that a storage tells, which may hold names that no path of the contract can have."""
    try:
        return decide(rules, operation, path)
    except InvalidPathError:
        names = [name for name in path.split("/") if name not in ("", ".")]
        return Decision("deny") if ".." in names else _decided(rules, operation, "/" + "/".join(names))


def _decided(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, path: str) -> Decision:
    return next((Decision(rule.mode, rule) for rule in rules if rule.matches(operation, path)), ALLOWED)


def decide_beneath(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, directory: str) -> Decision:
    """The strictest decision that there could be on `directory` or anything beneath it, whatever is stored there.

    For operations on many files, before it is known which: `"allow"` is certain, the others are possible.
    """
    possible = decisions_beneath(rules, operation, directory)
    return max(possible, key=lambda decision: _STRICTNESS[decision.mode])


def decisions_beneath(
    rules: Iterable[FilesystemPermission], operation: FilesystemOperation, directory: str
) -> list[Decision]:
    """The decision on `directory`, and those that there could be on something beneath it, whatever is stored there."""
    directory, rules = paths.normalize(directory), list(rules)
    possible = [decide(rules, operation, directory)]
    for rule in rules:
        if rule.may_match_beneath(operation, directory):
            possible.append(Decision(rule.mode, rule))
            if rule.covers(operation, directory):
                break
    return possible


_STRICTNESS: dict[Mode, int] = {"allow": 0, "interrupt": 1, "deny": 2}
