"""Rules about paths, and the decisions that follow from them."""

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from sys import modules
from typing import Final, Literal, NamedTuple, TypeAlias, cast, get_args
from warnings import warn

from deepfs.errors import InvalidPathError
from deepfs.search.globs import Tree, brackets_read_as_name, compile_tree, literal_brackets
from deepfs.text import paths

FilesystemOperation: TypeAlias = Literal["read", "write", "execute"]
Mode: TypeAlias = Literal["allow", "deny", "interrupt"]

_OPERATIONS = get_args(FilesystemOperation)
_MODES = get_args(Mode)
_EVERYWHERE = "/**"
_RULES_OF_DEEPAGENTS: Final = "deepagents.middleware.filesystem"
"""The module of the rules of deepagents; who has such a rule has imported it."""


@dataclass(frozen=True)
class FilesystemPermission:
    r"""A rule that allows, denies or interrupts operations on paths; of several rules, the first that matches counts.

    `"read"` is to list, read, search and fetch, `"write"` to create, change, delete and store, `"execute"` to run
    commands. `"interrupt"` asks a person first. Patterns start with `/` and read `* ** ? [abc] [!abc] {a,b}`; names
    that start with a dot are names like any other, `/a/**`, `/a/**/*` and `/a/` include `/a` itself. A command has no
    path, so a rule for `"execute"` applies to all commands. Raises ValueError for a rule that can match nothing, and
    warns of brackets that read as part of a name, such as `[slug]`: these are written `\[slug\]`.
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
            if brackets_read_as_name(pattern):
                matched = f"brackets in {pattern!r} stand for one character"
                warn(f"{matched}. {literal_brackets(pattern)}", stacklevel=3)
            compile_tree(pattern)
        if "execute" in self.operations and any(pattern != _EVERYWHERE for pattern in self.paths):
            raise ValueError("a command has no path: a rule for 'execute' has no paths but '/**'")

    def matches(self, operation: FilesystemOperation, path: str) -> bool:
        """Whether the rule applies to an operation on a path.

        Args:
            operation: The operation.
            path: The normalised path.
        """
        return operation in self.operations and any(compile_tree(pattern).matches(path) for pattern in self.paths)

    def may_match_beneath(self, operation: FilesystemOperation, directory: str) -> bool:
        """Whether the rule may apply to something under a directory. False is certain, True is not.

        Args:
            operation: The operation.
            directory: The normalised path of the directory.
        """
        return operation in self.operations and any(
            compile_tree(pattern).may_match_beneath(directory) for pattern in self.paths
        )

    def covers(self, operation: FilesystemOperation, directory: str) -> bool:
        """Whether the rule applies to a directory and everything under it. True is certain, False is not.

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


def check_rules(given: Iterable[object]) -> tuple[FilesystemPermission, ...]:
    """Return the rules as a tuple, those of deepagents converted. Raises TypeError if an item is not a rule."""
    if not isinstance(given, Iterable):
        raise TypeError(f"rules is a list of FilesystemPermission, not {given!r}")
    rules = tuple(map(_convert, given))
    for rule in rules:
        if not isinstance(rule, FilesystemPermission):
            raise TypeError(f"rules is a list of FilesystemPermission of deepfs, and {rule!r} is none")
    return cast("tuple[FilesystemPermission, ...]", rules)


def _convert(rule: object) -> object:
    """A rule of deepagents as one of deepfs; anything else as it is."""
    theirs = getattr(modules.get(_RULES_OF_DEEPAGENTS), "FilesystemPermission", None)
    if theirs is None or not isinstance(rule, theirs):
        return rule
    given = cast("FilesystemPermission", rule)
    return FilesystemPermission([*given.operations], [*given.paths], given.mode)


class Decision(NamedTuple):
    """The mode that applies, and the rule that it comes from; None if no rule matched."""

    mode: Mode
    rule: FilesystemPermission | None = None


ALLOWED: Decision = Decision("allow")


def decide(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, path: str = "/") -> Decision:
    """Return the decision of the first rule that matches; without one, the operation is allowed.

    `path` is normalised first. Raises InvalidPathError for an invalid path, ValueError for an unknown operation.
    """
    _check_known("operation", [operation], _OPERATIONS)
    path = paths.normalize(path)
    return next((Decision(rule.mode, rule) for rule in rules if rule.matches(operation, path)), ALLOWED)


_MAX_KNOWN = 8192


