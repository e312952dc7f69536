"""`BaseSandbox` by the path that it has in deepagents, with the other names there."""

from typing import Final

from deepfs.backends.protocol import ASYNC_GLOB_TIMEOUT, ASYNC_GREP_TIMEOUT, ExecuteOffloadResult
from deepfs.compat.utils import EMPTY_OLD_STRING_ERROR, TRUNCATION_MARKER_TEMPLATE
from deepfs.sandboxes.base import BaseSandbox
from deepfs.search.request import MAX_SEARCHED_BYTES

__all__ = [
    "ASYNC_GLOB_TIMEOUT",
    "ASYNC_GREP_TIMEOUT",
    "EMPTY_OLD_STRING_ERROR",
    "MAX_BINARY_BYTES",
    "MAX_OUTPUT_BYTES",
    "TRUNCATION_MARKER_TEMPLATE",
    "TRUNCATION_MSG",
    "BaseSandbox",
    "ExecuteOffloadResult",
]

MAX_BINARY_BYTES: Final = MAX_SEARCHED_BYTES
"""The largest file that a sandbox reads whole, unless `max_file_size_mb` says otherwise."""
MAX_OUTPUT_BYTES: Final = MAX_SEARCHED_BYTES
TRUNCATION_MSG: Final = "\n\n[The text was cut. Read on with a larger offset]"
"""A note for texts that are cut. deepfs cuts no text of a read: `next_offset` says where to read on."""
