"""Every operation of a filesystem as a value.

A call of `backend.read("/a")` makes the value `Read("/a")`, and `run` carries it out. A layer before a backend handles
all operations in this one method:

    class Refusing(Layer):
        async def run(self, op):
            if op.changes:
                raise PermissionDeniedError(op.paths[0], "nothing may be changed here")
            return await self.inner.arun(op)
"""

import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

from msgspec import NODEFAULT, Struct
from msgspec.structs import force_setattr, replace

from deepfs._brief import struct_repr
from deepfs.errors import ConflictError, DeepFSError, error_of
from deepfs.text import paths
from deepfs.text.arguments import CHECKS, Check, change_list, chunk_bytes, path_list, upload_list
from deepfs.text.entries import EntryChange
from deepfs.types import (
    ChangeEvent,
    ContentChange,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Result,
    WriteResult,
    error_from,
    failed_item,
    failure,
    item_at,
    rename_paths,
    replace_fields,
)

__all__ = [
    "CHUNK_BYTES",
    "KINDS",
    "SPELLINGS",
    "ChangeEntries",
    "ChangeFiles",
    "Copy",
    "Delete",
    "DownloadFiles",
    "DownloadStream",
    "Edit",
    "Execute",
    "FileBatch",
    "Glob",
    "Grep",
    "ListTree",
    "Ls",
    "Move",
    "Operation",
    "PathFilter",
    "Read",
    "ReadRaw",
    "ResolvePaths",
    "Search",
    "StoragePlaceOf",
    "Streamed",
    "UploadFiles",
    "UploadStream",
    "Watch",
    "Write",
    "locate_error",
]

CHUNK_BYTES: Final = 1024 * 1024
Rename: TypeAlias = Callable[[str], str]

SPELLINGS: Final = {"file_path": "path", "old_string": "old", "new_string": "new"}
"""Parameters that code written for deepagents names differently."""