class _Narrowed:
    """The rules that may match beneath a directory, in order; the last one has no tree if it matches everything there.

    A child whose name has none of the `endings` is allowed.
    """

    __slots__ = ("endings", "rules")

    def __init__(self, rules: tuple[tuple[Mode, Tree | None], ...]) -> None:
        if all(mode == ALLOWED.mode for mode, _ in rules):
            rules = ()
        self.rules = rules
        self.endings = tuple({ending for _, tree in rules for ending in (("",) if tree is None else tree.endings)})


_narrowed = lru_cache(1_000)(_Narrowed)
"""Equal ones are one object: most directories beside one another have the same rules."""


class CompiledRules:
    """Rules for many decisions, narrowed once for each directory, since a search asks about many files there."""

    def __init__(self, rules: Sequence[FilesystemPermission]) -> None:
        # A rule with several patterns is as good as several rules in a row with one each.
        self._about: dict[FilesystemOperation, _Narrowed] = {
            operation: _narrowed(
                tuple(
                    (rule.mode, compile_tree(pattern))
                    for rule in rules
                    if operation in rule.operations
                    for pattern in rule.paths
                )
            )
            for operation in _OPERATIONS
        }
        self._known: dict[FilesystemOperation, dict[str, _Narrowed]] = {operation: {} for operation in _OPERATIONS}

    def mode(self, operation: FilesystemOperation, path: str) -> Mode:
        """The mode for a path, perhaps one from a storage, with names that are not valid in paths of deepfs."""
        directory, _, name = path.rpartition("/")
        narrowed = self._known[operation].get(directory)
        if narrowed is not None and not name.endswith(narrowed.endings) and name not in _NO_NAMES:
            return ALLOWED.mode
        normal = _normalize(path)
        if normal is None:
            return "deny"
        narrowed = self._about[operation] if normal == "/" else self._narrow(operation, paths.parent(normal))
        for mode, tree in narrowed.rules:
            if tree is None or tree.matches(normal):
                return mode
        return ALLOWED.mode

    def hides(self, operation: FilesystemOperation, directory: str, refused: Container[Mode]) -> bool:
        """Whether everything beneath a directory has a mode in `refused`; True is certain, False is not."""
        normal = _normalize(directory)
        if normal is None:
            return "deny" in refused
        for mode, tree in self._narrow(operation, normal).rules:
            if tree is None or mode not in refused:
                return mode in refused
        return False

    def _narrow(self, operation: FilesystemOperation, directory: str) -> _Narrowed:
        # The root is the empty string here, as the part of a path before its name is.
        known, key = self._known[operation], "" if directory == "/" else directory
        if (narrowed := known.get(key)) is None:
            above = known.get(key.rpartition("/")[0]) or self._about[operation]
            rules: list[tuple[Mode, Tree | None]] = []
            for rule in above.rules:
                mode, tree = rule
                if tree is None or tree.covers(directory):
                    rules.append((mode, None))
                    break
                if tree.may_match_beneath(directory):
                    rules.append(rule)
            if len(known) >= _MAX_KNOWN:
                known.clear()
            narrowed = known[key] = _narrowed(tuple(rules))
        return narrowed


_NO_NAMES: Final = frozenset({"", ".", ".."})


def _normalize(path: str) -> str | None:
    """The normal form of a path, also with names that deepfs does not take; None if it goes up."""
    try:
        return paths.normalize(path)
    except InvalidPathError:
        names = [name for name in path.split("/") if name not in _NO_NAMES]
        return None if ".." in path.split("/") else "/" + "/".join(names)


def decide_beneath(rules: Iterable[FilesystemPermission], operation: FilesystemOperation, directory: str) -> Decision:
    """Return the strictest decision possible for `directory` or any path beneath it, whether or not it exists.

    It serves operations on many files, before these are known: `"allow"` is certain, other modes are only possible.
    """
    possible = decisions_beneath(rules, operation, directory)
    return max(possible, key=lambda decision: _STRICTNESS[decision.mode])


def decisions_beneath(
    rules: Iterable[FilesystemPermission], operation: FilesystemOperation, directory: str
) -> list[Decision]:
    """The decision for `directory`, then all decisions possible for paths beneath it, whether or not they exist."""
    directory, rules = paths.normalize(directory), list(rules)
    possible = [decide(rules, operation, directory)]
    for rule in rules:
        if rule.may_match_beneath(operation, directory):
            possible.append(Decision(rule.mode, rule))
            if rule.covers(operation, directory):
                break
    return possible


_STRICTNESS: dict[Mode, int] = {"allow": 0, "interrupt": 1, "deny": 2}
