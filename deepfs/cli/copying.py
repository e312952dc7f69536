"""The commands cp and mv: what their arguments mean, as in coreutils. `transfers.py` copies between backends."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar

import click
from anyio import Path, to_thread
from msgspec import Struct, json

from deepfs.cli.copy_plans import (
    Terms,
    Totals,
    TreePlan,
    Verify,
    error_text,
    kind_at,
    listed,
    modification_times,
    reason_text,
)
from deepfs.cli.session import Place, Session, json_option, not_empty, run_command, told_text
from deepfs.cli.transfers import FullError, TreeCopy, interruptible, shown_progress, totals_text
from deepfs.errors import DeepFSError, ErrorCode, quoted
from deepfs.text import paths
from deepfs.text.entries import EntryChange, Relation, TreeListing, relation
from deepfs.text.judging import keeping_inside
from deepfs.types import Result

__all__ = ["Arguments", "copy", "cp", "mv"]

CallableT = TypeVar("CallableT", bound=Callable[..., Any])
_Kind = Literal["file", "directory"]

_GOES_ON: Final = "Run the same command again to go on: what is there already is compared, and not stored again."
_WEEK_SECONDS: Final = 7 * 24 * 3600


class Arguments(Struct, frozen=True, kw_only=True):
    """The addresses that `cp` and `mv` are given."""

    sources: Sequence[str]
    target: str
    is_directory: bool = False
    """The target is a directory: `--target-directory`."""
    is_exact: bool = False
    """The target is the path of the copy itself: `--no-target-directory`."""


class _Job(Struct, frozen=True):
    """One source, and the place of its copy."""

    source: Place
    listing: TreeListing
    target: Place
    named: str
    """The path of the target as the user named it, or of the directory that the copy is put into."""
    exists: _Kind | None
    """What is at the target."""
    is_one_storage: bool

    @property
    def kind(self) -> _Kind:
        return "directory" if self.listing.entries[0].kind == "directory" else "file"

    @property
    def names(self) -> str:
        return f"{_shown(self.source)} to {_shown(self.target)}"


class _RefusedError(Exception):
    """A source that is not copied, or all of them; the text says why."""


def _shown(place: Place) -> str:
    return quoted(place.shown(place.path))


async def copy(session: Session, arguments: Arguments, terms: Terms) -> None:
    """Copy or move files and directories. Between backends, a move copies, and deletes what has not changed since.

    Args:
        session: The session.
        arguments: The addresses.
        terms: How to copy, and whether to move.
    """
    await _Transfer(session, arguments, terms).run()


class _Transfer:
    """One run of `cp` or `mv`."""

    def __init__(self, session: Session, arguments: Arguments, terms: Terms) -> None:
        self._session = session
        self._arguments = arguments
        self._terms = terms
        self._totals = Totals(started=time.monotonic())
        self._made: set[tuple[int, str]] = set()
        """The targets of the sources before."""
        self._verb = "move" if terms.moves else "copy"

    async def run(self) -> None:
        """Carry all jobs out, tell what failed, and show the totals."""
        number = await interruptible(self._run)
        if number is not None:
            self._session.failed(f"interrupted. {_GOES_ON}", status=128 + number)
        self._report(is_interrupted=number is not None)

    async def _run(self) -> None:
        sources = [await self._session.place(text) for text in self._arguments.sources]
        target = await self._session.place(self._arguments.target, creates=True)
        async with shown_progress(self._session, self._totals):
            try:
                into = await self._target_directory(target)
                for text, source in zip(self._arguments.sources, sources, strict=True):
                    await self._transfer(text, source, target, into=into)
            except _RefusedError as refused:
                self._session.failed(refused)
            except FullError as full:
                self._session.failed(f"{_shown(target)} stores nothing more: {full}. {_GOES_ON}")

    def _report(self, *, is_interrupted: bool) -> None:
        totals = self._totals
        if self._session.as_json:
            told = {name: getattr(totals, name) for name in ("files", "bytes", "skipped", "failed", "seconds")}
            self._session.json({**told, "verify": self._terms.verify.value, "interrupted": is_interrupted})
        elif is_interrupted or (sys.stderr.isatty() and (self._terms.recursive or totals.files > 1)):
            self._session.screen.note(totals_text(totals))

    # --- what the arguments mean -------------------------------------------------------------------------------------

    async def _target_directory(self, target: Place) -> bool:
        """Whether the copies are put into the target."""
        kind = await kind_at(target.backend, target.path)
        must = self._arguments.is_directory or len(self._arguments.sources) > 1
        if self._arguments.is_exact and must:
            raise _RefusedError("with --no-target-directory, there is one source, and no --target-directory")
        if must and kind != "directory" and not (kind is None and _makes_directories(target)):
            raise _RefusedError(f"target {_shown(target)}: {error_text(_no_directory(kind))}")
        return must or (kind == "directory" and not self._arguments.is_exact)

    async def _transfer(self, text: str, source: Place, target: Place, *, into: bool) -> None:
        """Copy or move one source; what goes wrong with it alone is told."""
        try:
            job = await self._job(text, source, target, into=into)
            if job is not None:
                await self._carry_out(job, is_new=not into)
        except _RefusedError as refused:
            self._totals.failed += 1
            self._session.failed(refused)
        except DeepFSError as error:
            self._totals.failed += 1
            self._session.failed(f"cannot {self._verb} {_shown(source)}: {told_text(error)}")

    async def _job(self, text: str, source: Place, target: Place, *, into: bool) -> _Job | None:
        is_whole = source.path == "/" or text.rstrip("/").rpartition("/")[2] in (".", "..")
        if is_whole and self._terms.moves:
            raise _RefusedError(f"cannot move {_shown(source)}: Device or resource busy")
        kind = await kind_at(source.backend, source.path)
        if kind == "directory" and not (self._terms.recursive or self._terms.moves):
            raise _RefusedError(f"-r not specified; omitting directory {_shown(source)}")
        name = paths.name(source.path)
        source, listing = await self._listed(source)
        is_slashed = kind == "file" and self._arguments.target.endswith("/")
        if is_slashed and not into and not _makes_directories(target):
            raise _RefusedError(f"cannot create regular file {_shown(target)}: {error_text(ErrorCode.NOT_A_DIRECTORY)}")
        if into and await self._goes_on(source, target):
            into = False
        place = target
        if (into or is_slashed) and not is_whole:
            place = target._replace(path=paths.join(target.path, name))
            place = place._replace(address=target.address._replace(shown=target.shown(place.path)))
        return await self._checked(source, listing, place, target.path)

    async def _listed(self, source: Place) -> tuple[Place, TreeListing]:
        """The source with its entries. A symbolic link that is given itself is followed by a copy."""
        listing = await listed(source.backend, source.path)
        if listing.entries and listing.entries[0].kind == "link" and not self._terms.moves:
            [real] = await source.backend.aresolve_paths([source.path])
            if real is not None:
                source = source._replace(path=real)
                listing = await listed(source.backend, real)
        if not listing.entries:
            raise _RefusedError(f"cannot stat {_shown(source)}: {error_text(ErrorCode.FILE_NOT_FOUND)}")
        return source, listing

    async def _checked(self, source: Place, listing: TreeListing, target: Place, named: str) -> _Job:
        here = await source.backend.astorage_place(source.path)
        there = await target.backend.astorage_place(target.path)
        found = relation(here, there)
        if found is Relation.SAME:
            raise _RefusedError(f"{_shown(source)} and {_shown(target)} are the same file")
        if found is Relation.INSIDE and self._terms.moves:
            raise _RefusedError(f"cannot move {_shown(source)} to a subdirectory of itself, {_shown(target)}")
        if found is Relation.INSIDE:
            raise _RefusedError(f"cannot copy a directory, {_shown(source)}, into itself, {_shown(target)}")
        key = (id(target.backend), target.path)
        if key in self._made and target.path != "/":
            raise _RefusedError(f"will not overwrite just-created {_shown(target)} with {_shown(source)}")
        self._made.add(key)
        await _check_parent(target)
        is_one = source.backend is target.backend and here.storage is not None and here.storage == there.storage
        exists = await kind_at(target.backend, target.path)
        if exists is None and (await listed(target.backend, target.path)).entries:
            raise _RefusedError(f"not writing through dangling symbolic link {_shown(target)}")
        return _Job(source, listing, target, named, exists, is_one)

    # --- going on with an interrupted copy ---------------------------------------------------------------------------

    async def _goes_on(self, source: Place, target: Place) -> bool:
        """Whether the target is a copy of the source that was interrupted, so that it is not put into itself."""
        marker = await to_thread.run_sync(_marker, source, target)
        if self._arguments.is_directory or len(self._arguments.sources) > 1 or not await _is_marked(marker):
            return False
        self._session.screen.note(f"deepfs {self._session.name}: going on with the copy in {_shown(target)}")
        return True

    # --- carrying out ------------------------------------------------------------------------------------------------

    async def _carry_out(self, job: _Job, *, is_new: bool) -> None:
        [real] = await job.target.backend.aresolve_paths([job.named])
        inside = real or job.named
        with keeping_inside(inside):
            if job.source.backend is job.target.backend and self._terms.moves:
                await self._rename(job)
                return
            if job.is_one_storage and await self._copied_there(job):
                return
        marker = await to_thread.run_sync(_marker, job.source, job.target)
        if is_new and job.kind == "directory" and job.exists is None:
            await _mark(marker)
        failed = self._totals.failed
        await self._copy(job, inside)
        if failed == self._totals.failed:
            with suppress(OSError):
                await marker.unlink(missing_ok=True)

    async def _copy(self, job: _Job, inside: str) -> None:
        is_put_into = job.target.path != job.named
        plan = TreePlan(self._session, self._terms, self._totals, job.source, job.target, is_put_into=is_put_into)
        await plan.make(job.listing)
        if self._terms.moves:
            plan.check_movable()
        copying = TreeCopy(plan)
        with keeping_inside(inside):
            await copying.run()
        if self._terms.moves:
            await copying.delete_source()

    async def _copied_there(self, job: _Job) -> bool:
        """Copy within one storage, if that is what the terms ask for."""
        terms = self._terms
        if job.exists is not None and (
            job.kind == "directory" or job.exists == "directory" or terms.no_clobber or terms.update
        ):
            return False
        result = await job.target.backend.acopy(job.source.path, job.target.path, overwrite=True)
        self._check(result, job)
        return True

    async def _rename(self, job: _Job) -> None:
        """Move within a backend."""
        if job.exists is not None and await self._stays(job):
            self._totals.skipped += 1
            return
        if job.exists == "directory" and job.kind == "file":
            raise _RefusedError(f"cannot overwrite directory {_shown(job.target)} with non-directory")
        if job.exists == "file" and job.kind == "directory":
            raise _RefusedError(
                f"cannot overwrite non-directory {_shown(job.target)} with directory {_shown(job.source)}"
            )
        if job.exists == "directory":
            change = EntryChange(job.target.path, "remove_directory")
            [outcome] = await job.target.backend.achange_entries([change])
            if outcome.error is not None or await kind_at(job.target.backend, job.target.path) is not None:
                raise _RefusedError(f"cannot move {job.names}: Directory not empty")
        result = await job.source.backend.amove(job.source.path, job.target.path, overwrite=True)
        self._check(result, job)

    async def _stays(self, job: _Job) -> bool:
        """Whether the terms leave alone what is at the target."""
        if self._terms.update and not self._terms.no_clobber:
            source, target = job.source, job.target
            here = await modification_times(source.backend, [paths.parent(source.path)])
            there = await modification_times(target.backend, [paths.parent(target.path)])
            return here.get(source.path, "~") <= there.get(target.path, "")
        return self._terms.no_clobber

    def _check(self, result: Result, job: _Job) -> None:
        if not result.ok:
            raise _RefusedError(f"cannot {self._verb} {job.names}: {reason_text(result)}")
        files = [entry for entry in job.listing.entries if entry.kind != "directory"]
        self._totals.files += len(files)
        self._totals.bytes += sum(entry.size or 0 for entry in files)


def _no_directory(kind: _Kind | None) -> ErrorCode:
    return ErrorCode.FILE_NOT_FOUND if kind is None else ErrorCode.NOT_A_DIRECTORY


def _makes_directories(place: Place) -> bool:
    """Whether directories are only implied by the files in them, so that any path may be one."""
    return not place.backend.capabilities.keeps_empty_directories


async def _check_parent(target: Place) -> None:
    parent = paths.parent(target.path)
    if target.path == "/" or _makes_directories(target):
        return
    kind = await kind_at(target.backend, parent)
    if kind != "directory":
        raise _RefusedError(f"cannot create {_shown(target)}: {error_text(_no_directory(kind))}")


# --- the mark of a copy that was begun -------------------------------------------------------------------------------


def _marker(source: Place, target: Place) -> Path:
    """The file that is there while a directory is copied to a path where nothing was. Makes system calls."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    ends = [os.getcwd(), source.address.url, source.path, target.address.url, target.path]
    return Path(base, "deepfs", "copies", blake2b(json.encode(ends), digest_size=16).hexdigest())


