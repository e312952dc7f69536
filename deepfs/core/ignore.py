"""What searches pass over: gitignore rules, given as patterns or read from the `.gitignore` files of a tree.

As in git, the last rule about a file or directory decides, the rules of a directory come before those of the one above
it, and what lies in an ignored directory is ignored, whatever the rules say of it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Literal, NamedTuple, Protocol, TypeAlias

from deepfs.core import paths
from deepfs.core.text import BOM, is_text

__all__ = ["GITIGNORE", "IgnoreOption", "Ignoring", "Rules", "compile_rules", "rules_of_file"]

IgnoreOption: TypeAlias = Literal["git"] | Sequence[str] | None
"""`"git"` honours `.gitignore` files, a sequence gives their lines, None ignores nothing."""

GITIGNORE = ".gitignore"

_GROUP = re.compile(r"\(\?P<\w+>/\)")

_MAX_REMEMBERED = 10_000
"""Names of which each set of rules remembers whether they are in question."""


class _Match(Protocol):
    def groups(self) -> tuple[bytes | None, ...]: ...


_Search: TypeAlias = Callable[[bytes], _Match | None]


class _Rule(NamedTuple):
    expression: str
    ignores: bool
    directories_only: bool
    by_name: bool
    search: _Search

    def is_about(self, subject: bytes) -> bool:
        # pathspec's expressions also match what lies beneath, by way of their group.
        match = self.search(subject)
        return match is not None and not any(match.groups())


class Rules:
    """The rules of one `.gitignore` file; paths are relative to its directory, without leading or trailing slash."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._last_first = rules[::-1]
        self._any_by_name = _any_of(rule for rule in rules if rule.by_name)
        self._any_by_path = _any_of(rule for rule in rules if not rule.by_name)
        self._remembered: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._last_first)

    def verdict(self, relative: str, *, is_dir: bool) -> bool | None:
        """Whether the last rule about `relative` itself ignores it; None where no rule is about it."""
        name = relative[relative.rfind("/") + 1 :]
        if not self._is_name_in_question(name) and not self._is_path_in_question(relative):
            return None
        whole, last = relative.encode(), name.encode()
        for rule in self._last_first:
            if (is_dir or not rule.directories_only) and rule.is_about(last if rule.by_name else whole):
                return rule.ignores
        return None

    def _is_name_in_question(self, name: str) -> bool:
        # Few names make up most of a tree, and most rules are about names.
        known = self._remembered.get(name)
        if known is None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            known = self._any_by_name is not None and self._any_by_name(name.encode()) is not None
            self._remembered[name] = known
        return known

    def _is_path_in_question(self, relative: str) -> bool:
        return self._any_by_path is not None and self._any_by_path(relative.encode()) is not None


def _any_of(rules: Iterable[_Rule]) -> _Search | None:
    """One search that finds nothing where none of `rules` is about something; None where there are no rules."""
    # The group is the one place with a slash in parentheses: a slash within a set would have ended the set's segment.
    expressions = [f"(?:{_GROUP.sub('/', rule.expression)})" for rule in rules]
    return _linear("|".join(expressions)) if expressions else None


def compile_rules(lines: Iterable[str]) -> Rules:
    """The rules of these lines; ValueError for one that is no pattern."""
    rules: list[_Rule] = []
    for line in lines:
        try:
            rules += _rules(line)
        except ValueError as error:
            raise ValueError(f"ignore= takes patterns as in .gitignore files, not {line!r}") from error
    return Rules(rules)


@lru_cache(maxsize=256)
def rules_of_file(content: bytes) -> Rules:
    """The rules of a `.gitignore` file; what is no pattern is passed over, as by git."""
    rules: list[_Rule] = []
    for line in content.removeprefix(BOM.encode()).decode("utf-8", "replace").split("\n"):
        with suppress(ValueError):
            rules += _rules(line.removesuffix("\r"))
    return Rules(rules)