class Operation(Struct, frozen=True):
    """One call of an operation: a field for each parameter of the method `a<name>`."""

    __repr__ = struct_repr

    name: ClassVar[str]
    """The sync name."""
    result: ClassVar[type[Result] | None] = None
    """The type of the result, failed or not. None where the result is of another type, and an error is raised."""
    changes: ClassVar[bool] = False
    """Whether it changes files."""
    options: ClassVar[tuple[str, ...]] = ()
    """The parameters that are given by keyword. All others are positional, in the order of the fields."""
    extras: ClassVar[tuple[str, ...]] = ()
    """Fields that are no parameters: a method that a class overrides by name does not get them."""
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    """The fields that are paths."""

    parameters: ClassVar[tuple[str, ...]]
    """The names of the positional parameters."""
    defaults: ClassVar[Mapping[str, Any]]
    """The defaults of all fields; `msgspec.NODEFAULT` for one that has none."""
    _checks: ClassVar[Sequence[tuple[str, str, Check]]]
    """The fields with a plain type, what errors call them, and their checks."""

    def __post_init__(self) -> None:
        for name, shown, check in self._checks:
            check(shown, getattr(self, name))

    @classmethod
    def from_call(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Self:
        """Make the value from the arguments of a call of the method.

        Args:
            args: The positional arguments.
            kwargs: The others; the names that deepagents has for them are allowed as well.

        Raises:
            TypeError: The method has no such parameters, or one is of another type.
        """
        if len(args) > len(cls.parameters):
            raise TypeError(f"{cls.name} takes {len(cls.parameters)} arguments by position, but {len(args)} were given")
        if kwargs:
            kwargs = {SPELLINGS.get(name, name): given for name, given in kwargs.items()}
            if not kwargs.keys().isdisjoint(cls.extras):
                raise TypeError(f"{cls.name} has no parameter {next(iter(kwargs.keys() & {*cls.extras}))!r}")
        return cls(*args, **kwargs)

    @property
    def args(self) -> list[Any]:
        """The positional arguments of the method."""
        return [getattr(self, name) for name in self.parameters]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The options that differ from their defaults, so that a method without the others can be called."""
        return {name: value for name in self.options if (value := getattr(self, name)) != self.defaults[name]}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, without options that have their defaults, and without the chunks of a stream."""
        return dict(zip(self.parameters, self.args, strict=True)) | self.kwargs

    @property
    def known_as(self) -> list[str]:
        """The names under which hooks, audits and limits know it: its own; none if it only prepares another one."""
        return [self.name]

    @property
    def paths(self) -> list[str]:
        """The paths that the operation is about, as they were given."""
        return [getattr(self, name) for name in self.path_fields]

    @property
    def changed_paths(self) -> list[str]:
        """The paths where it replaces, removes or adds something."""
        return self.paths if self.changes else []

    def at(self, rename: Rename) -> Self:
        """The same operation about other paths.

        Args:
            rename: Returns the other path for a path.
        """
        others: dict[str, str] = {}
        for name in self.path_fields:
            path = getattr(self, name)
            if (other := rename(path)) != path:
                others[name] = other
        return replace(self, **others) if others else self

    def failed_result(self, error: DeepFSError) -> Any:
        """The failed result.

        Args:
            error: Why the operation failed.

        Raises:
            DeepFSError: `error` itself, where there is no failed result.
        """
        if self.result is None:
            raise error
        return failure(self.result, error)

    def outward(self, answer: Any, rename: Rename) -> Any:
        """The answer of a backend that was asked about other paths, with the paths of the caller.

        Args:
            answer: What `run` returned for this operation.
            rename: Returns the caller's path for a path of that backend.
        """
        if not isinstance(answer, Result):
            return answer
        if answer.error is not None:
            answer = rename_paths(answer, locate_error(error_from(answer), self.paths), rename)
        return self._rename_answer(answer, rename)

    def _rename_answer(self, answer: Any, rename: Rename) -> Any:
        return replace_fields(answer, path=rename(self.changed_paths[-1])) if self.changes and answer.ok else answer


_NAMES_A_PATH: Final = r"(?i)((?:Error: )?(?:[^'\n]*\b(?:file|path|directory|folder|for|on) )?)'([^'\n]*)'"
"""Matches a text up to its first quoted part, if the words before that show that it can only be a path."""


def locate_error(error: DeepFSError, inner: Sequence[str]) -> DeepFSError:
    """`error` of an operation on the paths `inner`; one that a backend of others has as a text only gets its path.

    The path is the first quoted part of the text, if that is one of `inner` or above them. Other quoted parts may be
    the content of a file, and stay unchanged.
    """
    if not error.is_foreign:
        return error
    text = str(error)
    named = re.match(_NAMES_A_PATH, text)
    if named is None or not any(named[2] in (path, *paths.ancestors(path), "/") for path in inner):
        return error
    return error_of(error.code, named[1], named[2], text[named.end() :])


class Ls(Operation, frozen=True):
    """`als`."""

    name = "ls"
    result: ClassVar[type[Result] | None] = LsResult
    path: str

    def _rename_answer(self, answer: LsResult, rename: Rename) -> LsResult:
        if answer.entries is None:
            return answer
        return replace_fields(
            answer, entries=[replace(info, path=_rename_entry(rename, info.path)) for info in answer.entries]
        )


def _rename_entry(rename: Rename, path: str) -> str:
    """`rename` of a path in a listing, where that of a directory ends in `/`."""
    is_directory = len(path) > 1 and path.endswith("/")
    return f"{rename(path[:-1]).rstrip('/')}/" if is_directory else rename(path)


class Read(Operation, frozen=True):
    """`aread`."""

    name = "read"
    result: ClassVar[type[Result] | None] = ReadResult
    path: str
    offset: int = 0
    limit: int = 2000


class ReadRaw(Operation, frozen=True):
    """`aread_raw`."""

    name = "read_raw"
    result: ClassVar[type[Result] | None] = ReadRawResult
    path: str


class Write(Operation, frozen=True):
    """`awrite`."""

    name = "write"
    result: ClassVar[type[Result] | None] = WriteResult
    changes = True
    options: ClassVar[tuple[str, ...]] = ("overwrite", "if_match")
    path: str
    content: str
    overwrite: bool = False
    if_match: str | None = None


class Edit(Operation, frozen=True):
    """`aedit`."""

    name = "edit"
    result: ClassVar[type[Result] | None] = EditResult
    changes = True
    options: ClassVar[tuple[str, ...]] = ("if_match",)
    path: str
    old: str
    new: str
    replace_all: bool = False
    if_match: str | None = None


class Delete(Operation, frozen=True):
    """`adelete`."""

    name = "delete"
    result: ClassVar[type[Result] | None] = DeleteResult
    changes = True
    options: ClassVar[tuple[str, ...]] = ("if_match",)
    path: str
    if_match: str | None = None


class Copy(Operation, frozen=True):
    """`acopy`."""

    name = "copy"
    result: ClassVar[type[Result] | None] = WriteResult
    changes = True
    options: ClassVar[tuple[str, ...]] = ("overwrite",)
    path_fields: ClassVar[tuple[str, ...]] = ("src", "dst")
    src: str
    dst: str
    overwrite: bool = False

    @property
    def changed_paths(self) -> list[str]:
        return [self.dst]


class Move(Copy, frozen=True):
    """`amove`."""

    name = "move"

    @property
    def changed_paths(self) -> list[str]:
        return [self.src, self.dst]


# --- searches ---


class PathFilter(Protocol):
    """Returns whether to leave out a path: a file, or with `is_dir` everything beneath a directory."""

    def __call__(self, path: str, *, is_dir: bool) -> bool: ...


class _Searched(Operation, frozen=True):
    pattern: str
    path: str | None = None
    """Where to start, as the caller wrote it; None stands for the root."""


class Search(_Searched, frozen=True, kw_only=True):
    """`aglob` or `agrep`.

    Two fields are no parameters. `hidden` selects paths that the caller of a backend will not show, so that the search
    need not look there. It is only a hint, which a layer may drop, so the caller must also filter the result. `fresh`
    makes a backend that searches by an index bring that up to date first; the others always search what is there.
    """

    extras: ClassVar[tuple[str, ...]] = ("hidden", "fresh")
    _glob_field: ClassVar[str] = "glob"
    hidden: PathFilter | None = None
    fresh: bool = False

    @property
    def root(self) -> str:
        """The normalised path of the directory or file that is searched. Raises InvalidPathError if it is not valid."""
        return paths.normalize(self.paths[0])

    @property
    def paths(self) -> list[str]:
        """Where the search starts; without a path that is the root."""
        return [self.path or "/"]

    def at(self, rename: Rename) -> Self:
        """The same search of other paths, without `hidden`, which may not fit the paths there."""
        return replace(self, path=rename(self.paths[0]), hidden=None)

    @property
    def file_glob(self) -> str | None:
        """The pattern that chooses the files; None for all visible files."""
        pattern: str | None = getattr(self, self._glob_field)
        return pattern

    def elsewhere(self, path: str | None, file_glob: str | None, hidden: PathFilter | None) -> Self:
        """The same search with another start.

        Args:
            path: Where to start; None is the root.
            file_glob: The pattern that chooses the files.
            hidden: The filter for paths there.
        """
        return replace(self, path=path, **{self._glob_field: file_glob}, hidden=hidden)

    def _rename_answer(self, answer: Any, rename: Rename) -> Any:
        if answer.matches is None:
            return answer
        return replace_fields(answer, matches=[replace(match, path=rename(match.path)) for match in answer.matches])


class Glob(Search, frozen=True):
    """`aglob`."""

    name = "glob"
    result: ClassVar[type[Result] | None] = GlobResult
    _glob_field = "pattern"
    path: str | None = "/"


class Grep(Search, frozen=True):
    """`agrep`."""

    name = "grep"
    result: ClassVar[type[Result] | None] = GrepResult
    options: ClassVar[tuple[str, ...]] = ("regex", "ignore_case", "context_lines", "max_count")
    glob: str | None = None
    regex: bool = False
    ignore_case: bool = False
    context_lines: int = 0
    max_count: int | None = None


# --- batches ---


class Batch(Operation, frozen=True):
    """An operation on many items, with one outcome for each, in order."""

    item: ClassVar[type[FileUploadResponse] | type[FileDownloadResponse]] = FileUploadResponse

    @property
    def items(self) -> Sequence[Any]:
        """The items."""
        items: Sequence[Any] = getattr(self, self.__struct_fields__[0])
        return items

    @property
    def is_whole(self) -> bool:
        """Whether all items are carried out, or none."""
        return False

    def only(self, items: Sequence[Any]) -> Self:
        """The same operation on other items.

        Args:
            items: The items.
        """
        return replace(self, **{self.__struct_fields__[0]: list(items)})

    def failed_result(self, error: DeepFSError) -> Any:
        return [failed_item(self.item, path, error) for path in self.paths]

    def outward(self, answer: Any, rename: Rename) -> Any:
        return [item_at(outcome, rename(outcome.path), rename) for outcome in answer]

    async def where(
        self, check: Callable[[Self], Awaitable[object]], call: Callable[[Self], Awaitable[list[Any]]]
    ) -> list[Any]:
        """Carry out the items that are not refused.

        Args:
            check: Called with each item, as a batch of one; it raises to refuse it.
            call: Carries out a batch.

        Returns:
            One outcome for each item, in order. If one item of a whole is refused, nothing is carried out.
        """
        outcomes: list[Any] = []
        passed: list[Any] = []
        for item in self.items:
            one = self.only([item])
            try:
                await check(one)
            except DeepFSError as error:
                outcomes += one.failed_result(error)
            else:
                outcomes.append(None)
                passed.append(item)
        if self.is_whole and len(passed) < len(outcomes):
            return self.refuse_others(outcomes)
        done = iter(await call(self.only(passed)) if passed else ())
        return [next(done) if outcome is None else outcome for outcome in outcomes]

    def refuse_others(self, outcomes: Sequence[Any]) -> list[Any]:
        """The outcomes of a whole of which nothing is carried out, since some items failed.

        Args:
            outcomes: The failed outcomes in their places, and None for each of the other items.
        """
        error = ConflictError.because(None, "Nothing was stored, since another change of the same call failed.")
        return [
            failed_item(self.item, path, error) if outcome is None else outcome
            for path, outcome in zip(self.paths, outcomes, strict=True)
        ]


class FileBatch(Batch, frozen=True):
    """A batch that stores or deletes whole files."""

    changes = True

    @property
    def content_changes(self) -> Sequence[ContentChange]:
        """What it does to each file."""
        raise NotImplementedError


class UploadFiles(FileBatch, frozen=True):
    """`aupload_files`."""

    name = "upload_files"
    files: list[tuple[str, bytes]]

    def __post_init__(self) -> None:
        force_setattr(self, "files", upload_list(self.files))

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.files]

    def at(self, rename: Rename) -> Self:
        return self.only([(rename(path), content) for path, content in self.files])

    @property
    def content_changes(self) -> Sequence[ContentChange]:
        return [ContentChange(path, content, overwrite=True) for path, content in self.files]


