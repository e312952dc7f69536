"""OpenTelemetry spans of operations."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.policy.hooks import Call
from deepfs.policy.observing import Observation, ObservedBackend, Outcome, backend_name

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["TracedBackend"]

_PATHS = ("path", "src", "dst")
_MAX_PATH = 1_000


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
            attributes |= {f"deepfs.{name}": _encodable(path) for name, path in named.items()}
        return _Traced(self._tracer.start_span(f"deepfs.{call.operation}", attributes=attributes))


def _tracer(provider: "TracerProvider | None") -> "Tracer":
    try:
        from opentelemetry.trace import get_tracer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "TracedBackend needs opentelemetry-api: pip install 'deepfs[otel]'", name=error.name
        ) from error
    return get_tracer("deepfs", tracer_provider=provider)


def _encodable(path: str) -> str:
    """The path without lone surrogates, which exporters fail on."""
    return path[:_MAX_PATH].encode("utf-8", "backslashreplace").decode()


class _Traced(Observation):
    """An operation with a span."""

    def __init__(self, span: "Span") -> None:
        self._span = span

    def running(self) -> AbstractContextManager[object]:
        from opentelemetry.trace import use_span

        # What is raised is noted as the outcome: the text of an exception may quote contents.
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    async def ended(self, outcome: Outcome) -> None:
        from opentelemetry.trace import StatusCode

        failed = None if outcome.error is None else _failure(outcome)
        self._span.set_attribute("deepfs.outcome", failed or "ok")
        if outcome.content_bytes is not None:
            self._span.set_attribute("deepfs.content_bytes", outcome.content_bytes)
        if failed is not None:
            self._span.set_status(StatusCode.ERROR, failed)
        self._span.end()


_CODES = frozenset(code.value for code in ErrorCode)


def _failure(outcome: Outcome) -> str:
    """The code or the exception. A backend may answer with a text instead, which can quote contents and paths."""
    return outcome.code if outcome.code in _CODES else outcome.exception or "error"
