"""Candidates of searches from PostgreSQL: by the trigram indexes where texts are rare, else in the order of the paths.

A first step reads a few files in the order of their paths and compares them on the server. If many of them fit, more
files are read in this way until a page is full. If few fit, the trigram index names the files, unless the texts have no
trigrams: then the walk goes on, up to a limit.
"""

import re
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

from msgspec import Struct

from deepfs.backends.postgres.files import Changes, PostgresFiles
from deepfs.backends.postgres.schema import INDEXED, ODD, SMALL, STAT, UNINDEXED, Abilities, stats_of_rows, successor
from deepfs.search.literals import Clause, folds_case, path_needs, required_text
from deepfs.search.request import FileFilter, GrepRequest, SearchRequest
from deepfs.storage.runners import Page
from deepfs.text.flat_tree import FileStat
from deepfs.text.paths import end_of_prefix

_FIRST_STEP: Final = 200
"""How many files the first step of a walk compares; each step doubles the number."""
_LONGEST_STEP: Final = 8_000
_FEW: Final = 0.02
"""The share of fitting files below which the index takes less time than the walk."""
_PAGE: Final = 5_000
"""The most files that the index names at once."""
_TOO_MANY: Final = 100_000
"""If the index finds more rows than this, in all namespaces, the walk takes less time."""
_MOST_CLAUSES: Final = 4
"""The most conditions of one kind that a query has."""
_WILDCARD: Final = re.compile(r"[\\%_]")
"""What LIKE does not take literally."""

# pg_trgm takes trigrams of words, which it pads with blanks. A text has trigrams if it holds three letters or digits in
# a row, or a whole word of two.
_ASCII_RUN: Final = re.compile(r"[A-Za-z0-9]{3}")
_BOUNDED: Final = re.compile(r"(?<=[\x00-/:-@\[-`{-\x7f])[A-Za-z0-9]{2}(?=[\x00-/:-@\[-`{-\x7f])")
_LAST_WORD: Final = re.compile(r"[\x00-/:-@\[-`{-\x7f][A-Za-z0-9]{2,}\Z")
"""The last word of a text that ends a path, if it begins within the text."""


def _like(text: str) -> str:
    """A pattern of LIKE that matches the text only."""
    return _WILDCARD.sub(r"\\\g<0>", text)


def _patterns_within(clause: Iterable[str]) -> list[str]:
    return [f"%{_like(text)}%" for text in clause]


def _patterns_at_end(clause: Clause) -> list[str]:
    return [f"%{_like(text)}" for text in clause]


class _Texts(Struct, frozen=True):
    """What a search needs of paths and contents, mostly as patterns for LIKE; those of `indexed` have trigrams."""

    paths: Sequence[list[str]] = ()
    contents: Sequence[Clause] = ()
    indexed: Sequence[list[str]] = ()
    folds: bool = False
    is_grep: bool = False


def _has_trigram(text: str, abilities: Abilities) -> bool:
    if _ASCII_RUN.search(text) or _BOUNDED.search(text):
        return True
    runs = (text[start : start + 3] for start in range(len(text) - 2))
    return not abilities.only_ascii and any(run.isalnum() for run in runs)


def _longest(clauses: Iterable[Clause]) -> list[Clause]:
    """The clauses that probably hold for the fewest files."""
    return sorted(clauses, key=lambda clause: min(map(len, clause)), reverse=True)[:_MOST_CLAUSES]


