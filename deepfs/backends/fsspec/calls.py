"""Calls of a filesystem of fsspec: awaited or blocking, and tried again by a policy.

Errors become those of `deepfs.errors`, and answers are checked.
"""

import errno
import io
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deepfs._drivers import CLOCKS_DIFFER, FORBIDDEN, WRONG_CREDENTIALS, condition_of, failure_by
from deepfs.errors import (
    BackendError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotSupportedError,
)
from deepfs.storage.gathering import gather_each
from deepfs.storage.runners import Requests, RetryPolicy
from deepfs.text import records
from deepfs.text.flat_tree import FileStat
from deepfs.threads.forks import ForkSafeLock
from deepfs.threads.loop_bridge import call_on, is_stray, running_asyncio_loop

if TYPE_CHECKING:
    from deepfs.threads.loop_bridge import AsyncioLoop


T = TypeVar("T")
ItemT = TypeVar("ItemT")

_IN_FLIGHT: Final = 32
"""The most calls of one operation that wait for an async filesystem."""

# --- errors ----------------------------------------------------------------------------------------------------------

_PASSING: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT}
)
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP})
_CLIENTS: Final = frozenset({"aiohttp", "botocore", "httpx", "urllib3"})
"""Packages whose connection errors are not OSErrors."""


def is_transient(error: Exception) -> bool:
    """Whether an error of a filesystem is one that may pass, so that it is not known what took effect."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError):
        return error.errno in _PASSING or _is_of_a_client(error)
    return isinstance(error, EOFError) or _is_of_a_client(error)


def _is_of_a_client(error: Exception) -> bool:
    kind = type(error)
    named = any(word in kind.__name__ for word in ("Connect", "Timeout", "Disconnected", "Payload", "Incomplete"))
    return named and kind.__module__.partition(".")[0] in _CLIENTS


def _leaf_of(error: Exception, path: str) -> DeepFSError:
    """The error of deepfs for an error of a filesystem.

    It has a path if it is about that path only, not about the filesystem.
    """
    number = error.errno if isinstance(error, OSError) else None
    condition = condition_of(error, path)
    is_refused = isinstance(error, PermissionError) or number in _REFUSED
    if is_refused and condition not in (WRONG_CREDENTIALS, CLOCKS_DIFFER):
        condition = FORBIDDEN
    if isinstance(error, IsADirectoryError):
        return IsDirectoryError(path)
    if isinstance(error, NotADirectoryError):
        return NotDirectoryError(path)
    if isinstance(error, NotImplementedError | io.UnsupportedOperation) or number in _NOT_OFFERED:
        return NotSupportedError.because(path, "the filesystem does not offer this")
    if number == errno.ENAMETOOLONG:
        return InvalidPathError(path, "it is too long for the filesystem")
    is_about_path = condition is FORBIDDEN or (condition is None and not is_transient(error) and path != "/")
    return failure_by(error, condition, "fsspec", "The filesystem", path if is_about_path else None)


@contextmanager
def leaf_errors(path: str) -> Iterator[None]:
    """Turn the errors of a filesystem in the block, which works on `path`, into those of `deepfs.errors`."""
    try:
        yield
    except DeepFSError:
        raise
    except Exception as error:
        failure = _leaf_of(error, path)
        raise failure from failure.__cause__


# --- answers ---------------------------------------------------------------------------------------------------------

_TAGS: Final = ("ETag", "etag", "VersionId", "version_id", "generation", "md5Hash", "md5", "sha", "checksum")
"""What filesystems call that which identifies the content of a file."""
_TIMES: Final = (
    "LastModified", "last_modified", "mtime", "modified", "updated", "modify", "last_commit", "date_time", "created"
)  # fmt: skip
"""What filesystems call the time of the last change. The last one is that of fsspec's memory, which sets it anew."""


def check_answer(answer: Any, *kinds: type) -> Any:
    """An answer of a filesystem. Raises BackendError if it is of none of these types."""
    if not isinstance(answer, kinds):
        raise BackendError(None, "The filesystem gave an answer that does not fit what it was asked")
    return answer


