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
A leaf keeps its facts as data: the path, the reason and others. The text is rendered from the data, so a layer that
shows a file under another path changes the path, never a text.

No leaf is an OSError: a handler of OSError is for the operating system, and must not swallow a refusal of a backend.
"""

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Self

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
    "PermissionDeniedError",
    "QuotaExceededError",
    "TooLargeError",
    "clipped",
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


_MOST_SHOWN = 300
"""The most characters of a caller's text that an error repeats."""


_MOST_FOREIGN: Final = 10_000
"""The most characters of an error that another library made: it may quote all that it was given."""


def clipped(text: str, most: int = _MOST_SHOWN) -> str:
    """`text`, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def foreign_text(text: str) -> str:
    """The text of an error that another library made, cut if it is very long, with lone surrogates as escapes."""
    return clipped(text, _MOST_FOREIGN).encode("utf-8", "backslashreplace").decode()


def quoted(name: str) -> str:
    """`name` in quotes, cut if it is very long; escaped to printable ASCII if it has unprintable characters."""
    shown = clipped(name)
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode("ascii")
    return f"'{shown}'"


_NAMES_A_PATH: Final = re.compile(
    r"((?:Error: )?(?:[^'\n]*\b(?:file|path|directory|folder|for|on) )?)'([^'\n]*)'", re.IGNORECASE
)
"""Matches a text up to its first quoted part, if the words before that show that it can only be a path."""

_NAME: Final = re.compile(r"\{(\w+)\}")
"""A placeholder in a reason, as in `it lies inside {other}`."""

_MARK: Final = "Error: "
"""The start of every text; an error that is quoted inside another one is shown without it."""


class _GivenText(NamedTuple):
    """A text that was made elsewhere; if the error has a path, it is inserted between `before` and `after`."""

    before: str
    after: str = ""


class DeepFSError(Exception):
    """The base of every expected failure; `str(error)` is the text that a Result carries.

    All facts are attributes, and the text is rendered from them. Pickles and copies keep them.

    Args:
        path: The path that the error is about; None if the text names no path. As the only argument it is the whole
            text.
        reason: Why the operation failed, in plain words; `{other}` in it stands for the other path.
        other: A second path that the reason names.
    """

    code: ClassVar[ErrorCode] = ErrorCode.BACKEND_ERROR
    path: str | None = None
    """The path that the error is about; None if the text names no path, or was made elsewhere."""
    _reason: str = ""
    _named: Mapping[str, "str | DeepFSError"] = MappingProxyType({})
    """The other paths and the errors that replace `{name}` in the reason."""
    _given: _GivenText | None = None

    def __init__(self, path: str | None = "", reason: str | None = None, other: str | None = None) -> None:
        if reason is None:
            self._given = _GivenText(path or "")
            self._set(None)
        else:
            self._set(path, reason, other=other)

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

    @classmethod
    def about(cls, path: str, before: str, after: str = "", *, other: str | None = None) -> Self:
        """An error with a text of its own, as code for earlier versions makes it; `because` takes a reason instead.

        Args:
            path: The path that the error is about.
            before: The text before the path, which is shown in quotes.
            after: The text after the path; `{other}` in it stands for the other path.
            other: A second path that `after` names.
        """
        error = cls.because(path, "", other=other)
        error._given = _GivenText(before, after)
        return error

    def _set(self, path: str | None, reason: str = "", **named: "str | DeepFSError | None") -> None:
        self.path, self._reason = path, reason
        self._named = {name: fact for name, fact in named.items() if fact is not None}

    @property
    def other(self) -> str | None:
        """A second path that the reason names."""
        other = self._named.get("other")
        return other if isinstance(other, str) else None

    @property
    def reason(self) -> str:
        """Why the operation failed, in plain words; empty if the condition says it all.

        If the text was made elsewhere, the reason is the whole text.
        """
        if self._given is not None:
            return str(self)
        return self._filled(self._reason)

    def _filled(self, text: str) -> str:
        """`text` with the named facts in the places of `{name}`."""
        return _NAME.sub(self._shown, text) if self._named else text

    def _shown(self, name: re.Match[str]) -> str:
        fact = self._named.get(name[1])
        if fact is None:
            return name[0]
        return quoted(fact)[1:-1] if isinstance(fact, str) else str(fact).removeprefix(_MARK)

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The text alone."""
        return (str(self),)

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The same failure with other paths; a copy without traceback.

        Args:
            name: Returns the path to show for a path.
        """
        error = type(self).__new__(type(self))
        error.__dict__.update(self.__dict__)
        error.path = None if self.path is None else name(self.path)
        error._named = {
            key: name(fact) if isinstance(fact, str) else fact.renamed(name) for key, fact in self._named.items()
        }
        return error

    def located(self, known_paths: Collection[str]) -> Self:
        """The same failure; a text that was made elsewhere is parsed for its path.

        Args:
            known_paths: If the first quoted part of the text is one of these paths, it becomes the path of the error.
                Other quoted parts may be the content of a file, and stay unchanged.
        """
        located = self.renamed(str)
        if self._given is not None and self.path is None:
            text = self._given.before
            named = _NAMES_A_PATH.match(text)
            if named is not None and named[2] in known_paths:
                located.path, located._given = named[2], _GivenText(named[1], text[named.end() :])
        return located

    def __str__(self) -> str:
        if self._given is not None:
            shown = "" if self.path is None else quoted(self.path)
            return f"{self._given.before}{shown}{self._filled(self._given.after)}"
        return f"{_MARK}{self._rendered()}"

    def _rendered(self) -> str:
        """The text without the leading `Error: `."""
        if self.path is None:
            return self.reason
        condition = self._condition(quoted(self.path))
        return f"{condition}: {self.reason}" if self._reason else f"{condition}{self._advice()}"

    def _condition(self, path: str) -> str:
        """The first part of the text: what is wrong with `path`, which is quoted already."""
        return path

    def _advice(self) -> str:
        """Advice for the caller; it ends the text if there is no reason."""
        return ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self),), self.__dict__


def _made(kind: type[DeepFSError]) -> DeepFSError:
    return kind.__new__(kind)


class NotFoundError(DeepFSError):
    """Nothing is stored at a path.

    Args:
        path: The path.
        reason: Further information, in plain words.
    """

    code = ErrorCode.FILE_NOT_FOUND

    def __init__(self, path: str, reason: str = "") -> None:
        self._set(path, reason)

    def _condition(self, path: str) -> str:
        return f"File {path} not found"


class IsDirectoryError(DeepFSError):
    """A path is that of a directory where a file is needed.

    Args:
        path: The path.
        reason: Further information, in plain words.
    """

    code = ErrorCode.IS_DIRECTORY

    def __init__(self, path: str, reason: str = "") -> None:
        self._set(path, reason)

    def _condition(self, path: str) -> str:
        return f"{path} is a directory"


class NotDirectoryError(DeepFSError):
    """A path, or something above it, is a file where a directory is needed.

    Args:
        path: The path.
        reason: Further information, in plain words.
    """

    code = ErrorCode.NOT_A_DIRECTORY

    def __init__(self, path: str, reason: str = "") -> None:
        self._set(path, reason)

    def _condition(self, path: str) -> str:
        return f"{path} is not a directory"


class PermissionDeniedError(DeepFSError):
    """The storage or a rule refuses the operation on a path.

    Args:
        path: The path.
        reason: Why, in plain words; `{other}` in it stands for the other path.
        other: A second path that the reason names.
    """

    code = ErrorCode.PERMISSION_DENIED

    def __init__(self, path: str, reason: str = "", other: str | None = None) -> None:
        self._set(path, reason, other=other)

    def _condition(self, path: str) -> str:
        return f"Permission denied for {path}"


class InvalidPathError(DeepFSError, ValueError):
    """The text given as a path is not a path of the contract.

    Args:
        path: The path.
        reason: Why, in plain words; `{other}` in it stands for the other path.
        other: A second path that the reason names.
    """

    code = ErrorCode.INVALID_PATH

    def __init__(self, path: str, reason: str, other: str | None = None) -> None:
        self._set(path, reason, other=other)

    def _condition(self, path: str) -> str:
        return f"Invalid path {path}"


class AlreadyExistsError(DeepFSError):
    """Something is stored at `path` and may not be replaced.

    Args:
        path: The path.
        reason: Further information, in plain words; it replaces the advice what to do.
        is_directory: Whether a directory is stored there.
    """

    code = ErrorCode.ALREADY_EXISTS
    is_directory: bool = False

    def __init__(self, path: str, reason: str = "", *, is_directory: bool = False) -> None:
        self.is_directory = is_directory
        self._set(path, reason)

    def _condition(self, path: str) -> str:
        return f"{'Directory' if self.is_directory else 'File'} {path} already exists"

    def _advice(self) -> str:
        if self.is_directory:
            return ". Choose a new path; a directory is never replaced."
        return ". Choose a new path, or set overwrite to replace it."


class NoMatchError(DeepFSError):
    """The text to replace is not in the file.

    Args:
        path: The path of the file.
        hint: The most similar text in the file and how it differs; empty if none is similar. It is also the `reason`.
    """

    code = ErrorCode.NO_MATCH

    def __init__(self, path: str, hint: str = "") -> None:
        self._set(path, hint)

    @property
    def hint(self) -> str:
        """The most similar text in the file and how it differs; empty if none is similar."""
        return self.reason

    def _rendered(self) -> str:
        if self.path is None:
            return self.reason
        place = f"file {quoted(self.path)}" if self.path else "the text"
        missing = f"String not found in {place}."
        return f"{missing} {self.reason}" if self._reason else missing


class AmbiguousMatchError(DeepFSError):
    """The text to replace occurs more than once.

    Args:
        path: The path of the file.
        occurrences: How many times. The attribute is None if it is not known.
    """

    code = ErrorCode.AMBIGUOUS_MATCH
    occurrences: int | None = None

    def __init__(self, path: str, occurrences: int) -> None:
        self.occurrences = occurrences
        self._set(path)

    def _condition(self, path: str) -> str:
        times = "several" if self.occurrences is None else self.occurrences
        place = f"file {path}" if self.path else "the text"
        return f"String appears {times} times in {place} (multiple matches)"

    def _advice(self) -> str:
        return ". Add surrounding text to make it unique, or set replace_all=True."


class BinaryFileError(DeepFSError):
    """The operation needs text, and the file is binary.

    Args:
        path: The path.
        reason: Further information, in plain words.
    """

    code = ErrorCode.BINARY_FILE

    def __init__(self, path: str, reason: str = "") -> None:
        self._set(path, reason)

    def _condition(self, path: str) -> str:
        return f"{path} is a binary file and cannot be changed as text"


_NOT_SHOWN: Final = frozenset({"regex pattern", "search", "search pattern"})
"""Kinds of patterns that are not repeated in the text of an error."""


class InvalidPatternError(DeepFSError, ValueError):
    """A glob or a regular expression that cannot be used.

    Args:
        pattern: The pattern, or None if the text does not show it. As the only argument it is the whole text.
        reason: Why it cannot be used.
        kind: What the pattern is, as in "glob pattern".
    """

    code = ErrorCode.INVALID_PATTERN
    pattern: str | None = None
    kind: str = ""

    def __init__(self, pattern: str | None = "", reason: str | None = None, *, kind: str = "pattern") -> None:
        super().__init__(pattern if reason is None else None, reason)
        self.pattern, self.kind = (None if reason is None else pattern), kind

    def __str__(self) -> str:
        # deepagents has this one text without `Error: `.
        return super().__str__() if self.kind != "regex pattern" else self._rendered()

    def _rendered(self) -> str:
        if not self.kind:
            return super()._rendered()
        shown = "" if self.pattern is None or self.kind in _NOT_SHOWN else f" {quoted(self.pattern)}"
        return f"Invalid {self.kind}{shown}: {self.reason}"


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

    def __init__(self, path: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        self._set(path)

    def _condition(self, path: str) -> str:
        if self.size is None or self.limit is None:
            return f"{path} is too large"
        return f"{path} is too large: {self.size:,} bytes, the limit is {self.limit:,}"


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

    def __init__(self, path: str, size: int, limit: int, unit: str = "bytes") -> None:
        self.size, self.limit, self.unit = size, limit, unit
        self._set(path)

    def _condition(self, path: str) -> str:
        if self.size is None or self.limit is None:
            return f"{path} exceeds the quota"
        return f"{path} exceeds the quota: {self.size:,} {self.unit} would be stored, the limit is {self.limit:,}"


class InvalidContentError(DeepFSError, ValueError):
    """The text or data given or stored is not of the contract's form."""

    code = ErrorCode.INVALID_CONTENT

    def _condition(self, path: str) -> str:
        return f"Invalid content of {path}"