class ChangeFiles(FileBatch, frozen=True):
    """`achange_files`."""

    name = "change_files"
    options: ClassVar[tuple[str, ...]] = ("all_or_none",)
    files: list[ContentChange]
    all_or_none: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "files", change_list(self.files))
        seen: set[str] = set()
        for path in self.paths:
            with suppress(DeepFSError):  # An invalid path is the error of its own change.
                path = paths.normalize(path)
            if path in seen:
                raise ValueError(f"two changes of {path!r:.100} in one call: make them one after the other")
            seen.add(path)

    @property
    def paths(self) -> list[str]:
        return [change.path for change in self.files]

    @property
    def is_whole(self) -> bool:
        """Whether all changes are made, or none. One change always is."""
        return self.all_or_none and len(self.files) > 1

    def at(self, rename: Rename) -> Self:
        return self.only([replace(change, path=rename(change.path)) for change in self.files])

    @property
    def content_changes(self) -> Sequence[ContentChange]:
        return self.files


class DownloadFiles(Batch, frozen=True):
    """`adownload_files`."""

    name = "download_files"
    item: ClassVar[type[FileUploadResponse] | type[FileDownloadResponse]] = FileDownloadResponse
    paths: list[str]

    def __post_init__(self) -> None:
        force_setattr(self, "paths", path_list(self.paths))

    def at(self, rename: Rename) -> Self:
        return self.only([rename(path) for path in self.paths])


