"""A backend of deepfs behind the protocol of deepagents; importing this imports deepagents."""

from typing import Any, cast

from deepagents.backends import StateBackend as PeerStateBackend
from deepagents.backends import protocol as peer

from deepfs.backends._behind import behind
from deepfs.backends._options import given
from deepfs.backends.factories import FactoryBackend, backend_from
from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.backends.state import StateBackend
from deepfs.errors import ErrorCode
from deepfs.sync import sync_shims
from deepfs.types import FileDataV2, FileDownloadResponse, FileUploadResponse, ReadResult, Record

__all__ = ["ToDeepagents", "ToDeepagentsSandbox", "ToDeepagentsState", "ToDeepagentsStateSandbox", "to_deepagents"]


def _plain(records: list[Any] | None) -> list[Any] | None:
    """Records as the dicts that deepagents has."""
    return None if records is None else [_dict(record) for record in records]


def _dict(record: Record) -> Any:
    return {key: _plain(value) if isinstance(value, list) else value for key, value in record.items()}


def _file_data(data: FileDataV2 | None) -> Any:
    if data is None:
        return None
    return {key: value for key, value in data.items() if key != "mime_type"}


def _read(result: ReadResult, limit: int) -> peer.ReadResult:
    """Its windows name their lines, or nothing; one of no lines says that nobody looked."""
    data = _file_data(result.file_data)
    if result.start_line is None or result.error is not None:
        unseen = limit <= 0 and result.ok and data["encoding"] == "utf-8"
        return peer.ReadResult(error=result.error, file_data=data, no_lines_requested=unseen)
    return peer.ReadResult(
        file_data=data,
        total_lines=result.total_lines,
        start_line=result.start_line,
        end_line=result.end_line,
        next_offset=result.next_offset,
    )


@sync_shims
class ToDeepagents(peer.BackendProtocol):
    """The operations of deepagents on `inner`; the sync ones are generated."""

    def __init__(self, inner: BackendProtocol) -> None:
        self.inner: BackendProtocol = inner
        self.never_waits: bool = inner.never_waits

    def bound_to_this_thread(self) -> bool:
        """Whether the storage belongs to the event loop of the calling thread; sync calls are refused there."""
        return self.inner.bound_to_this_thread()

    async def als(self, path: str) -> peer.LsResult:
        listed = await self.inner.als(path)
        return peer.LsResult(error=listed.error, entries=_plain(listed.entries))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> peer.ReadResult:
        return _read(await self.inner.aread(file_path, offset, limit), limit)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> peer.GrepResult:
        found = await self.inner.agrep(pattern, path, glob, **given(max_count=max_count))
        return peer.GrepResult(error=found.error, matches=_plain(found.matches), truncated=found.truncated)

    async def aglob(self, pattern: str, path: str | None = None) -> peer.GlobResult:
        found = await self.inner.aglob(pattern, path or "/")
        return peer.GlobResult(
            error=found.error,
            matches=_plain(found.matches),
            truncated=found.truncated,
            truncation_reason="budget" if found.truncated else None,
        )

    async def awrite(self, file_path: str, content: str) -> peer.WriteResult:
        written = await self.inner.awrite(file_path, content, overwrite=True)
        if written.code is ErrorCode.UNSUPPORTED:
            written = await self.inner.awrite(file_path, content)
        return peer.WriteResult(error=written.error, path=written.path)

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> peer.EditResult:
        edited = await self.inner.aedit(file_path, old_string, new_string, replace_all)
        return peer.EditResult(error=edited.error, path=edited.path, occurrences=edited.occurrences)

    async def adelete(self, file_path: str) -> peer.DeleteResult:
        deleted = await self.inner.adelete(file_path)
        return peer.DeleteResult(error=deleted.error, path=deleted.path)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[peer.FileUploadResponse]:
        return [_uploaded(outcome) for outcome in await self.inner.aupload_files(files)]

    async def adownload_files(self, paths: list[str]) -> list[peer.FileDownloadResponse]:
        return [_downloaded(outcome) for outcome in await self.inner.adownload_files(paths)]


@sync_shims
class ToDeepagentsSandbox(ToDeepagents, peer.SandboxBackendProtocol):
    """The same, where `inner` runs commands."""

    @property
    def id(self) -> str:
        return str(getattr(self.inner, "id", None) or f"deepfs-{id(self.inner):x}")

    async def aexecute(self, command: str, *, timeout: int | None = None) -> peer.ExecuteResponse:
        done = await cast("SandboxBackendProtocol", self.inner).aexecute(command, **given(timeout=timeout))
        return peer.ExecuteResponse(output=done.output, exit_code=done.exit_code, truncated=done.truncated)


def _uploaded(outcome: FileUploadResponse) -> peer.FileUploadResponse:
    return peer.FileUploadResponse(path=outcome.path, error=outcome.error)


def _downloaded(outcome: FileDownloadResponse) -> peer.FileDownloadResponse:
    return peer.FileDownloadResponse(path=outcome.path, content=outcome.content, error=outcome.error)


class ToDeepagentsState(ToDeepagents, PeerStateBackend):
    """The same, where `inner` keeps files in state: deepagents asks by this class whether it needs the channel."""


class ToDeepagentsStateSandbox(ToDeepagentsSandbox, PeerStateBackend):
    """The same, where `inner` does both."""


def to_deepagents(backend: BACKEND_TYPES) -> ToDeepagents:
    """`backend` as one of deepagents."""
    inner = backend_from(backend)
    if _keeps_state(inner):
        return ToDeepagentsStateSandbox(inner) if supports_execute(inner) else ToDeepagentsState(inner)
    return ToDeepagentsSandbox(inner) if supports_execute(inner) else ToDeepagents(inner)


def _keeps_state(backend: object) -> bool:
    """Whether files of `backend`, or of one that it stands before, lie in state; those of a factory may."""
    kinds = StateBackend | FactoryBackend | PeerStateBackend
    return isinstance(backend, kinds) or any(map(_keeps_state, behind(backend)))