class ConflictError(DeepFSError):
    """The file is not, or no longer, the version that the caller named.

    Args:
        path: The path.
        reason: Further information, in plain words; `{other}` in it stands for the other path.
        other: A second path that the reason names.
    """

    code = ErrorCode.CONFLICT

    def __init__(self, path: str, reason: str = "", other: str | None = None) -> None:
        self._set(path, reason, other=other)

    def _condition(self, path: str) -> str:
        return f"{path} changed since it was read"

    def _advice(self) -> str:
        return ". Read it again, then retry."


class DeadlineError(DeepFSError):
    """The operation's time was up, or it was cancelled."""

    code = ErrorCode.TIMEOUT

    def _condition(self, path: str) -> str:
        return f"Time is up for {path}"


class NotSupportedError(DeepFSError):
    """The backend does not offer the operation.

    Args:
        path: The path that the error is about; None if the text names no path. As the only argument it is the whole
            text.
        reason: What is not offered, in plain words; `{other}` in it stands for the other path.
        other: A second path that the reason names.
        backend: The name of the backend. With `operation` it is the reason.
        operation: The name of the operation.
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
        self.backend, self.operation = backend, operation
        if operation is None:
            super().__init__(path, reason, other)
        else:
            super().__init__(path or None, f"{backend or 'The backend'} does not support {operation}")


class BackendError(DeepFSError):
    """The storage failed in a way that the caller cannot mend."""

    code = ErrorCode.BACKEND_ERROR


def error_class(code: str) -> type[DeepFSError]:
    """The leaf class with `code`; BackendError for an unknown code."""
    return next((leaf for leaf in DeepFSError.__subclasses__() if leaf.code == code), BackendError)


def error_about(code: str, path: str | None, reason: str, **named: str | DeepFSError | None) -> DeepFSError:
    """The leaf error with `code`, a path and a reason, and without other facts.

    Args:
        code: The code; an unknown one gives BackendError.
        path: The path that the error is about; None if the text names no path.
        reason: Why the operation failed, in plain words. `{name}` in it stands for the argument of that name.
        **named: Further paths that the reason names, and errors that it quotes.
    """
    return error_class(code).because(path, reason, **named)


def error_of(code: str, text: str) -> DeepFSError:
    """The leaf error with `code`, and a text that was made elsewhere: shown as it is, cut after 10,000 characters.

    Args:
        code: The code; an unknown one gives BackendError.
        text: The text.
    """
    error = error_class(code).because(None, "")
    error._given = _GivenText(foreign_text(text))
    return error
