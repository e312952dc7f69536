"""The records and results of every operation.

Records (`FileInfo`, `GrepMatch`, `FileData…`) are immutable and are read both ways, `info.path` and `info["path"]`:
they are mappings in which an unset optional field is an absent key, and they equal a dict of the same items.
Results carry `error` and `code` on failure; their payload is then None, except for partial results of a search.
`unwrap()` returns the payload, or raises the error. A repr shows only the start of long contents and lists.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, Literal, TypeAlias, cast

from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import fields, replace

# As in `typing` since Python 3.13, with a default.
from typing_extensions import TypeVar

from deepfs._brief import struct_repr
from deepfs.errors import BackendError, DeepFSError, ErrorCode, error_about, error_of

__all__ = [
    "Capabilities",
    "ChangeEvent",
    "ChangeKind",
    "ContentChange",
    "ContextLine",
    "DeleteResult",
    "EditResult",
    "Encoding",
    "ErrorCode",
    "ExecuteResponse",
    "FileData",
    "FileDataV1",
    "FileDataV2",
    "FileDownloadResponse",
    "FileFormat",
    "FileInfo",
    "FileUploadResponse",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "LsResult",
    "ReadRawResult",
    "ReadResult",
    "Record",
    "Result",
    "TruncationReason",
    "WriteResult",
]

Encoding: TypeAlias = Literal["utf-8", "base64"]
FileFormat: TypeAlias = Literal["v1", "v2"]
ChangeKind: TypeAlias = Literal["created", "modified", "deleted", "resync"]
TruncationReason: TypeAlias = Literal["unreadable", "transport", "budget"]


class Encodable:
    """What pydantic encodes and reads, and with it FastAPI: an object of the fields that are set."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, with dicts and lists for all within, as `json` takes them. Bytes become base64."""
        return {name: value for name, value in to_builtins(self).items() if value is not None}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """The schema of the class in a model or an endpoint, as pydantic asks for it."""
        from pydantic_core import core_schema  # Only where pydantic asks.

        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, cls) else convert(given, cls),
            json_schema_input_schema=core_schema.dict_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(
                Encodable.to_dict, return_schema=core_schema.dict_schema()
            ),
        )


