"""Every search option reaches every backend, through all wrappers, mounts and adapters.

The options come from the signature of the protocol, the wrappers from the package: each needs a row.
"""

import inspect
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import anyio.to_thread
import pytest

from deepfs import BackendProtocol, CompositeBackend, MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.middleware.rendering import matches
from deepfs.middleware.staging import StagedBackend
from deepfs.middleware.tools import filesystem_tools
from deepfs.operations import Operation, Search
from deepfs.policy import HistoryBackend, HookedBackend, PermissionedBackend
from deepfs.search import disk as engines
from deepfs.search.request import GlobRequest, GrepRequest, PathFilter, SearchRequest
from support.sandboxes import LocalSandbox
from support.search_options import BACKENDS, CASES, WRAPPERS, filled, shown

pytestmark = pytest.mark.anyio

REQUESTS: dict[str, type[SearchRequest]] = {"glob": GlobRequest, "grep": GrepRequest}
SERVED = "bubblewrap", "sandbox"
"""Backends that reach their files by commands, or need other programs; they have tests of their own."""


@pytest.fixture
async def expected() -> list[tuple[object, ...]]:
    """The results of a memory backend, each of which the option changes."""
    results = []
    memory = await filled(MemoryBackend())
    for operation, pattern, option, value in CASES:
        found = shown(await getattr(memory, f"a{operation}")(pattern, **{option: value}))
        assert found != shown(await getattr(memory, f"a{operation}")(pattern)), f"add a row for {option}"
        assert found[0]
        results.append(found)
    return results


# --- completeness of the table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_has_the_parameters_of_the_operation(operation: str) -> None:
    like = inspect.signature(getattr(BackendProtocol, f"a{operation}")).parameters
    made = inspect.signature(REQUESTS[operation]).parameters
    names = [name for name in like if name != "self"]
    assert [name for name in made if name not in {"hidden", "fresh"}] == names
    for name in names:
        assert made[name].default == like[name].default or made[name].default is made[name].empty
        assert made[name].annotation == like[name].annotation or name == "path"


_WITH_DEEPAGENTS = ("deepfs.compat.deepagents", "deepfs.compat.deepagents_backends")


def test_every_wrapper_is_in_the_table() -> None:
    for part in ("backends", "policy", "testing", "compat", "middleware"):
        for module in walk_packages(import_module(f"deepfs.{part}").__path__, f"deepfs.{part}."):
            if module.name.startswith(_WITH_DEEPAGENTS) and not find_spec("deepagents"):
                continue  # The oldest dependencies are tested without deepagents.
            import_module(module.name)
    known = {*WRAPPERS, StagedBackend}  # Its files are those of a thread; the tests of workspaces search them.
    assert {kind for kind in _below(WrapperBackend) if kind.__module__.startswith("deepfs.")} <= known


def _below(kind: type) -> set[type]:
    return {kind, *(each for direct in kind.__subclasses__() for each in _below(direct))}


# --- backends, wrappers, mounts, factories, adapters -----------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BACKENDS if name not in SERVED])
async def test_backends_respect_each_option(
    tmp_path: Path, name: str, expected: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FEW", 1)  # Lets ripgrep take part although the tree is small.
    async with BACKENDS[name](tmp_path) as backend:
        await _check(backend, expected)


async def _check(backend: BackendProtocol, expected: list[tuple[object, ...]]) -> None:
    """Check the async form, the form with a request, and the sync form."""
    for (operation, pattern, option, value), result in zip(CASES, expected, strict=True):
        sync = partial(getattr(backend, operation), pattern, **{option: value})
        found = [
            shown(await getattr(backend, f"a{operation}")(pattern, **{option: value})),
            shown(await backend.arun(REQUESTS[operation](pattern, **{option: value}))),
            shown(await anyio.to_thread.run_sync(sync)),
        ]
        assert found == [result] * 3, (operation, option)


async def test_sandboxes_respect_each_option(tmp_path: Path, expected: list[tuple[object, ...]]) -> None:
    await _check(await filled(LocalSandbox(tmp_path)), expected)


@pytest.mark.needs("busybox")
async def test_sandboxes_without_python_respect_each_option(
    tmp_path: Path, busybox: str, expected: list[tuple[object, ...]]
) -> None:
    await _check(await filled(LocalSandbox(tmp_path, busybox)), expected)


# --- the agent's tool ------------------------------------------------------------------------------------------------

OTHERWISE: dict[str, dict[str, Any]] = {"ignore_case": {"pattern": "(?i)alpha", "regex": True}}
"""How a model passes an option for which the tool has no argument."""


async def test_the_search_tools_have_each_option() -> None:
    memory = await filled(MemoryBackend())
    tools = {tool.name: tool for tool in filesystem_tools(memory)}
    for operation, pattern, option, value in CASES:
        found = await getattr(memory, f"a{operation}")(pattern, **{option: value})
        if operation == "grep":
            content = {"pattern": pattern, "output_mode": "content"}
            given = {**content, **OTHERWISE.get(option, {option: value})}
            rows = "\n".join(matches(found, "content")).splitlines()
        else:
            given, rows = {"pattern": pattern, option: value}, [info.path for info in found.matches or ()]
        assert set(given) <= set(tools[operation].args)
        told = str(await anyio.to_thread.run_sync(tools[operation].invoke, given)).splitlines()
        assert [line for line in told if not line.startswith("[")] == rows, option


# --- path filters ----------------------------------------------------------------------------------------------------


class Asked(MemoryBackend):
    """Records the path filters that it is given."""

    is_synchronous = False

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[PathFilter | None] = []

    async def run(self, operation: Operation) -> Any:
        if isinstance(operation, Search):
            self.hidden.append(operation.hidden)
        return await super().run(operation)


def secret(path: str, *, is_dir: bool) -> bool:
    return path == "/m/secret" or path.startswith("/m/secret/")


async def test_the_path_filter_reaches_the_storage_through_every_wrapper() -> None:
    for kinds in [*([kind] for kind in WRAPPERS), [PermissionedBackend, HistoryBackend, HookedBackend]]:
        asked = Asked()
        backend: BackendProtocol = CompositeBackend(MemoryBackend(), {"/m": asked})
        for kind in kinds:
            backend = WRAPPERS[kind](backend)
        await backend.arun(GlobRequest("*", hidden=secret))
        await backend.arun(GrepRequest("x", hidden=secret))
        assert len(asked.hidden) == 2, kinds
        for hidden in asked.hidden:
            assert hidden is not None, kinds
            assert hidden("/secret", is_dir=True)
            assert hidden("/secret/a", is_dir=False)
            assert not hidden("/open", is_dir=True)
