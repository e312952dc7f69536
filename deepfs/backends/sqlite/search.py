"""Which files of a SQLite database a search may find: by the search index, or by walking the paths in order.

The first files in the range of paths are tested. If many of them match, all are walked, page by page. Otherwise the
index is asked, by the trigrams of the texts that every match contains.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from deepfs.backends.sqlite.database import DatabaseSession
from deepfs.backends.sqlite.schema import INDEX_FAILURES, INDEXED_BYTES, code_of
from deepfs.search.literals import Clause, folds_case, path_needs, required_text
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.storage.runners import Page
from deepfs.text.flat_tree import FileStat
from deepfs.text.paths import end_of_prefix

# Other programs may put any type into a column. Rows are found by a range of paths, which excludes other types.
_SIZE: Final = """
    CASE WHEN typeof(size) = 'integer' AND size >= 0 THEN size
    ELSE coalesce(length(bytes), length(CAST(content AS BLOB)), 0) END
"""
_MODIFIED, _CREATED, MIME_TYPE = (
    f"CASE typeof({name}) WHEN 'text' THEN {name} END" for name in ("modified_at", "created_at", "mime_type")
)
TIMES: Final = f"{_CREATED}, {_MODIFIED}"
STAT_COLUMNS: Final = f"path, {_SIZE}, {_MODIFIED}, {_CREATED}, version, {MIME_TYPE}"

_SAMPLE: Final = 200
"""How many files are tested before it is decided how to search."""
_MANY: Final = 20
"""How many of these have to match if all files are to be walked."""
_WALKED_AT_ONCE: Final = 500
_WALKED_BYTES: Final = 4 * 1024 * 1024
"""About how much content the tests of one page read."""
_SHORT_WALK: Final = 1000
"""The number of files that are walked in less time than the index takes."""
_MOST_CANDIDATES: Final = 20_000
"""If the index names more files, all are walked."""
_MOST_UNINDEXED: Final = 100_000
"""If there are more files that the index leaves out, all are walked."""
_FEW_CANDIDATES: Final = 1000
_CANDIDATES_IN_PAGE: Final = 512
_UNINDEXED_IN_PAGE: Final = 64
_MOST_TRIGRAMS: Final = 12
"""How many trigrams of one text the query has: with more, it takes longer but names hardly fewer files."""
_MOST_TESTED: Final = 8
"""How many texts are searched for in each file of a walk."""
_IDS_AT_ONCE: Final = 256


def successor(path: str) -> str:
    """The smallest text after `path`: no path lies between them."""
    return f"{path}\0"


def pad(items: Sequence[Any]) -> list[Any]:
    """`items` with the last one repeated, so that there are few different numbers, and few different statements."""
    return [*items, *[items[-1]] * ((1 << (len(items) - 1).bit_length()) - len(items))]


def marks(items: Sequence[Any]) -> str:
    """The question marks for `items` in a statement."""
    return ",".join("?" * len(items))


def stat_rows(rows: Iterable[Sequence[Any]]) -> dict[str, FileStat]:
    """The stats of rows that have `STAT_COLUMNS`."""
    return {row[0]: FileStat(*row[1:6]) for row in rows}


class _Test(NamedTuple):
    """A condition on a row of `files`, in SQL, and its parameters. Files for which it is false have no match."""

    sql: str
    parameters: tuple[object, ...] = ()


_NO_TEST: Final = _Test("1")


class Candidates:
    """The files that one search may find, page by page.

    Files over `max_bytes` are candidates whatever they contain, since they count as skipped. At most `max_scanned` are
    walked if the pattern has no text that the index can find.
    """

    def __init__(
        self,
        session: DatabaseSession,
        namespace: str,
        request: SearchRequest,
        files: FileFilter,
        *,
        max_bytes: int,
        max_scanned: int,
    ) -> None:
        self._session, self._namespace, self._files = session, namespace, files
        needs = path_needs(files)
        self._start, self._end = needs.prefix, end_of_prefix(needs.prefix)
        self._walked_at_once = _SAMPLE
        self._scanned = 0
        self._is_sampled = False
        self._most = _MOST_CANDIDATES
        self._chosen: dict[str, FileStat] | None = None
        """The candidates by the index; `_paths` are theirs, and `_unindexed` those of the files that it leaves out."""
        self._paths: list[str] = []
        self._unindexed: list[str] = []
        self._clauses: tuple[Clause, ...] = ()
        self._path_clauses = (*needs.clauses, *((needs.suffix,) if needs.suffix else ()))
        self._test = _NO_TEST
        self._tests_contents = isinstance(request, GrepRequest)
        if isinstance(request, GrepRequest):
            self._clauses = required_text(request)
            if request.max_count is not None:  # Then a few of many candidates are enough, and a walk soon finds these.
                self._most = min(_MOST_CANDIDATES, max(_FEW_CANDIDATES, 20 * request.max_count))
            self._test = _content_test(self._clauses, min(max_bytes, INDEXED_BYTES), folds=folds_case(request))
        self._uses_index = session.has_index and max_bytes >= INDEXED_BYTES
        self._query = _query(self._clauses)
        self._path_query = _query(self._path_clauses)
        can_narrow = self._query or self._path_query
        self._max_scanned = None if can_narrow or not session.has_index else max_scanned

    def page(self, after: str | None) -> Page:
        """Return the next candidates, behind the last path of the page before; None for the first page."""
        if self._chosen is not None:
            return self._take_indexed(self._chosen, after)
        first = self._find_root() if after is None else {}
        page = self._walk(self._start if after is None else max(successor(after), self._start))
        if not self._is_sampled and page.last is not None:
            self._decide(page)
        self._is_sampled = True
        return Page({**first, **page.files}, page.last, truncated=page.truncated)

    def _find_root(self) -> dict[str, FileStat]:
        """The root of the search, if it is a file that is selected: the range of paths begins beneath it."""
        root = self._files.root
        if not self._tests_contents or root == "/" or root not in self._files:
            return {}
        query = f"SELECT {STAT_COLUMNS} FROM files WHERE namespace = ? AND path = ?"
        return stat_rows(self._session.execute(query, (self._namespace, root)))

    def _walk(self, start: str) -> Page:
        """The next files in the order of their paths, without those that fail the test."""
        count = self._walked_at_once
        if self._max_scanned is not None:  # One more shows whether there are more.
            count = min(count, self._max_scanned + 1 - self._scanned)
        query = (
            f"SELECT {STAT_COLUMNS}, {self._test.sql} FROM files "
            "WHERE namespace = ? AND path >= ? AND path < ? ORDER BY path LIMIT ?"
        )
        values = (*self._test.parameters, self._namespace, start, self._end, count)
        rows = self._session.execute(query, values).fetchall()
        self._scanned += len(rows)
        files = self._files
        found = {row[0]: FileStat(*row[1:6]) for row in rows if row[6] and row[0] in files}
        if len(rows) < count:
            return Page(found)
        # What is tested at once cannot be interrupted, so pages of large files are smaller.
        size = 1 + (sum(min(row[1], INDEXED_BYTES) for row in rows) // len(rows) if self._tests_contents else 0)
        self._walked_at_once = max(8, min(_WALKED_AT_ONCE, _WALKED_BYTES // size))
        is_over = self._max_scanned is not None and self._scanned > self._max_scanned
        return Page(found, None if is_over else rows[-1][0], truncated=is_over)

    def _take_indexed(self, chosen: Mapping[str, FileStat], after: str | None) -> Page:
        """The next candidates by the index."""
        paths = _next(self._paths, after, _CANDIDATES_IN_PAGE)
        unindexed = _next(self._unindexed, after, _UNINDEXED_IN_PAGE)
        ends = [paths[-1]] if len(paths) == _CANDIDATES_IN_PAGE else []
        if len(unindexed) == _UNINDEXED_IN_PAGE:
            ends.append(unindexed[-1])
        last = min(ends, default=None)
        found = {path: chosen[path] for path in paths if last is None or path <= last}
        found |= self._test_paths([path for path in unindexed if last is None or path <= last])
        return Page(dict(sorted(found.items())), last)

    # --- the choice ---

    def _decide(self, sample: Page) -> None:
        if not self._uses_index or len(sample.files) >= _MANY or not (self._query or self._path_query):
            return
        more = "SELECT 1 FROM files WHERE namespace = ? AND path >= ? AND path < ? LIMIT 1 OFFSET ?"
        if self._session.execute(more, (self._namespace, self._start, self._end, _SHORT_WALK)).fetchone() is None:
            return
        # One snapshot: a file may move from `pending` to the index or to the unindexed ones between two queries.
        self._session.execute("BEGIN")
        try:
            self._choose()
        except sqlite3.DatabaseError as error:
            if code_of(error) not in INDEX_FAILURES:
                raise
        finally:
            self._session.roll_back()

    def _choose(self) -> None:
        """Find the candidates by the index, as of one moment, unless there are too many."""
        pending = [row[0] for row in self._session.execute("SELECT id FROM pending LIMIT ?", (self._most + 1,))]
        if len(pending) > self._most:
            return
        ids = self._ids("content_index", self._query) if self._query else None
        unindexed = self._find_unindexed() if ids is not None else []
        if ids is None and self._path_query:
            ids = self._ids("path_index", self._path_query)
        if ids is not None and unindexed is not None:
            found = {**dict(self._rows(ids, _NO_TEST)), **dict(self._rows(pending, self._test))}
            self._chosen, self._paths, self._unindexed = found, sorted(found), unindexed

    def _ids(self, index: str, query: str) -> list[int] | None:
        statement = f"SELECT rowid FROM {index} WHERE {index} MATCH ? LIMIT ?"
        ids = [row[0] for row in self._session.execute(statement, (query, self._most + 1))]
        return ids if len(ids) <= self._most else None

    def _rows(self, ids: Sequence[int], test: _Test) -> Iterator[tuple[str, FileStat]]:
        """The files with these numbers that are selected and pass the test."""
        for at in range(0, len(ids), _IDS_AT_ONCE):
            part = pad(ids[at : at + _IDS_AT_ONCE])
            # The plus signs keep SQLite from looking for the namespace first.
            query = (
                f"SELECT {STAT_COLUMNS}, {test.sql} FROM files "
                f"WHERE id IN ({marks(part)}) AND +namespace = ? AND +path >= ? AND +path < ?"
            )
            values = (*test.parameters, *part, self._namespace, self._start, self._end)
            for row in self._session.execute(query, values):
                if row[6] and row[0] in self._files:
                    yield row[0], FileStat(*row[1:6])

    def _find_unindexed(self) -> list[str] | None:
        """The paths of binary and large files, which are not in the index of contents; None if there are too many."""
        query = (
            "SELECT path FROM files INDEXED BY unindexed_files "
            f"WHERE (content IS NULL OR size > {INDEXED_BYTES}) "
            "AND namespace = ? AND path >= ? AND path < ? ORDER BY path LIMIT ?"
        )
        values = (self._namespace, self._start, self._end, _MOST_UNINDEXED + 1)
        found = [row[0] for row in self._session.execute(query, values)]
        return found if len(found) <= _MOST_UNINDEXED else None

    def _test_paths(self, paths: Sequence[str]) -> dict[str, FileStat]:
        """The files at these paths that are selected and pass the test."""
        if not paths:
            return {}
        part = pad(paths)
        query = f"SELECT {STAT_COLUMNS}, {self._test.sql} FROM files WHERE namespace = ? AND path IN ({marks(part)})"
        rows = self._session.execute(query, (*self._test.parameters, self._namespace, *part))
        return stat_rows(row for row in rows if row[6] and row[0] in self._files)


def _next(paths: Sequence[str], after: str | None, count: int) -> Sequence[str]:
    first = bisect_right(paths, after or "")
    return paths[first : first + count]


# --- conditions -------------------------------------------------------------------------------------------------------


def _query(clauses: Sequence[Clause]) -> str:
    """The query of the index for `clauses`; empty if they have no trigrams."""
    indexed = (clause for clause in clauses if all(len(literal) >= _TRIGRAM for literal in clause))
    return " AND ".join(f"({' OR '.join(map(_all_trigrams, clause))})" for clause in indexed)


_TRIGRAM: Final = 3


def _all_trigrams(literal: str) -> str:
    places = range(len(literal) - _TRIGRAM + 1)
    step = -(-len(places) // _MOST_TRIGRAMS)
    trigrams = dict.fromkeys(literal[at : at + _TRIGRAM] for at in (*places[::step], places[-1]))
    quoted = ('"' + trigram.replace('"', '""') + '"' for trigram in trigrams)
    return f"({' AND '.join(quoted)})"


_FOLDED: Final = "replace(replace(lower(content), '\u212a', 'k'), '\u017f', 's')"
"""The content in lower case, as RE2 folds it; `lower` of SQLite leaves all but ASCII alone."""


def _content_test(clauses: Sequence[Clause], most: int, *, folds: bool) -> _Test:
    """Whether the content of a file may match. Files over `most` bytes are not tested."""
    tested = _choose_few(clauses)
    if not tested:
        return _NO_TEST
    text, small = _FOLDED if folds else "content", f"size <= {most}"
    text_test = " AND ".join(f"({' OR '.join([f'instr({text}, ?)'] * len(clause))})" for clause in tested)
    literals = tuple(literal for clause in tested for literal in clause)
    if folds:
        return _Test(f"CASE WHEN content IS NOT NULL AND {small} THEN {text_test} ELSE 1 END", literals)
    bytes_test = text_test.replace(f"instr({text}, ?)", "instr(bytes, ?)")
    whole = f"CASE WHEN NOT {small} THEN 1 WHEN content IS NOT NULL THEN {text_test} ELSE {bytes_test} END"
    return _Test(whole, (*literals, *(literal.encode() for literal in literals)))


def _choose_few(clauses: Sequence[Clause]) -> list[Clause]:
    """The clauses with the longest texts, as many as may be tested in each file."""
    chosen: list[Clause] = []
    for clause in sorted(clauses, key=lambda clause: (-min(map(len, clause)), len(clause))):
        if sum(map(len, chosen)) + len(clause) <= _MOST_TESTED:
            chosen.append(clause)
    return chosen
