"""What is found: glob, find, grep."""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import click
from anyio import to_thread
from msgspec.structs import replace

from deepfs.cli.listing import find_levels
from deepfs.cli.screen import count_noun
from deepfs.cli.session import AddressedPlace, Session, addresses_argument, in_session, json_option
from deepfs.errors import NotSupportedError
from deepfs.operations import Grep
from deepfs.search.query import MAX_LINE, Query, compile_query, search
from deepfs.storage.gathering import gather_each
from deepfs.text import paths
from deepfs.text.visible import visible
from deepfs.types import ContextLine, FileInfo, GrepMatch, GrepResult

# --- glob ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("pattern")
@addresses_argument
@json_option
@in_session(trouble=2)
async def glob(session: Session, pattern: str, addresses: tuple[str, ...]) -> None:
    """Find files whose paths match a pattern, such as '*.py' or 'src/**/*.{ts,tsx}'.

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    places = [await session.place(text) for text in addresses or [""]]
    results = await gather_each(lambda place: place.backend.aglob(pattern, place.path), places)
    session.status = 1
    for place, result in zip(places, results, strict=True):
        if not session.check(result, place, status=2):
            continue
        for entry in result.matches or ():
            session.status = session.status if session.status == 2 else 0
            path = place.display(entry.path)
            session.json({**entry, "path": path}) if session.as_json else session.screen.line(session.screen.name(path))
        if result.truncated:
            session.report(f"{place.address.shown}: there are more; the search ended early", status=2)


# --- find ------------------------------------------------------------------------------------------------------------

_UNITS: Final = {"": 512, "b": 512, "c": 1, "k": 1024, "M": 1024**2, "G": 1024**3}
_DAY_SECONDS: Final = 24 * 3600


class _Bound(click.ParamType["tuple[int, int, int]"]):
    """`N`, `+N` or `-N`, with a unit if there are `units`: exactly, more than or less than so many of it."""

    name = "number"

    def __init__(self, units: dict[str, int]) -> None:
        self._units = units

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, int, int]:
        found = re.fullmatch(r"([+-]?)(\d{1,18})(\D?)", value)
        if found is None or found[3] not in self._units:
            units = "".join(self._units)
            self.fail(f"{value!r} is not [+-]N{f'[{units}]' if units else ''}", parameter, context)
        number = int(found[2])
        least, most = {"": (number, number), "+": (number + 1, sys.maxsize), "-": (-sys.maxsize, number - 1)}[found[1]]
        return least, most, self._units[found[3]]


@click.command()
@addresses_argument
@click.option("-name", "--name", metavar="PATTERN", help="Names that match, such as '*.py'.")
@click.option("-type", "--type", "kind", type=click.Choice(["f", "d"]), help="Files only, or directories only.")
@click.option("-size", "--size", type=_Bound(_UNITS), metavar="[+-]N[ckMG]", help="Files of such a size, rounded up.")
@click.option("-mtime", "--mtime", type=_Bound({"": 1}), metavar="[+-]N", help="What changed so many days ago.")
@click.option("-maxdepth", "--maxdepth", metavar="N", type=click.IntRange(0), help="Go so many levels down.")
@json_option
@in_session()
async def find(session: Session, addresses: tuple[str, ...], maxdepth: int | None, **given: Any) -> None:
    """Find files and directories by name, type, size and time, hidden ones too; all that is given must hold.

    Links to directories are not entered.
    """
    tests = _Tests(**given, now=time.time())
    for text in addresses or [""]:
        place = await session.place(text)
        for entry in await _walk(session, place, maxdepth):
            if not tests.hold(entry):
                continue
            path = place.display(entry.path.rstrip("/") or "/")
            session.json({**entry, "path": path}) if session.as_json else session.screen.line(session.screen.name(path))


async def _walk(session: Session, place: AddressedPlace, depth: int | None) -> list[FileInfo]:
    """What is at and under a place, each directory before what is in it. What cannot be listed is reported."""
    beside = await place.backend.als(paths.parent(place.path))
    top = [entry for entry in beside.entries or () if entry.path.rstrip("/") == place.path]
    if top and not top[0].is_dir:
        return top
    if not top and not session.check(await place.backend.als(place.path), place):
        return []
    levels = await find_levels(session, place, depth=depth, hidden=True, trouble=1)
    found, pending = [], top or [FileInfo(place.path, is_dir=True)]
    while pending:
        found.append(entry := pending.pop())
        if entry.is_dir:
            pending += reversed(levels.get(entry.path.rstrip("/") or "/", ()))
    return found


class _Tests(NamedTuple):
    """What `find` is given; the help of its options says what these mean."""

    name: str | None
    kind: str | None
    size: tuple[int, int, int] | None
    mtime: tuple[int, int, int] | None
    now: float

    def hold(self, entry: FileInfo) -> bool:
        """Whether all hold for an entry. What is not known of it matches nothing."""
        if self.name is not None and not fnmatchcase(paths.name(entry.path.rstrip("/") or "/"), self.name):
            return False
        if self.kind is not None and bool(entry.is_dir) != (self.kind == "d"):
            return False
        if self.size is not None and not _lies_in(self.size, None if entry.is_dir else entry.size, rounds_up=True):
            return False
        if self.mtime is None:
            return True
        when = entry.modified_at and datetime.fromisoformat(entry.modified_at).timestamp()
        return _lies_in(self.mtime, int(self.now - when) // _DAY_SECONDS if when else None)


def _lies_in(bound: tuple[int, int, int], amount: int | None, *, rounds_up: bool = False) -> bool:
    least, most, unit = bound
    return amount is not None and least <= (-(-amount // unit) if rounds_up else amount) <= most


# --- grep ------------------------------------------------------------------------------------------------------------

_COUNT: Final = click.IntRange(0)
_NO_WORD: Final = r"[^\pL\pM\pN_]"


@click.command()
@click.argument("pattern")
@addresses_argument
@click.option("-F", "--fixed-strings", "literal", is_flag=True, help="The pattern is a text, no regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("-w", "--word-regexp", "words", is_flag=True, help="What matches must be whole words.")
@click.option("-v", "--invert-match", "inverted", is_flag=True, help="Find the lines that do not match.")
@click.option("-g", "--glob", metavar="GLOB", help="Search the files that match; by default all but dot files.")
@click.option("-A", "--after-context", "after", metavar="N", type=_COUNT, help="Show lines after matches.")
@click.option("-B", "--before-context", "before", metavar="N", type=_COUNT, help="Show lines before matches.")
@click.option(
    "-C", "--context", "around", metavar="N", type=_COUNT, default=0, help="Show lines before and after matches."
)
@click.option("-m", "--max-count", "most", metavar="N", type=click.IntRange(1), help="End after so many matches.")
@click.option("-o", "--only-matching", "parts", is_flag=True, help="Write only the parts of lines that match.")
@click.option("-l", "--files-with-matches", "files", is_flag=True, help="Write the names of files only.")
@click.option("-c", "--count", "counts", is_flag=True, help="Write the number of matching lines of each file.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status tells.")
@click.option(
    *("-n", "-r", "-R", "-E", "usual"),
    is_flag=True,
    expose_value=False,
    help="Change nothing: lines have numbers, directories are searched, expressions are extended ones.",
)
@json_option
@in_session(trouble=2, pages=True)
async def grep(session: Session, addresses: tuple[str, ...], **given: Any) -> None:
    """Find the lines of text files that match a regular expression (RE2).

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    wanted = _Wanted(**given)
    if wanted.inverted and wanted.parts:
        raise click.UsageError("--only-matching and --invert-match exclude each other.")
    request, query = wanted.request(), wanted.inverse()
    places = [await session.place(text) for text in addresses or [""]]
    results: list[GrepResult] = await gather_each(
        lambda place: place.backend.arun(replace(request, path=place.path)), places
    )
    if query is not None:
        results = [await to_thread.run_sync(_invert, query, result, wanted) for result in results]
    session.status = 0 if any(result.matches for result in results) else 1
    has_written = False
    for place, title, result in zip(places, session.titles(places), results, strict=True):
        named = place._replace(address=place.address._replace(shown=title))
        if wanted.shows_lines and result.matches:
            _write_lines(session, named, result.matches, wanted, has_written=has_written)
            has_written = True
        elif not wanted.quiet:
            _write_files(session, named, result.matches or (), counts=wanted.counts and not wanted.files)
        if not session.check(result, place, status=2):
            continue
        if result.truncated and (wanted.inverted or (wanted.most is None and not wanted.quiet)):
            session.report(f"{title}: there are more matches; the search ended early", status=2)
        if wanted.needs_whole_lines and any(len(match.text) == MAX_LINE for match in result.matches or ()):
            session.report(f"{title}: of long lines, only {MAX_LINE:,} characters are looked at", status=2)
        if result.skipped:
            session.screen.note(f"deepfs grep: {title}: {count_noun(result.skipped, 'file')} could not be searched")


