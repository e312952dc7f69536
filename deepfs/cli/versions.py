"""What was and what happens: history, restore, undo, watch."""

from contextlib import aclosing

import click

from deepfs.cli.screen import human_size, safe
from deepfs.cli.session import (
    AddressedPlace,
    Session,
    address_argument,
    directory_argument,
    error_text,
    in_session,
    json_option,
)
from deepfs.errors import quote
from deepfs.policy.history import HistoryBackend


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
@in_session(pages=True)
async def history(session: Session, address: str, version: int | None, compares: bool) -> None:
    """List the earlier versions of a file, or write the content of one.

    Needs a tree whose TOML file has a table [history].
    """
    place, backend = await _open_history(session, address)
    if version is not None and compares:
        session.screen.diff(await backend.adiff(place.path, version))
    elif version is not None:
        session.screen.bytes(await backend.aread_version(place.path, version))
    else:
        versions = await backend.ahistory(place.path)
        for each in versions:
            if session.as_json:
                session.json({"number": each.number, "saved_at": each.saved_at, "size": each.size})
                continue
            size = "-" if each.size is None else human_size(each.size)
            when = each.saved_at[:19].replace("T", " ")
            session.screen.line(f"{each.number:>6}  {size:>8}  {when}")
        if not versions:
            session.report(f"{place.address.shown}: there are no earlier versions")


@click.command()
@address_argument
@click.argument("version", type=int)
@in_session()
async def restore(session: Session, address: str, version: int) -> None:
    """Give a file the content of an earlier version, which `history` lists."""
    place, backend = await _open_history(session, address)
    result = await backend.arestore(place.path, version)
    if session.check(result, place):
        session.screen.line(f"{session.screen.name(place.address.shown)}: version {version} restored")


@click.command()
@click.argument("change", required=False)
@click.option("--run", metavar="RUN", help="Undo all that a run of an agent changed, or another undo.")
@click.option("--list", "lists", is_flag=True, help="List the latest changes, newest first.")
@click.option(
    "-n", "limit", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="The most to list."
)
@click.option("--force", is_flag=True, help="Bring back what others changed since, too.")
@json_option
@in_session(pages=True)
async def undo(session: Session, change: str | None, run: str | None, lists: bool, limit: int, force: bool) -> None:
    """Undo a change, all changes of a run, or the latest change with its run. An undo can be undone.

    Needs a tree whose TOML file has a table [history].
    """
    _, backend = await _open_history(session, "/")
    if lists:
        for each in await backend.achanges(run=run, limit=limit):
            if session.as_json:
                session.json(each)
                continue
            more = f" and {len(each.paths) - 1:,} more" if len(each.paths) > 1 else ""
            by = f"  (run {safe(each.run)})" if each.run else ""
            session.screen.line(f"{each.id}  {each.operation:<12}  {session.screen.name(each.paths[0])}{more}{by}")
        return
    if change is None and run is None:
        latest = await backend.achanges(limit=1)
        if not latest:
            raise ValueError("there is no change to undo")
        change, run = (None, latest[0].run) if latest[0].run else (latest[0].id, None)
    done = await backend.aundo(run, change=change, force=force)
    if session.as_json:
        session.json(done)
    for path in () if session.as_json else done.paths:
        session.screen.line(f"{session.screen.name(path)}: undone")
    for path, code in done.conflicts.items():
        session.report(f"{quote(path)}: {error_text(code)}")


@click.command()
@directory_argument
@json_option
@in_session()
async def watch(session: Session, address: str) -> None:
    """Tell changes of files as they happen, until Ctrl-C."""
    place = await session.place(address)
    async with aclosing(place.backend.awatch(place.path)) as events:
        async for event in events:
            shown = place.display(event.path)
            if session.as_json:
                session.json({"path": shown, "kind": event.kind, "version": event.version})
            else:
                session.screen.line(f"{event.kind:<9}{session.screen.name(shown)}")
            session.screen.flush()
