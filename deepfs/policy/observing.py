"""The base of wrappers that observe each operation, and the outcome that they report."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError
from deepfs.operations import ChangeEntries, DownloadStream, Operation, UploadStream
from deepfs.policy.hooks import Call, call_of
from deepfs.text.records import size_of
from deepfs.types import ExecuteResponse, FileDataV2, FileDownloadResponse, FileUploadResponse

__all__ = ["Observation", "ObservedBackend", "Outcome", "backend_name", "chunk_bytes"]

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

    def passed(self, count: int) -> None:
        """Note how much a stream has passed so far.

        Args:
            count: The bytes.
        """
        return

    @abstractmethod
    async def ended(self, outcome: Outcome) -> None:
        """Report the operation, also if it is being cancelled.

        Args:
            outcome: How it ended.
        """


class ObservedBackend(WrapperBackend):
    """Observes each operation until it has ended, whether it succeeded, failed, raised or was cancelled.

    Streams end when their last chunk has passed, or when the caller stops reading.
    """

    @abstractmethod
    def observe(self, call: Call) -> Observation:
        """Begin to observe an operation.

        Args:
            call: The operation; that of a stream has only its path.
        """

    async def run(self, operation: Operation) -> Any:
        if isinstance(operation, ChangeEntries) and len(operation.entries) > 1:
            return [outcome for each in operation.entries for outcome in await self.arun(operation.only([each]))]
        call = call_of(operation)
        if call is None:
            return await super().run(operation)
        if isinstance(operation, DownloadStream):
            return self._observed(operation, call)
        observation = self.observe(call)
        counter, context = _Counter(observation), observation.running()
        if isinstance(operation, UploadStream):
            operation, context = replace(operation, chunks=counter.counted(operation.chunks)), nullcontext()
        try:
            with context:
                answer = await super().run(operation)
        except BaseException as error:
            await observation.ended(_raised(error, counter.count))
            raise
        await observation.ended(_returned(call, answer, counter.count))
        return answer

    async def _observed(self, operation: DownloadStream, call: Call) -> AsyncGenerator[bytes, None]:
        observation = self.observe(call)
        counter = _Counter(observation)
        try:
            async with aclosing(await super().run(operation)) as source, aclosing(counter.counted(source)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except GeneratorExit:  # The caller stopped reading.
            await observation.ended(Outcome(content_bytes=counter.count or 0))
            raise
        except BaseException as error:
            await observation.ended(_raised(error, counter.count or 0))
            raise
        await observation.ended(Outcome(content_bytes=counter.count or 0))


def backend_name(backend: object) -> str:
    """The name of the class of a backend, without the wrappers around it."""
    while isinstance(backend, WrapperBackend):
        backend = backend.inner
    return type(backend).__name__


class _Counter:
    """Counts the bytes of a stream."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self.count: int | None = None

    async def counted(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Pass on the chunks. What is no chunk counts nothing, and is refused by the backend."""
        self.count = 0
        async for chunk in chunks:
            self.count += chunk_bytes(chunk) or 0
            self._observation.passed(self.count)
            yield chunk


# --- outcomes --------------------------------------------------------------------------------------------------------


def _raised(error: BaseException, content_bytes: int | None = None) -> Outcome:
    if isinstance(error, DeepFSError):
        return Outcome(str(error), error.code.value, content_bytes)
    name = type(error).__name__
    return Outcome(name, None, content_bytes, name)


def _returned(call: Call, result: object, streamed: int | None) -> Outcome:
    passed = _passed_in(call) if call.changes else _passed_out(result)
    return Outcome(*_failure(result), passed if streamed is None else streamed)


def _failure(result: Any) -> tuple[str | None, str | None]:
    result = [result] if isinstance(result, FileUploadResponse) else result
    if isinstance(result, list):
        failed = [(item.path, item.error) for item in result if getattr(item, "error", None) is not None]
        return ("; ".join(f"{path}: {error}" for path, error in failed), failed[0][1]) if failed else (None, None)
    error, code = getattr(result, "error", None), getattr(result, "code", None)
    return error, None if code is None else str(code)


def _passed_in(call: Call) -> int | None:
    """The bytes of the new content in the arguments of a change."""
    if call.operation == "upload_files":
        files = call.arguments.get("files")
        items = files if isinstance(files, list | tuple) else ()
        pairs = (item for item in items if isinstance(item, list | tuple) and len(item) == 2)
        return sum(chunk_bytes(content) or 0 for _, content in pairs)
    return chunk_bytes(call.arguments.get("content", call.arguments.get("new")))


def _passed_out(result: object) -> int | None:
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
        return len(content) if content.isascii() else len(content.encode("utf-8", "surrogatepass"))
    return memoryview(content).nbytes if isinstance(content, _BYTES) else None
