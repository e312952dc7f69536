"""A log of all operations."""

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from deepfs.backends.operations import CHUNK_BYTES
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError
from deepfs.policy.hooks import call_of
from deepfs.sync import shielded
from deepfs.text.arguments import check_callable
from deepfs.text.judging import aside
from deepfs.types import FileUploadResponse

__all__ = ["AuditLog", "AuditRecord", "AuditedBackend", "Redaction"]

P = ParamSpec("P")
T = TypeVar("T")


class AuditRecord(Struct, frozen=True, omit_defaults=True):
    """One finished operation; `msgspec.json.encode` and `msgspec.to_builtins` accept it."""

    at: str
    """When the operation began: ISO 8601, UTC."""
    operation: str
    arguments: dict[str, Any]
    """The arguments. Contents are replaced by their size: characters of a text, bytes of an upload.

    For `upload_stream` and `download_stream`, `size` is the number of bytes transferred. Any log can store them: lone
    surrogates are escaped, texts are cut after 10,000 characters, and what is no text or number is named by its type.
    """
    ok: bool
    seconds: float
    error: str | None = None
    """The text of the failed result, the failed paths of a batch with their codes, or the name of an exception."""
    code: str | None = None


AuditLog: TypeAlias = Callable[[AuditRecord], Awaitable[None] | None]
Redaction: TypeAlias = Callable[[AuditRecord], AuditRecord | None]
"""Removes from a record what must not be logged (`msgspec.structs.replace`); None drops the record."""


class AuditedBackend(WrapperBackend):
    """Reports each operation once it has ended, whether it succeeded, failed, raised or was cancelled.

    Put it before other policies, to report what they deny as well.

    Args:
        inner: The backend.
        log: Called with an `AuditRecord`, sync or async. It must not block the event loop. What it raises reaches the
            caller of the operation, whose change has happened by then.
        redact: Changes a record before `log` gets it; a record for which it returns None is dropped.

    Raises:
        TypeError: If `log` or `redact` cannot be called.
    """

    def __init__(self, inner: BackendProtocol, log: AuditLog, redact: Redaction | None = None) -> None:
        super().__init__(inner)
        self._log = check_callable("log", log)
        self._redact = redact if redact is None else check_callable("redact", redact)

    async def dispatch(
        self, operation: str, call: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs
    ) -> T:
        if operation in _STREAMS:  # A stream is reported when it ends, by its method below.
            return await super().dispatch(operation, call, *args, **options)
        arguments = {name: _logged(name, value) for name, value in call_of(operation, args, options).arguments.items()}
        entry = _Entry(operation, arguments)
        try:
            result = await call(*args, **options)
        except BaseException as error:
            await self._tell(entry.record(*_raised(error)))
            raise
        await self._tell(entry.record(*_failure(result)))
        return result

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        entry = _Entry("upload_stream", {"path": _plain(path), "size": 0})
        try:
            outcome = await super().aupload_stream(path, entry.counted(chunks))
        except BaseException as error:
            await self._tell(entry.record(*_raised(error)))
            raise
        await self._tell(entry.record(*_failure([outcome])))
        return outcome

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        entry = _Entry("download_stream", {"path": _plain(path), "size": 0})
        try:
            async with aclosing(super().adownload_stream(path, chunk_size=chunk_size)) as stream:
                async for chunk in stream:
                    entry.count(chunk)
                    yield chunk
        except GeneratorExit:  # The caller stopped reading.
            await self._tell(entry.record(None, None))
            raise
        except BaseException as error:
            await self._tell(entry.record(*_raised(error)))
            raise
        await self._tell(entry.record(None, None))

    @aside
    async def _tell(self, record: AuditRecord) -> None:
        shown = record if self._redact is None else self._redact(record)
        answer = None if shown is None else self._log(shown)
        if inspect.isawaitable(answer):
            await shielded(lambda: answer)  # Cancelled operations are reported as well.


class _Entry:
    """An operation in progress, of which a record is made when it ends."""

    def __init__(self, operation: str, arguments: dict[str, Any]) -> None:
        self._at = datetime.now(UTC).isoformat(timespec="microseconds")
        self._began = time.perf_counter()
        self._operation = operation
        self._arguments = arguments

    def record(self, error: str | None, code: str | None) -> AuditRecord:
        seconds = time.perf_counter() - self._began
        told = None if error is None else _text(error)
        return AuditRecord(self._at, self._operation, self._arguments, error is None, seconds, told, code)

    async def counted(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Pass on the chunks, and count their bytes."""
        async for chunk in chunks:
            self.count(chunk)
            yield chunk

    def count(self, chunk: object) -> None:
        """Add the bytes of a chunk to `size`. What is no chunk is refused by the backend."""
        self._arguments["size"] += len(chunk) if isinstance(chunk, _BYTES) else 0


_CONTENTS = frozenset({"content", "old", "new"})
_STREAMS = frozenset({"upload_stream", "download_stream"})


_MOST_CHARACTERS = 10_000
"""The most characters of one text in a record; no valid path is longer."""
_BYTES = (bytes, bytearray, memoryview)


def _logged(name: str, value: Any) -> Any:
    """An argument in a form that any log can store."""
    if name in _CONTENTS:
        return _sized(value)
    if name == "files" and isinstance(value, list | tuple):
        return [_logged_file(file) for file in value]
    if name == "paths" and isinstance(value, list | tuple):
        return [_plain(path) for path in value]
    return _plain(value)


def _logged_file(file: Any) -> Any:
    if not isinstance(file, list | tuple) or len(file) != 2:
        return _plain(file)
    path, content = file
    size = _sized(content)
    return {"path": _plain(path), **(size if isinstance(size, dict) else {"size": size})}


def _sized(content: Any) -> Any:
    return {"size": len(content)} if isinstance(content, (str, *_BYTES)) else _plain(content)


def _plain(value: object) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and value.bit_length() > 63:
        return _text(hex(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    return _sized(value) if isinstance(value, _BYTES) else f"<{type(value).__name__}>"


def _text(text: str) -> str:
    """A text that can be encoded, of bounded length: lone surrogates are escaped, and what is cut is told."""
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… [{len(text):,} characters]"
    return shown.encode("utf-8", "backslashreplace").decode()


def _raised(error: BaseException) -> tuple[str, str | None]:
    if isinstance(error, DeepFSError):
        return str(error), error.code.value
    return type(error).__name__, None


def _failure(result: Any) -> tuple[str | None, str | None]:
    if isinstance(result, list):
        failed = [(item.path, item.error) for item in result if getattr(item, "error", None) is not None]
        return ("; ".join(f"{path}: {error}" for path, error in failed), failed[0][1]) if failed else (None, None)
    error, code = getattr(result, "error", None), getattr(result, "code", None)
    return error, None if code is None else str(code)