async def _mark(marker: Path) -> None:
    with suppress(OSError):  # It only spares an option at the next run.
        await marker.parent.mkdir(parents=True, exist_ok=True)
        await marker.touch()


async def _is_marked(marker: Path) -> bool:
    try:
        return time.time() - (await marker.stat()).st_mtime < _WEEK_SECONDS
    except OSError:
        return False


# --- the commands ----------------------------------------------------------------------------------------------------


def _copying(function: CallableT) -> CallableT:
    """The arguments and options that `cp` and `mv` share."""
    for option in (
        json_option,
        click.option(
            "-T", "--no-target-directory", "exact", is_flag=True, help="The target is never a directory above."
        ),
        click.option(
            "-t",
            "--target-directory",
            "into",
            metavar="ADDRESS",
            callback=not_empty,
            help="Put all sources in this directory.",
        ),
        click.option("-u", "--update", is_flag=True, help="Leave files alone that are as new as the source, or newer."),
        click.option("-n", "--no-clobber", is_flag=True, help="Leave files alone that are there."),
        click.option("-f", "--force", is_flag=True, help="Replace files that are there; this is the default."),
        click.argument("given", metavar="SOURCE... TARGET", nargs=-1, required=True, callback=not_empty),
    ):
        function = option(function)
    return function