def _texts(request: SearchRequest, files: FileFilter, abilities: Abilities) -> tuple[str, _Texts]:
    """The prefix of the paths that a search may find, and what it needs of them and of their contents."""

    def has_trigrams(clause: Clause) -> bool:
        return all(_has_trigram(text, abilities) for text in clause)

    needs = path_needs(files)
    has_index = abilities.has_trigrams and not abilities.row_level_security
    on_paths = [_patterns_within(clause) for clause in _longest(needs.clauses)]
    if needs.suffix:
        on_paths.append(_patterns_at_end(needs.suffix))
    if isinstance(request, GrepRequest):
        clauses, folds = required_text(request), folds_case(request)
        has_index = has_index and (abilities.folds_i or not folds)
        indexed = [_patterns_within(clause) for clause in _longest(filter(has_trigrams, clauses)) if has_index]
        return needs.prefix, _Texts(on_paths, _longest(clauses), indexed, folds, is_grep=True)
    indexed = [_patterns_within(clause) for clause in needs.clauses if has_trigrams(clause)]
    if needs.suffix and all(_LAST_WORD.search(text) or _has_trigram(text, abilities) for text in needs.suffix):
        indexed.append(_patterns_at_end(needs.suffix))
    return needs.prefix, _Texts(on_paths, indexed=indexed[:_MOST_CLAUSES] if has_index else ())


class SearchedFiles(PostgresFiles):
    """The files of a namespace, with the state of one search.

    Contents of up to `max_bytes` are searched. Where no index helps, the search gives up after it has compared
    `max_scanned` files in vain.
    """

    def __init__(self, changes: Changes, namespace: str, *, max_bytes: int, max_scanned: int) -> None:
        super().__init__(changes, namespace)
        self._max_bytes = max_bytes
        self._max_scanned: float = max_scanned
        self._texts: _Texts | None = None
        self._end = ""
        self._step = _FIRST_STEP
        self._in_vain = 0
        self._by_index = False
        self._index_helps = True

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        if self._texts is None:
            prefix, self._texts = _texts(request, files, await self.client.learn_abilities(self.namespace))
            self._end = end_of_prefix(prefix)
            start, root = prefix, files.root
            self._index_helps = bool(self._texts.indexed) and self._max_bytes >= SMALL
        else:
            start, root = successor(after or "/"), None
        if self._by_index:
            return await self._ask_index(start, {})
        return await self._walk(start, root)

    async def _walk(self, start: str, root: str | None) -> Page:
        """The next files in the order of their paths."""
        query, values = self._walk_query(start, root)
        rows, end = _split(await self.rows(query, *values))
        found = stats_of_rows(rows)
        if end["size"] < self._step:
            return Page(found)
        self._in_vain += end["size"] - len(found)
        is_rare = len(found) < _FEW * end["size"]
        self._step = min(2 * self._step, _LONGEST_STEP)
        if is_rare and self._index_helps:
            self._by_index = True
            return await self._ask_index(successor(end["path"]), found)
        gives_up = not self._index_helps and self._in_vain > self._max_scanned
        return Page(found, end["path"], truncated=gives_up)

    def _walk_query(self, start: str, root: str | None) -> tuple[str, list[Any]]:
        values: list[Any] = [start, self._end, self._step, root, self._max_bytes]
        assert self._texts is not None
        fits = _conditions(self._texts, values)
        query = f"""
            WITH walked AS MATERIALIZED (
                SELECT {STAT}, ({fits}) AS fits FROM {self.names.files}
                WHERE namespace = $1 AND path >= $2 AND path < $3 ORDER BY path LIMIT $4
            )
            SELECT {STAT} FROM {self.names.files} WHERE namespace = $1 AND path = $5::text AND $6::bigint > 0
            UNION ALL (SELECT {STAT} FROM walked WHERE fits ORDER BY path)
            UNION ALL SELECT max(path), count(*), NULL, NULL, NULL, NULL FROM walked
        """
        return query, values

    async def _ask_index(self, start: str, found: dict[str, FileStat]) -> Page:
        """The files that the trigram index names, behind those that were `found` by the walk."""
        query, values = self._index_query(start)
        rows, end = _split(await self.rows(query, *values))
        if end["size"] > _TOO_MANY:
            self._by_index, self._index_helps, self._max_scanned = False, False, inf
            return Page(found, _before(start))
        found |= stats_of_rows(rows)
        return Page(found, rows[-1]["path"] if len(rows) == _PAGE else None)

    def _index_query(self, start: str) -> tuple[str, list[Any]]:
        texts = self._texts
        assert texts is not None
        files = self.names.files
        values: list[Any] = [start, self._end, self._max_bytes]
        in_range = "namespace = $1 AND path >= $2 AND path < $3"
        if not texts.is_grep:
            hits = f"SELECT namespace, {STAT} FROM {files} WHERE {_all('path', 'LIKE', texts.indexed, values)}"
            others = ""
        else:
            operator = "ILIKE" if texts.folds else "LIKE"
            matching = _all("content", operator, texts.indexed, values)
            hits = f"SELECT namespace, {STAT} FROM {files} WHERE {INDEXED} AND {matching}"
            large = f"({UNINDEXED}) AND (size > $4::bigint OR {_contents(texts, values)})"
            others = f"UNION (SELECT {STAT} FROM {files} WHERE {in_range} AND {large})"
            if texts.folds:
                others += f" UNION (SELECT {STAT} FROM {files} WHERE {in_range} AND {INDEXED} AND ({ODD}))"
        query = f"""
            WITH hits AS MATERIALIZED ({hits} AND $4::bigint > 0 LIMIT {_TOO_MANY + 1}),
            found AS (SELECT {STAT} FROM hits WHERE {in_range} {others})
            (SELECT {STAT} FROM found ORDER BY path LIMIT {_PAGE})
            UNION ALL SELECT NULL, count(*), NULL, NULL, NULL, NULL FROM hits
        """
        return query, values