class Record(Encodable, Struct, frozen=True, eq=False, omit_defaults=True):
    """An immutable Struct that is also a Mapping of its set fields."""

    __repr__ = struct_repr

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.__struct_fields__ if getattr(self, name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> Literal[True]:
        return True

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.__struct_fields__ and getattr(self, key) is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return dict(self) == dict(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        # Struct has its own `__ne__`, which does not compare with mappings.
        return not self == other

    def __hash__(self) -> int:
        return hash(frozenset((key, tuple(value) if isinstance(value, list) else value) for key, value in self.items()))

    def _asdict(self) -> dict[str, Any]:
        """The set fields. LangGraph's serialiser calls this method for a record in the graph's state."""
        return dict(self)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field.

        Args:
            key: The name of the field.
            default: The value to return if the field is absent.
        """
        return getattr(self, key) if key in self else default

    def keys(self) -> KeysView[str]:
        """The names of the fields that are set."""
        return KeysView(cast("Mapping[str, Any]", self))

    def values(self) -> ValuesView[Any]:
        """The values of the fields that are set."""
        return ValuesView(cast("Mapping[str, Any]", self))

    def items(self) -> ItemsView[str, Any]:
        """The fields that are set, with their values."""
        return ItemsView(cast("Mapping[str, Any]", self))


Mapping.register(Record)

_RecordT = TypeVar("_RecordT", bound=Record)
_PayloadT = TypeVar("_PayloadT", default=Any)


class FileInfo(Record, frozen=True, eq=False):
    """A file or a directory in a listing; the path of a directory ends in `/`."""

    path: str
    is_dir: bool | None = None
    size: int | None = None
    """Bytes."""
    modified_at: str | None = None
    """ISO 8601, UTC."""


class ContextLine(Record, frozen=True, eq=False, gc=False):
    """A line beside a match; `line` counts from 1."""

    line: int
    text: str


class GrepMatch(Record, frozen=True, eq=False, gc=False):
    """A line that matched; `line` counts from 1, `text` has no terminator and may be clipped."""

    path: str
    line: int
    text: str
    context_before: list[ContextLine] | None = None
    context_after: list[ContextLine] | None = None


class FileDataV1(Record, frozen=True, eq=False):
    """The legacy form of a stored text file: its text split at newlines."""

    content: list[str]
    created_at: str | None = None
    modified_at: str | None = None


class FileDataV2(Record, frozen=True, eq=False):
    """A stored file: its text, or its bytes as base64. Timestamps are ISO 8601, UTC, microseconds."""

    content: str
    encoding: Encoding = field(default_factory=lambda: "utf-8")  # As a plain default it would be left out of JSON.
    created_at: str | None = None
    modified_at: str | None = None
    mime_type: str | None = None


FileData: TypeAlias = FileDataV2


class _Coded(Encodable, Struct, kw_only=True, dict=True):
    code: ErrorCode | None = None
    """The machine-readable condition of `error`."""

    __repr__ = struct_repr


class Result(_Coded, Generic[_PayloadT]):
    """The base of the results of operations: an error, or else a payload, the field that follows `error`.

    The fields have the order of those in deepagents.
    """

    error: str | None = None
    """A text for people and models, None on success."""

    @property
    def ok(self) -> bool:
        """Whether the operation succeeded."""
        return self.error is None

    def keys(self) -> list[str]:
        """The names of the fields that are set, so that `dict(result)` has these."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    __iter__ = None
    """Without it, Python would ask for the items 0, 1 and so on."""

    def unwrap(self) -> _PayloadT:
        """Return the payload: what was listed, read or found, or the path that was changed.

        It is for code that has nothing to do for an error but to raise it. Whether a search found all is told by
        `truncated` and `skipped`.

        Raises:
            DeepFSError: The error of the result, of the class that its `code` has. Also if there is a payload beside
                it, as in a search over several mounts of which one failed: read the field for what was found.
        """
        if self.error is not None:
            # A copy, so that the result keeps no frames alive by a traceback.
            raise error_from(self).with_paths(str)
        payload = getattr(self, self.__struct_fields__[1])
        if payload is None:
            raise BackendError(None, f"A {type(self).__name__} has neither an error nor a payload")
        return cast("_PayloadT", payload)


def _records(values: list[Any] | None, kind: type[_RecordT]) -> list[_RecordT] | None:
    """`values` with every dict converted to a record; a list of records is returned as it is."""
    if values is None or set(map(type, values)) <= {kind}:
        return values
    return [_record(value, kind) for value in values]


def _record(value: Any, kind: type[_RecordT]) -> Any:
    """`value`, converted to a record if it is a dict. An optional field of another type counts as absent."""
    if not isinstance(value, dict):
        return value
    try:
        return convert(value, kind)
    except ValidationError:
        needed = {name: value[name] for name in (each.name for each in fields(kind) if each.required) if name in value}
        return convert(needed | {name: each for name, each in value.items() if _fits(needed, name, each, kind)}, kind)


def _fits(needed: dict[str, Any], name: str, value: object, kind: type[Record]) -> bool:
    try:
        convert({**needed, name: value}, kind)
    except ValidationError:
        return False
    return True


class LsResult(Result[list[FileInfo]]):
    """The direct children of a directory, sorted by path; `skipped` counts those whose names are no text (UTF-8)."""

    entries: list[FileInfo] | None = None
    skipped: int = 0

    def __post_init__(self) -> None:
        self.entries = _records(self.entries, FileInfo)


class ReadResult(Result[FileDataV2]):
    """A window of a text file, or a whole binary one.

    `start_line` and `end_line` count from 1 and are None if no line is shown; `next_offset` is the offset of the next
    window, None at the end; `version` identifies the content of the whole file. The content of a binary file is base64.
    """

    file_data: FileDataV2 | None = None
    total_lines: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    no_lines_requested: bool = False
    """No line is shown because none was requested; the file may have lines."""
    version: str | None = None

    def __post_init__(self) -> None:
        self.file_data = _record(self.file_data, FileDataV2)
        if self.start_line is None and self.next_offset is not None and not (self.file_data and self.file_data.content):
            self.no_lines_requested = True


class ReadRawResult(Result[FileDataV1 | FileDataV2]):
    """The whole file with its timestamps."""

    data: FileDataV1 | FileDataV2 | None = None

    def __post_init__(self) -> None:
        given: Any = self.data
        is_v1 = isinstance(given, dict) and isinstance(given.get("content"), list)
        self.data = _record(given, FileDataV1 if is_v1 else FileDataV2)


class GrepResult(Result[list[GrepMatch]]):
    """Matches sorted by path, then line; `skipped` counts the files that could not be searched.

    `as_of` is set where an index named the files to search: the time of the listing that the index rests on, as ISO
    8601. Later changes by others may be missing.
    """

    matches: list[GrepMatch] | None = None
    truncated: bool = False
    skipped: int = 0
    as_of: str | None = None

    def __post_init__(self) -> None:
        self.matches = _records(self.matches, GrepMatch)


class GlobResult(Result[list[FileInfo]]):
    """Files sorted by path; `truncated` says that there are more.

    `truncation_reason` says why: the time or a limit was reached (`"budget"`), a directory could not be read
    (`"unreadable"`), or a response was cut in transit (`"transport"`). It is None if the reason is not known. `as_of`
    is as in `GrepResult`.
    """

    matches: list[FileInfo] | None = None
    truncated: bool = False
    truncation_reason: TruncationReason | None = None
    as_of: str | None = None

    def __post_init__(self) -> None:
        self.matches = _records(self.matches, FileInfo)


class WriteResult(Result[str]):
    """`files_update` is `{path: FileData dict}` on a backend over graph state, None elsewhere."""

    path: str | None = None
    files_update: dict[str, Any] | None = None


class EditResult(Result[str]):
    """`occurrences` counts the replacements; `files_update` is as in `WriteResult`."""

    path: str | None = None
    occurrences: int | None = None
    files_update: dict[str, Any] | None = None


class DeleteResult(Result[str]):
    """`path` is what was deleted, with all that was under it."""

    path: str | None = None


class ExecuteResponse(Encodable, Struct):
    """The output of a command, stdout and stderr together.

    `exit_code` is None if the command was stopped. If its time was up, `timed_out` is the number of seconds, and
    the last line of the output says so. `truncated` says that output was cut.
    `not_enforced` names the limits of the sandbox, fields of its `Limits`, that this machine did not enforce in full.
    There is no `unwrap`: an exit code other than 0 is an answer, such as that of a `grep` that found nothing.
    """

    __repr__ = struct_repr

    output: str
    exit_code: int | None = None
    truncated: bool = False
    not_enforced: tuple[str, ...] = ()
    timed_out: float | None = None


class ChangeEvent(Encodable, Struct, frozen=True):
    """A change of a file, as `awatch` reports it.

    `kind` is `"created"`, `"modified"` or `"deleted"`. After `"resync"`, changes at and under `path` may have been
    missed: look again. `version` is that of the content, to be given as `if_match`, or None if it is not known.
    """

    path: str
    kind: ChangeKind
    version: str | None = None


class Capabilities(Struct, frozen=True):
    """The ways in which backends may differ, declared as data."""

    keeps_empty_directories: bool = False
    keeps_created_at: bool = True
    durable: bool = False
    """What is stored outlives the process."""
    executes: bool = False
    """The backend runs commands (`aexecute`)."""
    deletes: bool = True
    """The backend deletes files (`adelete`). For a class that defines no `adelete` this is set to False."""
    watches: bool = False
    """The backend reports every change as it happens, whoever makes it (`awatch`)."""
    has_links: bool = False
    """A path may lead to another one. For a class that defines `aresolve_paths` this is set to True."""
    atomic_between_processes: bool = False
    """Create-only writes, edits and `if_match` hold also against other processes, on this machine and on others that
    use the storage."""


class ContentChange(Struct, frozen=True):
    """A change of one whole file, for `achange_files`."""

    path: str
    content: bytes | None
    """The new content; None deletes the file."""
    overwrite: bool = False
    """Whether a file that is there is replaced. It says nothing about a deletion."""
    if_match: str | None = None
    """The version that must be there, which a read returned; None sets no condition."""

    __repr__ = struct_repr


class FileUploadResponse(Encodable, Struct, dict=True):
    """The outcome of one upload or of one change of a file; `error` is the bare error code."""

    path: str
    error: str | None = None

    __repr__ = struct_repr

    def unwrap(self) -> str:
        """Return the path of the file.

        Raises:
            DeepFSError: The file was not stored.
        """
        if self.error is not None:
            raise item_error(self, "it cannot be uploaded")
        return self.path


class FileDownloadResponse(Encodable, Struct, dict=True):
    """The outcome of one download; `error` is the bare error code."""

    path: str
    content: bytes | None = None
    error: str | None = None

    __repr__ = struct_repr

    def unwrap(self) -> bytes:
        """Return the content.

        Raises:
            DeepFSError: The file was not fetched.
        """
        if self.error is not None or self.content is None:
            raise item_error(self, "it cannot be downloaded")
        return self.content


_ItemT = TypeVar("_ItemT", bound=FileUploadResponse | FileDownloadResponse)


def failed_item(item: type[_ItemT], path: str, error: DeepFSError) -> _ItemT:
    """The outcome of one item of a batch, which failed with `error`."""
    made = item(path, error=error.code.value)
    vars(made)[_BEHIND] = error.with_paths(str)
    return made


def item_at(item: _ItemT, path: str, name: Callable[[str], str] = str) -> _ItemT:
    """A copy of `item`, the outcome of one item of a batch, with another path; `name` renames those in its error."""
    error = error_behind(item)
    return replace(item, path=path) if error is None else failed_item(type(item), path, error.with_paths(name))


def item_error(item: FileUploadResponse | FileDownloadResponse, reason: str) -> DeepFSError:
    """The error of one item of a batch that failed; one about its path with `reason` if only the code is known."""
    error = error_behind(item)
    # A copy, as of the error of a result.
    return error.with_paths(str) if error else error_about(item.error or ErrorCode.BACKEND_ERROR, item.path, reason)


ResultT = TypeVar("ResultT", bound=Result)


def failure(result: type[ResultT], error: DeepFSError) -> ResultT:
    """A failed Result of the type `result` for `error`."""
    return attach_error(result(error=str(error), code=error.code), error)


def convert_failure(result: type[ResultT], failed: Result) -> ResultT:
    """The failure in `failed`, as a Result of the type `result`."""
    error = error_behind(failed)
    made = result(error=failed.error, code=failed.code)
    return made if error is None else attach_error(made, error)


def error_behind(result: Result | FileUploadResponse | FileDownloadResponse) -> DeepFSError | None:
    """The exception that a failed result carries; None if it has only a text or code, as from a foreign backend."""
    error = None if result.error is None else vars(result).get(_BEHIND)
    if not isinstance(error, DeepFSError):
        return None
    shown = str(error) if isinstance(result, Result) else error.code
    return error if shown == result.error else None


def error_from(result: Result) -> DeepFSError:
    """The exception of a failed result; one made from its code and text if the result carries none."""
    return error_behind(result) or error_of(result.code or ErrorCode.BACKEND_ERROR, result.error or "")


def rename_paths(result: ResultT, error: DeepFSError, name: Callable[[str], str]) -> ResultT:
    """A copy of `result`, the failure for `error`, with each path in it replaced by `name(path)`."""
    shown = error.with_paths(name)
    return attach_error(replace(result, error=str(shown)), shown)


def replace_fields(result: ResultT, **fields: Any) -> ResultT:
    """A copy of `result` with other values of `fields`, which carries the same error."""
    error = error_behind(result)
    copied = replace(result, **fields)
    return copied if error is None else attach_error(copied, error)


_BEHIND = "_error"
"""The attribute with the error of a result. It is no field, so it is not shown, compared or serialised."""


def attach_error(result: ResultT, error: DeepFSError) -> ResultT:
    """Attach a copy of `error` to `result`, which must have the text of `error`, and return `result`."""
    # A copy has no traceback, which would keep alive all objects in its frames.
    vars(result)[_BEHIND] = error.with_paths(str)
    return result
