"""The command rm."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click
from anyio import to_thread

from deepfs.backends._trees import kind_at, list_present
from deepfs.cli.session import (
    MACHINE,
    AddressedPlace,
    Session,
    describe_error,
    error_text,
    files_argument,
    in_session,
    interruptible,
    reason_text,
)
from deepfs.errors import DeepFSError, ErrorCode, quote
from deepfs.text.entries import Relation, relation
from deepfs.types import error_from


@click.command()
@files_argument
@click.option("-r", "-R", "--recursive", is_flag=True, help="Delete directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="Say nothing of what is not there, and never ask.")
@click.option("-i", "--interactive", is_flag=True, help="Ask before each address.")
@click.option("--no-preserve-root", "root", is_flag=True, help="Delete all that is in a backend, if its root is given.")
@in_session()
async def rm(session: Session, files: tuple[str, ...], **options: bool) -> None:
    """Delete files, and directories with -r."""
    number = await interruptible(partial(_remove_each, session, files, _RemovalOptions(**options)))
    if number is not None:
        session.report("interrupted", status=128 + number)


class _RemovalOptions(NamedTuple):
    recursive: bool
    force: bool
    interactive: bool
    root: bool


class _RefusedRemovalError(Exception):
    """An address that is not removed; the text says why."""


async def _remove_each(session: Session, addresses: Sequence[str], options: _RemovalOptions) -> None:
    for text in addresses:
        place = await session.place(text)
        try:
            if text.rstrip("/").rpartition("/")[2] in (".", ".."):
                raise _RefusedRemovalError(f"refusing to remove '.' or '..' directory: skipping {quote(text)}")
            if place.path == "/":
                await _check_root(session, place, options)
            await _remove(place, options)
        except _RefusedRemovalError as refused:
            session.report(refused)
        except DeepFSError as error:
            session.report(f"cannot remove {place.quoted}: {describe_error(error)}")


async def _check_root(session: Session, place: AddressedPlace, options: _RemovalOptions) -> None:
    """Refuse the root of this machine, by whatever name, and that of a backend if it is not asked for."""
    machine = await session.place(f"{MACHINE}#/")
    ends = await place.backend.astorage_place("/"), await machine.backend.astorage_place("/")
    if relation(*ends) is Relation.SAME:
        raise _RefusedRemovalError("refusing to remove '/', the root of this machine")
    if not options.root:
        raise _RefusedRemovalError(
            f"it is dangerous to operate recursively on {place.quoted}, the root of a backend; "
            "use --no-preserve-root to do so"
        )


async def _remove(place: AddressedPlace, options: _RemovalOptions) -> None:
    kind = await kind_at(place.backend, place.path)
    if kind != "directory" or (await place.backend.aresolve_paths([place.path])) != [place.path]:
        entries = (await list_present(place.backend, place.path)).entries  # A link to a directory is none.
        kind = None if not entries else "directory" if entries[0].kind == "directory" else "file"
    if kind is None and options.force:
        return
    if kind is None or (kind == "directory" and not options.recursive):
        code = ErrorCode.FILE_NOT_FOUND if kind is None else ErrorCode.IS_DIRECTORY
        raise _RefusedRemovalError(f"cannot remove {place.quoted}: {error_text(code)}")
    if options.interactive and not options.force:
        print(f"deepfs rm: remove {kind} {place.quoted}? ", end="", file=sys.stderr, flush=True)
        if (await to_thread.run_sync(sys.stdin.readline)).strip().lower() not in ("y", "yes"):
            return
    wanted = [place.path]
    if place.path == "/":  # A root itself cannot be deleted.
        listing = await place.backend.als("/")
        if not listing.ok:
            raise error_from(listing)
        wanted = [entry.path.rstrip("/") for entry in listing.entries or ()]
    for path in wanted:
        result = await place.backend.adelete(path)
        if not result.ok and not (options.force and result.code is ErrorCode.FILE_NOT_FOUND):
            raise _RefusedRemovalError(f"cannot remove {quote(place.display(path))}: {reason_text(result)}")
