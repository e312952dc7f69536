"""What was and what happens: history, restore, watch."""

from contextlib import aclosing

import click

from deepfs.cli.screen import human_size
from deepfs.cli.session import (
    AddressedPlace,
    Session,
    address_argument,
    directory_argument,
    json_option,
    run_command,
)
from deepfs.policy.history import HistoryBackend

__all__ = ["history", "restore", "restore_version", "show_history", "watch", "watch_changes"]


async def _open_history(session: Session, address: str) -> tuple[AddressedPlace, HistoryBackend]:
    place = await session.place(address)
    if not isinstance(place.backend, HistoryBackend):
        raise ValueError(
            "no history is kept here: describe the tree in a TOML file with a table [history], and name it by --on"
        )
    return place, place.backend


@click.command()
@address_argument
@click.argument("version", type=int, required=False)
@click.option("--diff", "compares", is_flag=True, help="Write how the present file differs from the version.")
@json_option
def history(address: str, version: int | None, compares: bool, json: bool) -> None:
    """List the earlier versions of a file, or write the content of one.

    Needs a tree whose TOML file has a table [history].
    """
    run_command(lambda on: show_history(on, address, version, compares=compares), json=json, pages=True)


async def show_history(session: Session, address: str, number: int | None, *, compares: bool) -> None:
    """List the versions of a file, or show one.

    Args:
        session: The session.
        address: The address of the file.
        number: The number of the version whose content is written; None for a list of all.
        compares: Whether the difference to the present file is written instead of the content.
    """
    place, history = await _open_history(session, address)
    if number is not None and compares:
        session.screen.diff(await history.adiff(place.path, number))
    elif number is not None:
        session.screen.bytes(await history.aread_version(place.path, number))
    else:
        versions = await history.ahistory(place.path)
        for version in versions:
            if session.as_json:
                session.json({"number": version.number, "saved_at": version.saved_at, "size": version.size})
                continue
            size = "-" if version.size is None else human_size(version.size)
            when = version.saved_at[:19].replace("T", " ")
            session.screen.line(f"{version.number:>6}  {size:>8}  {when}")
        if not versions:
            session.report(f"{place.address.shown}: there are no earlier versions")


@click.command()
@address_argument
@click.argument("version", type=int)
def restore(address: str, version: int) -> None:
    """Give a file the content of an earlier version, which `history` lists."""
    run_command(lambda on: restore_version(on, address, version))


async def restore_version(session: Session, address: str, number: int) -> None:
    """Give a file the content of a version.

    Args:
        session: The session.
        address: The address of the file.
        number: The number of the version.
    """
    place, history = await _open_history(session, address)
    result = await history.arestore(place.path, number)
    if session.check(result, place):
        session.screen.line(f"{session.screen.name(place.address.shown)}: version {number} restored")


@click.command()
@directory_argument
@json_option
def watch(address: str, json: bool) -> None:
    """Tell changes of files as they happen, until Ctrl-C."""
    run_command(lambda on: watch_changes(on, address), json=json)


async def watch_changes(session: Session, address: str) -> None:
    """Write changes at and under a place as they happen, until the command is interrupted.

    Args:
        session: The session.
        address: The address.
    """
    place = await session.place(address)
    async with aclosing(place.backend.awatch(place.path)) as events:
        async for event in events:
            shown = place.display(event.path)
            if session.as_json:
                session.json({"path": shown, "kind": event.kind, "version": event.version})
            else:
                session.screen.line(f"{event.kind:<9}{session.screen.name(shown)}")
            session.screen.flush()