class ChangeEntries(Batch, frozen=True):
    """`achange_entries`."""

    name = "change_entries"
    changes = True
    entries: Sequence[EntryChange]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"path": self.entries[0].path}

    @property
    def known_as(self) -> list[str]:
        names = {"make_directory": "write", "remove_directory": "delete"}
        return [names[change.change] for change in self.entries if change.change in names]

    @property
    def paths(self) -> list[str]:
        return [change.path for change in self.entries]

    def at(self, rename: Rename) -> Self:
        return self.only([replace(change, path=rename(change.path)) for change in self.entries])


# --- streams ---


class UploadStream(Operation, frozen=True):
    """`aupload_stream`."""

    name = "upload_stream"
    changes = True
    path: str
    chunks: AsyncIterable[bytes]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"path": self.path}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.chunks, AsyncIterable):
            raise TypeError(f"chunks must be an async iterable of bytes, not {self.chunks!r:.100}")

    def failed_result(self, error: DeepFSError) -> FileUploadResponse:
        return failed_item(FileUploadResponse, self.path, error)

    def outward(self, answer: FileUploadResponse, rename: Rename) -> FileUploadResponse:
        return item_at(answer, rename(answer.path), rename)


class Streamed(Operation, frozen=True):
    """An operation whose result is an async generator. It opens nothing before its first step."""

    async def outward(self, answer: AsyncGenerator[Any, None], rename: Rename) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(answer) as items:
                async for item in items:
                    yield replace(item, path=rename(item.path)) if isinstance(item, ChangeEvent) else item
        except DeepFSError as error:
            raise locate_error(error, self.paths).with_paths(rename) from error


