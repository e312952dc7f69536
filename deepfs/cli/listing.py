"""Listings: ls, tree, glob, du."""

from collections.abc import Sequence

from deepfs.cli.session import Session

__all__ = ["list_directories"]


async def list_directories(session: Session, addresses: Sequence[str]) -> None:
    """List directories, and files that are named themselves.

    Args:
        session: The session.
        addresses: The addresses.
    """
    for text in addresses:
        place = await session.place(text)
        result = await place.backend.als(place.path)
        if not session.check(result, place):
            continue
        for entry in result.entries or ():
            session.json(entry) if session.as_json else session.line(place.shown(entry.path))
