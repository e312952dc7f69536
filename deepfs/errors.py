"""What can go wrong, named by what the caller can do about it.

DeepFSError
├── FileMissingError          file_not_found      also FileNotFoundError
├── DirectoryError            is_directory        also IsADirectoryError
├── NotDirectoryError         not_a_directory     also NotADirectoryError
├── AccessError               permission_denied   also PermissionError
├── InvalidPathError          invalid_path        also ValueError
├── ExistsError               already_exists      also FileExistsError
├── NoMatchError              no_match
├── AmbiguousMatchError       ambiguous_match
├── BinaryFileError           binary_file
├── InvalidPatternError       invalid_pattern     also ValueError
├── TooLargeError             too_large
├── QuotaExceededError        quota_exceeded
├── InvalidContentError       invalid_content     also ValueError
├── ConflictError             conflict
├── DeadlineError             timeout             also TimeoutError
├── NotSupportedError         unsupported
└── BackendError              backend_error

Code inside the library raises a leaf; the boundary of a backend operation turns it into the operation's Result.
A leaf is built from the path it is about (and a reason, where there are several), and keeps them, so that one condition
has one text, whatever the path is called where it is told.
"""

from collections.abc import Callable
from enum import StrEnum, auto
from typing import Any, ClassVar, Self

__all__ = [
    "AccessError",
    "AmbiguousMatchError",
    "BackendError",
    "BinaryFileError",
    "ConflictError",
    "DeadlineError",
    "DeepFSError",
    "DirectoryError",
    "ErrorCode",
    "ExistsError",
    "FileMissingError",
    "InvalidContentError",
    "InvalidPathError",
    "InvalidPatternError",
    "NoMatchError",
    "NotDirectoryError",
    "NotSupportedError",
    "QuotaExceededError",
    "TooLargeError",
    "clipped",
    "error_class",
    "error_of",
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


_MOST_SHOWN = 300
"""Characters of what a caller gave that an error repeats."""


def clipped(text: str) -> str:
    """`text`, cut when it is very long."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def quoted(name: str) -> str:
    """`name` in quotes, with what cannot be printed or encoded escaped, cut when it is very long."""
    shown = clipped(name)
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode("ascii")
    return f"'{shown}'"


class DeepFSError(Exception):
    """The base of every expected failure; `str(error)` is the text that a Result carries.

    What an error says is kept as data, and the text is made of it where it is asked for. So a layer that shows a file
    by another path changes the path, and no sentence.
    """

    args: tuple[Any, ...]
    code: ClassVar[ErrorCode] = ErrorCode.BACKEND_ERROR
    path: str | None = None
    """What it is about; None where the text names no path, or came as a text from elsewhere."""
    other: str | None = None
    """A second path that the text names."""
    _around: tuple[str, str] = ("Error: ", "")

    @classmethod
    def about(cls, path: str, before: str, after: str = "", *, other: str | None = None) -> Self:
        """One about `path` with a text of its own: `before`, the path in quotes, `after`.

        `{other}` in `after` stands for the other path, where there is one.
        """
        error = cls.__new__(cls)
        error._say(path, before, after, other)
        return error

    def _say(self, path: str, before: str, after: str = "", other: str | None = None) -> None:
        self.path, self.other, self._around = path, other, (before, after)
        self.args = (str(self),)

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The same failure with each path as `name` has it; a copy without traceback."""
        error = type(self).__new__(type(self))
        error.args, error.__dict__ = self.args, {**self.__dict__}
        if self.path is not None:
            error.path = name(self.path)
            error.other = None if self.other is None else name(self.other)
            error.args = (str(error),)
        return error

    def __str__(self) -> str:
        if self.path is None:
            return str(self.args[0]) if self.args else ""
        before, after = self._around
        if self.other is not None:
            after = after.replace("{other}", quoted(self.other)[1:-1])
        return f"{before}{quoted(self.path)}{after}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self.args), self.__dict__


def _made(kind: type[DeepFSError], args: tuple[Any, ...]) -> DeepFSError:
    error = kind.__new__(kind)
    error.args = args
    return error


class FileMissingError(DeepFSError, FileNotFoundError):
    """Nothing is stored at `path`."""

    code = ErrorCode.FILE_NOT_FOUND

    def __init__(self, path: str) -> None:
        self._say(path, "Error: File ", " not found")


class DirectoryError(DeepFSError, IsADirectoryError):
    """`path` is a directory where a file is needed."""

    code = ErrorCode.IS_DIRECTORY

    def __init__(self, path: str) -> None:
        self._say(path, "Error: ", " is a directory")


class NotDirectoryError(DeepFSError, NotADirectoryError):
    """`path`, or something above it, is a file where a directory is needed."""

    code = ErrorCode.NOT_A_DIRECTORY

    def __init__(self, path: str) -> None:
        self._say(path, "Error: ", " is not a directory")


class AccessError(DeepFSError, PermissionError):
    """The storage or a rule refuses the operation on `path`."""

    code = ErrorCode.PERMISSION_DENIED

    def __init__(self, path: str, reason: str = "", other: str | None = None) -> None:
        self.reason: str = reason
        self._say(path, "Error: Permission denied for ", f": {reason}" if reason else "", other)


class InvalidPathError(DeepFSError, ValueError):
    """`path` is not a path of the contract."""

    code = ErrorCode.INVALID_PATH

    def __init__(self, path: str, reason: str, other: str | None = None) -> None:
        self.reason: str = reason
        self._say(path, "Error: Invalid path ", f": {reason}", other)


class ExistsError(DeepFSError, FileExistsError):
    """Something is stored at `path` and may not be replaced."""

    code = ErrorCode.ALREADY_EXISTS

    def __init__(self, path: str, *, is_directory: bool = False) -> None:
        self.is_directory: bool = is_directory
        if is_directory:
            self._say(path, "Error: Directory ", " already exists. Choose a new path; a directory is never replaced.")
        else:
            advice = "Edit it, choose a new path, or overwrite it explicitly."
            self._say(path, "Error: File ", f" already exists. {advice}")


class NoMatchError(DeepFSError):
    """The text to replace is not in the file; `hint` says what comes nearest."""

    code = ErrorCode.NO_MATCH

    def __init__(self, path: str, hint: str = "") -> None:
        self.hint: str = hint
        self._say(path, "Error: String not found in file ", f". {hint}" if hint else ".")


class AmbiguousMatchError(DeepFSError):
    """The text to replace stands in several places."""

    code = ErrorCode.AMBIGUOUS_MATCH

    def __init__(self, path: str, occurrences: int) -> None:
        self.occurrences: int = occurrences
        advice = "Add surrounding text to make it unique, or set replace_all=True."
        self._say(path, f"Error: String appears {occurrences} times in file ", f" (multiple matches). {advice}")


class BinaryFileError(DeepFSError):
    """The operation needs text, and the file is binary."""

    code = ErrorCode.BINARY_FILE

    def __init__(self, path: str) -> None:
        self._say(path, "Error: ", " is a binary file and cannot be changed as text")


class InvalidPatternError(DeepFSError, ValueError):
    """A glob or a regular expression that cannot be used."""

    code = ErrorCode.INVALID_PATTERN


class TooLargeError(DeepFSError):
    """The file is over a limit of the backend."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, path: str, size: int, limit: int) -> None:
        self.size: int = size
        self.limit: int = limit
        self._say(path, "Error: ", f" is too large: {size:,} bytes, the limit is {limit:,}")


class QuotaExceededError(DeepFSError):
    """With the change of `path`, more would be stored than may be: `size` of `unit`, and the limit is `limit`."""

    code = ErrorCode.QUOTA_EXCEEDED

    def __init__(self, path: str, size: int, limit: int, unit: str = "bytes") -> None:
        self.size: int = size
        self.limit: int = limit
        self.unit: str = unit
        self._say(path, "Error: ", f" exceeds the quota: {size:,} {unit} would be stored, the limit is {limit:,}")


class InvalidContentError(DeepFSError, ValueError):
    """The text or data given or stored is not of the contract's form."""

    code = ErrorCode.INVALID_CONTENT


class ConflictError(DeepFSError):
    """The file is not, or no longer, the version that the caller named."""

    code = ErrorCode.CONFLICT

    def __init__(self, path: str) -> None:
        self._say(path, "Error: ", " changed since it was read. Read it again, then retry.")


class DeadlineError(DeepFSError, TimeoutError):
    """The operation's time was up."""

    code = ErrorCode.TIMEOUT


class NotSupportedError(DeepFSError):
    """The backend does not offer the operation."""

    code = ErrorCode.UNSUPPORTED


class BackendError(DeepFSError):
    """The storage failed in a way that the caller cannot mend."""

    code = ErrorCode.BACKEND_ERROR


def error_class(code: ErrorCode) -> type[DeepFSError]:
    """The leaf that carries `code`."""
    return next(leaf for leaf in DeepFSError.__subclasses__() if leaf.code is code)


def error_of(code: str, text: str) -> DeepFSError:
    """The leaf that carries `code`, or BackendError for one that is none, with another text than its own."""
    leaf = error_class(ErrorCode(code)) if code in ErrorCode.__members__.values() else BackendError
    error = leaf.__new__(leaf)
    error.args = (text,)
    return error
