"""A log of all operations."""

import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from deepfs._brief import struct_repr
from deepfs.backends.protocol import BackendProtocol
from deepfs.policy.hooks import Call
from deepfs.policy.observing import Observation, ObservedBackend, Outcome, backend_name
from deepfs.sync import shielded
from deepfs.text.arguments import check_callable
from deepfs.text.judging import aside

__all__ = ["AuditLog", "AuditRecord", "AuditedBackend", "Redaction"]


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
    backend: str = ""
    """The class of the backend, without the wrappers around it."""
    content_bytes: int | None = None
    """The bytes of content that were passed in or out; None for operations that pass none."""

    __repr__ = struct_repr


AuditLog: TypeAlias = Callable[[AuditRecord], Awaitable[None] | None]
Redaction: TypeAlias = Callable[[AuditRecord], AuditRecord | None]
"""Removes from a record what must not be logged (`msgspec.structs.replace`); None drops the record."""


class AuditedBackend(ObservedBackend):
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

    def observe(self, call: Call) -> Observation:
        return _Entry(call, backend_name(self), self._tell)

    @aside
    async def _tell(self, record: AuditRecord) -> None:
        shown = record if self._redact is None else self._redact(record)
        answer = None if shown is None else self._log(shown)
        if inspect.isawaitable(answer):
            await shielded(lambda: answer)  # Cancelled operations are reported as well.


class _Entry(Observation):
    """An operation in progress, of which a record is made when it ends."""

    def __init__(self, call: Call, backend: str, tell: Callable[[AuditRecord], Awaitable[None]]) -> None:
        self._at = datetime.now(UTC).isoformat(timespec="microseconds")
        self._began = time.perf_counter()
        self._operation = call.operation
        self._arguments = {name: _logged(name, value) for name, value in call.arguments.items()}
        self._backend = backend
        self._tell = tell
        if call.operation.endswith("_stream"):
            self.passed(0)

    def passed(self, count: int) -> None:
        self._arguments["size"] = count

    async def ended(self, outcome: Outcome) -> None:
        seconds = time.perf_counter() - self._began
        error, code = outcome.error, outcome.code
        told = None if error is None else _text(error)
        record = AuditRecord(self._at, self._operation, self._arguments, error is None, seconds, told, code)
        await self._tell(replace(record, backend=self._backend, content_bytes=outcome.content_bytes))


_CONTENTS = frozenset({"content", "old", "new"})


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