def _rules(line: str) -> Iterator[_Rule]:
    """The rule of `line`, unless it is blank or a comment; ValueError where it is no pattern.

    The marks around a pattern are taken off here: pathspec judges a file together with the directories above it, and
    not a directory by itself, which is what a walk asks about.
    """
    if "\n" in line or not is_text(line):
        raise ValueError("a pattern is one line of text")
    if not line.endswith("\\ "):
        line = line.rstrip(" ")
    body = line.removeprefix("!")
    pattern = body.removesuffix("/")
    if line.startswith("#") or not pattern:
        return
    by_name = "/" not in pattern
    expression = _expression(pattern if by_name else f"/{pattern.removeprefix('/')}")
    if expression is not None:
        yield _Rule(expression, body == line, pattern != body, by_name, _linear(expression))


def _expression(pattern: str) -> str | None:
    """The regular expression of a pattern without marks; None where git would not match it with anything."""
    # What was not the first character of the line is no mark.
    escaped = f"\\{pattern}" if pattern.startswith(("#", "!")) else pattern
    try:
        [compiled] = import_module("pathspec").GitIgnoreSpec.from_lines([escaped]).patterns
    except (re.error, FutureWarning) as error:
        raise ValueError(str(error)) from error
    return None if compiled.regex is None else str(compiled.regex.pattern)


def _linear(expression: str) -> _Search:
    """Search in time that no pattern, which may come with the tree, can make long."""
    re2 = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    try:
        search: _Search = re2.compile(expression, options).search
    except re2.error as error:
        raise ValueError(str(error)) from error
    return search


class Ignoring:
    """Tells what one search, which starts at the directory `root`, passes over.

    `rules` hold from the directory `base`, which `root` is or lies beneath; `read`, where it is given, gets the content
    of a `.gitignore` by its path, or None. What a search starts in is wanted even where it is ignored: the rules from
    above do not hold there.
    """

    def __init__(self, base: str, root: str, rules: Rules, read: Callable[[str], bytes | None] | None = None) -> None:
        self._root = root
        self._read = read
        self._holding: dict[str, _Chain] = {}
        self._ignored: dict[str, bool] = {}
        chain = self._with_own(base, _with(base, rules, ()))
        for directory in _way(base, root):
            above = () if _is_ignored(chain, directory, is_dir=True) else chain
            chain = self._with_own(directory, above)
        self._ignored[root], self._holding[root] = False, chain

    def __call__(self, path: str, *, is_dir: bool) -> bool:
        """Whether `path`, beneath the root, is ignored, or a directory above it."""
        directory = path if is_dir else paths.parent(path)
        if directory not in self._ignored:
            self._judge(directory)
        if is_dir or self._ignored[directory]:
            return self._ignored[directory]
        return _is_ignored(self._holding[directory], path, is_dir=False)

    def _judge(self, directory: str) -> None:
        """Find out about a directory, and about those above it; a walk has asked about them before."""
        known = paths.parent(directory) in self._ignored
        for each in [directory] if known else _way(self._root, directory):
            if each in self._ignored:
                continue
            above = paths.parent(each)
            chain = self._holding[above]
            ignored = self._ignored[above] or _is_ignored(chain, each, is_dir=True)
            self._ignored[each] = ignored
            self._holding[each] = chain if ignored else self._with_own(each, chain)

    def _with_own(self, directory: str, chain: "_Chain") -> "_Chain":
        content = None if self._read is None else self._read(paths.join(directory, GITIGNORE))
        return _with(directory, rules_of_file(content), chain) if content else chain


class _Holding(NamedTuple):
    """Rules, and how much of a path lies above their directory."""

    start: int
    rules: Rules


_Chain: TypeAlias = tuple[_Holding, ...]
"""The rules that hold in a directory, nearest first."""


def _with(directory: str, rules: Rules, chain: _Chain) -> _Chain:
    return (_Holding(len(paths.join(directory, "_")) - 1, rules), *chain) if rules else chain


def _is_ignored(chain: _Chain, path: str, *, is_dir: bool) -> bool:
    for start, rules in chain:
        verdict = rules.verdict(path[start:], is_dir=is_dir)
        if verdict is not None:
            return verdict
    return False


def _way(base: str, directory: str) -> list[str]:
    """The directories beneath `base` down to `directory`, itself included."""
    return [each for each in [*paths.ancestors(directory), directory] if paths.is_beneath(each, base)]