class DownloadStream(Streamed, frozen=True):
    """`adownload_stream`."""

    name = "download_stream"
    options: ClassVar[tuple[str, ...]] = ("chunk_size",)
    path: str
    chunk_size: int = CHUNK_BYTES

    @property
    def arguments(self) -> dict[str, Any]:
        return {"path": self.path}

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "chunk_size", chunk_bytes(self.chunk_size))


class Watch(Streamed, frozen=True):
    """`awatch`."""

    name = "watch"
    path: str = "/"


# --- commands, and what transfers and access checks ask ---


class Execute(Operation, frozen=True):
    """`aexecute`."""

    name = "execute"
    options: ClassVar[tuple[str, ...]] = ("timeout",)
    path_fields: ClassVar[tuple[str, ...]] = ()
    command: str
    timeout: float | None = None


class ListTree(Operation, frozen=True):
    """`alist_tree`."""

    name = "list_tree"
    options: ClassVar[tuple[str, ...]] = ("deleting",)
    path: str
    deleting: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return {"path": self.path}

    @property
    def known_as(self) -> list[str]:
        return ["ls"]

    def outward(self, answer: Any, rename: Rename) -> Any:
        return replace(answer, entries=[replace(entry, path=rename(entry.path)) for entry in answer.entries])


class ResolvePaths(Operation, frozen=True):
    """`aresolve_paths`."""

    name = "resolve_paths"
    paths: list[str]

    @property
    def known_as(self) -> list[str]:
        return []

    def at(self, rename: Rename) -> Self:
        return replace(self, paths=[rename(path) for path in self.paths])

    def outward(self, answer: list[str | None], rename: Rename) -> list[str | None]:
        return [None if path is None else rename(path) for path in answer]


class StoragePlaceOf(Operation, frozen=True):
    """`astorage_place`."""

    name = "storage_place"
    path: str

    @property
    def known_as(self) -> list[str]:
        return []


_SHOWN: Final = {"content": "the content", "old": "the text to replace", "new": "the new text"}
"""What errors call these parameters."""
KINDS: Final[Mapping[str, type[Operation]]] = {
    kind.name: kind
    for kind in (
        *(Ls, Read, ReadRaw, Write, Edit, Glob, Grep, Delete, Move, Copy, UploadFiles, DownloadFiles, Execute),
        *(UploadStream, DownloadStream, Watch, ListTree, ChangeEntries, ChangeFiles, ResolvePaths),
        StoragePlaceOf,
    )
}
"""The operations by their sync names. The first thirteen have a sync method."""


for _kind in KINDS.values():
    _names, _given = _kind.__struct_fields__, _kind.__struct_defaults__
    # Not by `msgspec.structs.fields`, which resolves every annotation anew: that takes a millisecond for all.
    _types = {name: of for base in reversed(_kind.__mro__) for name, of in getattr(base, "__annotations__", {}).items()}
    _kind.defaults = dict(zip(_names, (*[NODEFAULT] * (len(_names) - len(_given)), *_given), strict=True))
    _kind.parameters = tuple(name for name in _names if name not in (*_kind.options, *_kind.extras))
    _kind._checks = [(each, _SHOWN.get(each, each), CHECKS[_types[each]]) for each in _names if _types[each] in CHECKS]
