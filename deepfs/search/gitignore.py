"""Files that searches ignore: gitignore rules, given as patterns or read from the `.gitignore` files of a tree.

As in git, the last rule that matches a file or directory decides, the rules of a directory come before those of its
parent, and everything in an ignored directory is ignored, even if a rule says otherwise.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

from deepfs.errors import DeadlineError
from deepfs.text import paths
from deepfs.text.lines import BOM, is_text

IgnoreOption: TypeAlias = Literal["git"] | Sequence[str] | None
"""`"git"` honours `.gitignore` files, a sequence gives their lines, None ignores nothing."""

GITIGNORE = ".gitignore"

_MAX_RULES = 4000
_MAX_LINE = 4096
_GROUP_OF = 64
_MAX_EXPRESSION = 4 * _MAX_LINE
"""Characters of one expression, some 50 ms of compiling; a pattern that needs more is invalid."""
_MAX_HINTS = 100
_MAX_KNOWN = 64
_MAX_BYTES = 2 * 1024 * 1024
"""Bytes of `.gitignore` files that one search honours."""


_Test: TypeAlias = Callable[[str], object]


class _Rule:
    """The rule of one pattern: it `ignores` the paths that it matches, or excepts them if that is False."""

    __slots__ = ("_test", "by_name", "directories_only", "expression", "ignores")

    def __init__(self, expression: str, ignores: bool, directories_only: bool, by_name: bool) -> None:
        self.expression = expression
        self.ignores = ignores
        self.directories_only = directories_only
        self.by_name = by_name
        self._test: _Test | None = None

    @property
    def test(self) -> _Test:
        """The test of a path, or of a name if the rule is `by_name`. Raises ValueError if it is too long."""
        if self._test is None:
            self._test = _compile_expression(self.expression)
        return self._test

    def is_usable(self) -> bool:
        """Whether the expression can be compiled."""
        with suppress(ValueError):
            return self.test is not None
        return False


class _Group:
    """Consecutive rules with combined expressions, which show at once if no rule matches a name or a path."""

    is_name_in_question: _Test
    is_path_in_question: _Test

    def __init__(self, rules: Sequence[_Rule], check: "Check") -> None:
        check()
        try:
            self._unite(rules)
        except ValueError:
            usable: list[_Rule] = []
            for rule in rules:
                check()
                if rule.is_usable():
                    usable.append(rule)
            rules = usable
            try:
                self._unite(rules)
            except ValueError:  # Each is short enough, but all together are not.
                self.is_name_in_question = self.is_path_in_question = lambda _: True
        self._last_first = rules[::-1]

    def _unite(self, rules: Sequence[_Rule]) -> None:
        self.is_name_in_question = _any_of(rule.expression for rule in rules if rule.by_name)
        self.is_path_in_question = _any_of(rule.expression for rule in rules if not rule.by_name)

    def verdict(self, path: str, name: str, is_dir: bool) -> bool | None:
        if self.is_name_in_question(name) or self.is_path_in_question(path):
            for rule in self._last_first:
                if (is_dir or not rule.directories_only) and rule.test(name if rule.by_name else path):
                    return rule.ignores
        return None


Check: TypeAlias = Callable[[], None]
"""Raises DeadlineError when the search has to end; called every few milliseconds while rules are compiled."""


def _go_on() -> None:
    """A search without a deadline."""


class Rules:
    """The rules of one `.gitignore` file; paths are relative to its directory, without leading or trailing slash.

    `plain` holds the patterns that are not exceptions and have no special characters except `*`, `?` and `/`.
    """

    def __init__(self, rules: Sequence[_Rule], plain: Sequence[str] = (), check: Check = _go_on) -> None:
        starts = range(len(rules) - len(rules) % _GROUP_OF, -1, -_GROUP_OF)
        self._last_first = [_Group(rules[start : start + _GROUP_OF], check) for start in starts if rules[start:]]
        self.plain = plain

    def __bool__(self) -> bool:
        return bool(self._last_first)

    def verdict(self, relative: str, *, is_dir: bool) -> bool | None:
        """Whether the last rule that matches `relative` itself ignores it; None if no rule matches it."""
        name = relative[relative.rfind("/") + 1 :]
        for group in self._last_first:
            if (verdict := group.verdict(relative, name, is_dir)) is not None:
                return verdict
        return None


_NO_RULES = Rules([])


def _any_of(expressions: Iterable[str]) -> _Test:
    """Combine expressions into one test."""
    united = "|".join(expressions)
    return _compile_expression(united) if united else lambda _: False


def compile_rules(lines: Iterable[str]) -> Rules:
    """Compile the rules of `lines`. Raises ValueError for a line that is not a pattern."""
    rules: list[_Rule] = []
    plain: list[str] = []
    for line in lines:
        try:
            found = list(_rules(line))
            for rule in found:
                rule.test  # noqa: B018
        except ValueError as error:
            raise ValueError(f"ignore= takes patterns as in .gitignore files, not {line[:100]!r}") from error
        rules += found
        plain += _plain(line, found)
    return Rules(rules, plain)


_known: dict[bytes, Rules] = {}
"""The rules of files that were read recently, by their content."""


def rules_of_file(content: bytes, check: Check = _go_on) -> Rules:
    """The rules of a `.gitignore` file. As in git, invalid patterns are skipped; so is a file with too many lines."""
    rules = _known.get(content)
    if rules is None:
        rules = _NO_RULES if content.count(b"\n") >= _MAX_RULES else _compile_lines(content, check)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[content] = rules
    return rules


def _compile_lines(content: bytes, check: Check) -> Rules:
    rules: list[_Rule] = []
    plain: list[str] = []
    for line in content.removeprefix(BOM.encode()).decode("utf-8", "replace").split("\n"):
        check()
        line = line.removesuffix("\r")
        with suppress(ValueError):
            found = list(_rules(line))
            rules += found
            plain += _plain(_trim(line), found)
    return Rules(rules, plain[:_MAX_HINTS], check)


def _plain(line: str, rules: list[_Rule]) -> list[str]:
    return [line] if rules and re.fullmatch(r"(?a)[\w.*?/-]{1,200}", line) else []


def _rules(line: str) -> Iterator[_Rule]:
    """Yield the rule of `line`, unless it is blank or a comment. Raises ValueError if it is not a pattern."""
    if len(line) > _MAX_LINE or "\n" in line or not is_text(line):
        raise ValueError("a pattern is one line of text")
    body = _trim(line).removeprefix("!")
    pattern = body.removesuffix("/")
    if pattern and not line.startswith("#"):
        expression = _expression(pattern.removeprefix("/"))
        yield _Rule(expression, not line.startswith("!"), pattern != body, "/" not in pattern)


def _trim(line: str) -> str:
    """A line without the spaces at its end, but for one that is escaped."""
    text = line.rstrip(" ")
    escapes = len(text) - len(text.rstrip("\\"))
    return line[: len(text) + escapes % 2]


_TOKEN: Final = r"(?s)(?P<stars>\*+)|(?P<any>\?)|(?P<set>\[)|\\(?P<escaped>.)|(?P<text>[^*?[\\]+)"


def _expression(pattern: str) -> str:
    """The regular expression of a pattern without marks, as git's wildmatch.c reads it.

    Raises ValueError for a pattern that matches nothing in git, since it ends in the middle of a set or an escape.
    """
    parts, at, match = list[str](), 0, re.compile(_TOKEN).match
    while at < len(pattern):
        token = match(pattern, at)
        if token is None:
            raise ValueError("a backslash takes a character")
        end = token.end()
        if token["stars"]:
            part = _STAR
            ends_segment = end == len(pattern) or pattern.startswith(("/", "\\/"), end)
            if len(token[0]) > 1 and pattern[at - 1 : at] in ("", "/") and ends_segment:
                part, end = (_DIRECTORIES, end + 1) if pattern[end : end + 1] == "/" else (_ANYTHING, end)
        elif token["any"]:
            part = "[^/]"
        elif token["set"]:
            part, end = _set(pattern, end)
        else:
            part = re.escape(token["escaped"] or token["text"])
        parts.append(part)
        at = end
    return _without_backtracking(parts)


_STAR: Final = "[^/]*"
_DIRECTORIES: Final = "(?:[^/]*+/)*?"
_ANYTHING: Final = ".*?"


def _without_backtracking(parts: Sequence[str]) -> str:
    """Join the parts of a pattern, which may come from the tree, so that a match takes its length times that of a path.

    As in a glob, the first place where the text between two stars fits is right and final: a star can skip to any later
    place, up to the next slash. So is the first place of what stands between two `**`, which ends with a slash.
    """
    runs: list[tuple[str, list[str]]] = [("", [""])]
    for part in parts:
        if part in (_DIRECTORIES, _ANYTHING):
            runs.append((part, [""]))
        elif part == _STAR:
            runs[-1][1].append("")
        else:
            runs[-1][1][-1] += part
    written = list[str]()
    for skipped, (first, *middle) in runs:
        last = f"[^/]*{middle.pop()}" if middle else ""
        written.append(skipped + first + "".join(f"(?>[^/]*?{text})" for text in middle) + last)
    return "".join(f"(?>{run})" for run in written[:-1]) + written[-1]


_MEMBER: Final = (
    r"(?sx)\[:(?P<named>[^\]]*):\]"
    r"| (?:\\(?P<escaped>.) | (?P<plain>[^\\])) (?:-(?:\\(?P<after>.) | (?P<last>[^\]\\])))?"
)
_NAMED = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\n\r\r  ",
    "upper": "AZ",
    "xdigit": "09AFaf",
}
"""The first and last characters of the ranges of a named set."""


def _set(pattern: str, at: int) -> tuple[str, int]:
    """The expression of a set whose members begin at an index, and the index after it. Raises ValueError."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    begin, ranges, match = at, list[tuple[str, str]](), re.compile(_MEMBER).match
    while at == begin or pattern[at : at + 1] != "]":
        member = match(pattern, at)
        if member is None or member["named"] not in (None, *_NAMED):
            raise ValueError("a set is closed by ']' and has known names")
        if member["named"]:
            ends = _NAMED[member["named"]]
            ranges += zip(ends[::2], ends[1::2], strict=True)
        else:
            first = member["escaped"] or member["plain"]
            ranges += [(first, first), (first, member["after"] or member["last"] or first)]
        at = member.end()
    # A set never matches a slash, also one within a range.
    around = [pair for low, high in ranges for pair in ((low, min(high, ".")), (max(low, "0"), high))]
    chosen = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in around if low <= high)
    if negated:
        return f"[^/{chosen}]", at + 1
    return (f"[{chosen}]" if chosen else _NOTHING), at + 1


