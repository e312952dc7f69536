"""grep."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import NamedTuple

import click

from deepfs.backends.gathering import gather_each
from deepfs.backends.protocol import BackendProtocol
from deepfs.cli.options import (
    addresses_argument,
    json_option,
    run_command,
)
from deepfs.cli.session import Place, Session
from deepfs.text.visible import visible
from deepfs.types import GrepMatch, GrepResult

__all__ = ["GrepOptions", "grep", "search_files"]


@click.command()
@click.argument("pattern")
@addresses_argument
@click.option("-F", "--fixed-strings", "literal", is_flag=True, help="The pattern is a text, no regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("-g", "--glob", metavar="GLOB", help="Search the files that match; by default all but dot files.")
@click.option("-C", "--context", "around", type=click.IntRange(0), default=0, help="Show lines around matches.")
@click.option("-m", "--max-count", "most", type=click.IntRange(1), help="End after so many matches.")
@click.option("-l", "--files-with-matches", "files", is_flag=True, help="Write the names of files only.")
@click.option("-c", "--count", "counts", is_flag=True, help="Write the number of matching lines of each file.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status tells.")
@json_option
def grep(
    pattern: str,
    addresses: tuple[str, ...],
    literal: bool,
    ignore_case: bool,
    glob: str | None,
    around: int,
    most: int | None,
    files: bool,
    counts: bool,
    quiet: bool,
    json: bool,
) -> None:
    """Find the lines of text files that match a regular expression (RE2).

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    shows = "nothing" if quiet else "files" if files else "counts" if counts else "lines"
    # A text that is its own regular expression is searched as a text, which is faster.
    is_regex = not literal and re.escape(pattern) != pattern
    wanted = GrepOptions(pattern, is_regex, ignore_case, glob, around, most, shows)
    run_command(lambda on: search_files(on, wanted, addresses or [""]), trouble=2, json=json, pages=True)


class GrepOptions(NamedTuple):
    """What grep looks for and what it shows.

    Attributes:
        pattern: The text, or the regular expression.
        regex: Whether the pattern is a regular expression of RE2.
        ignore_case: Whether case is ignored.
        glob: Which files are searched; None for all whose names do not start with a dot.
        context: The number of lines that are shown around each match.
        most: After how many matches the search ends; None for all.
        shows: `"lines"`, `"files"` for the names of files only, `"counts"` for the number of lines in each file, or
            `"nothing"`.
    """

    pattern: str
    regex: bool
    ignore_case: bool
    glob: str | None
    context: int
    most: int | None
    shows: str


async def search_files(session: Session, options: GrepOptions, addresses: Sequence[str]) -> None:
    """Write the lines that match. The status is 0 if there are any, 1 if not, 2 after an error.

    Args:
        session: The session.
        options: What to look for.
        addresses: The addresses of files and directories.
    """
    places = [await session.place(text) for text in addresses]
    results = await gather_each(lambda place: _search(place.backend, place.path, options), places)
    session.status = 0 if any(result.matches for result in results) else 1
    for place, title, result in zip(places, session.titles(places), results, strict=True):
        if result.matches:
            _write_matches(session, place._replace(address=place.address._replace(shown=title)), options, result)
        if session.check(result, place, status=2):
            _tell_rest(session, title, options, result)


async def _search(backend: BackendProtocol, path: str, options: GrepOptions) -> GrepResult:
    return await backend.agrep(
        options.pattern,
        path,
        options.glob,
        regex=options.regex,
        ignore_case=options.ignore_case,
        context_lines=options.context if options.shows == "lines" else 0,
        max_count=1 if options.shows == "nothing" else options.most,
    )


def _tell_rest(session: Session, title: str, options: GrepOptions, result: GrepResult) -> None:
    """Tell what was not searched."""
    if result.truncated and options.most is None and options.shows != "nothing":
        session.failed(f"{title}: there are more matches; the search ended early", status=2)
    if result.skipped:
        session.screen.note(f"deepfs grep: {title}: {result.skipped} files could not be searched")


