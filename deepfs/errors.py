"""The errors of deepfs, one for each condition that a caller can handle.

DeepFSError
├── NotFoundError             file_not_found
├── IsDirectoryError          is_directory
├── NotDirectoryError         not_a_directory
├── PermissionDeniedError     permission_denied
├── InvalidPathError          invalid_path        also ValueError
├── AlreadyExistsError        already_exists
├── NoMatchError              no_match
├── AmbiguousMatchError       ambiguous_match
├── BinaryFileError           binary_file
├── InvalidPatternError       invalid_pattern     also ValueError
├── TooLargeError             too_large
├── QuotaExceededError        quota_exceeded
├── InvalidContentError       invalid_content     also ValueError
├── ConflictError             conflict
├── DeadlineError             timeout
├── NotSupportedError         unsupported
└── BackendError              backend_error

Code inside the library raises a leaf; the boundary of a backend operation turns it into the operation's Result.
A leaf keeps its facts as data: the path, the reason and others. The text is rendered from the data by the templates of
the class, so a layer that shows a file under another path changes the path, never a text.

No leaf is an OSError: a handler of OSError is for the operating system, and must not swallow a refusal of a backend.
"""

import copyreg
import re
from collections.abc import Callable, Mapping
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

__all__ = [
    "AlreadyExistsError",
    "AmbiguousMatchError",
    "BackendError",
    "BinaryFileError",
    "ConflictError",
    "DeadlineError",
    "DeepFSError",
    "ErrorCode",
    "InvalidContentError",
    "InvalidPathError",
    "InvalidPatternError",
    "IsDirectoryError",
    "NoMatchError",
    "NotDirectoryError",
    "NotFoundError",
    "NotSupportedError",
    "OutsideGraphError",
    "PermissionDeniedError",
    "QuotaExceededError",
    "TooLargeError",
    "clip",
    "error_about",
    "error_class",
    "error_of",
    "foreign_text",
]


class ErrorCode(StrEnum):
    """The machine-readable condition of a failed operation; equal to its plain string."""

    FILE_NOT_FOUND = auto()
    IS_DIRECTORY = auto()
    NOT_A_DIRECTORY = auto()
    PERMISSION_DENIED = auto()
    INVALID_PATH = auto()
    ALREADY_EXISTS = auto()
    NO_MATCH = auto()
    AMBIGUOUS_MATCH = auto()
    BINARY_FILE = auto()
    INVALID_PATTERN = auto()
    TOO_LARGE = auto()
    QUOTA_EXCEEDED = auto()
    INVALID_CONTENT = auto()
    CONFLICT = auto()
    TIMEOUT = auto()
    UNSUPPORTED = auto()
    BACKEND_ERROR = auto()

    @property
    def http_status(self) -> int:
        """The status with which a server tells it (RFC 9110; 507 is of RFC 4918)."""
        return _HTTP_STATUS[self]


_HTTP_STATUS: Final = {
    ErrorCode.FILE_NOT_FOUND: 404,
    ErrorCode.IS_DIRECTORY: 409,
    ErrorCode.NOT_A_DIRECTORY: 409,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.INVALID_PATH: 400,
    ErrorCode.ALREADY_EXISTS: 409,
    ErrorCode.NO_MATCH: 422,
    ErrorCode.AMBIGUOUS_MATCH: 422,
    ErrorCode.BINARY_FILE: 415,
    ErrorCode.INVALID_PATTERN: 400,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.QUOTA_EXCEEDED: 507,
    ErrorCode.INVALID_CONTENT: 422,
    ErrorCode.CONFLICT: 409,
    ErrorCode.TIMEOUT: 504,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.BACKEND_ERROR: 502,
}


_MOST_SHOWN = 300
"""The most characters of a caller's text that an error repeats."""


_MOST_FOREIGN: Final = 10_000
"""The most characters of an error that another library made: it may quote all that it was given."""