class _Wanted(NamedTuple):
    """What `grep` is given; the help of its options says what these mean."""

    pattern: str
    literal: bool
    ignore_case: bool
    words: bool
    inverted: bool
    glob: str | None
    after: int | None
    before: int | None
    around: int
    most: int | None
    parts: bool
    files: bool
    counts: bool
    quiet: bool

    @property
    def shows_lines(self) -> bool:
        return not (self.quiet or self.files or self.counts)

    @property
    def needs_whole_lines(self) -> bool:
        """Whether what a search leaves out of a long line may change the answer."""
        return self.inverted or (self.parts and self.shows_lines)

    @property
    def margins(self) -> tuple[int, int]:
        """How many lines to show before and after each match."""
        if self.parts or not self.shows_lines:
            return 0, 0
        return self.around if self.before is None else self.before, self.around if self.after is None else self.after

    def request(self) -> Grep:
        """The search: of the lines that match, or of all lines if those are wanted that do not."""
        most = 1 if self.quiet else self.most
        if self.inverted:
            return Grep("", glob=self.glob)
        return replace(self._matching(), context_lines=max(self.margins), max_count=most)

    def inverse(self) -> Query | None:
        """What finds the lines to leave out."""
        return compile_query(self._matching()) if self.inverted else None

    def _matching(self) -> Grep:
        # A text that is its own regular expression is searched as a text, which is faster.
        is_text = self.literal or re.escape(self.pattern) == self.pattern
        plain = Grep(self.pattern, glob=self.glob, regex=not is_text, ignore_case=self.ignore_case)
        if not self.words:
            return plain
        with suppress(NotSupportedError):
            compile_query(plain)  # Whatever is wrong with the pattern is told of the pattern as it was given.
        return replace(plain, pattern=self._expression(), regex=True)

    def _expression(self, *, starts: bool = True) -> str:
        """The expression of RE2 whose first group matches what the pattern does.

        Args:
            starts: Whether a word may be where the line starts.
        """
        pattern = re.escape(self.pattern) if self.literal else self.pattern
        before = f"(?:^|{_NO_WORD})" if starts else _NO_WORD
        return f"{before}({pattern})(?:{_NO_WORD}|$)" if self.words else f"({pattern})"

    def part_finder(self) -> "_PartFinder":
        """What finds the parts of a line that match, left to right. Raises NotSupportedError without RE2."""
        engine: Any = re
        try:
            # On lines that others wrote, Python's own engine could take forever for an expression.
            engine = import_module("re2")
        except ImportError:
            if self._matching().regex:
                raise NotSupportedError(None, "Parts of lines need RE2: pip install google-re2") from None
        flags = "(?i)" * self.ignore_case
        first, later = (engine.compile(flags + self._expression(starts=starts)) for starts in (True, False))

        def find(text: str) -> Iterator[tuple[int, int]]:
            place, found = 0, first.search(text)
            while found is not None:
                start, end = found.span(1)
                if start < end:
                    yield start, end
                place = max(end, place + (start == end))
                # What ends one word may stand before the next one.
                found = later.search(text, place - self.words) if place <= len(text) else None

        return find


