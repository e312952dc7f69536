r"""The literal texts that every match of a search contains, so that an index can name the files to search.

All answers are conservative: what is not understood yields no text, and so more candidates. The query and the file
filter must still check each candidate. A file that is not text can match too, and then counts as skipped; so an index
that has only text must name all other files.

A text without a line break that is found in content after `\r\n` became `\n` and the BOM was removed stands in the
stored content as well. Yet indexes may store such characters differently, so no text contains a carriage return or a
BOM, nor NUL or a surrogate, which no text file has.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

from deepfs.operations import Grep as GrepRequest

if TYPE_CHECKING:
    from deepfs.search.request import FileFilter

Clause: TypeAlias = tuple[str, ...]
"""Alternatives, of which at least one occurs."""

_MAX_PATTERN: Final = 2048
"""The longest regular expression that is parsed, in characters. Of longer literal patterns the beginning is used."""
_MAX_CLAUSES: Final = 16
_MAX_ALTERNATIVES: Final = 64
_MAX_LITERAL: Final = 256
"""The longest text in a clause, in characters."""
_MAX_RUN: Final = 2048
"""The most characters that the alternatives of a clause may have in total, if they result from multiplication."""
_MAX_SET: Final = 4
"""The most characters of a set such as `[Ff]` that become alternatives."""


def required_text(request: GrepRequest) -> tuple[Clause, ...]:
    """Return what the content of every file that `compile_query(request)` finds must contain.

    Args:
        request: The search. Its pattern may be invalid; then the answer means nothing.

    Returns:
        Clauses that all hold for the stored content of each file with a match, as text or as UTF-8; none if nothing is
        known. Where `folds_case` is True, they are in lower case, and hold if ASCII case does not count and U+212A
        (Kelvin sign) is taken for `k` and U+017F (long s) for `s`, as RE2 does.
    """
    folds = folds_case(request)
    if not request.regex:
        runs = (_FOLDED_RUN if folds else _RUN).findall(request.pattern[:_MAX_PATTERN])
        return _simplify((run.lower() if folds else run,) for run in runs)
    if len(request.pattern) > _MAX_PATTERN:
        return ()
    try:
        return _simplify(_Parser(request.pattern, folds=folds).parse().required_clauses())
    except _UnknownSyntaxError:
        return ()


def folds_case(request: GrepRequest) -> bool:
    """Whether texts must be compared ignoring ASCII case, since the search or a part of it ignores case."""
    return request.ignore_case or (request.regex and _FOLDS.search(request.pattern) is not None)


class PathNeeds(Struct, frozen=True):
    """What the paths of all files that a search selects beneath its root have in common. Case matters."""

    prefix: str
    """All paths start with it. It starts with the root and the `/` after it."""
    clauses: tuple[Clause, ...] = ()
    """What the paths contain; one of the alternatives of each."""
    suffix: Clause = ()
    """All paths end with one of these; empty if nothing is known."""


def path_needs(files: "FileFilter") -> PathNeeds:
    """Return what the paths of all selected files beneath `files.root` have in common.

    Args:
        files: The selection. Its root may be a file that is selected itself: the answer says nothing about that path.

    Returns:
        Only the prefix is known for a selection without a glob.
    """
    above = files.root.rstrip("/")
    if files.glob is None:
        return PathNeeds(f"{above}/")
    alternatives = files.glob.literals
    start = _common_start([texts[0] for texts in alternatives])
    suffix = _distinct(texts[-1][-_MAX_LITERAL:] for texts in alternatives)
    if "" in suffix or len(suffix) > _MAX_ALTERNATIVES:
        suffix = ()
    return PathNeeds(above + start, _path_clauses(alternatives, start, suffix), suffix)


def _common_start(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    differing = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differing, len(first))]


def _path_clauses(alternatives: Iterable[tuple[str, ...]], start: str, suffix: Clause) -> tuple[Clause, ...]:
    """The texts that all alternatives have, then one of each, then `suffix`; without those that `start` implies."""
    told = [_distinct(text[:_MAX_LITERAL] for text in texts if text not in start) for texts in alternatives]
    shared = [text for text in told[0] if all(text in texts for texts in told)]
    longest = [max((text for text in texts if text not in shared), key=len, default="") for texts in told]
    clauses = [*((text,) for text in shared), _distinct(longest), suffix]
    return _simplify(clause for clause in clauses if clause and not any(text in start for text in clause))


# --- clauses ----------------------------------------------------------------------------------------------------------


def _distinct(texts: Iterable[str]) -> Clause:
    return tuple(dict.fromkeys(texts))


def _worth(clause: Clause) -> tuple[int, int]:
    return min(map(len, clause)), -len(clause)


def _best(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """As many of the clauses as are allowed, in their order: those whose shortest alternative is longest."""
    distinct = list(dict.fromkeys(clauses))
    if len(distinct) <= _MAX_CLAUSES:
        return tuple(distinct)
    kept = set(sorted(distinct, key=_worth, reverse=True)[:_MAX_CLAUSES])
    return tuple(clause for clause in distinct if clause in kept)


def _simplify(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """The best clauses, without the alternatives that contain another one."""
    allowed = (clause for clause in clauses if len(clause) <= _MAX_ALTERNATIVES)
    return _best(
        tuple(text for text in clause if not any(other in text for other in clause if other != text))
        for clause in _best(allowed)
    )


# --- regular expressions ----------------------------------------------------------------------------------------------

_FOLDS = re.compile(r"\(\?[imsU]*i")
"""Where an expression starts to ignore case. It may find other places too, but misses none."""

_RUN = re.compile(rf"[^\0\n\r\ufeff\ud800-\udfff]{{1,{_MAX_LITERAL}}}")
"""A text that indexes store as it is."""
_FOLDED_RUN = re.compile(rf"[\x01-\x09\x0b\x0c\x0e-\x7f]{{1,{_MAX_LITERAL}}}")
"""The same if case is ignored: letters beyond ASCII have other cases in RE2 than elsewhere."""

_CHARACTER = r"""
      \\ (?P<octal> [1-7][0-7]{1,2}+ | 0[0-7]{0,2}+ )
    | \\x (?: (?P<hex> [0-9A-Fa-f]{2} ) | \{ (?P<code> [0-9A-Fa-f]++ ) \} )
    | \\ (?P<control> [aftnrv] )
    | \\ (?P<escaped> [\0-/:-@\[-`{-\x7f] )
"""
_TOKEN = re.compile(
    rf"""
      (?P<open> \( (?! \? ) | \(\? (?: [imsU]*+ (?: -[imsU]++ )? : | P?<\w++> ) )
    | (?P<flags> \(\? [imsU]*+ (?: -[imsU]++ )? \) )
    | (?P<close> \) )
    | (?P<bar> \| )
    | (?P<repeat> [*+?] | \{{ (?: 0 | [1-9][0-9]*+ ) (?: , (?: 0 | [1-9][0-9]*+ )? )? \}} ) \??+
    | (?P<nowhere> [\^$] | \\[AzbB] )
    | \\Q (?P<quoted> .*? ) (?: \\E | \Z )
    | (?P<unknown> \. | \\[dswDSWC] | \\[pP] (?: \{{ [^}}]*+ \}} | [^{{] ) )
    | \[ (?P<set> \^?+ \]?+ (?: \[:\^?+[a-z]++:\] | \\. | [^\]\\] )*+ ) \]
    | {_CHARACTER}
    | (?P<plain> [^\\.^$*+?()\[{{|] | \{{ (?! \s* [0-9,] ) )
    """,
    re.DOTALL | re.VERBOSE,
)
_MEMBER = re.compile(rf"{_CHARACTER} | (?P<plain> [^\\] )", re.DOTALL | re.VERBOSE)
_CONTROLS: Final = dict(zip("aftnrv", "\a\f\t\n\r\v", strict=True))


class _UnknownSyntaxError(Exception):
    """The expression is invalid, or has something that the parser does not know."""


class _Part(NamedTuple):
    """What is known of the texts that a part of an expression matches."""

    texts: Clause = ()
    """All of them if they are few. Else empty."""
    clauses: tuple[Clause, ...] = ()
    """What all of them contain, if they are not known."""
    may_go_on: bool = False
    """Whether a match may go on with other text after one of `texts`."""

    def repeat(self, *, may_be_left_out: bool) -> "_Part":
        return _Part() if may_be_left_out else self._replace(may_go_on=True)

    def required_clauses(self) -> tuple[Clause, ...]:
        return (self.texts,) if self.texts and "" not in self.texts else self.clauses


_NOWHERE: Final = _Part(("",))
"""What matches a place, such as `^`."""


class _Sequence:
    """Parts that follow each other. Texts of adjacent parts join to runs."""

    def __init__(self) -> None:
        self._run: Clause = ("",)
        self._clauses: list[Clause] = []
        self._is_whole = True
        self._last = _NOWHERE

    def add(self, part: _Part) -> None:
        self._append(self._last)
        self._last = part

    def repeat_last(self, *, may_be_left_out: bool) -> None:
        self._last = self._last.repeat(may_be_left_out=may_be_left_out)

    def join(self) -> _Part:
        self.add(_NOWHERE)
        if self._is_whole:
            return _Part(self._run)
        self._end_run()
        return _Part(clauses=_best(self._clauses))

    def _append(self, part: _Part) -> None:
        if part.texts:
            self._extend_run(part.texts)
        else:
            self._end_run()
            self._clauses += part.clauses
        if part.may_go_on:
            self._end_run()

    def _extend_run(self, texts: Clause) -> None:
        count = len(self._run) * len(texts)
        length = max(map(len, self._run)) + max(map(len, texts))
        if count > _MAX_ALTERNATIVES or length > _MAX_LITERAL or (count > 1 and count * length > _MAX_RUN):
            self._end_run()
        self._run = _distinct(run + text for run in self._run for text in texts)

    def _end_run(self) -> None:
        if "" not in self._run:
            self._clauses.append(self._run)
        self._run = ("",)
        self._is_whole = False


def _either(parts: list[_Part]) -> _Part:
    """What is known of a match of one of `parts`."""
    if len(parts) == 1:
        return parts[0]
    required = [max(part.required_clauses(), key=_worth, default=()) for part in parts]
    texts = _distinct(text for part in parts for text in part.texts)
    if len(texts) <= _MAX_ALTERNATIVES and all(part.texts for part in parts):
        return _Part(texts)
    longest = _distinct(text for clause in required for text in clause)
    return _Part(clauses=(longest,)) if len(longest) <= _MAX_ALTERNATIVES and all(required) else _Part()


class _Parser:
    """Reads an expression in the syntax of RE2 from left to right, without recursion."""

    def __init__(self, pattern: str, *, folds: bool) -> None:
        self._pattern = pattern
        self._folds = folds
        self._is_safe = (_FOLDED_RUN if folds else _RUN).fullmatch
        self._enclosing: list[tuple[list[_Part], _Sequence]] = []
        self._alternatives: list[_Part] = []
        self._sequence = _Sequence()

    def parse(self) -> _Part:
        """Return what is known of a match. Raises _UnknownSyntaxError."""
        for token in self._tokens():
            self._take(token)
        if self._enclosing:
            raise _UnknownSyntaxError
        return self._end()

    def _tokens(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self._pattern):
            token = _TOKEN.match(self._pattern, at)
            if token is None:
                raise _UnknownSyntaxError
            yield token
            at = token.end()

    def _take(self, token: re.Match[str]) -> None:
        if token["open"]:
            self._enclosing.append((self._alternatives, self._sequence))
            self._alternatives, self._sequence = [], _Sequence()
        elif token["close"]:
            self._close_group()
        elif token["bar"]:
            self._alternatives.append(self._sequence.join())
            self._sequence = _Sequence()
        elif token["repeat"]:
            self._sequence.repeat_last(may_be_left_out=token["repeat"].startswith(("*", "?", "{0")))
        elif token["quoted"] is not None:
            for character in token["quoted"]:
                self._sequence.add(self._one_of({character}))
        elif not token["flags"]:
            self._sequence.add(self._atom(token))

    def _close_group(self) -> None:
        if not self._enclosing:
            raise _UnknownSyntaxError
        part = self._end()
        self._alternatives, self._sequence = self._enclosing.pop()
        self._sequence.add(part)

    def _end(self) -> _Part:
        return _either([*self._alternatives, self._sequence.join()])

    def _atom(self, token: re.Match[str]) -> _Part:
        if token["nowhere"]:
            return _NOWHERE
        if token["unknown"]:
            return _Part()
        return self._one_of({_character(token)} if token["set"] is None else _members(token["set"]))

    def _one_of(self, characters: set[str]) -> _Part:
        """What is known of one of `characters`; nothing if there are none, too many, or some that are not safe."""
        if len(characters) > _MAX_SET or not all(map(self._is_safe, characters)):
            return _Part()
        return _Part(tuple(sorted({character.lower() if self._folds else character for character in characters})))


def _members(written: str) -> set[str]:
    """Return the characters of a set such as `[ab]`; empty if it has a range or a class, or is negated."""
    if written.startswith("^") or "[:" in written or "-" in written[1:-1]:
        return set()
    characters, at = set[str](), 0
    while at < len(written):
        member = _MEMBER.match(written, at)
        if member is None:
            return set()
        characters.add(_character(member))
        at = member.end()
    return characters


def _character(token: re.Match[str]) -> str:
    """Return the character that a token stands for. Raises _UnknownSyntaxError."""
    if token["control"]:
        return _CONTROLS[token["control"]]
    if token["octal"]:
        return chr(int(token["octal"], 8))
    digits = token["hex"] or token["code"]
    if not digits:
        return token["escaped"] or token["plain"]
    if int(digits, 16) > sys.maxunicode:
        raise _UnknownSyntaxError
    return chr(int(digits, 16))