def clip(text: str, most: int = _MOST_SHOWN) -> str:
    """`text`, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def foreign_text(text: str) -> str:
    """The text of an error that another library made, cut if it is very long, with lone surrogates as escapes."""
    return clip(text, _MOST_FOREIGN).encode("utf-8", "backslashreplace").decode()


def quote(name: str) -> str:
    """`name` in quotes, cut if it is very long; escaped to printable ASCII if it has unprintable characters."""
    shown = clip(name)
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode("ascii")
    return f"'{shown}'"


_NAME: Final = re.compile(r"\{(\w+)\}")
"""A placeholder in a reason, as in `it lies inside {other}`."""

_MARK: Final = "Error: "
"""The start of every text; an error that is quoted inside another one is shown without it."""


class DeepFSError(Exception):
    """The base of every expected failure; `str(error)` is the text that a Result carries.

    All facts are attributes, and the text is rendered from them. Pickles and copies keep them.

    A leaf declares its `code`, the template `text` of its condition, and `advice`, which ends the text if there is no
    reason. In a template, `{path}` is the path in quotes, and `{self}` the error with its facts.

    Args:
        path: The path that the error is about; None if the text names no path.
        reason: Why the operation failed, in plain words; `{other}` in it stands for the other path. If it is None, and
            the condition alone does not say what happened, `path` is the whole text.
        other: A second path that the reason names.
    """

    code: ClassVar[ErrorCode] = ErrorCode.BACKEND_ERROR
    __cause__: BaseException | None
    _says_enough: ClassVar[bool] = False
    _text: str = "{path}"
    _advice: str = ""
    _joint: ClassVar[str] = ": "
    path: str | None = None
    """The path that the error is about; None if the text names no path, or was made elsewhere."""
    _reason: str = ""
    _named: Mapping[str, "str | DeepFSError"] = MappingProxyType({})
    """The other paths and the errors that replace `{name}` in the reason."""
    _given: tuple[str, ...] | None = None
    """A text that was made elsewhere, in two parts if the path is between them."""
    _driver_error: Exception | None = None
    """What the driver of a storage raised, without its frames: the cause of the error and of its copies."""
    _unlogged: str = ""
    """The name of the logger that has yet to tell what the driver raised."""

    def __init__(self, path: str | None = "", reason: str | None = None, other: str | None = None) -> None:
        if reason is None and not self._says_enough:
            self._given = (path or "",)
            self._set(None)
        else:
            self._set(path, reason or "", other=other)

    @classmethod
    def because(cls, path: str | None, reason: str, **named: "str | DeepFSError | None") -> Self:
        """An error of this class with a path and a reason, and without other facts.

        Args:
            path: The path that the error is about; None if the text names no path.
            reason: Why the operation failed, in plain words. `{name}` in it stands for the argument of that name.
            **named: Further paths that the reason names, and errors that it quotes.
        """
        error = cls.__new__(cls)
        error._set(path, reason, **named)
        return error

    def _set(self, path: str | None, reason: str = "", **named: "str | DeepFSError | None") -> None:
        self.path, self._reason = path, reason
        self._named = {name: fact for name, fact in named.items() if fact is not None}
        for fact in self._named.values():
            if isinstance(fact, DeepFSError) and fact._driver_error is not None:
                self._set_cause(fact._driver_error, fact._take_log())
                break

    def _set_cause(self, driver_error: Exception, log: str = "") -> None:
        """Set what the driver of a storage raised as the cause, which copies keep, but pickles do not.

        Args:
            driver_error: The error. It lives as long as this one, so it should hold nothing.
            log: The name of the logger that tells it, when the error leaves the storage; empty if none has to.
        """
        self.__cause__ = self._driver_error = driver_error
        self._unlogged = log

    def _take_log(self) -> str:
        """The name of the logger that has to tell the cause now; empty for a copy, and from the second call on."""
        log, self._unlogged = self._unlogged, ""
        return log

    @property
    def other(self) -> str | None:
        """A second path that the reason names."""
        other = self._named.get("other")
        return other if isinstance(other, str) else None

    @property
    def reason(self) -> str:
        """Why the operation failed, in plain words; the whole text, if that was made elsewhere."""
        return _NAME.sub(self._fact, self._reason) if self._given is None else str(self)

    def _fact(self, name: re.Match[str]) -> str:
        fact = self._named.get(name[1])
        if fact is None:
            return name[0]
        return quote(fact)[1:-1] if isinstance(fact, str) else str(fact).removeprefix(_MARK)

    @property
    def is_foreign(self) -> bool:
        """Whether the text is all that is known: it was made elsewhere, and the error has no path."""
        return self._given is not None and self.path is None

    @property
    def advises(self) -> bool:
        """Whether the text ends with advice for the caller."""
        return bool(self._advice and self.path is not None and not self._reason and self._given is None)

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The text alone."""
        return (str(self),)

    def with_paths(self, name: Callable[[str], str]) -> Self:
        """The same failure with other paths; a copy without traceback, whose cause is at most that of a driver.

        Args:
            name: Returns the path to show for a path.
        """
        error = type(self).__new__(type(self))
        error.__dict__.update(self.__dict__)
        if self._driver_error is not None:
            error._set_cause(self._driver_error)
        error.path = None if self.path is None else name(self.path)
        error._named = {
            key: name(fact) if isinstance(fact, str) else fact.with_paths(name) for key, fact in self._named.items()
        }
        return error

    def __str__(self) -> str:
        if self._given is None:
            return f"{_MARK}{self._render()}"
        return quote(self.path or "").join(self._given)

    def _render(self) -> str:
        """The text without the leading `Error: `."""
        if self.path is None:
            return self.reason
        condition = self._text.format(path=quote(self.path), self=self)
        return f"{condition}{self._joint}{self.reason}" if self._reason else f"{condition}{self._advice}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: fact for name, fact in self.__dict__.items() if name not in ("_driver_error", "_unlogged")}
        return copyreg.__newobj__, (type(self),), facts  # type: ignore[attr-defined]