_PartFinder: TypeAlias = Callable[[str], Iterable[tuple[int, int]]]


def _invert(query: Query, result: GrepResult, wanted: _Wanted) -> GrepResult:
    """The lines that do not match, of a search that found all lines."""
    before, after = wanted.margins
    others: list[GrepMatch] = []
    for path, found in groupby(result.matches or (), key=lambda match: match.path):
        lines = [ContextLine(match.line, match.text) for match in found]
        content = "".join(f"{line.text}\n" for line in lines)
        matching = {match.line for match in search(query, path, content).matches}
        others += [
            GrepMatch(
                path, line.line, line.text, lines[max(place - before, 0) : place], lines[place + 1 : place + 1 + after]
            )
            for place, line in enumerate(lines)
            if line.line not in matching
        ]
    most = 1 if wanted.quiet else wanted.most
    is_cut = result.truncated and (most is None or len(others) < most)
    return replace(result, matches=None if result.matches is None else others[:most], truncated=is_cut)


def _write_files(session: Session, place: AddressedPlace, matches: Sequence[GrepMatch], *, counts: bool) -> None:
    """Write the names of the files, with `counts` also how many of their lines match."""
    for path, count in Counter(match.path for match in matches).items():
        shown = place.display(path)
        if session.as_json:
            session.json({"path": shown, "count": count} if counts else {"path": shown})
        else:
            name = session.screen.style(session.screen.name(shown), "path")
            session.screen.line(f"{name}:{count}" if counts else name)


