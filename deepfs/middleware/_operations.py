"""What the tools do: an operation of a backend, and its result as a model should see it."""

from typing import Any, Final, TypeVar, cast

from langchain_core.tools import ToolException

from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.core.text import check_text
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.middleware._media import media_block
from deepfs.middleware._rendering import MIN_CHARS, command_output, entries, listing, matches, numbered
from deepfs.types import Result

__all__ = ["MAX_MEDIA_BYTES", "MAX_RESULT_CHARS", "FileOperations"]

ResultT = TypeVar("ResultT", bound=Result)

MAX_RESULT_CHARS: Final = 60_000
"""About 15,000 tokens."""
MAX_MEDIA_BYTES: Final = 5_000_000

_NEXT: Final = {
    ErrorCode.FILE_NOT_FOUND: "Find the right path with ls or glob.",
    ErrorCode.IS_DIRECTORY: "List it with ls, or name a file.",
    ErrorCode.NOT_A_DIRECTORY: "Name a directory, or use read_file for a file.",
    ErrorCode.PERMISSION_DENIED: "Do not try again; choose a path that you may use.",
    ErrorCode.INVALID_PATH: "Give an absolute path such as /notes/plan.md.",
    ErrorCode.ALREADY_EXISTS: "To replace it, set overwrite.",
    ErrorCode.NO_MATCH: "Read the file again and copy the text exactly, without line numbers.",
    ErrorCode.BINARY_FILE: "Only text files can be edited.",
    ErrorCode.INVALID_PATTERN: "Correct the pattern.",
    ErrorCode.TIMEOUT: "Narrow the path or the pattern.",
    ErrorCode.UNSUPPORTED: "Reach your aim with other tools.",
    ErrorCode.BACKEND_ERROR: "Try once more; if it fails again, say so.",
}


class FileOperations:
    """The operations by the names of the tools; a failure is a ToolException that says what to do next."""

    def __init__(self, backend: BackendProtocol, max_chars: int, max_media_bytes: int) -> None:
        self.backend = backend
        self._max_chars = max(max_chars, MIN_CHARS)
        self._max_media_bytes = max_media_bytes

    async def ls(self, path: str) -> str:
        result = await self.backend.als(path)
        failed = _partial(result, result.entries)
        return listing(entries(result.entries or ()), self._max_chars, failed) or f"[{path} is empty]"

    async def read_file(self, file_path: str, offset: int, limit: int, column: int) -> str | list[dict[str, Any]]:
        read = await self.backend.aread(file_path, offset, limit)
        if read.code is ErrorCode.TOO_LARGE:
            return f"[{read.error}]"
        data = _done(read).file_data
        if data is not None and data.encoding == "base64":
            return media_block(file_path, data, self._max_media_bytes)
        try:
            return numbered(file_path, read, column, self._max_chars)
        except DeepFSError as error:
            raise ToolException(str(error)) from None

    async def write_file(self, file_path: str, content: str, overwrite: bool) -> str:
        _done(await self.backend.awrite(file_path, content, overwrite=overwrite))
        return f"Wrote {file_path}"

    async def edit_file(self, file_path: str, old_string: str, new_string: str, replace_all: bool) -> str:
        result = _done(await self.backend.aedit(file_path, old_string, new_string, replace_all))
        times = "1 occurrence" if result.occurrences == 1 else f"{result.occurrences} occurrences"
        return f"Replaced {times} in {file_path}"

    async def glob(self, pattern: str, path: str) -> str:
        result = await self.backend.aglob(pattern, path)
        failed = _partial(result, result.matches)
        rows = [info.path for info in result.matches or ()]
        more = "There are more files: narrow the search" if result.truncated else ""
        return listing(rows, self._max_chars, more, failed) or f"[No file under {path} matches {pattern}]"

    async def grep(
        self,
        pattern: str,
        path: str,
        glob: str,
        output_mode: str,
        regex: bool,
        context_lines: int,
        max_count: int,
    ) -> str:
        result = await self.backend.agrep(
            pattern,
            path,
            glob or None,
            regex=regex,
            context_lines=context_lines if output_mode == "content" else 0,
            max_count=max_count,
        )
        failed = _partial(result, result.matches)
        rows = matches(result, output_mode) or ["[No line matches]"]
        more = "There are more matches: narrow the search" if result.truncated else ""
        skipped = f"{result.skipped:,} files could not be searched" if result.skipped else ""
        return listing(rows, self._max_chars, more, skipped, failed)

    async def delete(self, file_path: str) -> str:
        _done(await self.backend.adelete(file_path))
        return f"Deleted {file_path}"

    async def move(self, source: str, destination: str, overwrite: bool) -> str:
        _done(await self.backend.amove(source, destination, overwrite=overwrite))
        return f"Moved {source} to {destination}"

    async def execute(self, command: str, timeout: float) -> str:
        if not supports_execute(self.backend):
            raise ToolException("Error: This filesystem does not run commands. Use the file tools.")
        sandbox = cast("SandboxBackendProtocol", self.backend)
        try:
            check_text(command, "command")
            return command_output(await sandbox.aexecute(command, timeout=timeout or None))
        except DeepFSError as error:
            raise ToolException(_advised(str(error), error.code)) from error


def _partial(result: Result, found: object) -> str:
    """What failed of a search that found something nevertheless; empty where nothing failed."""
    if not found:
        _done(result)
    return result.error or ""


def _done(result: ResultT) -> ResultT:
    """The result of an operation that succeeded."""
    if result.error is not None:
        raise ToolException(_advised(result.error, result.code))
    return result


def _advised(error: str, code: ErrorCode | None) -> str:
    """The text of an error, with what to do next where it does not say so."""
    advice = _NEXT.get(code) if code else None
    return f"{error.rstrip('.')}. {advice}" if advice else error