_NOTHING = "(?!)"


def _compile_expression(expression: str) -> _Test:
    if len(expression) > _MAX_EXPRESSION:
        raise ValueError("the expression is too long")
    return re.compile(expression, re.DOTALL).fullmatch


class Ignoring:
    """The paths that one search, which starts at the directory `root`, ignores.

    `rules` apply from the directory `base`, which is `root` or above it. `read`, if given, returns the content of the
    `.gitignore` file at a path, or None. A search that starts in an ignored directory still searches it: the rules from
    above then do not apply. Nothing is read before `prepare`. `check` raises DeadlineError when the search has to end.
    """

    def __init__(
        self,
        base: str,
        root: str,
        rules: Rules,
        read: Callable[[str], bytes | None] | None = None,
        check: Check = _go_on,
    ) -> None:
        self.failed: int = 0
        """The number of files whose rules do not count, since they could not be compiled or were too many."""
        self._base = base
        self._root = root
        self._rules = rules
        self._read = read
        self._check = check
        self._left = _MAX_BYTES
        self._holding: dict[str, _Chain] = {}
        self._ignored: dict[str, bool] = {}

    def prepare(self) -> None:
        """Read and compile the rules that apply at the root; needed before all else. Raises DeadlineError."""
        chain = self._with_own(self._base, _with(self._base, self._rules, ()))
        for directory in _directories_between(self._base, self._root):
            above = () if _is_ignored(chain, directory, is_dir=True) else chain
            chain = self._with_own(directory, above)
        self._ignored[self._root], self._holding[self._root] = False, chain

    def plain(self) -> list[str]:
        """At most 100 patterns that apply at the root: roughly what is ignored beneath it, and some may be wrong."""
        return [line for holding in self._holding[self._root] for line in holding.rules.plain][:_MAX_HINTS]

    def __call__(self, path: str, *, is_dir: bool) -> bool:
        """Whether `path`, beneath the root, or a directory above it is ignored."""
        directory = path if is_dir else paths.parent(path)
        if directory not in self._ignored:
            self._decide(directory)
        if is_dir or self._ignored[directory]:
            return self._ignored[directory]
        return _is_ignored(self._holding[directory], path, is_dir=False)

    def _decide(self, directory: str) -> None:
        """Cache whether a directory and those above it are ignored; a walk has asked about the latter before."""
        known = paths.parent(directory) in self._ignored
        for each in [directory] if known else _directories_between(self._root, directory):
            if each in self._ignored:
                continue
            above = paths.parent(each)
            chain = self._holding[above]
            ignored = self._ignored[above] or _is_ignored(chain, each, is_dir=True)
            self._ignored[each] = ignored
            self._holding[each] = chain if ignored else self._with_own(each, chain)

    def _with_own(self, directory: str, chain: "_Chain") -> "_Chain":
        content = None if self._read is None else self._read(paths.join(directory, GITIGNORE))
        return _with(directory, self._compile(content), chain) if content else chain

    def _compile(self, content: bytes) -> Rules:
        self._check()
        self._left -= len(content)
        if self._left < 0:
            self.failed += 1
            return _NO_RULES
        try:
            return rules_of_file(content, self._check)
        except DeadlineError:
            raise
        except Exception:  # Whatever the engine does with a file of the tree, it must not end the search.
            self.failed += 1
            return _NO_RULES


class _Holding(NamedTuple):
    """Rules, and the length of the prefix to remove from a path to make it relative to their directory."""

    start: int
    rules: Rules


_Chain: TypeAlias = tuple[_Holding, ...]
"""The rules that apply in a directory, nearest first."""


def _with(directory: str, rules: Rules, chain: _Chain) -> _Chain:
    return (_Holding(len(paths.join(directory, "_")) - 1, rules), *chain) if rules else chain


def _is_ignored(chain: _Chain, path: str, *, is_dir: bool) -> bool:
    for start, rules in chain:
        verdict = rules.verdict(path[start:], is_dir=is_dir)
        if verdict is not None:
            return verdict
    return False


def _directories_between(base: str, directory: str) -> list[str]:
    """The directories beneath `base` down to `directory`, itself included."""
    return [each for each in [*paths.ancestors(directory), directory] if paths.is_beneath(each, base)]
