"""Wrappers that observe each operation: the base, audit logs, and OpenTelemetry spans."""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from deepfs._brief import struct_repr
from deepfs.backends.namespace import current_thread
from deepfs.backends.protocol import BackendProtocol, TenantView, parts_of_tenants, tenant_of
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.operations import ChangeEntries, DownloadStream, Operation, UploadStream
from deepfs.policy.hooks import Call, call_of
from deepfs.sync import run_shielded
from deepfs.text.access import without_access_check
from deepfs.text.arguments import check_callable
from deepfs.text.lines import utf8_size
from deepfs.text.records import size_of
from deepfs.types import (
    ContentChange,
    Encodable,
    ExecuteResponse,
    FileDataV2,
    FileDownloadResponse,
    FileUploadResponse,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

_BYTES = (bytes, bytearray, memoryview)


class Outcome(Struct, frozen=True):
    """How an operation ended."""

    error: str | None = None
    """The text of the failed result, the failed paths of a batch with their codes, or the name of an exception."""
    code: str | None = None
    content_bytes: int | None = None
    """The bytes of content that were passed in or out; None for operations that pass none, and if that is not known."""
    exception: str | None = None
    """The name of the exception that was raised, if it is none of `deepfs.errors`."""


class Observation(ABC):
    """An operation in progress."""

    def running(self) -> AbstractContextManager[object]:
        """The context in which the operation runs. A stream runs in none, since its caller runs in between."""
        return nullcontext()

    def note_progress(self, count: int) -> None:
        """Note how much a stream has passed so far.

        Args:
            count: The bytes.
        """
        return

    @abstractmethod
    async def end(self, outcome: Outcome) -> None:
        """Report the operation, also if it is being cancelled.

        Args:
            outcome: How it ended.
        """


class ObservedBackend(WrapperBackend):
    """Observes each operation until it has ended, whether it succeeded, failed, raised or was cancelled.

    Streams end when their last chunk has passed, or when the caller stops reading.
    """

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self._of_tenants = parts_of_tenants(self.inner)

    @abstractmethod
    def observe(self, call: Call) -> Observation:
        """Begin to observe an operation.

        Args:
            call: The operation; that of a stream has only its path.
        """

    async def run(self, operation: Operation) -> Any:
        if isinstance(operation, ChangeEntries) and len(operation.entries) > 1:
            return [outcome for each in operation.entries for outcome in await self.arun(operation.only([each]))]
        call = call_of(operation, tenant_of(self._of_tenants))
        if call is None:
            return await super().run(operation)
        if isinstance(operation, DownloadStream):
            return self._observe_stream(operation, call)
        observation = self.observe(call)
        counter, context = _Counter(observation), observation.running()
        if isinstance(operation, UploadStream):
            operation, context = replace(operation, chunks=counter.pass_on(operation.chunks)), nullcontext()
        try:
            with context:
                answer = await super().run(operation)
        except BaseException as error:
            await observation.end(_outcome_of_error(error, counter.count))
            raise
        count = counter.count
        if count is None:
            count = _bytes_in(call) if call.changes else _bytes_out(answer)
        await observation.end(Outcome(*_failure(answer), count))
        return answer

    async def _observe_stream(self, operation: DownloadStream, call: Call) -> AsyncGenerator[bytes, None]:
        observation = self.observe(call)
        counter = _Counter(observation)
        try:
            async with aclosing(await super().run(operation)) as source, aclosing(counter.pass_on(source)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except GeneratorExit:  # The caller stopped reading.
            await observation.end(Outcome(content_bytes=counter.count or 0))
            raise
        except BaseException as error:
            await observation.end(_outcome_of_error(error, counter.count or 0))
            raise
        await observation.end(Outcome(content_bytes=counter.count or 0))


def backend_name(backend: object) -> str:
    """The name of the class of a backend, without the wrappers around it."""
    while isinstance(backend, WrapperBackend | TenantView):
        backend = backend.inner
    return type(backend).__name__


class _Counter:
    """Counts the bytes of a stream."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self.count: int | None = None

    async def pass_on(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Pass on the chunks. What is no chunk counts nothing, and is refused by the backend."""
        self.count = 0
        async for chunk in chunks:
            self.count += chunk_bytes(chunk) or 0
            self._observation.note_progress(self.count)
            yield chunk


# --- outcomes --------------------------------------------------------------------------------------------------------


def _outcome_of_error(error: BaseException, content_bytes: int | None = None) -> Outcome:
    if isinstance(error, DeepFSError):
        return Outcome(str(error), error.code.value, content_bytes)
    name = type(error).__name__
    return Outcome(name, None, content_bytes, name)


def _failure(result: Any) -> tuple[str | None, str | None]:
    result = [result] if isinstance(result, FileUploadResponse) else result
    if isinstance(result, list):
        failed = [(item.path, item.error) for item in result if getattr(item, "error", None) is not None]
        return ("; ".join(f"{path}: {error}" for path, error in failed), failed[0][1]) if failed else (None, None)
    error, code = getattr(result, "error", None), getattr(result, "code", None)
    return error, None if code is None else str(code)


def _bytes_in(call: Call) -> int | None:
    """The bytes of the new content in the arguments of a change."""
    if (files := call.arguments.get("files")) is not None:
        return sum(len(content or b"") for _, content in map(_path_and_content, files))
    return chunk_bytes(call.arguments.get("content", call.arguments.get("new")))


def _path_and_content(file: tuple[str, bytes] | ContentChange) -> tuple[str, bytes | None]:
    return (file.path, file.content) if isinstance(file, ContentChange) else file


def _bytes_out(result: object) -> int | None:
    """The bytes of the content in a result: of a read, a download or the output of a command."""
    if isinstance(result, list):
        return sum(chunk_bytes(item.content) or 0 for item in result if isinstance(item, FileDownloadResponse))
    if isinstance(result, ExecuteResponse):
        return chunk_bytes(result.output)
    data = getattr(result, "file_data", None) or getattr(result, "data", None)
    if isinstance(data, FileDataV2):
        return size_of(data)
    lines = getattr(data, "content", None)
    return chunk_bytes("\n".join(lines)) if isinstance(lines, list) else None


def chunk_bytes(content: object) -> int | None:
    """The bytes of a content, as UTF-8 if it is a text; None if it is no content."""
    if isinstance(content, str):
        return utf8_size(content)
    return memoryview(content).nbytes if isinstance(content, _BYTES) else None


# --- audit logs ------------------------------------------------------------------------------------------------------


class AuditRecord(Encodable, Struct, frozen=True, omit_defaults=True):
    """One finished operation; `to_dict` gives what `json` takes."""

    at: str
    """When the operation began: ISO 8601, UTC."""
    operation: str
    arguments: dict[str, Any]
    """The arguments. Contents are replaced by their size: characters of a text, bytes of an upload; the size of a file
    that `change_files` deletes is None.

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
    tenant: str | None = None
    """The place that a factory has for the caller, such as `ada/files`; of several factories, joined by a comma. None
    where all callers have the same files."""
    thread: str | None = None
    """The thread of the graph that called; None outside of a graph."""

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
        return _AuditedOperation(call, backend_name(self), self._report)

    @without_access_check
    async def _report(self, record: AuditRecord) -> None:
        shown = record if self._redact is None else self._redact(record)
        answer = None if shown is None else self._log(shown)
        if inspect.isawaitable(answer):
            await run_shielded(lambda: answer)  # Cancelled operations are reported as well.


class _AuditedOperation(Observation):
    """An operation in progress, of which a record is made when it ends."""

    def __init__(self, call: Call, backend: str, report: Callable[[AuditRecord], Awaitable[None]]) -> None:
        self._at = datetime.now(UTC).isoformat(timespec="microseconds")
        self._began = time.perf_counter()
        self._operation = call.operation
        self._arguments = {name: _loggable(name, value) for name, value in call.arguments.items()}
        self._backend = backend
        self._tenant, self._thread = call.tenant, current_thread()
        self._report = report
        if call.operation.endswith("_stream"):
            self.note_progress(0)

    def note_progress(self, count: int) -> None:
        self._arguments["size"] = count

    async def end(self, outcome: Outcome) -> None:
        seconds = time.perf_counter() - self._began
        error = None if outcome.error is None else _text(outcome.error)
        await self._report(
            AuditRecord(
                self._at,
                self._operation,
                self._arguments,
                error is None,
                seconds,
                error,
                outcome.code,
                self._backend,
                outcome.content_bytes,
                self._tenant,
                self._thread,
            )
        )


_MOST_CHARACTERS = 10_000
"""The most characters of one text in a record; no valid path is longer."""


def _loggable(name: str, value: Any) -> Any:
    """An argument, whose type was checked with the operation, in a form that any log can store."""
    match name:
        case "content" | "old" | "new":
            return {"size": len(value)}
        case "files":
            return [
                {"path": _text(path), "size": None if content is None else len(content)}
                for path, content in map(_path_and_content, value)
            ]
        case "paths":
            return [_text(path) for path in value]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and value.bit_length() > 63:
        return _text(hex(value))
    # There are other types of integers.
    return value if value is None or isinstance(value, bool | int | float) else f"<{type(value).__name__}>"


def _text(text: str) -> str:
    """A text that can be encoded, of bounded length: lone surrogates are escaped, and what is cut is told."""
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… [{len(text):,} characters]"
    return shown.encode("utf-8", "backslashreplace").decode()


# --- spans -----------------------------------------------------------------------------------------------------------

_PATHS = ("path", "src", "dst")
_MAX_PATH = 1_000
_CODES = frozenset(code.value for code in ErrorCode)


class TracedBackend(ObservedBackend):
    """Makes an OpenTelemetry span of each operation, inside the current span. It needs the extra `otel`.

    A span is named after its operation, as in `deepfs.read`, and has the attributes `deepfs.operation`,
    `deepfs.backend` (the class, without the wrappers around it), `deepfs.outcome` (`"ok"`, the code of the error, the
    name of an exception, or `"error"`) and, if content was passed, `deepfs.content_bytes`. The status of a failed
    operation is ERROR. Contents, patterns, commands and texts of errors are never in a span. What the backend does
    inside the operation, such as requests of an instrumented client, is beneath its span; streams are not the current
    span, as their caller runs in between.

    Args:
        inner: The backend.
        tracer_provider: Makes the tracer; None is the global provider.
        paths: Whether spans have the attributes `deepfs.path`, or `deepfs.src` and `deepfs.dst`. Names of files may be
            private, so they are left out by default.

    Raises:
        ModuleNotFoundError: If the package opentelemetry-api is missing.
    """

    def __init__(
        self, inner: BackendProtocol, *, tracer_provider: "TracerProvider | None" = None, paths: bool = False
    ) -> None:
        super().__init__(inner)
        self._tracer = _tracer(tracer_provider)
        self._paths = paths

    def observe(self, call: Call) -> Observation:
        attributes: dict[str, Any] = {"deepfs.operation": call.operation, "deepfs.backend": backend_name(self)}
        if self._paths:
            named = {name: call.arguments[name] for name in _PATHS if isinstance(call.arguments.get(name), str)}
            # Exporters fail on lone surrogates.
            attributes |= {
                f"deepfs.{name}": path[:_MAX_PATH].encode("utf-8", "backslashreplace").decode()
                for name, path in named.items()
            }
        return _Traced(self._tracer.start_span(f"deepfs.{call.operation}", attributes=attributes))


def _tracer(provider: "TracerProvider | None") -> "Tracer":
    try:
        from opentelemetry.trace import get_tracer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "TracedBackend needs opentelemetry-api: pip install 'deepfs[otel]'", name=error.name
        ) from error
    return get_tracer("deepfs", tracer_provider=provider)


class _Traced(Observation):
    """An operation with a span."""

    def __init__(self, span: "Span") -> None:
        self._span = span

    def running(self) -> AbstractContextManager[object]:
        from opentelemetry.trace import use_span

        # What is raised is noted as the outcome: the text of an exception may quote contents.
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    async def end(self, outcome: Outcome) -> None:
        from opentelemetry.trace import StatusCode

        failed = None
        if outcome.error is not None:
            # A backend may answer with a text in place of a code, which can quote contents and paths.
            failed = outcome.code if outcome.code in _CODES else outcome.exception or "error"
        self._span.set_attribute("deepfs.outcome", failed or "ok")
        if outcome.content_bytes is not None:
            self._span.set_attribute("deepfs.content_bytes", outcome.content_bytes)
        if failed is not None:
            self._span.set_status(StatusCode.ERROR, failed)
        self._span.end()