def stat_of(info: Mapping[str, Any]) -> FileStat:
    """The stat of a file that a filesystem describes by `info`."""
    size, modified_at = info.get("size"), _time_of(info)
    size = size if isinstance(size, int) and size >= 0 else None
    given = next((value for key in _TAGS if isinstance(value := info.get(key), str | int) and value != ""), None)
    tag = given if given is not None or modified_at is None else (size, modified_at)
    return FileStat(size, modified_at, modified_at, tag)


def _time_of(info: Mapping[str, Any]) -> str | None:
    given = next((value for key in _TIMES if (value := info.get(key)) is not None), None)
    with suppress(ValueError, TypeError, OverflowError, OSError):
        if isinstance(given, int | float):
            given = datetime.fromtimestamp(given, UTC)
        elif isinstance(given, str):
            given = datetime.fromisoformat(given)
        elif isinstance(given, tuple):
            given = datetime(*given)  # Of an archive, without a time zone.
        if isinstance(given, datetime):
            return records.time_text(given)
    return None


def protocols_of(filesystem: Any) -> frozenset[str]:
    """The names by which fsspec knows a filesystem, or a class of them."""
    protocol = filesystem.protocol
    return frozenset([protocol] if isinstance(protocol, str) else protocol)


# --- calls -----------------------------------------------------------------------------------------------------------


class FilesystemCalls:
    """The calls of one filesystem. Coroutines of blocking calls never suspend.

    Those of an async filesystem are made on the event loop that it belongs to: one made with `asynchronous=True`
    belongs to the loop that first uses it, each other one to the loop that fsspec runs in a thread of its own. Those of
    a sync one are made one at a time: fsspec does not say that several threads may use it.
    """

    def __init__(self, filesystem: Any, policy: RetryPolicy) -> None:
        self.filesystem: Any = filesystem
        self.protocols: frozenset[str] = protocols_of(filesystem)
        self._is_async = bool(filesystem.async_impl)
        self._requests = Requests(policy, is_transient)
        self._home: AsyncioLoop | None = None
        self._lock = ForkSafeLock()
        self.has_bare_tags: bool = False
        """Whether a store compares the tag of a condition without the quotes that belong to it."""

    async def call(self, method: str, *args: Any, attempts: int | None = None, **options: Any) -> Any:
        """Call a method by its sync name, again if it fails for a reason that may pass, up to `attempts` times."""
        call = partial(self._function(method), *args, **options)
        if self._is_async:
            return await self._requests.send(partial(self._send, call), attempts=attempts)
        return self._requests.send_blocking(partial(self._call_locked, call), attempts=attempts)

    async def each(self, function: Callable[[ItemT], Awaitable[T]], items: Iterable[ItemT]) -> list[T]:
        """Call an async function with every item, some at once. Calls that have begun end even if another one fails.

        Raises the first error; items that were not begun by then are left out.
        """
        if self._is_async:
            return await gather_each(function, items, most=_IN_FLIGHT, cancels=False)
        return [await function(item) for item in items]

    def takes(self, method: str, option: str) -> bool:
        """Whether a method of the filesystem has a parameter of this name."""
        try:
            return option in signature(self._function(method)).parameters
        except (AttributeError, TypeError, ValueError):
            return False

    def overrides(self, method: str) -> bool:
        """Whether the filesystem has its own version of a method of fsspec's base classes."""
        return not getattr(self._function(method), "__module__", "fsspec.").startswith(("fsspec.spec", "fsspec.asyn"))

    def runs_here(self) -> bool:
        """Whether the calling thread runs the loop of the filesystem, so that it must not wait for it."""
        return self._home is not None and self._home is running_asyncio_loop()

    def _function(self, method: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.filesystem, f"_{method}" if self._is_async else method)
        return function

    def _call_locked(self, call: Callable[[], T]) -> T:
        with self._lock:
            return call()

    async def _send(self, call: Callable[[], Any]) -> Any:
        try:
            return await call_on(self._loop(), call)
        except Exception:
            raise
        except BaseException as error:
            if not is_stray(error):
                raise
            raise BackendError(None, "The filesystem cancelled a call") from error

    def _loop(self) -> "AsyncioLoop":
        if not self.filesystem.asynchronous:
            loop: AsyncioLoop = self.filesystem.loop
            return loop
        if self._home is None or self._home.is_closed():
            self._home = running_asyncio_loop()
        if self._home is None:
            raise BackendError(None, "A filesystem made with asynchronous=True needs an asyncio event loop")
        return self._home
