r"""The search that nearly all are: literal text, letters as they are, no lines around. It finds what `scan` finds.

Most files do not hold the text, which their bytes tell before anything is decoded; and where there are thousands of
matches, each costs little more than its record.
"""

from collections.abc import Callable

from deepfs.core import media
from deepfs.core.scan import FileHits, Query
from deepfs.core.text import BOM, decode, is_text
from deepfs.types import GrepMatch

__all__ = ["is_plain", "search_plain"]

_CHECK_EVERY = 1000
"""Matches in one file between two checks: about a millisecond."""


def is_plain(query: Query) -> bool:
    """Whether `search_plain` serves the query."""
    return query.regexp is None and not query.context_lines and query.pattern != ""


def search_plain(
    query: Query, path: str, data: bytes | str, limit: int | None, check: Callable[[], object]
) -> FileHits | None:
    """What `scan.search` says of a file; None where that is nothing. `check` is called now and then, and may raise."""
    if isinstance(data, bytes):
        if query.needle not in data:
            return None
        text = decode(data)
    else:
        if query.pattern not in data:
            return None
        text = data if is_text(data) else None
    if text is None:
        return FileHits(skipped=True)
    text = text.removeprefix(BOM)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if media.is_binary_name(path):
        return FileHits(skipped=query.pattern in text)
    return FileHits(_matches(query, path, text, limit, check))


def _matches(query: Query, path: str, text: str, limit: int | None, check: Callable[[], object]) -> list[GrepMatch]:
    needle, most = query.pattern, query.max_line
    find, find_back, count = text.find, text.rfind, text.count
    matches: list[GrepMatch] = []
    number, start = 1, 0
    place = find(needle)
    while place >= 0 and len(matches) != limit:
        number += count("\n", start, place)
        start = find_back("\n", start, place) + 1 or start
        end = find("\n", place)
        if end < 0:
            end = len(text)
        line = text[start:end]
        matches.append(GrepMatch(path, number, line if len(line) <= most else line[:most]))
        if len(matches) % _CHECK_EVERY == 0:
            check()
        number, start = number + 1, end + 1
        place = find(needle, start)
    return matches
