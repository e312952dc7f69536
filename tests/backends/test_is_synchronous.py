"""Whether a backend waits for nothing is derived from its methods, unless its class or object says so."""

from typing import Any

from deepfs import BackendProtocol, MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.types import EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult


class Declares(MemoryBackend):
    is_synchronous = False


class DeclaresByProperty(MemoryBackend):
    @property
    def is_synchronous(self) -> bool:
        return False


class DeclaresFromClass(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        own: Any = type(self)
        self.is_synchronous = own.is_synchronous and inner.is_synchronous

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await super().aread(path, offset, limit)


class Sets(WrapperBackend):
    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.is_synchronous = False


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


def test_a_declaration_is_respected() -> None:
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
        assert backend.is_synchronous is waits_never


class Blocking(BackendProtocol):
    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[])


def test_a_backend_of_sync_methods_is_not_synchronous_by_default() -> None:
    assert (BackendProtocol.is_synchronous, Blocking.is_synchronous) == (False, False)
