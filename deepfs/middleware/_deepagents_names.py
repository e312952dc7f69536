"""Names that programs import from `middleware.filesystem` of deepagents, with the values that are true for deepfs.

The descriptions and notes are those that models read here.
"""

from typing import Any, Final

from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepfs.backends.protocol import supports_execute as supports_execution
from deepfs.compat.utils import EMPTY_CONTENT_WARNING
from deepfs.middleware.arguments import TOOL_NAMES
from deepfs.middleware.arguments import DeleteArguments as DeleteSchema
from deepfs.middleware.arguments import EditArguments as EditFileSchema
from deepfs.middleware.arguments import ExecuteArguments as ExecuteSchema
from deepfs.middleware.arguments import GlobArguments as GlobSchema
from deepfs.middleware.arguments import GrepArguments as GrepSchema
from deepfs.middleware.arguments import LsArguments as LsSchema
from deepfs.middleware.arguments import ReadArguments as ReadFileSchema
from deepfs.middleware.arguments import WriteArguments as WriteFileSchema
from deepfs.middleware.eviction import CHARS_PER_TOKEN as NUM_CHARS_PER_TOKEN
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.tools import FILE_TOOLS, GLOB_TRUNCATION_NOTE
from deepfs.search.results import SEARCH_SECONDS as GLOB_TIMEOUT
from deepfs.text.media import MAX_MEDIA_BYTES as MAX_VIDEO_INPUT_BYTES

__all__ = [
    "DEFAULT_READ_LIMIT",
    "DEFAULT_READ_OFFSET",
    "DELETE_TOOL_DESCRIPTION",
    "EDIT_FILE_TOOL_DESCRIPTION",
    "EMPTY_CONTENT_WARNING",
    "EXECUTE_TOOL_DESCRIPTION",
    "GLOB_PATHLESS_DENIED_HINT",
    "GLOB_TIMEOUT",
    "GLOB_TOOL_DESCRIPTION",
    "GLOB_TRUNCATION_NOTE",
    "GLOB_UNREADABLE_NOTE",
    "GREP_GLOB_DESCRIPTION",
    "GREP_OUTPUT_MODE_DESCRIPTION",
    "GREP_TOOL_DESCRIPTION",
    "GREP_TRUNCATION_NOTE",
    "LIST_FILES_TOOL_DESCRIPTION",
    "MAX_VIDEO_INPUT_BYTES",
    "NO_LINES_REQUESTED_WARNING",
    "NUM_CHARS_PER_TOKEN",
    "READ_FILE_TOOL_DESCRIPTION",
    "READ_FILE_TRUNCATION_MSG",
    "READ_FILE_VIDEO_TOOL_DESCRIPTION",
    "REMOVE_ALL_MESSAGES",
    "TOOLS_EXCLUDED_FROM_EVICTION",
    "TOO_LARGE_HUMAN_MSG",
    "TOO_LARGE_TOOL_MSG",
    "WRITE_FILE_TOOL_DESCRIPTION",
    "DeleteSchema",
    "EditFileSchema",
    "ExecuteSchema",
    "GlobSchema",
    "GrepSchema",
    "LsSchema",
    "ReadFileSchema",
    "ReadVideoFileSchema",
    "WriteFileSchema",
    "supports_execution",
]

ReadVideoFileSchema = ReadFileSchema

LIST_FILES_TOOL_DESCRIPTION: Final = PROMPTS["ls"]
READ_FILE_TOOL_DESCRIPTION: Final = PROMPTS["read_file"]
READ_FILE_VIDEO_TOOL_DESCRIPTION: Final = PROMPTS["read_file"]
WRITE_FILE_TOOL_DESCRIPTION: Final = PROMPTS["write_file"]
EDIT_FILE_TOOL_DESCRIPTION: Final = PROMPTS["edit_file"]
DELETE_TOOL_DESCRIPTION: Final = PROMPTS["delete"]
GLOB_TOOL_DESCRIPTION: Final = PROMPTS["glob"]
GREP_TOOL_DESCRIPTION: Final = PROMPTS["grep"]
EXECUTE_TOOL_DESCRIPTION: Final = PROMPTS["execute"]


def _field(schema: Any, name: str) -> Any:
    return schema.model_fields[name]


GREP_GLOB_DESCRIPTION: Final[str] = _field(GrepSchema, "glob").description
GREP_OUTPUT_MODE_DESCRIPTION: Final[str] = _field(GrepSchema, "output_mode").description
DEFAULT_READ_OFFSET: Final = 0
DEFAULT_READ_LIMIT: Final[int] = _field(ReadFileSchema, "limit").default

TOOLS_EXCLUDED_FROM_EVICTION: Final = tuple(name for name in TOOL_NAMES if name in FILE_TOOLS)

NO_LINES_REQUESTED_WARNING: Final = "[No line was read: limit was {limit}]"
TOO_LARGE_TOOL_MSG: Final = (
    "[Too large to show. All that the tool returned for {tool_call_id} is in {file_path}: "
    "page with read_file, or search with grep.]\n{content_sample}\n"
)
TOO_LARGE_HUMAN_MSG: Final = (
    "[Too large to show. All of it is in {file_path}: page with read_file, or search with grep.]\n{content_sample}\n"
)
READ_FILE_TRUNCATION_MSG: Final = "\n[The text of {file_path} was cut. Read on with a larger offset]"
GREP_TRUNCATION_NOTE: Final = "There are more matches than"
GLOB_UNREADABLE_NOTE: Final = "Some directories could not be read; narrowing the search does not show them"
GLOB_PATHLESS_DENIED_HINT: Final = ". Name a directory that you may read in path, and a pattern relative to it."