def _transfer(
    given: tuple[str, ...],
    into: str | None,
    *,
    exact: bool,
    force: bool,
    json: bool,
    verify: str = "read",
    **terms: bool,
) -> None:
    sources, target = (given, into) if into is not None else (given[:-1], given[-1])
    if not sources:
        raise click.UsageError("Missing argument 'TARGET'.")
    if force and terms["no_clobber"]:
        raise click.UsageError("--force and --no-clobber exclude each other.")
    arguments = Arguments(sources=sources, target=target, is_directory=into is not None, is_exact=exact)
    run_command(lambda on: copy(on, arguments, Terms(**terms, verify=Verify(verify))), json=json)


@click.command()
@_copying
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories with all that is in them.")
@click.option("--size-only", is_flag=True, help="Take files of the same size to be the same.")
@click.option(
    "--verify",
    type=click.Choice(["read", "size", "none"]),
    default="read",
    show_default=True,
    help="How to check what was stored: read it back, compare its size, or not at all.",
)
def cp(given: tuple[str, ...], into: str | None, **options: Any) -> None:
    """Copy files and directories, also between backends.

    Run it again after an interruption: what is there already is compared, and not stored again.
    """
    _transfer(given, into, **options)


@click.command()
@_copying
def mv(given: tuple[str, ...], into: str | None, **options: Any) -> None:
    """Move files and directories, also between backends.

    Between backends, what was copied and has not changed since is then deleted.
    """
    _transfer(given, into, recursive=True, moves=True, **options)
