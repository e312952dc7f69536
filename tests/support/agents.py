"""Agents in sync and async form, over every kind of backend."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, StateBackend, StoreBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol, Capabilities, ExecuteResponse
from deepfs.backends.wrapper import WrapperBackend
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox

__all__ = ["BACKENDS", "Invoke", "Sandbox", "backend", "in_async", "in_sync", "invoke", "results"]

Invoke = Callable[..., dict[str, Any]]


class Sandbox(WrapperBackend):
    """A backend whose commands print their own text; the command `fail` fails."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.capabilities = Capabilities(executes=True)
        self.timeouts: list[float | None] = []

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        self.timeouts.append(timeout)
        return ExecuteResponse(command, 3 if command == "fail" else 0)


def _composite(root: Path) -> BackendProtocol:
    return CompositeBackend(
        StateBackend(),
        {"/disk/": FilesystemBackend(root), "/memories/": StoreBackend(InMemoryStore(), namespace=("m",))},
    )


BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "state": lambda root: StateBackend(),
    "store": lambda root: StoreBackend(InMemoryStore(), namespace=("files",)),
    "filesystem": FilesystemBackend,
    "composite": _composite,
    "sandbox": lambda root: Sandbox(),
    "shell": LocalShellBackend,
    "box": BubblewrapSandbox,
}


_NEEDS = {"box": [pytest.mark.needs("BubblewrapSandbox")]}


@pytest.fixture(params=[pytest.param(name, marks=_NEEDS.get(name, ())) for name in BACKENDS])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    """Every kind of backend in turn, with empty storage."""
    return BACKENDS[request.param](tmp_path)


def in_sync(agent: Any, *given: Any) -> dict[str, Any]:
    """Run a graph in its sync form."""
    return agent.invoke(*given)


def in_async(agent: Any, *given: Any) -> dict[str, Any]:
    """Run a graph in its async form."""
    return asyncio.run(agent.ainvoke(*given))


@pytest.fixture(params=[in_sync, in_async], ids=["sync", "async"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """Runs a graph in its sync form or its async one."""
    return request.param


def results(state: dict[str, Any]) -> list[Any]:
    """The messages of tools, in order."""
    return [message for message in state["messages"] if message.type == "tool"]
