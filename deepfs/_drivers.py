"""What the drivers of storages raise: as errors of deepfs with a phrase for each condition, and in the log, once.

The text of an error has the phrase, never what the driver said: that may quote addresses, queries and secrets. What it
said, without secrets, is logged and is the cause of the error.
"""

import errno
import logging
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from deepfs.errors import BackendError, DeadlineError, DeepFSError, PermissionDeniedError, clip

__all__ = [
    "BACKENDS",
    "CLOCKS_DIFFER",
    "FAILURES",
    "FORBIDDEN",
    "NOT_ALLOWED_HTTP",
    "NO_BUCKET",
    "NO_CREDENTIALS",
    "REFUSED",
    "WRONG_CREDENTIALS",
    "Condition",
    "DriverError",
    "add_cause",
    "condition_of",
    "failure_by",
    "log_failure",
    "redact",
]

# --- conditions ------------------------------------------------------------------------------------------------------


BACKENDS: Final = ("fsspec", "object_store", "postgres", "redis", "sqlite", "storage", "store")
"""The last parts of the names of the loggers; `storage` is that of custom backends."""


class Condition(Struct, frozen=True):
    """Why a storage failed."""

    phrase: str
    leaf: type[DeepFSError] = BackendError


FORBIDDEN: Final = Condition("refused access", PermissionDeniedError)
REFUSED: Final = Condition("connection refused")
CLOCKS_DIFFER: Final = Condition("its clock and that of this machine differ")
NO_BUCKET: Final = Condition("no such bucket")
NO_CREDENTIALS: Final = Condition("no credentials were found")
NOT_ALLOWED_HTTP: Final = Condition("plain http:// needs allow_http=True")
_TIMED_OUT: Final = Condition("timed out", DeadlineError)
WRONG_CREDENTIALS: Final = Condition("wrong credentials")
_WRONG_REGION: Final = Condition("the bucket is in another region")
_LOST: Final = Condition("connection lost")

FAILURES: Final = (BackendError, DeadlineError, PermissionDeniedError)
"""The classes of the errors of all conditions."""

_BY_STATE: Final = (
    ("080", _LOST),
    ("25006", Condition("it takes no changes now")),
    ("28", WRONG_CREDENTIALS),
    ("3D", Condition("no such database")),
    ("42501", FORBIDDEN),
    ("53100", Condition("its disk is full")),
    ("53300", Condition("too many connections")),
    ("54", Condition("the file is too large for it")),
    ("57014", _TIMED_OUT),
    ("57P", Condition("it is starting or shutting down")),
)
"""Beginnings of the SQLSTATEs of databases."""
_BY_TEXT: Final = (
    (r"BadScheme", NOT_ALLOWED_HTTP),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|(?:Expired|Invalid)Token\b|password authentication failed|"
     r"AuthenticationFailed|AuthenticationException|\bUnauthenticated|InvalidAuthenticationInfo", WRONG_CREDENTIALS),
    (r"NoSuchBucket|ContainerNotFound|specified bucket does not exist", NO_BUCKET),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|incorrectly configured region", _WRONG_REGION),
    (r'database "[^"]*" does not exist|no such database', Condition("no such database")),
    (r"NoCredentials|Unable to locate credentials", NO_CREDENTIALS),
    (r"RequestTimeTooSkewed", CLOCKS_DIFFER),
    (rf"Connection ?Refused|\[Errno {errno.ECONNREFUSED}\]|Is the server running", REFUSED),
    (r"gaierror|dns error|name or service not known|name resolution|nodename nor servname|translate host name",
     Condition("host name not resolved")),
    (r"(?-i:\bSSL|\bTLS\b|Certificate|CERTIFICATE)|certificate verify|InvalidContentType|corrupt message",
     Condition("TLS failed")),
    (r"(?-i:Timeout)|Timed ?Out", _TIMED_OUT),
    (r"(?:Host|Network) ?(?:is )?unreachable|No route to host", Condition("network unreachable")),
    (r"ConnectionReset|ConnectionAborted|BrokenPipe|Disconnected|server closed the connection|connection was closed|"
     r"connection closed|IncompleteMessage|IncompleteRead", _LOST),
)  # fmt: skip
"""What the names and texts of drivers have in common; the first that is found counts."""
_NAMES: Final = r"\w{1,30}://\S+|(?<!\w)'[^']*'"
"""URLs and what is quoted hold names of files, which may look like a condition."""


def condition_of(error: BaseException, path: str = "/") -> Condition | None:
    """The condition that an error of a driver stands for; None if it is not known. The name `path` does not count."""
    state = getattr(error, "sqlstate", None)
    for start, condition in _BY_STATE:
        if isinstance(state, str) and state.startswith(start):
            return condition
    text = "\n".join(f"{type(each).__name__}: {_reason_of(each)}" for each in _with_causes(error))
    if name := path.strip("/"):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text)
    text = re.sub(_NAMES, "", text)
    return next((condition for pattern, condition in _BY_TEXT if re.search(pattern, text, re.IGNORECASE)), None)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it; drivers wrap what the system says."""
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


_MOST_CAUSES: Final = 8
_MOST_READ: Final = 4000
"""The most characters of what a driver said that are looked at."""


def _reason_of(error: BaseException) -> str:
    """What a driver said, without the name of the file that an error of the system has."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"[Errno {error.errno}] {error.strerror}"
    return _text_of(error)