def _split(rows: Iterable[Any]) -> tuple[list[Any], Any]:
    """The rows of files, and the one that says how far the database came."""
    found = list(rows)
    [end] = [row for row in found if row["version"] is None]
    return [row for row in found if row["version"] is not None], end


def _before(start: str) -> str:
    """The path that a page ends with so that the next one begins at `start`, which `successor` returned."""
    return start[:-1]


def _all(column: str, operator: str, clauses: Iterable[list[str]], values: list[Any]) -> str:
    """The condition that each clause holds; appends the patterns to the parameters, of which the first is $2."""
    conditions = []
    for clause in clauses:
        values.append(clause)
        conditions.append(f"{column} {operator} ANY (${len(values) + 1}::text[])")
    return " AND ".join(conditions) or "true"


def _contents(texts: _Texts, values: list[Any]) -> str:
    """The condition on the content of a file, text or not: binary files that match are counted."""
    operator = "ILIKE" if texts.folds else "LIKE"
    text = _all("content", operator, [_patterns_within(clause) for clause in texts.contents], values)
    escaped = [_patterns_within(map(_escape, clause)) for clause in texts.contents]
    raw = _all("encode(bytes, 'escape') COLLATE \"C\"", operator, escaped, values)
    if texts.folds:
        text = f"({text} OR {ODD})"
        raw = f"({raw} OR {_ODD_BYTES})"
    return f"CASE WHEN content IS NULL THEN {raw} ELSE {text} END"


_ODD_BYTES: Final = r"position('\xe284aa'::bytea IN bytes) > 0 OR position('\xc5bf'::bytea IN bytes) > 0"
"""As `ODD`, for the bytes of a file that is no text."""

_ESCAPES: Final = [chr(byte) if 0 < byte < 128 else f"\\{byte:03o}" for byte in range(256)]
_ESCAPES[ord("\\")] = "\\\\"
"""Each byte as PostgreSQL shows it in the format `escape`."""


def _escape(literal: str) -> str:
    return "".join(_ESCAPES[byte] for byte in literal.encode())


def _conditions(texts: _Texts, values: list[Any]) -> str:
    """The condition on path and content of a file; $6 is the size up to which contents are searched."""
    on_path = _all("path", "LIKE", texts.paths, values)
    if not texts.is_grep:
        return on_path
    return f"{on_path} AND (size > $6::bigint OR {_contents(texts, values)})"
