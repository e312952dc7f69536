"""Spans of OpenTelemetry: one for each operation, without contents."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.policy import AuditedBackend, AuditRecord, FilesystemPermission, PermissionedBackend, TracedBackend
from deepfs.types import FileUploadResponse, ReadResult

pytestmark = pytest.mark.anyio

SECRET: Final = "a-secret-é"


class Recorder:
    """A backend's spans and audit records, of the same calls."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("tests")
        self.records: list[AuditRecord] = []

    def over(self, inner: Any, **options: Any) -> TracedBackend:
        audited = AuditedBackend(inner, self.records.append)
        return TracedBackend(audited, tracer_provider=self._provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def figures(self) -> list[tuple[Any, ...]]:
        """Operation, backend, bytes and outcome of each span."""
        names = ("operation", "backend", "content_bytes", "outcome")
        return [tuple((span.attributes or {}).get(f"deepfs.{name}") for name in names) for span in self.spans]


@pytest.fixture
def recorder() -> Recorder:
    """Made outside of the event loop, on which OpenTelemetry's set-up would block."""
    return Recorder()


async def chunks_of(text: str) -> AsyncIterator[bytes]:
    yield text[:4].encode()
    yield text[4:].encode()


async def every_operation(backend: Any) -> None:
    await backend.awrite("/a", SECRET)
    await backend.aedit("/a", "secret", "secret2")
    await backend.aread("/a")
    await backend.aread_raw("/a")
    await backend.als("/")
    await backend.aglob("*")
    await backend.agrep(SECRET)
    await backend.acopy("/a", "/b")
    await backend.amove("/b", "/c")
    await backend.aupload_files([("/d", b"\0\1"), ("/e", SECRET.encode())])
    await backend.adownload_files(["/d", "/e"])
    await backend.aexecute(f"echo {SECRET}")
    await backend.aupload_stream("/f", chunks_of(SECRET))
    [chunk async for chunk in backend.adownload_stream("/f")]
    await backend.adelete("/f")


async def test_each_operation_has_a_span_and_a_record_with_the_same_figures(recorder: Recorder, tmp_path: Path) -> None:
    backend = recorder.over(LocalShellBackend(tmp_path, inherit_env=True))
    await every_operation(backend)
    passed = {
        "write": 11, "edit": 7, "read": 12, "read_raw": 12, "upload_files": 13, "download_files": 13, "execute": 12,
        "upload_stream": 11, "download_stream": 11,
    }  # fmt: skip
    assert {figures[0]: figures[2] for figures in recorder.figures if figures[2] is not None} == passed
    assert {figures[1] for figures in recorder.figures} == {"LocalShellBackend"}
    assert {figures[3] for figures in recorder.figures} == {"ok"}
    assert len(recorder.spans) == 15
    assert [(r.operation, r.backend, r.content_bytes, r.code or "ok") for r in recorder.records] == recorder.figures
    assert [span.name for span in recorder.spans][:2] == ["deepfs.write", "deepfs.edit"]
    assert "secret" not in "".join(span.to_json() for span in recorder.spans)
    assert "/a" not in "".join(span.to_json() for span in recorder.spans)


async def test_failures_denials_and_exceptions_have_the_status_error(recorder: Recorder) -> None:
    class Failing(MemoryBackend):
        async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
            if path == "/bug":
                raise KeyError(SECRET)
            return await super().aread(path, offset, limit)

    rules = [FilesystemPermission(["write"], ["/no/**"], "deny")]
    backend = recorder.over(PermissionedBackend(Failing(), rules))
    await backend.aread(f"/{SECRET}")
    await backend.awrite("/no/x", SECRET)
    with pytest.raises(KeyError):
        await backend.aread("/bug")
    assert [figures[3] for figures in recorder.figures] == ["file_not_found", "permission_denied", "KeyError"]
    assert {span.status.status_code.name for span in recorder.spans} == {"ERROR"}
    assert {figures[1] for figures in recorder.figures} == {"Failing"}
    assert "secret" not in "".join(span.to_json() for span in recorder.spans)


async def test_the_texts_of_errors_of_other_classes_are_not_quoted(recorder: Recorder) -> None:
    class Quoting(MemoryBackend):
        async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
            return ReadResult(error="secret")

        async def aupload_files(self, files: Any) -> list[FileUploadResponse]:
            return [FileUploadResponse(path, f"cannot store {content!r}") for path, content in files]

    backend = recorder.over(Quoting())
    await backend.aread("/a")
    await backend.aupload_files([("/a", SECRET.encode())])
    assert [figures[3] for figures in recorder.figures] == ["backend_error", "backend_error"]
    assert "secret" not in "".join(span.to_json() for span in recorder.spans)


async def test_a_cancelled_operation_and_a_stream_left_early_have_spans(recorder: Recorder) -> None:
    class Waiting(MemoryBackend):
        async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
            await anyio.sleep_forever()
            raise AssertionError

    backend = recorder.over(Waiting())
    with anyio.move_on_after(0.01):
        await backend.aread("/wait")
    await backend.aupload_files([("/big", b"x" * 1000)])
    stream = backend.adownload_stream("/big", chunk_size=10)
    await anext(stream)
    await stream.aclose()
    cancelled, _, left = recorder.figures
    assert cancelled[3] in ("CancelledError", "Cancelled")
    assert left == ("download_stream", "Waiting", 10, "ok")


async def test_paths_are_shown_on_request_and_can_be_exported(recorder: Recorder, tmp_path: Path) -> None:
    backend = recorder.over(FilesystemBackend(tmp_path), paths=True)
    await backend.aread("/a\ud800")
    await backend.amove("/a", "/b" * 5_000)
    read, move = (dict(span.attributes or {}) for span in recorder.spans)
    assert read["deepfs.path"] == "/a\\ud800"
    assert move["deepfs.src"] == "/a"
    assert len(str(move["deepfs.dst"])) == 1_000


def test_without_opentelemetry_an_error_names_the_extra() -> None:
    script = """
import sys
sys.modules["opentelemetry"] = None
from deepfs import MemoryBackend
from deepfs.policy import TracedBackend
try:
    TracedBackend(MemoryBackend())
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'deepfs[otel]'" in done.stdout
