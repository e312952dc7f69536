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
    CompositeBackend,
    FilesystemBackend,
    MemoryBackend,
    SandboxBackendProtocol,
    StateBackend,
    StoreBackend,
    WrapperBackend,
]

each_operation = pytest.mark.parametrize("name", OPERATIONS)


def stubs() -> dict[str, Callable[..., Any]]:
    """The functions of the stub by name, with evaluated annotations."""
    module = ast.parse(STUB.read_text())
    namespace: dict[str, Any] = {}
    exec(compile(module, str(STUB), "exec"), namespace)
    owners = [namespace[name] for name in namespace["__all__"]]
    return {name: method for owner in owners for name, method in vars(owner).items() if inspect.isfunction(method)}


class TestTheStub:
    def test_it_has_each_operation_and_nothing_else(self) -> None:
        assert sorted(stubs()) == sorted(OPERATIONS)

    @each_operation
    def test_its_signatures_equal_those_of_the_generated_methods(self, name: str) -> None:
        generated = getattr(SandboxBackendProtocol, name)
        assert inspect.signature(generated) == inspect.signature(stubs()[name])
        assert inspect.signature(generated) == inspect.signature(getattr(SandboxBackendProtocol, f"a{name}"))

    @each_operation
    def test_its_docstrings_are_the_first_lines_of_the_generated_docstrings(self, name: str) -> None:
        summary = stubs()[name].__doc__
        assert summary is not None
        assert inspect.getdoc(getattr(SandboxBackendProtocol, name)).startswith(summary)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda cls: cls.__name__)
class TestGenerated:
    @each_operation
    def test_each_method_is_sync_or_async_as_its_name_says(self, backend: type[BackendProtocol], name: str) -> None:
        for spelled in (name, f"a{name}"):
            method = getattr(backend, spelled, None)
            if method is None:
                assert name == "execute"
                continue
            assert inspect.iscoroutinefunction(method) is (spelled != name)
            assert method.__name__ == spelled
            assert method.__qualname__.endswith(f".{spelled}")

    @each_operation
    def test_sync_and_async_methods_have_the_same_docstring(self, backend: type[BackendProtocol], name: str) -> None:
        if hasattr(backend, name):
            assert inspect.getdoc(getattr(backend, name)) == inspect.getdoc(getattr(backend, f"a{name}"))
            assert getattr(backend, name).__doc__


class OwnDocs(MemoryBackend):
    def write(self, file_path: str, content: str) -> WriteResult:
        """Write, guarded."""
        return super().write(file_path, content)

    async def aread(self, path: str, offset: int = 0, limit: int = 10) -> Any:
        return await super().aread(path, offset, limit)


class TestOverrides:
    def test_a_derived_method_has_the_signature_and_docstring_of_the_override(self) -> None:
        assert inspect.signature(OwnDocs.awrite) == inspect.signature(OwnDocs.write)
        assert list(inspect.signature(OwnDocs().awrite).parameters) == ["file_path", "content"]
        assert OwnDocs.awrite.__doc__ == OwnDocs.write.__doc__ == "Write, guarded."
        assert inspect.signature(OwnDocs.read).parameters["limit"].default == 10
        assert inspect.iscoroutinefunction(OwnDocs.awrite)
        assert not inspect.iscoroutinefunction(OwnDocs.write)

    @pytest.mark.parametrize("name", ["read", "aread"])
    def test_an_override_without_a_docstring_has_the_docstring_of_the_protocol(self, name: str) -> None:
        assert inspect.getdoc(getattr(OwnDocs, name)) == inspect.getdoc(getattr(BackendProtocol, name))
        assert inspect.getdoc(getattr(OwnDocs(), name)) == inspect.getdoc(BackendProtocol.aread)
