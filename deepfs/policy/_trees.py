"""Every path beneath a directory, with what links make of it."""

from collections.abc import Callable

from deepfs.backends.protocol import BackendProtocol
from deepfs.core import paths
from deepfs.errors import AccessError, ErrorCode

__all__ = ["visit_beneath"]

_NOTHING_BENEATH = (ErrorCode.NOT_A_DIRECTORY, ErrorCode.FILE_NOT_FOUND)


async def visit_beneath(
    backend: BackendProtocol,
    top: str,
    visit: Callable[[str, str], object],
    *,
    follow: bool,
    pass_by: Callable[[str], object] = lambda _: None,
) -> None:
    """Call `visit` with the path and the real path of all beneath the directory `top`, in no order.

    With `follow`, real is where links lead, and linked directories are entered, but none twice: `pass_by` is told of
    those that are passed by for that. Without, a link stands for itself. What `visit` raises ends the walk. Raises
    AccessError where not everything can be listed.
    """
    (real_top,) = await backend.areal_paths([top])
    pending = [(top, real_top or top)]
    seen = {real_top}
    while pending:
        directory, real_directory = pending.pop()
        listing = await backend.als(directory)
        if listing.entries is None:
            if listing.code in _NOTHING_BENEATH:
                continue
            raise AccessError(top, "not everything beneath it can be listed")
        children = [entry.path.rstrip("/") for entry in listing.entries]
        targets = await backend.areal_paths(children) if children else []
        for entry, path, target in zip(listing.entries, children, targets, strict=True):
            own = paths.join(real_directory, paths.name(path))
            visit(path, (target or own) if follow else own)
            if not entry.is_dir or not (follow or target == own):
                continue
            if target in seen:
                pass_by(path)
            else:
                seen.add(target)
                pending.append((path, target or own))
