"""The rows of the table of files: which keys they can have, and how files become rows and rows become files."""

from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from deepfs.backends.postgres.schema import Names
from deepfs.errors import InvalidContentError, InvalidPathError
from deepfs.text import records
from deepfs.text.flat_tree import FileStat
from deepfs.text.lines import is_text
from deepfs.types import FileDataV2

# --- keys ------------------------------------------------------------------------------------------------------------

_MAX_KEY_BYTES: Final = 2_600
"""The most bytes of a namespace and a path together: an entry of an index has at most 2,704."""


def has_key(namespace: str, path: str) -> bool:
    """Whether an index can hold the key of a file, so that there may be one."""
    return len(namespace) + len(path.encode()) <= _MAX_KEY_BYTES


def check_key(namespace: str, path: str) -> None:
    """Raise InvalidPathError if no index can hold the key of the file."""
    if not has_key(namespace, path):
        raise InvalidPathError(path, f"it is too long for this storage, whose limit is {_MAX_KEY_BYTES:,} bytes")


def behind(path: str) -> str:
    """The first text behind `path`: no text has NUL."""
    return f"{path}\x01"


# --- reading ---------------------------------------------------------------------------------------------------------


def _known_time(column: str) -> str:
    """A column without times that Python does not know, which other programs may store: infinity, or before Christ."""
    known = f"{column} >= '0002-01-01Z'::timestamptz AND {column} < '9999-01-01Z'::timestamptz"
    return f"CASE WHEN {known} THEN {column} END AS {column}"


_TIMES: Final = f"{_known_time('modified_at')}, {_known_time('created_at')}"
STAT: Final = f"path, size, {_TIMES}, version, mime_type"
"""The columns that a stat needs."""
FILE: Final = f"path, version, content, bytes, mime_type, {_TIMES}"
"""The columns that a file needs."""
COLUMNS: Final = "path, content, bytes, mime_type, created_at, modified_at"
"""The columns that are stored, in the order of `Row.values`."""


def rows_at(names: Names, columns: str, lock: str = "") -> str:
    """The query of the rows at the paths $2 in the namespace $1, in the order of the paths.

    It looks into the index of the key once for each path. A comparison with ANY would make the planner choose, and read
    the whole namespace where the table is new to it.

    Args:
        names: The names of the tables.
        columns: The columns of the result.
        lock: A clause such as `FOR UPDATE`.
    """
    return f"""
        SELECT file.* FROM unnest($2::text[]) AS wanted CROSS JOIN LATERAL (
            SELECT {columns} FROM {names.files} WHERE namespace = $1 AND path = wanted LIMIT 1 {lock}
        ) AS file
    """


def stats_of_rows(rows: Iterable[Any]) -> dict[str, FileStat]:
    """The stats of rows with the columns `STAT`, by path."""
    return {row["path"]: _stat_of_row(row) for row in rows}


def _stat_of_row(row: Any) -> FileStat:
    """The stat of a row with the columns `STAT`."""
    times = _time_text(row["modified_at"]), _time_text(row["created_at"])
    return FileStat(row["size"], *times, row["version"], row["mime_type"])


def file_of_row(row: Any) -> FileDataV2:
    """The file of a row with the columns `FILE`."""
    content = row["content"]
    times = _time_text(row["created_at"]), _time_text(row["modified_at"])
    if content is None:
        return FileDataV2(b64encode(row["bytes"]).decode("ascii"), "base64", *times, row["mime_type"])
    return FileDataV2(content, "utf-8", *times, row["mime_type"])


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else records.time_text(time)


# --- writing ---------------------------------------------------------------------------------------------------------


class Row(Struct, frozen=True):
    """What is stored of a file."""

    path: str
    content: str | None
    bytes: bytes | None
    mime_type: str | None
    created_at: datetime
    modified_at: datetime

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the columns `COLUMNS`."""
        return self.path, self.content, self.bytes, self.mime_type, self.created_at, self.modified_at

    @property
    def size(self) -> int:
        """About how much a statement carries for the row."""
        return len(self.path) + len(self.content or "") + len(self.bytes or b"")


def row_of(path: str, data: FileDataV2) -> Row:
    """The row of a file. Raises InvalidContentError if it holds what a text of PostgreSQL cannot."""
    content = data.content if data.encoding == "utf-8" else None
    if content is not None and not is_text(content):
        raise InvalidContentError(path, "it holds NUL or half a surrogate pair, and this storage cannot")
    mime_type = data.mime_type if data.mime_type is not None and is_text(data.mime_type) else None
    raw = records.content_bytes(data, path) if content is None else None
    return Row(path, content, raw, mime_type, _time(data.created_at), _time(data.modified_at))


def _time(text: str | None) -> datetime:
    """The time for the database; now if `text`, which another program may have written, is no time."""
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)
