"""Addresses: a URL that names a backend, and a path in it.

    notes/plan.md                                  a path of this machine
    file:///srv/docs#/guide/start.md               a path in a directory, which nothing leaves
    sqlite:///files.db?namespace=ada#/notes        a path in a namespace of a SQLite database
    postgresql://user@host/db?namespace=ada#/a.md  the same in PostgreSQL
    s3://bucket/dir/a.md                           an object; gs:// and az:// as well, and every URL of fsspec
    store+sqlite:///store.db?namespace=ada         the files in a LangGraph store
    checkpoint+sqlite:///runs.db?thread=1#/a.md    the files in the state of a LangGraph thread, to be read only
    tree://deepfs.toml#/memories                   a path in the tree that a TOML file describes

Only what has `://` is a URL: a file may have any name. What stands before `#` names the backend, what stands behind it
the path. Without `#`, the path of a URL that names a place in a hierarchy (file, object stores, fsspec) is the path,
and all other addresses mean the root. Options follow `?`; `read_only=true` goes with every URL. The URL of a database
file has four slashes if its path is absolute.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlencode

__all__ = ["TREE", "Address", "parse_address", "with_options"]

TREE: Final = "tree://"
"""The beginning of the URL of a tree that a TOML file describes; the path of the file follows."""
_FLAT: Final = frozenset({"memory", "sqlite", "postgres", "postgresql"})
"""Schemes whose URL has no path in the storage."""


class Address(NamedTuple):
    """A backend and a path in it.

    Attributes:
        url: The URL of the backend.
        path: The path in the backend.
        shown: What a user calls this path: the text that `path` replaces where paths are shown.
    """

    url: str
    path: str
    shown: str


def parse_address(text: str, *, within: str | None = None, directory: str = "/") -> Address:
    """Split an address into the URL of its backend and a path.

    Args:
        text: The address.
        within: The URL of the backend that addresses without a scheme are paths of; None if they are paths of this
            machine.
        directory: The absolute directory that relative paths of this machine start at.

    Returns:
        The address. Nothing is opened or looked up.
    """
    if "://" not in text:
        if within is not None:
            return Address(within, text, text)
        return Address("file:///", _absolute(text, directory), text)
    url, fragment, path = text.partition("#")
    if fragment:
        return Address(url, path or "/", path or "/")
    scheme, _, rest = text.partition("://")
    if text.startswith(TREE) or "::" in text or "+" in scheme or scheme in _FLAT:
        return Address(text, "/", "/")
    if scheme == "file":
        location, _, options = rest.partition("?")
        location = unquote(location.removeprefix("localhost") if location.startswith("localhost/") else location)
        return Address("file:///" + (f"?{options}" if options else ""), _absolute(location, directory), location)
    location, mark, options = rest.partition("?")
    host, _, path = location.partition("/")
    return Address(f"{scheme}://{host}{mark}{options}", f"/{path}", f"{scheme}://{location}")


def _absolute(path: str, directory: str) -> str:
    return os.path.normpath(os.path.join(directory, path))


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """The URL with more options.

    Args:
        url: The URL of a backend.
        options: The options; a truth value is written as `true` or `false`.
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(texts)}" if texts else url
