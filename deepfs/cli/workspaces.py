"""The commands of workspaces and snapshots: fork, merge, discard, snapshot, snapshots; diff and restore serve both."""

from typing import get_args

import click

from deepfs.cli.screen import count_noun, human_size, safe
from deepfs.cli.session import (
    ADDRESS,
    Session,
    error_text,
    in_session,
    json_option,
    not_empty,
    snapshots_option,
)
from deepfs.config.trees import open_backend
from deepfs.config.urls import WORKSPACE
from deepfs.config.workspaces import make_workspace
from deepfs.errors import quote
from deepfs.text import paths
from deepfs.workspaces.merging import Strategy

# --- workspaces ------------------------------------------------------------------------------------------------------

_workspace_argument = click.argument("address", type=ADDRESS, metavar="WORKSPACE", callback=not_empty)
_paths_argument = click.argument("chosen", metavar="[PATH]...", nargs=-1)


@click.command()
@click.argument("tree", type=ADDRESS, metavar="TREE", callback=not_empty)
@click.argument("address", metavar="WORKSPACE", callback=not_empty)
@json_option
@in_session()
async def fork(session: Session, tree: str, address: str) -> None:
    """Make a workspace of a tree: a copy that costs nothing. Writes its address, which all commands take.

    WORKSPACE is the SQLite file that is to hold the changes, or workspace+URL for another backend. If it holds those of
    a workspace of this tree already, they stay, and this account opens it from now on.

    \b
      export DEEPFS_ON=$(deepfs fork src work.db)
      deepfs edit /main.py old new; deepfs diff /; deepfs merge /
    """
    lower = session.locate_tree(await session.tree(tree))
    url, _, path = session.absolute_workspace(address).partition("#")
    if not url.startswith(WORKSPACE) or path.strip("/"):
        raise ValueError(f"{address} is no address of a workspace, which is a file or {WORKSPACE}URL")
    async with open_backend(url.removeprefix(WORKSPACE)) as storage:
        await make_workspace(storage, lower)
    if session.as_json:
        session.json({"workspace": url, "tree": lower})
    else:
        session.screen.line(session.screen.name(url))


@click.command()
@_workspace_argument
@_paths_argument
@click.option("--into", type=ADDRESS, metavar="TREE", help="Another tree; the changes stay in the workspace, too.")
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="keep",
    show_default=True,
    help="What is done where both sides changed the same lines: leave both as they are, merge nothing at all, or take "
    "that of the workspace or that of the tree.",
)
@click.option(
    "--conflicts",
    metavar="DIRECTORY",
    default="/conflicts",
    show_default=True,
    help="The directory of the tree for copies of both sides of a conflict; an empty one keeps none.",
)
@json_option
@in_session()
async def merge(
    session: Session,
    address: str,
    chosen: tuple[str, ...],
    into: str | None,
    strategy: Strategy,
    conflicts: str,
) -> None:
    """Make the changes of a workspace in its tree, also where others changed that meanwhile.

    PATHs are files and directories of the workspace; by default everything is merged. The exit status is 1 if something
    was not merged: it stays a change of the workspace.
    """
    place, workspace = await session.workspace(address)
    result = await workspace.amerge(
        None if into is None else (await session.tree(into)).backend,
        paths=_chosen_paths(place.path, chosen),
        strategy=strategy,
        conflicts=conflicts or None,
    )
    if session.as_json:
        session.json(result)
    for path in () if session.as_json else result.merged:
        session.screen.line(f"{session.screen.name(path)}: merged")
    for conflict in result.conflicts:
        kept = f"; both sides are in {', '.join(map(quote, conflict.kept))}" if conflict.kept else ""
        session.report(f"{quote(conflict.path)}: both sides changed it{kept}")
    for path, code in result.refused.items():
        session.report(f"{quote(path)}: {error_text(code)}")
    if chosen and result.ok and not result.merged:
        session.report("nothing was changed there")


@click.command()
@_workspace_argument
@_paths_argument
@json_option
@in_session()
async def discard(session: Session, address: str, chosen: tuple[str, ...]) -> None:
    """Undo changes of a workspace: the files are as they are in its tree again.

    PATHs are files and directories of the workspace; by default everything is discarded.
    """
    place, workspace = await session.workspace(address)
    discarded = await workspace.adiscard(_chosen_paths(place.path, chosen))
    for path in discarded:
        if session.as_json:
            session.json({"path": path})
        else:
            session.screen.line(f"{session.screen.name(path)}: discarded")
    if chosen and not discarded:
        session.report("nothing was changed there")


def _chosen_paths(start: str, chosen: tuple[str, ...]) -> list[str]:
    return [paths.join(start, paths.normalize(path)[1:]) for path in chosen] or [start]


# --- snapshots -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tree", type=ADDRESS, metavar="TREE", callback=not_empty)
@click.argument("name", metavar="[NAME]", required=False)
@snapshots_option
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Delete the oldest snapshots until N are left.")
@json_option
@in_session()
async def snapshot(session: Session, tree: str, name: str | None, storage: str | None, keep: int | None) -> None:
    """Keep what the files of a tree are now, under a name; by default that is the time.

    STORAGE holds each content once. `diff --in` compares the tree with a snapshot, `restore --in` brings it back.
    """
    made = await (await session.snapshots(tree, _given(storage), keep=keep)).atake(name)
    if session.as_json:
        session.json(made)
        return
    more = f", {count_noun(made.left_out, 'entry')} left out" if made.left_out else ""
    session.screen.line(f"{safe(made.name)}: {count_noun(made.files, 'file')}, {human_size(made.bytes)}{more}")


@click.command()
@snapshots_option
@click.option("--delete", "deleted", metavar="NAME", multiple=True, help="Delete a snapshot. May be repeated.")
@json_option
@in_session(pages=True)
async def snapshots(session: Session, storage: str | None, deleted: tuple[str, ...]) -> None:
    """List the snapshots in STORAGE, oldest first, or delete some."""
    from deepfs.workspaces import Snapshots

    place = await session.place(_given(storage))
    kept = Snapshots(place.backend, place.backend, directory=place.path)
    for name in deleted:
        await kept.adelete(name)
    for each in () if deleted else await kept.alist():
        if session.as_json:
            session.json(each)
        else:
            when = each.created_at[:19].replace("T", " ")
            session.screen.line(f"{each.files:>8,}  {human_size(each.bytes):>8}  {when}  {safe(each.name)}")


def _given(storage: str | None) -> str:
    if not storage:
        raise ValueError("--in STORAGE says where the snapshots are")
    return storage
