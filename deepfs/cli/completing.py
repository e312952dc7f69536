"""What shells offer for an address: names on this machine, and what lies in directories, databases and trees of it.

Nothing is made or changed, no network is used, and a shell does not wait long.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from stat import S_ISREG
from typing import Any, Final
from urllib.parse import unquote

import anyio
from anyio import to_thread
from click.shell_completion import CompletionItem

from deepfs.cli.screen import safe
from deepfs.config.trees import load_tree, open_backend
from deepfs.config.urls import TREE, parse_address, split_database
from deepfs.errors import DeepFSError
from deepfs.text import paths

_SECONDS: Final = 2.0


def complete_address(incomplete: str, on: str | None, variables: Sequence[str]) -> list[CompletionItem[str]]:
    """The addresses that may follow from the beginning of one; for a path of this machine, the shell knows them."""
    if "://" not in incomplete and on is None:
        return [CompletionItem(incomplete, type="file")]
    found: list[str] = []
    with _time_limit(), suppress(DeepFSError, ValueError, OSError, ImportError):
        found = anyio.run(_find, incomplete, on, variables)
    return [CompletionItem(each) for each in found if safe(each) == each]


@contextmanager
def _time_limit() -> Iterator[None]:
    """End the process, which answers a shell, after some seconds: a disk may hang, a database may be locked."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _find(incomplete: str, on: str | None, variables: Sequence[str]) -> list[str]:
    """The addresses in the directory that the beginning of one ends in."""
    url, mark, path = incomplete.partition("#") if "://" in incomplete else ("", "", incomplete)
    directory, slash, name = path.rpartition("/")
    start = f"{url}{mark}{directory}{slash or '/' * bool(mark)}"
    if "://" in incomplete and not mark:
        start, name = incomplete[: incomplete.rindex("/") + 1], paths.name(incomplete)
        inside = await to_thread.run_sync(split_database, start, "")
        if not start.startswith("file:") and "#" not in inside:
            return await to_thread.run_sync(_files, start, name)
    else:
        inside = start
    address = parse_address(inside or "/", within=on, directory=await to_thread.run_sync(os.getcwd))
    if not await _is_near(address.url, variables):
        return []
    async with open_backend(address.url, creates=False, variables=variables) as backend:
        entries = (await backend.als(paths.normalize(address.path))).entries or ()
    return _starting(start, name, [paths.name(each.path.rstrip("/")) + "/" * bool(each.is_dir) for each in entries])


def _starting(start: str, name: str, found: list[str]) -> list[str]:
    """The names that go on from the beginning of one, behind what stands before it."""
    chosen = [each for each in found if each.startswith(name) and (name or not each.startswith("."))]
    if "://" in start and "#" not in start:  # There, these would be something else.
        chosen = [each for each in chosen if not {*"%?#"} & {*each.removesuffix("#/")}]
    return [start + each for each in chosen]


def _files(start: str, name: str) -> list[str]:
    """The addresses of databases or descriptions of trees in a directory, and of directories in it."""
    scheme, _, directory = start.partition("://")
    if scheme != "tree" and scheme.rpartition("+")[2] != "sqlite":
        return []
    if scheme != "tree":
        directory = directory.removeprefix("/")
    with os.scandir(unquote(directory) or ".") as entries:
        found = sorted(each.name + ("/" if each.is_dir() else "#/" if each.is_file() else "") for each in entries)
    return _starting(start, name, found)


async def _is_near(url: str, variables: Sequence[str], directory: str = "") -> bool:
    """Whether a backend lies on this machine, and opening it makes nothing. For a tree, all of it must."""
    scheme, mark, location = url.partition("://")
    location = unquote(location.partition("?")[0])
    if not mark or scheme in ("file", "memory"):
        return True
    if scheme == "sqlite":
        status = await anyio.Path(directory, location.removeprefix("/")).stat()
        return S_ISREG(status.st_mode) and status.st_size > 0  # An empty file would become a database.
    if not url.startswith(TREE):
        return False
    tree = await load_tree(os.path.join(directory, url.removeprefix(TREE)), variables=variables)
    parts: list[Any] = [tree.url, *tree.mounts.values()]
    if tree.history is not None and tree.history.url is not None:
        parts.append(tree.history.url)
    urls = [part if isinstance(part, str) else part.get("url", "") for part in parts]
    return all([not each.startswith(TREE) and await _is_near(each, (), tree.directory) for each in urls])