def _write_lines(
    session: Session, place: AddressedPlace, matches: Sequence[GrepMatch], wanted: _Wanted, *, has_written: bool
) -> None:
    """Write the lines, or their parts: with `path:line:` before each in a pipe, beneath a heading on a terminal."""
    screen = session.screen
    find: _PartFinder | None = None
    if wanted.parts:
        parts = wanted.part_finder()
        matches = [replace(match, text=match.text[start:end]) for match in matches for start, end in parts(match.text)]
        find = _whole
    elif screen.is_coloured and not wanted.inverted:
        with suppress(NotSupportedError):  # The backend searches by itself.
            find = wanted.part_finder()
    if session.as_json:
        for match in matches:
            session.json({**match, "path": place.display(match.path)})
        return
    for path, found in groupby(matches, key=lambda match: match.path):
        name = screen.style(screen.name(place.display(path)), "path")
        if screen.is_terminal:
            screen.raw(f"{chr(10) * has_written}{name}\n")
        elif has_written and any(wanted.margins):
            screen.raw("--\n")
        screen.raw("".join(_rows(session, name, list(found), wanted, find)))
        has_written = True


def _whole(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


def _rows(
    session: Session, name: str, matches: Sequence[GrepMatch], wanted: _Wanted, find: "_PartFinder | None"
) -> Iterator[str]:
    """The rows of one file, with the lines around its matches."""
    screen = session.screen
    before, after = wanted.margins
    beside = {
        each.line: each.text
        for match in matches
        for each in (*(match.context_before or ()), *(match.context_after or ()))
        if match.line - before <= each.line <= match.line + after
    }
    for match in matches:
        beside.pop(match.line, None)
    rows = [(match.line, ":", match.text) for match in matches] + [(line, "-", text) for line, text in beside.items()]
    last = 0
    for line, mark, text in sorted(rows, key=lambda row: row[0]):
        if any(wanted.margins) and 0 < last < line - 1:
            yield "--\n"
        last = line
        shown = _highlight(session, text, find if mark == ":" else None)
        yield ("" if screen.is_terminal else f"{name}{mark}") + f"{screen.style(str(line), 'line')}{mark}{shown}\n"


def _highlight(session: Session, text: str, find: "_PartFinder | None") -> str:
    """A line that is safe to show on a terminal, with what matched in a colour."""
    screen = session.screen
    if not screen.is_terminal and not screen.is_coloured:
        return text
    parts, done = [], 0
    for start, end in find(text) if find is not None else ():
        parts += [visible(text[done:start]), screen.style(visible(text[start:end]), "match")]
        done = end
    return "".join([*parts, visible(text[done:])])
