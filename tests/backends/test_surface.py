"""Generated methods have the signatures, types and docstrings that `inspect`, editors and type checkers need."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import deepfs
from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    MemoryBackend,
    SandboxBackendProtocol,
    StateBackend,
    StoreBackend,
)
from deepfs.backends.wrapper import WrapperBackend
from deepfs.sync import OPERATIONS
from deepfs.types import WriteResult

STUB: Final = Path(next(iter(deepfs.__path__)), "backends/_surface.pyi")
BACKENDS: Final = [
    CompositeBackend, FilesystemBackend, MemoryBackend, SandboxBackendProtocol, StateBackend, StoreBackend,
    WrapperBackend,
]  # fmt: skip


def stubs() -> dict[str, Callable[..., Any]]:
    """The functions of the stub by name, with evaluated annotations."""
    module = ast.parse(STUB.read_text())
    namespace: dict[str, Any] = {}
    exec(compile(module, str(STUB), "exec"), namespace)
    owners = [namespace[name] for name in namespace["__all__"]]
    return {name: method for owner in owners for name, method in vars(owner).items() if inspect.isfunction(method)}


def test_the_stub_has_the_signatures_and_summaries_of_the_generated_methods() -> None:
    found = stubs()
    assert sorted(found) == sorted(OPERATIONS)
    for name, stub in found.items():
        generated = getattr(SandboxBackendProtocol, name)
        assert inspect.signature(generated) == inspect.signature(stub), name
        assert inspect.signature(generated) == inspect.signature(getattr(SandboxBackendProtocol, f"a{name}")), name
        assert inspect.getdoc(generated).startswith(stub.__doc__), name


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda cls: cls.__name__)
def test_methods_are_sync_or_async_as_their_names_say_and_documented(backend: type[BackendProtocol]) -> None:
    for name in OPERATIONS:
        for spelled in (name, f"a{name}") if hasattr(backend, name) else ():
            method = getattr(backend, spelled)
            assert inspect.iscoroutinefunction(method) is (spelled != name), spelled
            assert (method.__name__, method.__qualname__.rpartition(".")[2]) == (spelled, spelled)
            assert method.__doc__, spelled
            assert inspect.getdoc(method) == inspect.getdoc(getattr(backend, name)), spelled


class OwnDocs(MemoryBackend):
    def write(self, file_path: str, content: str) -> WriteResult:
        """Write, guarded."""
        return super().write(file_path, content)

    async def aread(self, path: str, offset: int = 0, limit: int = 10) -> Any:
        return await super().aread(path, offset, limit)


def test_a_derived_method_has_the_signature_and_docstring_of_the_override() -> None:
    assert inspect.signature(OwnDocs.awrite) == inspect.signature(OwnDocs.write)
    assert list(inspect.signature(OwnDocs().awrite).parameters) == ["file_path", "content"]
    assert OwnDocs.awrite.__doc__ == OwnDocs.write.__doc__ == "Write, guarded."
    assert inspect.signature(OwnDocs.read).parameters["limit"].default == 10
    for name in ("read", "aread"):  # An override without a docstring has that of the protocol.
        assert inspect.getdoc(getattr(OwnDocs, name)) == inspect.getdoc(BackendProtocol.aread)
