"""The arguments of the file tools: their schemas, the names that other tools have for them, and errors about them."""

from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from deepfs.middleware.rendering import closest, sentence
from deepfs.search.query import MAX_CONTEXT_LINES
from deepfs.text.visible import one_line

FsToolName = Literal["ls", "read_file", "write_file", "edit_file", "glob", "grep", "delete", "move", "execute"]
"""The names of the file tools."""
OutputMode = Literal["files_with_matches", "content", "count"]

_MOST_UNKNOWN: Final = 5
_FILE: Final = ("path", "filepath", "file", "filename", "file_name", "target_file")
_DIRECTORY: Final = ("directory", "dir", "dir_path", "directory_path", "folder", "file_path")
_OLD: Final = ("old_str", "old_text", "old_content")
_NEW: Final = ("new_str", "new_text", "new_content")


def _within(least: int, most: float = inf) -> AfterValidator:
    def check(value: float) -> float:
        if least <= value <= most:
            return value
        bounds = f"at least {least}" if most == inf else f"from {least} to {most}"
        raise PydanticCustomError("out_of_bounds", "{text}", {"text": f"it must be {bounds}, not {value}"})

    return AfterValidator(check)


# Schemas are sent with each request, so they have no bounds, and neither defaults nor descriptions that go without
# saying. What is described here is not in the description of the tool.
Count = Annotated[int, _within(0)]
Positive = Annotated[int, _within(1)]
ContextLines = Annotated[int, _within(0, MAX_CONTEXT_LINES)]
Seconds = Annotated[float, _within(0)]


