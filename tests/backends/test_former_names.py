"""Renamed methods and attributes of backends work by their former names, for definitions and for calls."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deepfs import BackendProtocol, CompositeBackend, FilesystemBackend, MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import PermissionDeniedError
from deepfs.operations import Operation
from deepfs.policy import AuditedBackend, AuditRecord, FilesystemPermission, PermissionedBackend
from deepfs.types import EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult

pytestmark = pytest.mark.anyio


class Leads(MemoryBackend):
    async def areal_paths(self, paths: list[str]) -> list[str | None]:
        return ["/secret" if path == "/link" else path for path in paths]


class LeadsMixin:
    async def areal_paths(self, paths: list[str]) -> list[str | None]:
        return ["/secret" if path == "/link" else path for path in paths]


class LeadsByMixin(LeadsMixin, MemoryBackend):
    pass


class LeadsFurther(Leads):
    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        return ["/other" if path == "/secret" else path for path in await super().areal_paths(paths)]


@pytest.mark.parametrize("kind", [Leads, LeadsByMixin, LeadsFurther])
async def test_permissions_use_paths_resolved_by_areal_paths(kind: type[MemoryBackend]) -> None:
    files = kind()
    await files.awrite("/link", "x")
    denied = "/other" if kind is LeadsFurther else "/secret"
    guarded = PermissionedBackend(files, [FilesystemPermission(["read"], [denied], "deny")])
    assert (await guarded.aread("/link")).code == "permission_denied"


async def test_areal_paths_can_be_called_on_every_backend(tmp_path: Any) -> None:
    for backend in (MemoryBackend(), FilesystemBackend(tmp_path), WrapperBackend(Leads())):
        former: Any = backend
        assert await former.areal_paths(["/a"]) == await backend.aresolve_paths(["/a"])


class Counting(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.seen: list[str] = []

    async def through(self, operation: str, call: Any, /, *args: Any, **options: Any) -> Any:
        self.seen.append(operation)
        former: Any = super()
        return await former.through(operation, call, *args, **options)


async def test_a_wrapper_that_overrides_through_sees_each_operation() -> None:
    layer = Counting(MemoryBackend())
    assert (await layer.awrite("/a", "x")).ok
    assert (await layer.aread("/a")).ok
    assert layer.seen == ["write", "read"]


async def _without_changes(self: Any, operation: str, call: Any, /, *args: Any, **options: Any) -> Any:
    """An override that does not know the stream operations, which once were uploads and downloads of whole files."""
    if operation in ("write", "edit", "delete", "upload_files"):
        raise PermissionDeniedError("/", "nothing is changed")
    return await call(*args, **options)


class NoChanges(WrapperBackend):
    through = _without_changes


class NoChangesMixin:
    through = _without_changes


class NoChangesByMixin(NoChangesMixin, WrapperBackend):
    pass


class NoChangesReported(AuditedBackend):
    through = _without_changes

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner, lambda record: None)


async def chunks() -> AsyncIterator[bytes]:
    yield b"x"


def _plain_mixin() -> type[WrapperBackend]:
    class Mixin:
        async def through(self, operation: str, call: Any, /, *args: Any, **options: Any) -> Any:
            return await call(*args, **options)

    class Refuses(Mixin, WrapperBackend):
        async def through(self, operation: str, call: Any, /, *args: Any, **options: Any) -> Any:
            if operation in ("write", "upload_files"):
                raise PermissionDeniedError("/", "nothing is changed")
            return await super().through(operation, call, *args, **options)

    class Derived(Refuses):
        pass

    return Derived


LAYERS: list[Any] = [NoChanges, NoChangesByMixin, NoChangesReported, _plain_mixin()]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
async def test_streams_and_copies_do_not_bypass_an_override_of_through(layer: Any) -> None:
    files, others = MemoryBackend(), MemoryBackend()
    guarded = layer(files)
    assert (await guarded.awrite("/a", "x")).code == "permission_denied"
    assert (await guarded.aupload_stream("/a", chunks())).error == "permission_denied"
    await others.aupload_files([("/large", b"x" * 2 * 1024 * 1024)])
    copied = await CompositeBackend(others, {"/guarded": guarded}).acopy("/large", "/guarded/large")
    assert copied.code == "permission_denied"
    assert (await files.als("/")).entries == []


async def test_a_later_base_class_with_a_through_method_overrides_nothing() -> None:
    class Tunnel:
        def through(self) -> str:
            return "a tunnel"

    class Wrapper(WrapperBackend, Tunnel):  # type: ignore[misc]
        pass

    assert (await Wrapper(MemoryBackend()).awrite("/a", "x")).ok


async def test_a_subclass_of_the_audit_log_sees_streams() -> None:
    class Seen(AuditedBackend):
        async def run(self, operation: Operation) -> Any:
            seen.append(operation.name)
            return await super().run(operation)

    seen: list[str] = []
    records: list[AuditRecord] = []
    log = Seen(MemoryBackend(), records.append)
    await log.aupload_stream("/a", chunks())
    assert [chunk async for chunk in log.adownload_stream("/a")] == [b"x"]
    assert seen == [record.operation for record in records] == ["upload_stream", "download_stream"]
    assert [record.arguments["size"] for record in records] == [1, 1]


class Declares(MemoryBackend):
    never_waits = False


class DeclaresByProperty(MemoryBackend):
    @property
    def never_waits(self) -> bool:
        return False


class DeclaresFromClass(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        own: Any = type(self)
        self.never_waits = own.never_waits and inner.is_synchronous

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await super().aread(path, offset, limit)


class Sets(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.never_waits = False


class RawBackend(BackendProtocol):
    """Defines sync operations only; the derived async ones run them in a worker thread."""

    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[])

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return ReadResult()

    def write(self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None) -> WriteResult:
        return WriteResult()

    def edit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        return EditResult()

    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        return GlobResult(matches=[])

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        return GrepResult(matches=[])


def test_a_declaration_of_never_waits_is_respected() -> None:
    backends: list[tuple[Any, bool]] = [
        (MemoryBackend(), True),
        (Declares(), False),
        (DeclaresByProperty(), False),
        (DeclaresFromClass(MemoryBackend()), False),
        (RawBackend(), False),
        (Sets(MemoryBackend()), False),
        (WrapperBackend(Declares()), False),
        (WrapperBackend(MemoryBackend()), True),
    ]
    for backend, waits_never in backends:
        assert (backend.is_synchronous, backend.never_waits) == (waits_never, waits_never)
    base: Any = BackendProtocol
    assert base.never_waits is base.is_synchronous is False


class Blocking(BackendProtocol):
    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[])


def test_a_backend_of_sync_methods_is_not_synchronous_by_default() -> None:
    assert (BackendProtocol.is_synchronous, Blocking.is_synchronous) == (False, False)
