"""Workspaces by address: `workspace+URL` names a storage with the changes of a workspace, and a record of its tree.

The record comes with the storage, which somebody else may have made: it could name any place that this account
reaches. So a record is followed only if this account made it, or confirmed it by naming the same tree. Which those are
is noted in the user's directory for state. No variables of the environment are filled into what a record names.
"""

import os
import re
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from msgspec import Struct

from deepfs._brief import address as shown_url
from deepfs.backends.protocol import BackendProtocol
from deepfs.config.urls import MACHINE, TREE, WORKSPACE, Address
from deepfs.errors import ErrorCode
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.types import error_from

CHANGES: Final = "/changes"
"""The directory of the storage that holds what was changed."""
_RECORD: Final = "/workspace.json"
_SECRETS: Final = re.compile("key|password|secret|token", re.IGNORECASE)
"""What is in the names of options that are secret."""


class WorkspaceRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """What the storage of a workspace says about it."""

    lower: str
    """The URL of the tree below, with absolute paths."""
    id: str
    """Random, so that nobody else can make the same record."""


def url_of_tree(address: Address, directory: str) -> str:
    """The URL of a whole tree, with absolute paths.

    Args:
        address: Its address. One with a path is a tree where that path can be a part of the URL.
        directory: The absolute directory that relative paths start at.

    Raises:
        ValueError: The path is only a part of a backend, which no URL names.
    """
    if paths.normalize(address.path) == "/":
        return make_absolute(address.url, directory)
    url, mark, options = address.url.partition("?")
    if url != MACHINE and not address.shown.startswith(url):
        raise ValueError(f"{address.path!r} is a part of {shown_url(address.url)}: name the whole")
    return f"{url.rstrip('/')}{'//' if url == MACHINE else ''}{quote(address.path)}{mark}{options}"


def make_absolute(url: str, directory: str) -> str:
    """The URL with absolute paths instead of those that start at `directory`."""
    if url.startswith(WORKSPACE):
        return WORKSPACE + make_absolute(url.removeprefix(WORKSPACE), directory)
    if url.startswith(TREE):
        return TREE + os.path.join(directory, url.removeprefix(TREE))
    scheme, _, rest = url.partition("://")
    location, mark, options = rest.partition("?")
    if scheme.rpartition("+")[2] == "sqlite":
        location = "/" + os.path.join(quote(directory), location.removeprefix("/"))
    elif scheme == "file" and not location.startswith(("/", "localhost/")):
        location = os.path.join(quote(directory), location)
    return f"{scheme}://{location}{mark}{options}"


async def make_workspace(storage: BackendProtocol, lower: str) -> None:
    """Make a workspace without changes, or confirm the record of one that is there.

    Args:
        storage: The backend that is to hold what is changed in it.
        lower: The URL of the tree below, with absolute paths.

    Raises:
        ValueError: The URL has a password, or there is a workspace of another tree.
        DeepFSError: The record cannot be stored.
        OSError: It cannot be noted.
    """
    if urlsplit(lower).password or any(_SECRETS.search(name) for name, _ in parse_qsl(urlsplit(lower).query)):
        raise ValueError("the address of the tree has a secret, which would be kept in the workspace")
    record = WorkspaceRecord(lower, token_hex(16))
    await in_thread(partial(_note, record))
    written = await storage.awrite(_RECORD, msgspec.json.encode(record).decode())
    if written.code is ErrorCode.ALREADY_EXISTS:
        present = await read_record(storage)
        if present.lower != lower:
            raise ValueError(f"this is a workspace of {shown_url(present.lower)} already")
        await in_thread(partial(_note, present))
    elif not written.ok:
        raise error_from(written)


async def read_record(storage: BackendProtocol) -> WorkspaceRecord:
    """Read the record of a workspace, of whatever account.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is no record.
        DeepFSError: It cannot be read.
    """
    read = await storage.aread(_RECORD, 0, 1)  # A limit of lines, and of the backend: it may be a file of any size.
    if read.code is ErrorCode.FILE_NOT_FOUND:
        raise FileNotFoundError("there is no workspace; `deepfs fork` makes one")
    try:
        return msgspec.json.decode(read.unwrap().content, type=WorkspaceRecord)
    except msgspec.DecodeError as error:
        raise ValueError(f"{_RECORD} is no record of a workspace: {error}") from None


async def read_own_record(storage: BackendProtocol) -> WorkspaceRecord:
    """Read the record of a workspace that this account made or confirmed. Raises ValueError for another one."""
    record = await read_record(storage)
    if not await in_thread(_place(record).is_file):
        raise ValueError(
            f"the workspace says that it is one of {shown_url(record.lower)}, but this account did not make it: "
            "`deepfs fork TREE WORKSPACE` with that tree confirms it"
        )
    return record


def _note(record: WorkspaceRecord) -> None:
    place = _place(record)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.touch(mode=0o600)


def _place(record: WorkspaceRecord) -> Path:
    """The file that is there if this account made or confirmed the record."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    name = blake2b(msgspec.json.encode(record), digest_size=32).hexdigest()
    return Path(base, "deepfs", "workspaces", name)
