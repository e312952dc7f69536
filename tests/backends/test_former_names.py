"""Methods and attributes of backends that were renamed work by their former names, whoever defines or calls them."""

from typing import Any

import pytest

from deepfs import BackendProtocol, FilesystemBackend, MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.policy import FilesystemPermission, PermissionedBackend
from deepfs.types import LsResult

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
async def test_rules_judge_where_a_class_with_the_former_name_says_that_links_lead(kind: type[MemoryBackend]) -> None:
    files = kind()
    await files.awrite("/link", "x")
    denied = "/other" if kind is LeadsFurther else "/secret"
    guarded = PermissionedBackend(files, [FilesystemPermission(["read"], [denied], "deny")])
    assert (await guarded.aread("/link")).code == "permission_denied"


async def test_the_former_name_can_be_called_on_every_backend(tmp_path: Any) -> None:
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


async def test_a_layer_that_overrides_the_former_name_sees_each_operation() -> None:
    layer = Counting(MemoryBackend())
    assert (await layer.awrite("/a", "x")).ok
    assert (await layer.aread("/a")).ok
    assert layer.seen == ["write", "read"]


class Declares(MemoryBackend):
    never_waits = False


class Sets(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.never_waits = False


def test_what_is_declared_by_the_former_name_holds() -> None:
    backends: list[tuple[Any, bool]] = [
        (MemoryBackend(), True),
        (Declares(), False),
        (Sets(MemoryBackend()), False),
        (WrapperBackend(Declares()), False),
        (WrapperBackend(MemoryBackend()), True),
    ]
    for backend, waits_never in backends:
        assert (backend.is_synchronous, backend.never_waits) == (waits_never, waits_never)


class Blocking(BackendProtocol):
    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[])


def test_a_backend_of_sync_methods_is_not_called_inline_unless_it_declares_so() -> None:
    assert (BackendProtocol.is_synchronous, Blocking.is_synchronous) == (False, False)
