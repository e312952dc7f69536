"""Paths of the host, for backends that confine nothing."""

import os

from deepfs.core.arguments import check_string
from deepfs.errors import InvalidPathError

__all__ = ["host_path"]


def host_path(path: str, root: str) -> str:
    """`path` as an absolute path of the host; a relative one starts at `root`. `..` takes back the name before it."""
    check_string("path", path)
    if "\0" in path:
        raise InvalidPathError(path, "it holds a NUL character")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPathError(path, "it holds a lone surrogate, which is not text") from error
    absolute = os.path.normpath(os.path.join(os.path.abspath(root), path))
    return f"/{absolute.lstrip('/')}"