def _text_of(error: BaseException) -> str:
    """What a driver said. It may be the whole answer of a server, or an error that has no text."""
    try:
        return clip(str(error), _MOST_READ)
    except Exception:
        return ""


# --- errors ----------------------------------------------------------------------------------------------------------


def failure_by(
    error: Exception,
    condition: Condition | None,
    backend: str,
    subject: str,
    path: str | None = None,
    *,
    detail: str = "",
) -> DeepFSError:
    """The error to raise for `error`, which a driver raised and which stands for `condition`, as far as known.

    `backend` is the last part of the name of the logger, `subject` what failed, as in "The database". The error is
    about the storage, or only about `path`. `detail` is named if the condition is not known; by default the class.
    """
    subject = subject if path is None else f"{subject[:1].lower()}{subject[1:]}"
    if condition is None:
        failure: DeepFSError = BackendError.because(path, f"{subject} failed ({detail or type(error).__name__})")
    else:
        said = condition.phrase if condition is FORBIDDEN else f"failed: {condition.phrase}"
        failure = condition.leaf.because(path, f"{subject} {said}")
    return add_cause(failure, error, backend)


def add_cause(failure: DeepFSError, error: Exception, backend: str) -> DeepFSError:
    """`failure`, with what a driver raised as its cause, to be logged for `backend`."""
    failure._set_cause(_copy_without_secrets(error), f"deepfs.{backend}")
    return failure


class DriverError(Exception):
    """The name and text of what a driver raised, if it cannot be copied."""


def _copy_without_secrets(error: Exception) -> Exception:
    """A copy of an error that keeps nothing alive: of the same class if that takes a text alone, and without secrets.

    What drivers raise may hold connections, and frames with credentials.
    """
    text = redact(_text_of(error))
    try:
        copied = type(error)(text)
        if str(copied) == text:
            return copied
    except Exception:  # It takes other arguments.
        pass
    return DriverError(f"{type(error).__name__}: {text}")


def log_failure(error: DeepFSError) -> None:
    """Log what the driver said, unless this was done: whatever lets an error leave a storage calls it."""
    if name := error._take_log():
        said = error._driver_error
        text = str(error).removeprefix("Error: ")
        logging.getLogger(name).warning("%s; the driver raised %s: %s", text, type(said).__name__, said)


# --- secrets ---------------------------------------------------------------------------------------------------------

_MOST_SAID: Final = 2000
"""The most characters that are kept of what a driver said."""
_SECRET: Final = (
    r"[\w.-]{0,40}(?:passw(?:or)?d|passphrase|\bpass\b|pwd|secret|token|signature|credential|authorization|\bsig|"
    r"(?:access|account|api|private|shared)[_-]?key)[\w.-]{0,40}"
)
"""The names of what is secret."""
_VALUE: Final = r"(?:\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|[^\s\"'<>]+)"
_SHOWN: Final = (
    (r"\b(\w[\w+.-]{0,30}://)[^\s\"'<>]*@", r"\1"),
    (r"(://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", r"\1?…"),
    # What a store was given and echoes: signatures and what is signed, session tokens.
    (r"<([\w-]*(?:AccessKey|Auth|Canonical|Secret|Sign|Token)[\w-]*)>.*?(?:</\1>|$)", r"<\1>…</\1>"),
    (r"\b(authorization\W{1,4})[^\"'<>]*", r"\1…"),
    (r"\b(bearer|basic)\s+[^\s\"'<>]+", r"\1 …"),
    (r"(-----BEGIN).*?(?:-----END[^-]*-----|$)", r"\1…"),
    (rf"({_SECRET}\W{{0,3}}[=:]\s{{0,2}}\\?){_VALUE}", r"\1…"),
    (r"\b((?-i:A[KS]IA))\w{16}\b", r"\1…"),
    (r"((?-i:\bDETAIL:)\s).*", r"\1…"),  # PostgreSQL quotes the row.
)
"""What may hold a secret, and what is shown of it."""


def redact(text: str) -> str:
    """What a driver said, on one line, without what may be secret: users and queries of URLs, keys and tokens."""
    if len(text) > _MOST_READ:  # What is cut off may be the end of a secret: no half of a word stays.
        text = text[:_MOST_READ].rpartition(" ")[0] or "…"
    text = " ".join(text.split())
    for pattern, shown in _SHOWN:
        text = re.sub(pattern, shown, text, flags=re.IGNORECASE)
    return clip(text, _MOST_SAID).encode("utf-8", "backslashreplace").decode()
