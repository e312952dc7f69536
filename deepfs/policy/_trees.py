"""Every path beneath a directory, with what links make of it."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from deepfs.backends.protocol import BackendProtocol
from deepfs.core import paths
from deepfs.errors import AccessError, ErrorCode

__all__ = ["Beneath", "everything_beneath"]


class Beneath(NamedTuple):
    """A file or directory under the one that was asked about, and where it leads."""

    path: str
    real: str


async def everything_beneath(backend: BackendProtocol, top: str, *, follow: bool) -> AsyncIterator[Beneath]:
    """All beneath the directory `top`, in no order; nothing for a file or where nothing is.

    Linked directories are entered only with `follow`, each once. Raises AccessError where a directory cannot be listed.
    """
    (real_top,) = await backend.areal_paths([top])
    pending = [Beneath(paths.normalize(top), real_top or "")]
    seen = {real_top}
    while pending:
        directory = pending.pop()
        listing = await backend.als(directory.path)
        if listing.entries is None:
            if listing.code in (ErrorCode.NOT_A_DIRECTORY, ErrorCode.FILE_NOT_FOUND):
                continue
            raise AccessError(paths.normalize(top), "not all beneath it can be listed")
        children = [entry.path.rstrip("/") for entry in listing.entries]
        real = await backend.areal_paths(children) if children else []
        for entry, path, leads_to in zip(listing.entries, children, real, strict=True):
            yield Beneath(path, leads_to or path)
            is_link = leads_to != paths.join(directory.real, paths.name(path))
            if entry.is_dir and leads_to not in seen and (follow or not is_link):
                seen.add(leads_to)
                pending.append(Beneath(path, leads_to or path))
