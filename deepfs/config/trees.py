"""A tree that a TOML file describes: which backends lie where, who may do what, and what is kept.

url = "./workspace"                             # what lies at /; a path or URL, relative to this file
read_only = false

[mounts]
"/memories" = "sqlite:///memories.db?namespace=ada"
"/docs" = { url = "/srv/docs", read_only = true, ignore = "git" }
"/shared" = "${DATABASE_URL}"                   # from the environment, if the user allows this name

[[permissions]]                                 # the first rule that matches counts
operations = ["write"]
paths = ["/docs/**"]
mode = "deny"

[history]                                       # keeps what changes replace
url = "sqlite:///history.db"
keep = 100

[limits]
max_bytes = 1_000_000_000                       # together, of all files
max_files = 100_000

[mcp]                                           # for `deepfs mcp`
[agent]                                         # for `deepfs agent`
"""

import os
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.config.urls import TREE, WORKSPACE, open_url, with_options
from deepfs.config.workspaces import CHANGES, read_own_record
from deepfs.sync import in_thread

__all__ = ["TreeConfig", "load_tree", "open_backend", "open_tree"]


class _RuleTable(Struct, forbid_unknown_fields=True):
    operations: list[str]
    paths: list[str]
    mode: str = "deny"


class _HistoryTable(Struct, forbid_unknown_fields=True):
    url: str | None = None
    directory: str = "/.history"
    keep: int = 100


class _QuotaTable(Struct, forbid_unknown_fields=True):
    max_bytes: int | None = None
    max_files: int | None = None


class TreeConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a TOML file says about a tree; the module's documentation shows one.

    Attributes:
        url: The path or URL of what lies at `/`.
        read_only: Whether nothing in the tree may be changed.
        mounts: What else lies where: a path or URL, or a table of `url` and its options, by the path of the mount.
        permissions: The rules, in order.
        history: Where and how many old versions of files are kept; None to keep none.
        limits: How much the files may hold together.
        mcp: Settings of the MCP server.
        agent: Settings of the agent on the command line.
        directory: The directory that relative paths start at.
    """

    url: str | dict[str, Any] = "memory://"
    read_only: bool = False
    mounts: dict[str, str | dict[str, Any]] = field(default_factory=dict)
    permissions: list[_RuleTable] = field(default_factory=list)
    history: _HistoryTable | None = None
    limits: _QuotaTable | None = None
    mcp: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    directory: str = ""


async def load_tree(file: str, *, variables: Collection[str] = ()) -> TreeConfig:
    """Read the description of a tree.

    Args:
        file: The path of a TOML file. `${NAME}` in its strings stands for a variable of the environment.
        variables: The names of the variables that the file may use: it could send them to any host.

    Returns:
        The description; nothing is opened.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no valid TOML, has an unknown or wrong setting, or a variable is not allowed or not set.
    """
    return await in_thread(partial(_load, file, variables))


def _load(file: str, variables: Collection[str]) -> TreeConfig:
    import tomllib

    content = Path(file).read_bytes()
    try:
        config = convert(_fill_in(tomllib.loads(content.decode()), variables), TreeConfig)
    except UnicodeDecodeError:
        raise ValueError(f"{file}: it is no text in UTF-8") from None
    except (ValidationError, ValueError) as error:  # The first is the second since msgspec 0.20.
        raise ValueError(f"{file}: {error}") from None
    except RecursionError:
        raise ValueError(f"{file}: arrays or tables lie too deep inside each other") from None
    return replace(config, directory=os.path.join(os.path.dirname(file), config.directory))


_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _fill_in(value: Any, variables: Collection[str]) -> Any:
    """`value` with `${NAME}` in its strings replaced by those variables of the environment that are allowed."""

    def look_up(found: re.Match[str]) -> str:
        name = found[1]
        if name not in variables:
            raise ValueError(f"the file asks for the variable {name}, which it may not use (--env {name} allows it)")
        if name not in os.environ:
            raise ValueError(f"the environment has no variable {name}")
        return os.environ[name]

    if isinstance(value, str):
        return _VARIABLE.sub(look_up, value)
    if isinstance(value, list):
        return [_fill_in(each, variables) for each in value]
    if isinstance(value, dict):
        return {key: _fill_in(each, variables) for key, each in value.items()}
    return value


@asynccontextmanager
async def open_tree(tree: TreeConfig) -> AsyncIterator[BackendProtocol]:
    """Open the backends of a tree, joined into one, and close them at the end. Databases are made where there are none.

    Args:
        tree: The description.

    Yields:
        The tree. If it keeps a history, it is a `HistoryBackend`.

    Raises:
        ValueError: A URL, an option, a rule or a limit cannot be used.
        ModuleNotFoundError: A backend needs an extra, which the text names.
    """
    async with _open_tree(tree, ()) as backend:
        yield backend


@asynccontextmanager
async def _open_tree(tree: TreeConfig, inside: tuple[str, ...]) -> AsyncIterator[BackendProtocol]:
    """Open the backends of a tree that is a part of the trees of the files `inside`."""
    routes = {path: f"{path.rstrip('/')}/" for path in tree.mounts}
    if len({*routes.values()}) < len(routes):
        raise ValueError("two mounts have the same path")
    async with AsyncExitStack() as stack:

        async def open_each(given: str | Mapping[str, Any]) -> BackendProtocol:
            options = {"url": given} if isinstance(given, str) else dict(given)
            url = options.pop("url", None)
            if not isinstance(url, str):
                raise ValueError("a mount needs a url, which is a text")
            if "://" not in url:  # A path, which as the location of a file URL must not look like a host.
                url = f"file://{quote(url if url.startswith(('/', './', '../')) else f'./{url}')}"
            return await stack.enter_async_context(_open(with_options(url, options), tree.directory, inside=inside))

        backend = await open_each(tree.url)
        mounts = {routes[path]: await open_each(url) for path, url in tree.mounts.items()}
        kept = None if tree.history is None else tree.history.url
        versions = None if kept is None else await open_each(kept)
        yield await in_thread(partial(_join, backend, mounts, versions, tree))


@asynccontextmanager
async def open_backend(
    url: str, *, directory: str = "", creates: bool = True, variables: Collection[str] = ()
) -> AsyncIterator[BackendProtocol]:
    """Open the backend that a URL names, or the tree of a TOML file, and close it at the end.

    Args:
        url: The URL, without a path in the backend, `tree://FILE`, or `workspace+URL`; `deepfs.config.urls` lists the
            kinds.
        directory: The directory that relative paths in it start at; by default the current one.
        creates: Whether the database of a URL may be made where there is none; those of a tree may be.
        variables: The names of the variables of the environment that the TOML file may use; files that it names in turn
            may use none.

    Yields:
        The backend.

    Raises:
        ValueError: The URL, an option or a setting cannot be used. No password is in its text.
        OSError: The file cannot be read; a FileNotFoundError if there is no database, and `creates` is False.
        ModuleNotFoundError: The backend needs an extra, which the text names.
    """
    async with _open(url, directory, creates=creates, variables=variables) as backend:
        yield backend


@asynccontextmanager
async def _open(
    url: str, directory: str, *, creates: bool = True, variables: Collection[str] = (), inside: tuple[str, ...] = ()
) -> AsyncIterator[BackendProtocol]:
    """Open a backend that is a part of the trees of the files, and of the workspaces, `inside`."""
    if url.startswith(WORKSPACE):
        async with open_url(url.removeprefix(WORKSPACE), directory=directory, creates=False) as storage:
            record = await read_own_record(storage)
            if record.id in inside:
                raise ValueError("this workspace is a part of itself")
            async with _open(record.lower, "/", creates=False, inside=(*inside, record.id)) as lower:
                yield await in_thread(partial(_overlay, lower, storage))
        return
    if not url.startswith(TREE):
        async with open_url(url, directory=directory, creates=creates) as backend:
            yield backend
        return
    file = os.path.join(directory, url.removeprefix(TREE))
    real = await in_thread(partial(os.path.realpath, file))
    if real in inside:
        raise ValueError(f"{file}: this tree is a part of itself")
    async with _open_tree(await load_tree(file, variables=variables), (*inside, real)) as backend:
        yield backend


def _overlay(lower: BackendProtocol, storage: BackendProtocol) -> BackendProtocol:
    from deepfs.workspaces import OverlayBackend

    return OverlayBackend(lower, storage, directory=CHANGES)


def _join(
    backend: BackendProtocol, mounts: dict[str, BackendProtocol], versions: BackendProtocol | None, tree: TreeConfig
) -> BackendProtocol:
    """The backends as one, with the policies of the tree."""
    from deepfs.policy import FilesystemPermission, HistoryBackend, PermissionedBackend, QuotaBackend, ReadOnlyBackend

    if mounts:
        from deepfs.backends.composite import CompositeBackend

        backend = CompositeBackend(backend, mounts)
    if tree.limits is not None:
        backend = QuotaBackend(backend, tree.limits.max_bytes, tree.limits.max_files)
    if tree.permissions:
        # The classes check what the file says.
        rules: list[Any] = [(rule.operations, rule.paths, rule.mode) for rule in tree.permissions]
        backend = PermissionedBackend(backend, [FilesystemPermission(*rule) for rule in rules])
    if tree.read_only:
        backend = ReadOnlyBackend(backend)
    if tree.history is not None:
        backend = HistoryBackend(backend, versions, tree.history.directory, keep=tree.history.keep)
    return backend
