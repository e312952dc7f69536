"""The arguments of the tools, as models see them. A null stands for the default, because some models send nulls."""

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

__all__ = [
    "DeleteArguments",
    "EditArguments",
    "ExecuteArguments",
    "GlobArguments",
    "GrepArguments",
    "LsArguments",
    "MoveArguments",
    "OutputMode",
    "ReadArguments",
    "WriteArguments",
]

OutputMode = Literal["files_with_matches", "content", "count"]


class _Arguments(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class LsArguments(_Arguments):
    path: str = Field("/", description="Absolute path.")


class ReadArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    offset: int = Field(0, ge=0, description="Lines to skip.")
    limit: int = Field(500, ge=1, description="Most lines to read.")
    column: int = Field(0, ge=0, description="Characters of the first line to skip.")


class WriteArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    content: str = Field(description="The whole text.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class EditArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    old_string: str = Field(description="The exact text to replace.")
    new_string: str = Field(description="What takes its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


class GlobArguments(_Arguments):
    pattern: str = Field(description="The glob pattern.")
    path: str = Field("/", description="Directory to search.")


class GrepArguments(_Arguments):
    pattern: str = Field(description="The text to find.")
    path: str = Field("/", description="Directory or file to search.")
    glob: str = Field("", description="Search only files such as `*.py`.")
    output_mode: OutputMode = Field("files_with_matches", description="Paths, numbered lines, or counts.")
    regex: bool = Field(False, description="The pattern is a regular expression; `(?i)` ignores case.")
    context_lines: int = Field(0, ge=0, description="Lines around a match.")
    max_count: int = Field(1000, ge=1, description="Most matches.")


class DeleteArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")


class MoveArguments(_Arguments):
    source: str = Field(description="What to move.")
    destination: str = Field(description="Its new path.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class ExecuteArguments(_Arguments):
    command: str = Field(description="The shell command.")
    timeout: float = Field(0, ge=0, description="Seconds; 0 is the default.")