def _write_matches(session: Session, place: Place, options: GrepOptions, result: GrepResult) -> None:
    matches = result.matches or []
    if options.shows == "lines":
        if session.as_json:
            _write_records(session, place, matches)
        else:
            session.screen.raw("".join(_lines(session, place, options, matches)))
        return
    counts: dict[str, int] = {}
    for match in matches:
        counts[match.path] = counts.get(match.path, 0) + 1
    for path, count in counts.items() if options.shows != "nothing" else ():
        shown = place.shown(path)
        if session.as_json:
            session.json({"path": shown, "count": count} if options.shows == "counts" else {"path": shown})
        else:
            name = session.screen.styled(session.screen.name(shown), "path")
            session.screen.line(f"{name}:{count}" if options.shows == "counts" else name)


def _write_records(session: Session, place: Place, matches: Sequence[GrepMatch]) -> None:
    for match in matches:
        where = {} if match.start is None else {"start": match.start, "end": match.end}
        session.json({**match, **where, "path": place.shown(match.path)})


def _lines(session: Session, place: Place, options: GrepOptions, matches: Sequence[GrepMatch]) -> Iterator[str]:
    """The rows: with `path:line:` before each in a pipe, beneath a heading for each file on a terminal."""
    screen = session.screen
    highlighted = _highlighter(session, options)
    for number, (path, found) in enumerate(groupby(matches, key=lambda match: match.path)):
        name = screen.styled(screen.name(place.shown(path)), "path")
        if screen.is_terminal:
            yield f"{chr(10) * (number > 0)}{name}\n"
        last = 0
        for line, (text, match) in sorted(_rows(found).items()):
            if options.context and 0 < last < line - 1:
                yield "--\n"
            last, mark = line, "-" if match is None else ":"
            head = "" if screen.is_terminal else f"{name}{mark}"
            yield f"{head}{screen.styled(str(line), 'line')}{mark}{highlighted(text, match)}\n"


def _rows(matches: Iterable[GrepMatch]) -> dict[int, tuple[str, GrepMatch | None]]:
    """The lines of a file by their numbers: those that match, and those around them."""
    rows: dict[int, tuple[str, GrepMatch | None]] = {}
    for match in matches:
        for each in (*(match.context_before or ()), *(match.context_after or ())):
            rows.setdefault(each.line, (each.text, None))
        rows[match.line] = match.text, match
    return rows


def _highlighter(session: Session, options: GrepOptions) -> Callable[[str, GrepMatch | None], str]:
    """What makes a line of its text: safe to show on a terminal, with what matched in a colour."""
    screen = session.screen
    if not screen.is_terminal and not screen.is_coloured:
        return lambda text, match: text
    spans = _finder(options)

    def highlighted(text: str, match: GrepMatch | None) -> str:
        parts, done = [], 0
        for start, end in () if match is None else spans(match):
            parts += [visible(text[done:start]), screen.styled(visible(text[start:end]), "match")]
            done = end
        return "".join([*parts, visible(text[done:])])

    return highlighted


def _finder(options: GrepOptions) -> Callable[[GrepMatch], Iterable[tuple[int, int]]]:
    """What finds the places in a line that match. Where it reads the pattern otherwise, the first one is enough."""
    if options.regex:
        try:
            re2 = import_module("re2")  # Python's own engine can take forever for a line that others wrote.
        except ImportError:  # The backend searches by itself.
            return _first
        given = re2.Options()
        given.case_sensitive = not options.ignore_case
        find = re2.compile(options.pattern, given)
    else:
        find = re.compile(re.escape(options.pattern), re.IGNORECASE * options.ignore_case)
    return lambda match: [found.span() for found in find.finditer(match.text)] or _first(match)


def _first(match: GrepMatch) -> list[tuple[int, int]]:
    return [] if match.start is None or match.end is None else [(match.start, match.end)]
