"""The base of backends that keep files as plain dicts, in the form that deepagents reads."""

from collections.abc import Sequence
from typing import Any

from deepfs.backends.flat import FlatBackend
from deepfs.core import filedata
from deepfs.core.filemap import Change
from deepfs.types import FileDataV2, FileFormat

__all__ = ["RecordBackend"]


class RecordBackend(FlatBackend):
    """A flat backend that writes one of the two file formats, and reads both."""

    def __init__(self, *, file_format: FileFormat = "v2", max_file_size_mb: int = 10) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        if file_format not in ("v1", "v2"):
            raise ValueError(f"file_format is 'v1' or 'v2', not {file_format!r}")
        self._file_format: FileFormat = file_format

    def _records(self, changes: Sequence[Change]) -> dict[str, dict[str, Any] | None]:
        """What to store at each path; None removes it. Raises InvalidContentError for what the format cannot hold."""
        return {
            change.path: None
            if change.after is None
            else filedata.encode_file(change.after, self._file_format, change.path)
            for change in changes
        }

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        if self._file_format == "v1":
            filedata.to_v1(data, path)
