"""Names that programs import from the backend modules of deepagents, with the values that are true for deepfs."""

import inspect
from typing import Any, Final, NotRequired, TypeAlias, TypedDict

from deepfs.backends.protocol import supports_execute
from deepfs.errors import ErrorCode
from deepfs.sandboxes.offload import ExecuteOffloadResult
from deepfs.search.results import MAX_SEARCHED_BYTES, SEARCH_SECONDS
from deepfs.types import FileInfo, GlobResult, TruncationReason

__all__ = [
    "ASYNC_GLOB_TIMEOUT",
    "ASYNC_GREP_TIMEOUT",
    "DEFAULT_EXECUTE_TIMEOUT",
    "DEFAULT_GREP_TIMEOUT",
    "FILE_NOT_FOUND",
    "INVALID_PATH",
    "IS_DIRECTORY",
    "MAX_BINARY_BYTES",
    "MAX_OUTPUT_BYTES",
    "PERMISSION_DENIED",
    "TRUNCATION_MSG",
    "ExecuteArtifact",
    "ExecuteOffloadResult",
    "GlobBackendResult",
    "GlobTruncationReason",
    "execute_accepts_timeout",
    "supports_execution",
]

FILE_NOT_FOUND: Final = ErrorCode.FILE_NOT_FOUND.value
INVALID_PATH: Final = ErrorCode.INVALID_PATH.value
IS_DIRECTORY: Final = ErrorCode.IS_DIRECTORY.value
PERMISSION_DENIED: Final = ErrorCode.PERMISSION_DENIED.value

DEFAULT_EXECUTE_TIMEOUT: Final = 120
"""Seconds that a command of a LocalShellBackend may take, unless its `timeout` says otherwise."""
DEFAULT_GREP_TIMEOUT: Final = int(SEARCH_SECONDS)
"""Seconds after which a search on disk ends with what it found, unless `search_timeout` says otherwise."""
ASYNC_GREP_TIMEOUT: Final = DEFAULT_GREP_TIMEOUT
ASYNC_GLOB_TIMEOUT: Final = DEFAULT_GREP_TIMEOUT

MAX_BINARY_BYTES: Final = MAX_SEARCHED_BYTES
"""The largest file that a sandbox reads whole, unless `max_file_size_mb` says otherwise."""
MAX_OUTPUT_BYTES: Final = MAX_SEARCHED_BYTES
TRUNCATION_MSG: Final = "\n\n[The text was cut. Read on with a larger offset]"
"""A note for texts that are cut. deepfs cuts no text of a read: `next_offset` says where to read on."""

GlobTruncationReason: TypeAlias = TruncationReason
GlobBackendResult: TypeAlias = GlobResult | list[FileInfo]


class ExecuteArtifact(TypedDict):
    """What `ToolMessage.artifact` of the tool `execute` holds: the outcome of the command, for programs."""

    exit_code: NotRequired[int]
    truncated: NotRequired[bool]
    output_file: NotRequired[str]


def execute_accepts_timeout(cls: type[Any]) -> bool:
    """Whether `execute` of a class of sandboxes takes a `timeout`."""
    try:
        return "timeout" in inspect.signature(cls.execute).parameters
    except (TypeError, ValueError):
        return False


def supports_execution(backend: object) -> bool:
    """Whether `backend` runs commands."""
    return supports_execute(backend)
