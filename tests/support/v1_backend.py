"""A V1 backend as outlined in the older documentation of deepagents: objects of a bucket, by key."""

import re
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any

__all__ = ["DuckS3", "S3Operations"]


class S3Operations:
    """The six methods, over a dict that stands for the bucket; text only, paths as keys under a prefix."""

    def __init__(self, bucket: dict[str, str], prefix: str = "") -> None:
        self.bucket = bucket
        self.prefix = prefix.rstrip("/")

    def _key(self, path: str) -> str:
        return f"{self.prefix}{path}"

    def _paths(self) -> list[str]:
        return [key[len(self.prefix) :] for key in sorted(self.bucket) if key.startswith(f"{self.prefix}/")]

    def _info(self, path: str) -> dict[str, Any]:
        size = len(self.bucket[self._key(path)].encode())
        return {"path": path, "is_dir": False, "size": size, "modified_at": datetime.now(UTC).isoformat()}

    def ls_info(self, path: str) -> list[dict[str, Any]]:
        above = path.rstrip("/") + "/"
        found: dict[str, dict[str, Any]] = {}
        for each in self._paths():
            if each.startswith(above):
                name, _, rest = each[len(above) :].partition("/")
                child = f"{above}{name}"
                found[child] = {"path": f"{child}/", "is_dir": True} if rest else self._info(child)
        return list(found.values())

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        text = self.bucket.get(self._key(file_path))
        if text is None:
            return f"Error: File '{file_path}' not found"
        if not text:
            return "System reminder: File exists but has empty contents"
        lines = text.split("\n")
        if offset >= len(lines):
            return f"Error: Line offset {offset} exceeds file length ({len(lines)} lines)"
        window = enumerate(lines[offset : offset + limit], offset + 1)
        return "\n".join(numbered for number, line in window for numbered in _numbered(number, line))

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[dict[str, Any]] | str:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            return f"Invalid regex pattern: {error}"
        base = (path or "/").rstrip("/")
        return [
            {"path": each, "line": number, "text": line}
            for each in self._paths()
            if each == base or each.startswith(f"{base}/")
            if glob is None or fnmatch(each.rpartition("/")[2], glob)
            for number, line in enumerate(self.bucket[self._key(each)].split("\n"), 1)
            if expression.search(line)
        ]

    def glob_info(self, pattern: str, path: str = "/") -> list[dict[str, Any]]:
        base = path.rstrip("/") + "/"
        under = [each for each in self._paths() if each.startswith(base)]
        return [
            self._info(each)
            for each in under
            if fnmatch(each[len(base) :] if "/" in pattern else each.rpartition("/")[2], pattern)
        ]

    def write(self, file_path: str, content: str) -> Any:
        from deepfs.backends.protocol import WriteResult

        if self._key(file_path) in self.bucket:
            return WriteResult(error=f"Cannot write to {file_path} because it already exists.")
        self.bucket[self._key(file_path)] = content
        return WriteResult(path=file_path, files_update=None)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        from deepfs.backends.protocol import EditResult

        text = self.bucket.get(self._key(file_path))
        if text is None:
            return EditResult(error=f"Error: File '{file_path}' not found")
        count = text.count(old_string)
        if not count:
            return EditResult(error=f"Error: String not found in file: '{old_string}'")
        if count > 1 and not replace_all:
            return EditResult(error=f"Error: String '{old_string}' appears {count} times in file.")
        self.bucket[self._key(file_path)] = text.replace(old_string, new_string)
        return EditResult(path=file_path, files_update=None, occurrences=count)


def _numbered(number: int, line: str) -> list[str]:
    """A line in pieces of 10,000 characters: `5`, `5.1`, `5.2`."""
    pieces = [line[start : start + 10_000] for start in range(0, len(line), 10_000)] or [""]
    marks = [f"{number:6d}", *(f"{f'{number}.{part}':>6}" for part in range(1, len(pieces)))]
    return [f"{mark}\t{piece}" for mark, piece in zip(marks, pieces, strict=True)]


class DuckS3(S3Operations):
    """A V1 backend that inherits from no protocol."""
