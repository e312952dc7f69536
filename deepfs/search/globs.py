"""Globs over the paths of files, relative to the directory where a search starts.

Braces expand first. Each alternative then follows the rules separately and becomes a sequence of segments, in which
`**` stands for any directories. The segments become a regular expression that does not backtrack: the text between two
stars has a fixed length, so its first fit is as good as any later one. So a pattern never costs more than its length
times that of the path.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import pairwise
from string import ascii_lowercase

from deepfs.errors import InvalidPatternError
from deepfs.text.paths import is_visible, visible_in
from deepfs.text.visible import one_line

MAX_PATTERN = 2048
"""The longest pattern, in characters."""
MAX_ALTERNATIVES = 500
"""The most alternatives that the braces of a pattern may stand for."""
MAX_EXPANDED = 8192
"""The most characters that the alternatives of a pattern may have in total."""
MAX_EXPRESSION = 4096
"""The longest regular expression that a pattern may become: compiling more takes too long on an event loop."""
MAX_SEGMENTS = 100
"""The most segments that one alternative may have."""

_Test = Callable[[str], object]

_ANY = "**"
_NO_DOT = r"(?!\.)"
_NOTHING = "(?!)"
_DIRECTORIES = rf"(?:{_NO_DOT}[^/]++/)"

_TOKEN = r"""(?sx)
      (?P<stars>\*+)
    | (?P<any>\?)
    | \[ (?P<negated>[!^]?+) (?P<members>\]?+ (?:\\[^\w/] | [^]\\/])*+) \]
    | \\ (?P<escaped>[^\w./])
    | (?P<brace>[{},])
    | (?P<text>[^*?[\\{},]+)
"""


class _RefusedGlobError(Exception):
    """A pattern is refused; the message is the reason."""


_NAME_IN_BRACKETS = r"(?<![^/])\[\[?(?:\.\.\.)?(?P<name>[^\W\d]\w+(?:-\w{2,})*)\]\]?(?=[/.]|\Z)"


def literal_brackets(pattern: str) -> str:
    """How to write a glob if its brackets belong to names, as in `[slug]`; `""` if it has none but escaped ones."""
    literal = re.sub(r"\\.|[\[\]]", lambda sign: sign[0] if len(sign[0]) > 1 else f"\\{sign[0]}", pattern)
    return "" if literal == pattern else f"If the brackets are part of a name, write {one_line(literal, 100)}"


def brackets_read_as_name(pattern: str) -> bool:
    """Whether a part of `pattern` reads as a name in brackets, as in `/app/[slug]/page.tsx`, and not as a set.

    Letters of the alphabet in a row, such as `[abc]`, both cases of one letter, and ranges read as sets.
    """
    names = (found["name"].lower() for found in re.finditer(_NAME_IN_BRACKETS, pattern))
    return any(len({*name}) > 1 and name not in ascii_lowercase for name in names)


@lru_cache(maxsize=256)
def compile_glob(pattern: str) -> "GlobPattern":
    r"""The matcher of `pattern`.

    - Without `/`, a pattern is about the name of a file at any depth; with one, about its whole path from where the
      search starts. A leading `/` only anchors. `//` and `.` segments collapse.
    - `*` and `?` stand for any characters and one character within a name, `[a-z]` for one of a set, `[!a]` and `[^a]`
      for one outside it, `{a,b}` for either; braces nest and may hold `/`. `**` as a whole segment stands for any
      number of directories, none included; as the last one, for everything beneath. Elsewhere it is `*`.
    - A name that starts with `.` is only matched by a segment that starts with `.`; so `**`, and a pattern without `/`,
      do not enter such directories.
    - `\` takes the next character as it is. Letters differ by case.

    Refused with `InvalidPatternError`, since to match nothing in silence would mislead: an empty pattern, a `..`
    segment, NUL and lone surrogates, a `[`, `{` or `}` without its partner, braces without a comma, `[z-a]`,
    `[[:alpha:]]`, a leading `!`, a `\` before a letter, digit, `_`, `.` or `/` (a Windows path, more likely), a `/` at
    the end (only files are matched), and what exceeds the limits above.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a glob pattern is a string, not {type(pattern).__name__}")
    try:
        _check_text(pattern)
        return GlobPattern(pattern, [_segments(alternative) for alternative in _expand(pattern)])
    except _RefusedGlobError as refusal:
        raise InvalidPatternError(pattern, str(refusal), kind="glob pattern") from None


@lru_cache(maxsize=1024)
def compile_tree(pattern: str, *, is_relative: bool = False) -> "Tree":
    """The matcher of a pattern for absolute paths of files and directories, for rules about a tree.

    The syntax is that of `compile_glob`, with three differences: names that start with `.` are names like any other,
    `/a/**` includes `/a` itself, and `/a/` is the same as `/a/**`. A pattern that starts with no `/` is refused, unless
    it `is_relative`: then it is about a name at any depth if no `/` is before its end, and else about a whole path.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern of paths is a string, not {type(pattern).__name__}")
    try:
        _check_text(pattern)
        return Tree(pattern, list(_trees(pattern, is_relative=is_relative)))
    except _RefusedGlobError as refusal:
        raise InvalidPatternError(pattern, str(refusal), kind="pattern of paths") from None


def _trees(pattern: str, *, is_relative: bool) -> Iterator[list[str]]:
    """Yield the segments of each alternative of a pattern of paths; an empty list stands for the root."""
    for alternative in _expand(pattern):
        directory = alternative.rstrip("/")
        if not is_relative and not alternative.startswith("/"):
            raise _RefusedGlobError("it must start with '/'")
        if not directory and not is_relative:
            yield []
        elif directory and directory != alternative:
            yield _segments(f"{directory}/**" if "/" in directory else f"**/{directory}/**")
        else:
            yield _segments(alternative)


class Tree:
    """A compiled pattern of paths, from `compile_tree`. Paths are absolute and normalised."""

    def __init__(self, pattern: str, alternatives: list[list[str]]) -> None:
        self.pattern: str = pattern
        self._has_root = [] in alternatives
        self._has_all = [_ANY, "*"] in alternatives  # `/**`, which stands for the root too.
        tops = [segments[:-2] for segments in alternatives if segments[-2:] == [_ANY, "*"] and len(segments) > 2]
        others = [segments for segments in alternatives if segments and segments[-2:] != [_ANY, "*"]]
        named_tops = map(_path_expression, tops)
        self._covers = _compile_tree([(above, f"{last}(?:/.+)?") for above, last in named_tops])
        fits = _compile_tree([_path_expression(segments) for segments in others])
        self._fits = [test for test, patterns in ((self._covers, tops), (fits, others)) if patterns]
        self._leads_on = _compile_ways([segments for segments in alternatives if segments], _compile_tree)
        self.endings: tuple[str, ...] = tuple({_literal_suffix(segments[-1]) for segments in (*tops, *others)})
        """Each path that matches ends with one of these, unless the pattern `covers` the directory that it is in."""

    def __repr__(self) -> str:
        return f"Tree({self.pattern!r})"

    def matches(self, path: str) -> bool:
        """Whether the pattern matches `path`."""
        if self._has_all or path == "/":
            return self._has_all or self._has_root
        return any(fits(path[1:]) for fits in self._fits)

    def covers(self, directory: str) -> bool:
        """Whether the pattern matches `directory` and everything beneath it; True is certain, False is not."""
        return self._has_all or (directory != "/" and bool(self._covers(directory[1:])))

    def may_match_beneath(self, directory: str) -> bool:
        """Whether the pattern could match a path beneath `directory`; False is certain, True is not."""
        return bool(self._leads_on("" if directory == "/" else f"{directory[1:]}/"))


class GlobPattern:
    """A compiled pattern, from `compile_glob`. Paths are relative to where the search starts, without leading `/`."""

    def __init__(self, pattern: str, alternatives: list[list[str]]) -> None:
        self.pattern = pattern
        self._alternatives = alternatives
        endings = tuple({_literal_suffix(segments[-1]) for segments in alternatives})
        # `endswith` takes one text in half the time that it takes for a tuple of one.
        self._ending: str | tuple[str, ...] = endings[0] if len(endings) == 1 else endings
        # Such patterns may have more alternatives than fit into an expression.
        self._is_ending_only = all(map(_is_ending_only, alternatives))
        self._fits = is_visible if self._is_ending_only else _compile(map(_path_expression, alternatives))

    def __repr__(self) -> str:
        return f"Glob({self.pattern!r})"

    def matches(self, relative: str) -> bool:
        """Whether the pattern matches the file at `relative`."""
        return relative.endswith(self._ending) and bool(self._fits(relative))

    def may_enter(self, relative_directory: str) -> bool:
        """Whether a file at any depth beneath `relative_directory` could match; False is certain, True is not."""
        return not relative_directory or bool(self._leads_on(f"{relative_directory}/"))

    def select(self, relative_directory: str, names: Iterable[str]) -> list[str]:
        """The files `names` of `relative_directory`, which ends in `/`, that the pattern matches."""
        ending = self._ending
        found = [name for name in names if name.endswith(ending)]
        if not found:
            return found
        if self._is_ending_only:
            return visible_in(relative_directory, found)
        return [name for name in found if self._fits(relative_directory + name)]

    def enterable(self, relative_directory: str, names: Iterable[str]) -> list[str]:
        """Those of the directories `names` that `may_enter` enters; `relative_directory` ends in `/`."""
        if self._is_ending_only:
            return visible_in(relative_directory, names)
        return [name for name in names if self._leads_on(f"{relative_directory}{name}/")]

    def beneath(self, relative_directory: str) -> tuple[str, ...]:
        """Patterns relative to `relative_directory` for the files beneath it that this pattern matches.

        Usually one; several if one would exceed the limits, and none if this pattern can match no file there.
        """
        names = relative_directory.split("/")
        rests = [_write_pattern(rest) for segments in self._alternatives for rest in _remainders(segments, names)]
        return _join_patterns(list(dict.fromkeys(rests)))

    @cached_property
    def literals(self) -> tuple[tuple[str, ...], ...]:
        """For each alternative, the texts before, between and after its wildcards, in this order.

        They are about matching paths with a `/` before them: such a path starts with the first text of one of the
        alternatives, contains all its texts and ends with the last one. A text may be empty, but the first starts with
        `/`.
        """
        return tuple(tuple(_literals(segments)) for segments in self._alternatives)

    @cached_property
    def _leads_on(self) -> _Test:
        return _compile_ways(self._alternatives, _compile)


def _check_text(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise _RefusedGlobError(f"it has {len(pattern):,} characters, the limit is {MAX_PATTERN:,}")
    if "\0" in pattern or any("\ud800" <= character <= "\udfff" for character in pattern):
        raise _RefusedGlobError("it holds a NUL or a lone surrogate, which no path does")


def _tokens(pattern: str) -> Iterator[re.Match[str]]:
    match, at = re.compile(_TOKEN).match, 0
    while at < len(pattern):
        token = match(pattern, at)
        if token is None:
            raise _RefusedGlobError(_why_no_token(pattern[at]))
        yield token
        at = token.end()


def _why_no_token(character: str) -> str:
    if character == "[":
        return r"'[' opens no set; close it with ']' before any '/', or write '\[' for the character"
    return r"'\' only goes before a special character; separate names with '/'"


def _expand(pattern: str) -> list[str]:
    """Expand the braces of `pattern`. Empty alternatives are dropped unless all are empty; escapes stay escaped."""
    current, enclosing = [""], list[tuple[list[str], list[str]]]()
    for token in _tokens(pattern):
        if token["brace"] == "{":
            enclosing.append((current, []))
            current = [""]
        elif token["brace"] == "," and enclosing:
            enclosing[-1][1].extend(current)
            current = [""]
        elif token["brace"] == "}":
            current = _close_braces(current, enclosing)
        else:
            # A comma outside braces is only a comma, and must stay one when `_join_patterns` puts braces around it.
            addition = r"\," if token["brace"] else token[0]
            current = [text + addition for text in current]
        if sum(map(len, current)) > MAX_EXPANDED:
            raise _RefusedGlobError(f"its braces stand for more than {MAX_EXPANDED:,} characters")
    if enclosing:
        raise _RefusedGlobError(r"'{' is not closed; write '\{' for the character")
    return [text for text in current if text] or [""]


def _close_braces(last: list[str], enclosing: list[tuple[list[str], list[str]]]) -> list[str]:
    """Return the alternatives so far, after the innermost braces ended with the options `last`."""
    if not enclosing:
        raise _RefusedGlobError(r"'}' closes nothing; write '\}' for the character")
    before, options = enclosing.pop()
    if not options:
        raise _RefusedGlobError(r"braces need a comma, as in '{a,b}'; write '\{' and '\}' for the characters")
    options.extend(last)
    if len(before) * len(options) > MAX_ALTERNATIVES:
        raise _RefusedGlobError(f"its braces stand for more than {MAX_ALTERNATIVES:,} alternatives")
    return [start + option for start in before for option in options]


def _segments(alternative: str) -> list[str]:
    """Split an alternative into segments to match from the start; no two `**` in a row, and none at the end."""
    if re.search(r"(?:\A|[/\\])\.\.(?:/|\\[*?]|\Z)", alternative):
        raise _RefusedGlobError("'..' is not allowed; the pattern is relative to where the search starts")
    if alternative.startswith("!"):
        raise _RefusedGlobError(r"exclusion with '!' is not supported; write '\!' for the character")
    written = alternative.split("/")
    named = [segment for segment in written if segment not in ("", ".")]
    if not named:
        raise _RefusedGlobError("it names no file")
    if written[-1] != named[-1]:
        raise _RefusedGlobError("only files are matched; write '/**' at the end for all files in a directory")
    if len(named) > MAX_SEGMENTS:
        raise _RefusedGlobError(f"it has more than {MAX_SEGMENTS} segments")
    start = [] if len(written) > 1 else [_ANY]
    end = ["*"] if named[-1] == _ANY else []
    segments = [*start, *named, *end]
    return [segment for before, segment in pairwise(["", *segments]) if (before, segment) != (_ANY, _ANY)]


def _literal_suffix(segment: str) -> str:
    """The literal text at the end of every name that `segment` matches."""
    *_, last = _tokens(segment)
    return last["text"] or last["escaped"] or ""


def _literals(segments: list[str]) -> list[str]:
    texts = [""]
    for segment in segments:
        texts[-1] += "/"
        for token in _tokens(segment):
            if token["stars"] or token["any"] or token["members"]:
                texts.append("")
            else:
                texts[-1] += token["escaped"] or token[0]
    return texts


def _compile(expressions: Iterable[tuple[str, str]]) -> _Test:
    """Compile expressions into one test, each in two parts: those that begin alike are written once."""
    endings: dict[str, dict[str, None]] = {}
    for beginning, ending in expressions:
        endings.setdefault(beginning, {})[ending] = None
    whole = "|".join(f"{beginning}(?:{'|'.join(ends)})" for beginning, ends in endings.items())
    if len(whole) > MAX_EXPRESSION:
        raise _RefusedGlobError("it stands for too much; use fewer alternatives and wildcards, or several patterns")
    return re.compile(whole or _NOTHING, re.DOTALL).fullmatch


def _compile_tree(expressions: Iterable[tuple[str, str]]) -> _Test:
    """Compile the expressions into one test, which also accepts names that start with a dot."""
    return _compile((above.replace(_NO_DOT, ""), last.replace(_NO_DOT, "")) for above, last in expressions)


def _compile_ways(alternatives: list[list[str]], compile_all: Callable[[Iterable[tuple[str, str]]], _Test]) -> _Test:
    """Compile the test of the directories that lead on to matches. Where it would be too long, all of them do."""
    try:
        return compile_all(map(_way_expression, alternatives))
    except _RefusedGlobError:
        return lambda _: True


def _is_ending_only(segments: list[str]) -> bool:
    return len(segments) == 2 and segments[0] == _ANY and segments[1] == f"*{_literal_suffix(segments[1])}"


def _path_expression(segments: list[str]) -> tuple[str, str]:
    """Build the expression for the paths of files that `segments` match, and apart from it that of their names."""
    head, *runs = _runs(segments)
    *above, last = runs[-1] if runs else head
    way = f"{_all(head)}{''.join(map(_passage, runs[:-1]))}{_DIRECTORIES}*" if runs else ""
    guard = _NO_DOT if last.startswith(_NO_DOT) else ""
    return f"{way}{_all(above)}{guard}", last.removeprefix(guard)


def _way_expression(segments: list[str]) -> tuple[str, str]:
    """Build the expression for the directories, with `/` at the end, beneath which `segments` could match a file.

    The first `**` takes all directories that have no dot-names, so what follows it matters as far as it demands some.
    """
    head, *runs = _runs(segments)
    if not runs:
        return "", _match_some(head[:-1])
    *middle, last = runs
    way = anything = f"{_DIRECTORIES}*"
    if _names_dots(last[:-1]):
        way += _match_some(last[:-1])
    for run in reversed(middle):
        if way != anything or _names_dots(run):
            way = f"(?:{_passage(run)}{way}|{anything}{_match_some(run[:-1])})"
    return "", _match_some(head, way)


def _names_dots(run: list[str]) -> bool:
    return any(segment.startswith(r"\.") for segment in run)


def _passage(run: list[str]) -> str:
    """Build the expression for the directories that `**` and all of `run` match, if another `**` follows.

    As with the text between stars, the first place where `run` fits is right and final: `run` has a fixed number of
    segments, and if one of them demands a dot-name, which `**` cannot skip, `run` fits in one place only.
    """
    return f"(?>{_DIRECTORIES}*?{_all(run)})"


def _all(run: list[str]) -> str:
    return "".join(f"{segment}/" for segment in run)


def _match_some(run: list[str], end: str = "") -> str:
    """Build the expression for the directories that a first part of `run` matches, or all of `run` and then `end`."""
    for segment in reversed(run):
        end = f"(?:{segment}/{end})?"
    return end


def _runs(segments: list[str]) -> list[list[str]]:
    """Split `segments` at each `**`, and return the expressions of the segments in each part."""
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == _ANY:
            runs.append([])
        else:
            runs[-1].append(_segment_expression(segment))
    return runs


@lru_cache(maxsize=1024)
def _segment_expression(segment: str) -> str:
    first, *rest = _parts_between_stars(segment)
    guard = "" if segment.startswith(".") else _NO_DOT
    if not rest:
        return guard + first
    *middle, last = rest
    return guard + first + "".join(f"(?>[^/]*?{part})" for part in middle) + f"[^/]*{last}"


def _parts_between_stars(segment: str) -> list[str]:
    """The expressions of the parts of a segment before, between and after its stars."""
    parts = [""]
    for token in _tokens(segment):
        if token["stars"]:
            parts.append("")
        elif token["any"]:
            parts[-1] += "[^/]"
        elif token["members"]:
            parts[-1] += _set_expression(token["negated"], token["members"])
        else:
            parts[-1] += re.escape(token["escaped"] or token[0])
    return parts


_MEMBER = r"(?s)\\?(?P<first>.)(?:-\\?(?P<last>.))?"


def _set_expression(negated: str, members: str) -> str:
    if re.search(r"\[:\w*:\Z", members):
        raise _RefusedGlobError("named sets such as '[[:alpha:]]' are not supported; write '[A-Za-z]'")
    ranges = "".join(_range_expression(member) for member in re.finditer(_MEMBER, members))
    return f"[^/{ranges}]" if negated else f"(?!/)[{ranges}]"


def _range_expression(member: re.Match[str]) -> str:
    first, last = member["first"], member["last"] or member["first"]
    if first > last:
        raise _RefusedGlobError(f"the range '{member[0]}' is the wrong way round")
    return f"{re.escape(first)}-{re.escape(last)}"


def _remainders(segments: list[str], names: list[str]) -> list[list[str]]:
    """The possible rests of `segments`, after the first ones have matched directories with these `names`."""
    alive = {0}
    for name in names:
        alive = {after for at in alive for after in _after(segments, at, name)}
    return [segments[at:] for at in sorted(alive)]


def _after(segments: list[str], at: int, name: str) -> Iterator[int]:
    """Yield each index from which to go on after `name`, starting at index `at`; a `**` takes `name` or is skipped."""
    if segments[at] == _ANY:
        if is_visible(name):
            yield at
        at += 1
    if at + 1 < len(segments) and re.fullmatch(_segment_expression(segments[at]), name, re.DOTALL):
        yield at + 1


def _write_pattern(segments: list[str]) -> str:
    text = "/".join(segments)
    return text if segments[0] == _ANY else f"/{text}"


def _join_patterns(patterns: list[str]) -> tuple[str, ...]:
    """Join `patterns` into one with braces, if that stays within the limits."""
    joined = f"{{{','.join(patterns)}}}"
    if len(patterns) > 1:
        with suppress(InvalidPatternError):
            return (compile_glob(joined).pattern,)
    return tuple(patterns)
