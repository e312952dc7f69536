"""Backends written outside of deepfs: their older protocols, and how their answers are completed.

`deepfs.compat` registers adapters for them, and is imported by name when the first one is used. An answer may have only
what the protocol of deepagents has (V1 or V2). What is absent is not known, and never means nothing. Error codes are
parsed from error texts, and lines from a numbered read.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from deepfs._deprecated import warn_deprecated
from deepfs.errors import (
    AlreadyExistsError,
    BackendError,
    ErrorCode,
    InvalidContentError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    error_of,
    foreign_text,
)
from deepfs.search.query import MAX_LINE
from deepfs.text import media, paths, records
from deepfs.text.lines import BOM, line_count, version
from deepfs.text.lines import window as window_of
from deepfs.types import (
    ContextLine,
    DeleteResult,
    EditResult,
    FileDataV2,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    Result,
    WriteResult,
    error_behind,
    failure,
)

V1_NAMES: Final[Mapping[str, str]] = {"ls": "ls_info", "grep": "grep_raw", "glob": "glob_info"}
"""The operations that have another name in V1, with this name."""


class BackendProtocolV1(Protocol):
    """The methods of a backend of the first protocol, all sync; `adapt_backend_protocol` adapts such a backend."""

    def ls_info(self, path: str) -> list[Any]:
        """List the direct children of a directory.

        Args:
            path: The directory.
        """

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str:
        r"""Read lines, each as `f"{number:6d}\t{line}"`, or an error text.

        Args:
            file_path: The file.
            offset: The first line; the first of the file is 0.
            limit: The most lines.
        """

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[Any] | str:
        """Find the lines that contain a text; an error is a text.

        Args:
            pattern: The text.
            path: The directory to search; None is `/`.
            glob: Which files to search; None is all.
        """

    def glob_info(self, pattern: str, path: str = "/") -> list[Any]:
        """List the files that match.

        Args:
            pattern: The glob.
            path: The directory to search.
        """

    def write(self, file_path: str, content: str) -> Any:
        """Create a file.

        Args:
            file_path: The file.
            content: Its text.
        """

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        """Replace a literal text.

        Args:
            file_path: The file.
            old_string: The text to replace.
            new_string: The text to put in its place.
            replace_all: Whether to replace every occurrence.
        """


class SandboxBackendProtocolV1(BackendProtocolV1, Protocol):
    """A backend of the first protocol that also runs commands."""

    @property
    def id(self) -> str:
        """The identifier of this sandbox."""

    def execute(self, command: str) -> Any:
        """Run a shell command.

        Args:
            command: The command.
        """


class Adapters(Struct, frozen=True):
    """The functions of `deepfs.compat` that adapt backends and classes written for another protocol."""

    backend: Callable[[Any], Any]
    """Returns a `BackendProtocol` over a backend of any protocol, or over a factory; else raises TypeError."""
    older: Callable[[Any], Any]
    """Returns a `BackendProtocol` over an object of a subclass of it whose methods are those of V1."""


_registered: list[Adapters] = []


def register(adapters: Adapters) -> None:
    """Set the adapters of this process."""
    _registered[:] = [adapters]


def adapters() -> Adapters:
    """The registered adapters; imports those of `deepfs.compat` if there are none yet."""
    if not _registered:
        import_module("deepfs.compat.adapters")
    return _registered[0]


def is_v1(cls: type) -> bool:
    """Whether the sync methods of `cls` are those of V1.

    They are if those of a base are, or if the first class in its MRO that defines a listing method has only `ls_info`.
    """
    for base in cls.__mro__:
        if "_is_v1" in vars(base):
            return bool(vars(base)["_is_v1"])
        if "ls" in vars(base) or "als" in vars(base):
            return False
        if "ls_info" in vars(base):
            return True
    return False


def takes_option(method: Callable[..., Any], option: str) -> bool:
    """Whether a method takes an option by name.

    A `write` that does not take `overwrite` is one of deepagents, which replaces; some `execute` take no `timeout`.
    """
    own = inspect.signature(method).parameters
    return option in own or any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())


# --- the old names, on every backend ---------------------------------------------------------------------------------


def _ls_info(ls: Callable[..., Any]) -> Callable[..., Any]:
    def ls_info(self: Any, path: str) -> Any:
        warn_deprecated("ls_info is deprecated: use ls, which returns an LsResult")
        return ls(self, path).entries or []

    return ls_info


def _grep_raw(grep: Callable[..., Any]) -> Callable[..., Any]:
    def grep_raw(self: Any, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        warn_deprecated("grep_raw is deprecated: use grep, which returns a GrepResult")
        found = grep(self, pattern, path, glob)
        return found.error if found.matches is None else found.matches

    return grep_raw


def _glob_info(glob: Callable[..., Any]) -> Callable[..., Any]:
    def glob_info(self: Any, pattern: str, path: str = "/") -> Any:
        warn_deprecated("glob_info is deprecated: use glob, which returns a GlobResult")
        return glob(self, pattern, path).matches or []

    return glob_info


_SHIMS: Final = {"ls": _ls_info, "grep": _grep_raw, "glob": _glob_info}


def add_v1_names(cls: type) -> None:
    """Give `cls` the V1 name of each operation that its body defines, as a wrapper of this definition."""
    for operation, shim in _SHIMS.items():
        method = vars(cls).get(operation)
        if method is not None and V1_NAMES[operation] not in vars(cls):
            old = shim(method)
            old.__qualname__ = f"{cls.__qualname__}.{old.__name__}"
            old.__doc__ = f"Deprecated: `{operation}` as a bare answer, as V1 had it."
            setattr(cls, old.__name__, old)


# --- answers ---------------------------------------------------------------------------------------------------------

_CONDITIONS: Final = [
    (ErrorCode.NO_MATCH, r"string[^\n]{0,200} not found|not found in (the )?file|does not end with a newline"),
    (ErrorCode.AMBIGUOUS_MATCH, r"appears \d+ times|multiple"),
    (ErrorCode.ALREADY_EXISTS, r"already[ _]exists|file[ _]exists"),
    (ErrorCode.NOT_A_DIRECTORY, r"not[ _]a[ _]directory"),
    (ErrorCode.IS_DIRECTORY, r"is[ _](a[ _])?directory"),
    (ErrorCode.QUOTA_EXCEEDED, r"quota (is )?(exceeded|full|reached)|(disk|over|exceeds?( the)?) quota|no space left"),
    (ErrorCode.PERMISSION_DENIED, r"permission|not allowed|denied|read-only"),
    (ErrorCode.INVALID_PATTERN, r"invalid (regex|glob)|invalid\b[^\n]{0,80}pattern"),
    (ErrorCode.INVALID_PATH, r"invalid[ _]path|path traversal|outside root"),
    (ErrorCode.INVALID_CONTENT, r"exceeds file length|old_string"),
    (ErrorCode.BINARY_FILE, r"binary|not a text file"),
    (ErrorCode.TOO_LARGE, r"too large"),
    (ErrorCode.TIMEOUT, r"timed? ?out"),
    (ErrorCode.UNSUPPORTED, r"not (supported|implemented)|unsupported"),
    # Where a service is missing, the file may be there.
    (
        ErrorCode.BACKEND_ERROR,
        r"\b(bucket|command|database( file)?|driver|endpoint|gateway|host|sandbox|server)\b"
        r"((?!\bfile\b).){0,20}not (found|exist)",
    ),
    (ErrorCode.FILE_NOT_FOUND, r"not[ _]found|enoent|nosuchkey|no (such )?file|unknown (document|file|path)"),
    (ErrorCode.FILE_NOT_FOUND, r"no such (blob|document|entry|item|key|note|object|page|path|record)"),
    (ErrorCode.FILE_NOT_FOUND, r"do(es)?(n['’]t| not) exist|(can|could)( ?not|n['’]t)( be)? f(i|ou)nd"),
]
"""Tried in order: special patterns come before general ones."""

_QUOTED: Final = re.compile(r"""(?<!\w)(['"])(?:.*?\1(?!\w)|.*)""", re.DOTALL)
"""A quoted part, to the end of the text if the quote is not closed. An apostrophe within a word is no quote."""
_NUMBERED: Final = re.compile(r" *(\d+)(\.\d+)?\t")
_EMPTY: Final = re.compile(r"\s*|.*\bempty contents\b.*", re.DOTALL)


def code_from(error: str, path: str = "") -> ErrorCode:
    """The error code that an error text stands for; `path` and quoted parts, such as text of a file, are ignored."""
    if error in ErrorCode.__members__.values():
        return ErrorCode(error)
    if path.strip("/"):
        name = path.lstrip("/")
        # Some texts name `a.md` for `/a.md`. A name without a dot or slash, such as `file`, may be a word of the text.
        slash = "/?" if "." in name or "/" in name else "/"
        error = re.sub(rf"{slash}(?<!\w){re.escape(name)}(?!\w)", "", error)
        if not error.removeprefix("Error:").strip(" '\""):
            return ErrorCode.FILE_NOT_FOUND  # Only the path, as the text of a KeyError is.
    unquoted = _QUOTED.sub("''", error)
    return next((code for code, pattern in _CONDITIONS if re.search(pattern, unquoted, re.I)), ErrorCode.BACKEND_ERROR)


_EXISTS: Final = frozenset({ErrorCode.BINARY_FILE, ErrorCode.TOO_LARGE, ErrorCode.INVALID_CONTENT})
"""A read fails with these only if a file is at the path."""
_NO_FILE: Final = frozenset(
    {ErrorCode.FILE_NOT_FOUND, ErrorCode.IS_DIRECTORY, ErrorCode.NOT_A_DIRECTORY, ErrorCode.INVALID_PATH}
)
"""A read fails with these only if no file is at the path. All other failures leave open whether one is there."""


MISSING: Final = (FileNotFoundError, KeyError)
"""What a `read` from outside may raise where there is no file."""


def shows_file(read: ReadResult, path: str) -> bool:
    """Whether a read of `path`, successful or failed, shows that a file is there.

    Raises the error of the read if a file may be there or not, as where it timed out or was not permitted.
    """
    if read.error is None:
        return True
    code = read.code or code_from(read.error, path)
    if code not in _EXISTS | _NO_FILE:
        raise error_behind(read) or error_of(code, read.error)
    return code in _EXISTS


def parse_numbered(answer: str) -> list[str] | None:
    r"""The lines of an answer whose lines are `f"{number:6d}\t{line}"`.

    A long line continues as `5.1`, `5.2`, …. Returns None for an error text. For an empty file, the answer is empty or
    a reminder that the file is empty.
    """
    if not _NUMBERED.match(answer):
        return [] if _EMPTY.fullmatch(answer) else None
    lines: list[list[str]] = []
    for line in answer.removesuffix("\n").split("\n"):
        numbered = _NUMBERED.match(line)
        if numbered is None:
            lines[-1] += ("\n", line)
        elif numbered[2] and lines:
            lines[-1].append(line[numbered.end() :])
        else:
            lines.append([line[numbered.end() :]])
    return ["".join(parts) for parts in lines]


ResultT = TypeVar("ResultT", bound=Result)
OutcomeT = TypeVar("OutcomeT", FileUploadResponse, FileDownloadResponse)

PROBE = 2
"""Lines to request beyond a window: V1 does not report the number of lines, and counts an empty line after the final
newline."""

_OWN_TEXTS = {kind.code: kind for kind in (IsDirectoryError, AlreadyExistsError, NotFoundError, NotDirectoryError)}
"""Errors whose text deepfs replaces by its own."""


def failure_in(answer: Any, result: type[ResultT], path: str) -> ResultT | None:
    """The failed `result` for `path` if the answer is an error; otherwise None."""
    error = answer if isinstance(answer, str) else getattr(answer, "error", None)
    if error is None:
        return None
    code = getattr(answer, "code", None) or code_from(error, path)
    if code in _OWN_TEXTS and path in error:
        return failure(result, _OWN_TEXTS[code](path))
    return result(foreign_text(error), code=code)


def infos(answer: Any, payload: str, root: str) -> list[FileInfo]:
    """The entries of an answer about `root`, sorted by path; directories end in a slash."""
    entries = answer if isinstance(answer, list | tuple) else getattr(answer, payload, None) or ()
    found = {info.path: info for info in (_info(entry, root) for entry in entries)}
    return [found[path] for path in sorted(found)]


def _info(entry: Any, root: str) -> FileInfo:
    fields: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {"path": str(entry)}
    path = _place_path(fields["path"], root)
    is_marked = fields["path"].endswith("/") and path != "/"
    is_dir = True if is_marked else fields.get("is_dir")
    shown = f"{path}/" if is_dir and path != "/" else path
    # Flat storage has no size or time for a directory; older backends then give an empty string as time.
    return FileInfo(shown, is_dir, None if is_dir else fields.get("size"), fields.get("modified_at") or None)


def _place_path(path: str, root: str) -> str:
    """The normal form of a path in an answer about `root`; a relative path lies there unless it says so itself.

    A path that cannot be in normal form is returned as it is: whoever uses it is told so.
    """
    try:
        placed = paths.normalize(path)
        if path.startswith("/") or root == "/" or placed == root or placed.startswith(f"{root}/"):
            return placed
        return f"{root}{placed}"
    except InvalidPathError:
        return path


def children(answer: Any, directory: str) -> list[FileInfo]:
    """The direct children of `directory` in an answer to `ls`, which may list by prefix: deeper entries are folded.

    Raises NotDirectoryError if the answer has only the path itself, as a file.
    """
    within = directory if directory == "/" else f"{directory}/"
    found: dict[str, FileInfo] = {}
    own: FileInfo | None = None
    for info in infos(answer, "entries", directory):
        path = info.path.rstrip("/") or "/"
        if path == directory:
            own = info
        elif path.startswith(within):
            name, _, below = path.removeprefix(within).partition("/")
            child = FileInfo(f"{within}{name}/", is_dir=True) if below else info
            if child.is_dir or f"{within}{name}" not in found:
                found[f"{within}{name}"] = child
    if own is not None and not own.is_dir and not found and directory != "/":
        raise NotDirectoryError(directory)
    return sorted(found.values(), key=lambda info: info.path)


def match_list(answer: Any, root: str, *, keeps_cr: bool = False) -> list[GrepMatch]:
    """The matches of an answer about `root`, sorted by path, then line; with `keeps_cr`, a text may end in `\\r`."""
    given = answer if isinstance(answer, list | tuple) else getattr(answer, "matches", None) or ()
    found = (_match(entry, root, keeps_cr=keeps_cr) for entry in given)
    return sorted(found, key=lambda match: (match.path, match.line))


def _match(entry: Mapping[str, Any], root: str, *, keeps_cr: bool) -> GrepMatch:
    before, after = (_context(entry.get(side)) for side in ("context_before", "context_after"))
    text = entry["text"]
    # As in other results of deepfs, a line has no `\r` at its end and no BOM, and is cut to MAX_LINE characters.
    if not keeps_cr or text.endswith("\n"):
        text = text.removesuffix("\n").removesuffix("\r")
    text = text.removeprefix(BOM if entry["line"] == 1 else "")
    return GrepMatch(_place_path(entry["path"], root), entry["line"], text[:MAX_LINE], before, after)


def _context(lines: Iterable[Mapping[str, Any]] | None) -> list[ContextLine] | None:
    return None if lines is None else [ContextLine(line["line"], line["text"]) for line in lines]


def change_result(answer: Any, result: type[ResultT], path: str) -> ResultT:
    """The `result` for the answer to a change of `path`."""
    failed = failure_in(answer, result, path)
    if failed is not None:
        return failed
    known: dict[str, Any] = {"path": path, "files_update": getattr(answer, "files_update", None)}
    known["occurrences"] = getattr(answer, "occurrences", None)
    return result(**{name: known[name] for name in result.__struct_fields__ if name in known})


def outcome_list(answered: Iterable[Any], asked: Sequence[str], kind: type[OutcomeT]) -> list[OutcomeT]:
    """The outcome for each path of a batch; a path that no answer is about failed."""
    by_place = list(answered)[: len(asked)] + [None] * len(asked)
    return [_outcome(answer, path, kind) for answer, path in zip(by_place, asked, strict=False)]


def _outcome(answer: Any, path: str, kind: type[OutcomeT]) -> OutcomeT:
    """The outcome for one path, with an error code as its error; a download without content failed."""
    content = getattr(answer, "content", None)
    is_missing = answer is None or (content is None and "content" in kind.__struct_fields__)
    error = getattr(answer, "error", None) or (ErrorCode.BACKEND_ERROR.value if is_missing else None)
    payload = {"content": content} if "content" in kind.__struct_fields__ and error is None else {}
    return kind(path, error=None if error is None else code_from(error, path).value, **payload)


# --- reads -----------------------------------------------------------------------------------------------------------


def read_result(answer: Any, path: str, offset: int, limit: int) -> ReadResult:
    """The window of `limit` lines from `offset` in an answer to a read of up to `PROBE` lines more."""
    if isinstance(answer, str):
        lines = parse_numbered(answer)
        if lines is not None:
            return _numbered_result(lines, path, offset, limit)
    failed = failure_in(answer, ReadResult, path)
    return failed if failed is not None else _shorten(answer, path, offset, limit)


def _numbered_result(lines: list[str], path: str, offset: int, limit: int) -> ReadResult:
    r"""The window of a numbered V1 read, where a text that ends with `\n` has an empty last line."""
    text = "\n".join(lines)
    if offset and lines == [""]:
        raise InvalidContentError(None, f"Line offset {offset} exceeds file length ({offset} lines)")
    return _limit_lines(FileDataV2(text, mime_type=media.mime_type(path)), offset, limit, whole=offset == 0)


def _limit_lines(data: FileDataV2, offset: int, limit: int, *, whole: bool) -> ReadResult:
    """The first `limit` lines of `data`, a part of a file that starts at line `offset` of it.

    If `data` has no more than `limit` lines, it ends where the file ends.
    """
    shown = window_of(data.content, 0, limit)
    count = line_count(data.content)
    at_end = count <= limit
    return ReadResult(
        file_data=FileDataV2(shown.text, "utf-8", data.created_at, data.modified_at, data.mime_type),
        start_line=None if shown.start_line is None else shown.start_line + offset,
        end_line=None if shown.end_line is None else shown.end_line + offset,
        total_lines=offset + count if at_end else None,
        next_offset=None if at_end else offset + max(limit, 0),
        version=version(data.content) if whole and at_end else None,
    )


def _shorten(answer: Any, path: str, offset: int, limit: int) -> ReadResult:
    """Cut a read result with up to `PROBE` lines too many to `limit` lines."""
    data = records.decode_file(answer.file_data or {"content": ""}, path)
    total, next_offset = getattr(answer, "total_lines", None), getattr(answer, "next_offset", None)
    if data.encoding != "utf-8":
        content = records.content_bytes(data, path)
        return ReadResult(file_data=data, version=getattr(answer, "version", None) or version(content))
    is_end = next_offset is None
    if (count := line_count(data.content)) > limit + PROBE and getattr(answer, "start_line", None) is None:
        # It ignored the limit. By the protocol, its text begins at `offset`.
        return ReadResult(file_data=data, start_line=offset + 1, end_line=offset + count)
    cut = _limit_lines(data, offset, limit, whole=offset == 0 and is_end)
    cut.version = getattr(answer, "version", None) or cut.version
    if total is not None or not is_end:
        cut.total_lines = total
    if cut.next_offset is None and not is_end:
        cut.next_offset = cut.end_line
    return cut


# --- subclasses of the backends of deepfs -----------------------------------------------------------------------------


def complete_answer(operation: str, answer: Any, given: Mapping[str, Any]) -> Any:
    """The answer of a method that implements `operation` in a class outside of deepfs, as those of deepfs answer.

    Args:
        operation: The sync name of the operation.
        answer: What the method returned. A result is completed in place.
        given: The arguments, by the names of the protocol. For a batch, `paths` are those of its items.
    """
    if operation in _BATCHES and isinstance(answer, Iterable):
        return outcome_list(answer, given["paths"], _BATCHES[operation])
    if not isinstance(answer, Result):
        return answer
    if answer.error is not None:
        answer.code = answer.code or code_from(answer.error, given.get("path") or "")
        return answer
    match answer:
        case LsResult():
            answer.entries = children(answer, paths.normalize(given["path"]))
        case ReadResult():
            return _with_window(answer, given["path"], max(given["offset"], 0), given["limit"])
        case GlobResult():
            answer.matches = infos(answer, "matches", paths.normalize(given.get("path") or "/"))
        case GrepResult():
            answer.matches = match_list(answer, paths.normalize(given.get("path") or "/"), keeps_cr=True)
        case WriteResult() | EditResult() | DeleteResult():
            answer.path = answer.path or given.get("dst") or given["path"]
            if isinstance(answer, EditResult) and answer.occurrences is None and not given["replace_all"]:
                answer.occurrences = 1  # The text must be there exactly once.
    return answer


_BATCHES: Final[dict[str, Any]] = {"upload_files": FileUploadResponse, "download_files": FileDownloadResponse}


def _with_window(answer: ReadResult, path: str, offset: int, limit: int) -> ReadResult:
    """Number the lines of an answer to a read of `limit` lines from `offset`. If it is full, there may be more."""
    answer.__post_init__()  # The method may have set a dict.
    data = answer.file_data
    if data is None:
        return failure(ReadResult, BackendError(path, "the backend returned neither content nor an error"))
    if answer.start_line is not None or data.encoding != "utf-8":
        return answer
    count = line_count(data.content)
    if count == 0:
        answer.no_lines_requested = answer.no_lines_requested or limit <= 0
        return answer
    answer.start_line, answer.end_line = offset + 1, offset + count
    if answer.next_offset is None and count == limit and answer.total_lines != answer.end_line:
        answer.next_offset = answer.end_line
    return answer