class NotFoundError(DeepFSError):
    """Nothing is stored at a path."""

    code = ErrorCode.FILE_NOT_FOUND
    kind: str = "File"
    """What was looked for."""
    _text = "{self.kind} {path} not found"
    _says_enough = True


class IsDirectoryError(DeepFSError):
    """A path is that of a directory where a file is needed."""

    code = ErrorCode.IS_DIRECTORY
    _text = "{path} is a directory"
    _says_enough = True


class NotDirectoryError(DeepFSError):
    """A path, or something above it, is a file where a directory is needed."""

    code = ErrorCode.NOT_A_DIRECTORY
    _text = "{path} is not a directory"
    _says_enough = True


class PermissionDeniedError(DeepFSError):
    """The storage or a rule refuses the operation on a path."""

    code = ErrorCode.PERMISSION_DENIED
    _text = "Permission denied for {path}"
    _says_enough = True


class InvalidPathError(DeepFSError, ValueError):
    """The text given as a path is not a path of the contract."""

    code = ErrorCode.INVALID_PATH
    _text = "Invalid path {path}"
    _says_enough = True


class AlreadyExistsError(DeepFSError):
    """Something is stored at `path` and may not be replaced.

    Args:
        path: The path.
        reason: Further information, in plain words; it replaces the advice what to do.
        is_directory: Whether a directory is stored there.
    """

    code = ErrorCode.ALREADY_EXISTS
    is_directory: bool = False
    _text = "File {path} already exists"
    _advice = ". Choose a new path, or set overwrite to replace it."

    def __init__(self, path: str, reason: str = "", *, is_directory: bool = False) -> None:
        self._set(path, reason)
        self.is_directory = is_directory
        if is_directory:
            self._text = "Directory {path} already exists"
            self._advice = ". Choose a new path; a directory is never replaced."


class NoMatchError(DeepFSError):
    """The text to replace is not in the file.

    Args:
        path: The path of the file; empty if the text is that of no file.
        hint: The most similar text in the file and how it differs; empty if none is similar.
        is_decorated: Whether the text is there without what a tool may have added, such as line numbers.
    """

    code = ErrorCode.NO_MATCH
    is_decorated: bool = False
    _text = "String not found in file {path}."
    _joint = " "

    def __init__(self, path: str, hint: str = "", *, is_decorated: bool = False) -> None:
        self._set(path, hint)
        self.is_decorated = is_decorated
        if not path:
            self._text = "String not found in the text."

    @property
    def hint(self) -> str:
        """The most similar text in the file and how it differs; empty if none is similar."""
        return self.reason


class AmbiguousMatchError(DeepFSError):
    """The text to replace occurs more than once.

    Args:
        path: The path of the file; empty if the text is that of no file.
        occurrences: How many times. The attribute is None if it is not known.
    """

    code = ErrorCode.AMBIGUOUS_MATCH
    occurrences: int | None = None
    _text = "String appears several times in file {path} (multiple matches)"
    _advice = ". Add surrounding text to make it unique, or set replace_all=True."

    def __init__(self, path: str, occurrences: int) -> None:
        self._set(path)
        self.occurrences = occurrences
        place = "file {path}" if path else "the text"
        self._text = f"String appears {occurrences} times in {place} (multiple matches)"


class BinaryFileError(DeepFSError):
    """The operation needs text, and the file is binary."""

    code = ErrorCode.BINARY_FILE
    _text = "{path} is a binary file and cannot be changed as text"
    _says_enough = True