class ToolArguments(BaseModel):
    """The base of the schemas. A null stands for the default; an unknown argument is an error.

    A tool takes no alias, since conditions and rules of people look for the names of the schema: a FilesystemMiddleware
    renames the arguments before anything else sees a call.
    """

    tool: ClassVar[str] = ""
    """The name of the file tool; empty for other tools."""
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The names that models know from other tools, by the name of the argument."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Arguments of other tools that change nothing."""

    @model_validator(mode="before")
    @classmethod
    def _accept(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {name: value for name, value in given.items() if value is not None and name not in cls.ignored}
        unknown = [str(name) for name in known if name not in cls.model_fields]
        if unknown:
            raise PydanticCustomError("unknown_argument", "{text}", {"text": cls._unknown(unknown)})
        return known

    @classmethod
    def _unknown(cls, unknown: Iterable[str]) -> str:
        own = cls._names_by_alias()
        texts = []
        for name in islice(unknown, _MOST_UNKNOWN):
            close = [own[name]] if name in own else closest(name, cls.model_fields, 1)
            meant = f", did you mean {close[0]}?" if close else ""
            texts.append(f"there is no argument {one_line(name, 60)}{meant}")
        return "; ".join(texts)

    @classmethod
    def _names_by_alias(cls) -> dict[str, str]:
        """The names of arguments by their aliases."""
        return {other: name for name, others in cls.aliases.items() for other in others}

    @classmethod
    def resolve_aliases(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the names of the schema in the place of aliases, unless both are given.

        Of two aliases with different values the second stays as it is, so that it is an error.
        """
        own = {other: name for other, name in cls._names_by_alias().items() if name not in given}
        taken: dict[str, Any] = {}
        for name, value in given.items():
            meant = own.get(name, name)
            if meant == name or value is not None:
                taken[name if taken.get(meant, value) != value else meant] = value
        return taken


class LsArguments(ToolArguments):
    tool = "ls"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"path": _DIRECTORY}
    path: str = "/"
    offset: Count = Field(default_factory=int)
    limit: Positive = 1000


class ReadArguments(ToolArguments):
    tool = "read_file"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"file_path": _FILE}
    file_path: str = Field(description="Absolute path.")
    offset: int = Field(default_factory=int, description="Lines to skip; below 0 it counts from the end.")
    limit: Positive = 500
    column: Count = Field(default_factory=int, description="Characters of the first line to skip.")


class WriteArguments(ToolArguments):
    tool = "write_file"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "file_path": _FILE,
        "content": ("contents", "text", "file_text"),
    }
    file_path: str
    content: str
    overwrite: bool = Field(default_factory=bool)


def _shorten(schema: dict[str, Any]) -> None:
    for said in ("additionalProperties", "description"):
        del schema[said]


class TextEdit(BaseModel, extra="forbid", json_schema_extra=_shorten):
    """One of several edits of a file."""

    old_string: str
    new_string: str
    replace_all: bool = Field(default_factory=bool)


class EditArguments(ToolArguments):
    tool = "edit_file"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"file_path": _FILE, "old_string": _OLD, "new_string": _NEW}
    file_path: str
    old_string: str = Field(default_factory=str)
    new_string: str = Field(default_factory=str)
    replace_all: bool = Field(default_factory=bool)
    edits: list[TextEdit] = Field(default_factory=list, description="Several edits instead, all or none.")

    @model_validator(mode="after")
    def _check_edits(self) -> "EditArguments":
        single = {"old_string", "new_string"}
        if not self.edits and (missing := sorted(single - self.model_fields_set, reverse=True)):
            text = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            raise PydanticCustomError("missing_argument", "{text}", {"text": text})
        if self.edits and single & self.model_fields_set:
            raise PydanticCustomError("both_forms", "give edits, or old_string and new_string, but not both")
        return self


class GlobArguments(ToolArguments):
    tool = "glob"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pattern": ("glob_pattern", "glob", "query"),
        "path": _DIRECTORY,
    }
    pattern: str
    path: str = "/"
    offset: Count = Field(default_factory=int)


class GrepArguments(ToolArguments):
    tool = "grep"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pattern": ("query", "search", "text"),
        "path": _DIRECTORY,
        "glob": ("include", "file_pattern", "glob_pattern"),
        "ignore_case": ("-i", "case_insensitive"),
        "context_lines": ("context", "-C", "-A", "-B"),
        "max_count": ("head_limit", "max_results", "limit"),
    }
    ignored: ClassVar[tuple[str, ...]] = ("-n",)
    pattern: str
    path: str = Field("/", description="Directory or file.")
    glob: str = Field(default_factory=str, description="Only files such as `*.py`.")
    output_mode: OutputMode = "files_with_matches"
    regex: bool = Field(default_factory=bool)
    ignore_case: bool = Field(default_factory=bool)
    context_lines: ContextLines = Field(default_factory=int)
    max_count: Count = Field(default_factory=int, description="Most matches in all files.")


class DeleteArguments(ToolArguments):
    tool = "delete"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"file_path": _FILE}
    file_path: str


class MoveArguments(ToolArguments):
    tool = "move"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "source": ("src", "source_path", "old_path", "from"),
        "destination": ("dst", "dest", "destination_path", "new_path", "to"),
    }
    source: str
    destination: str = Field(description="Its new path.")
    overwrite: bool = Field(default_factory=bool)


class ExecuteArguments(ToolArguments):
    tool = "execute"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"command": ("cmd",), "timeout": ("timeout_seconds",)}
    ignored: ClassVar[tuple[str, ...]] = ("description",)
    command: str
    timeout: Seconds = Field(default_factory=float, description="Seconds; 0 is the default.")


ARGUMENTS: Final[Mapping[str, type[ToolArguments]]] = {schema.tool: schema for schema in ToolArguments.__subclasses__()}
"""The schema of each tool by its name."""
TOOL_NAMES: Final[tuple[str, ...]] = get_args(FsToolName)
"""The names of all tools, in the order of `filesystem_tools`."""


def file_tool_name(tool: object) -> str | None:
    """The name of a file tool of deepfs, also if it was copied; None for any other tool."""
    schema = getattr(tool, "args_schema", None)
    return schema.tool or None if isinstance(schema, type) and issubclass(schema, ToolArguments) else None


def canonical_arguments(tool: object, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of `tool` by the names of its schema; None if they have them, or it is no file tool."""
    schema = ARGUMENTS.get(file_tool_name(tool) or "")
    if schema is None or given.keys() <= schema.model_fields.keys():
        return None
    renamed = schema.resolve_aliases(given)
    return None if renamed.keys() == given.keys() else renamed


def wrong_arguments(error: Any) -> str:
    """The error text for a call with wrong arguments: the reason for each, and the arguments that there are."""
    if not isinstance(error, ValidationError):
        return f"Error: The arguments are wrong: {error}"
    found = error.errors(include_url=False, include_context=False)
    wrong = "; ".join(map(_reason, found))
    known = ""
    if any(each["type"] in _NAMES for each in found):
        schemas = (each for each in ToolArguments.__subclasses__() if each.__name__ == error.title and each.tool)
        known = next((f" {schema.tool} takes {_list_arguments(schema)}." for schema in schemas), "")
    return f"Error: The arguments are wrong: {sentence(wrong)}{known} Correct them and call the tool again."


_NAMES: Final = frozenset({"missing", "missing_argument", "unknown_argument"})
"""The errors after which a model has to know the names of the arguments."""


def _reason(error: ErrorDetails) -> str:
    """What is wrong with an argument."""
    name, given = ".".join(map(str, error["loc"])), error["input"]
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] != "string_type":
        return f"{name}: {error['msg']}" if name else error["msg"]
    each = ": make one call for each" if isinstance(given, list) and name in _PATHS else ""
    return f"{name} must be a string, not {_KINDS.get(type(given), f'a {type(given).__name__}')}{each}"


_PATHS: Final = frozenset({"file_path", "path", "source", "destination", "pattern", "glob"})
"""The arguments of which a model may give several at once."""
_KINDS: Final = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}


def _list_arguments(schema: type[ToolArguments]) -> str:
    needed = [name for name, field in schema.model_fields.items() if field.is_required()]
    others = [name for name in schema.model_fields if name not in needed]
    return ", ".join(needed) + (f"{' and ' if needed else ''}optionally {', '.join(others)}" if others else "")