class InvalidPatternError(DeepFSError, ValueError):
    """A glob or a regular expression that cannot be used. The pattern alone, without a reason, is the whole text.

    Args:
        pattern: The pattern, or None if the text does not show it.
        reason: Why it cannot be used.
        kind: What the pattern is, as in "glob pattern". What is searched for is not repeated in the text.
    """

    code = ErrorCode.INVALID_PATTERN
    pattern: str | None = None
    kind: str = ""

    def __init__(self, pattern: str | None = "", reason: str | None = None, *, kind: str = "pattern") -> None:
        super().__init__(pattern if reason is None else None, reason)
        self.pattern, self.kind = (None if reason is None else pattern), kind

    def __str__(self) -> str:
        # deepagents has this one text without `Error: `.
        return super().__str__() if self.kind != "regex pattern" else self._render()

    def _render(self) -> str:
        if not self.kind:
            return super()._render()
        is_hidden = self.pattern is None or self.kind in ("regex pattern", "search", "search pattern")
        return f"Invalid {self.kind}{'' if is_hidden else f' {quote(str(self.pattern))}'}: {self.reason}"


class TooLargeError(DeepFSError):
    """The file is over a limit of the backend.

    Args:
        path: The path of the file.
        size: The size in bytes. The attribute is None if it is not known.
        limit: The greatest size in bytes. The attribute is None if it is not known.
    """

    code = ErrorCode.TOO_LARGE
    size: int | None = None
    limit: int | None = None
    _text = "{path} is too large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        self._set(path)
        self.size, self.limit = size, limit
        self._text = "{path} is too large: {self.size:,} bytes, the limit is {self.limit:,}"


class QuotaExceededError(DeepFSError):
    """The change of `path` would exceed the storage limit.

    Args:
        path: The path of the file to change.
        size: How much would be stored. The attribute is None if it is not known.
        limit: The most that may be stored. The attribute is None if it is not known.
        unit: What is counted, as in "bytes".
    """

    code = ErrorCode.QUOTA_EXCEEDED
    size: int | None = None
    limit: int | None = None
    unit: str = "bytes"
    _text = "{path} exceeds the quota"

    def __init__(self, path: str, size: int, limit: int, unit: str = "bytes") -> None:
        self._set(path)
        self.size, self.limit, self.unit = size, limit, unit
        stored = "{self.size:,} {self.unit} would be stored, the limit is {self.limit:,}"
        self._text = f"{{path}} exceeds the quota: {stored}"


class InvalidContentError(DeepFSError, ValueError):
    """The text or data given or stored is not of the contract's form."""

    code = ErrorCode.INVALID_CONTENT
    _text = "Invalid content of {path}"


class ConflictError(DeepFSError):
    """The file is not, or no longer, the version that the caller named."""

    code = ErrorCode.CONFLICT
    _text = "{path} changed since it was read"
    _advice = ". Read it again, then retry."
    _says_enough = True


class DeadlineError(DeepFSError):
    """The operation's time was up, or it was cancelled."""

    code = ErrorCode.TIMEOUT
    _text = "Time is up for {path}"


class NotSupportedError(DeepFSError):
    """The backend does not offer the operation.

    Args:
        path: The path that the error is about; None if the text names no path.
        reason: What is not offered, in plain words. If it is None, `path` is the whole text.
        other: A second path that the reason names.
        backend: The name of the backend.
        operation: The name of the operation; if it is given, both names are the reason.
    """

    code = ErrorCode.UNSUPPORTED
    backend: str | None = None
    operation: str | None = None

    def __init__(
        self,
        path: str | None = "",
        reason: str | None = None,
        other: str | None = None,
        *,
        backend: str | None = None,
        operation: str | None = None,
    ) -> None:
        if operation is not None:
            path, reason = path or None, f"{backend or 'The backend'} does not support {operation}"
        super().__init__(path, reason, other)
        self.backend, self.operation = backend, operation


class BackendError(DeepFSError):
    """The storage failed in a way that the caller cannot mend."""

    code = ErrorCode.BACKEND_ERROR


def error_class(code: str) -> type[DeepFSError]:
    """The leaf class with `code`; BackendError for an unknown code."""
    return next((leaf for leaf in DeepFSError.__subclasses__() if leaf.code == code), BackendError)


def error_about(code: str, path: str | None, reason: str, **named: str | DeepFSError | None) -> DeepFSError:
    """The leaf error with `code`, a path and a reason, as `because` makes it; BackendError for an unknown code."""
    return error_class(code).because(path, reason, **named)


def error_of(code: str, text: str, path: str | None = None, after: str = "") -> DeepFSError:
    """The leaf error with `code`, and a text that was made elsewhere: shown as it is, cut after 10,000 characters.

    Args:
        code: The code; an unknown one gives BackendError.
        text: The text.
        path: The path that the error is about; None if it is not known. It stands in quotes behind `text`.
        after: The text behind the path.
    """
    error = error_class(code).because(path, "")
    error._given = (foreign_text(text),) if path is None else (foreign_text(text), foreign_text(after))
    return error


class OutsideGraphError(RuntimeError):
    """Files in the state of a graph were asked for where none runs. No condition of a file, so it has no code."""
