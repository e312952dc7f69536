"""The commands cp, mv and sync: what their arguments mean, and how a tree is merged into another backend.

A file is skipped only if both ends have been read and are equal, unless the user asks for less. So a copy needs no
record of earlier ones: after an interruption, or if the source has changed since, the same copy is made again, and
stores what is missing or different.
"""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar

import anyio
import click
from anyio import Path, to_thread
from msgspec import Struct, json
from msgspec.structs import replace

from deepfs.backends._trees import End, kind_at, list_present
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.transfer import (
    CopyFailure,
    CopyTotals,
    FullError,
    PlannedFile,
    TreeCopy,
    TreeTerms,
    Verify,
)
from deepfs.cli.screen import count_noun
from deepfs.cli.session import (
    ADDRESS,
    AddressedPlace,
    Session,
    describe_error,
    error_text,
    interruptible,
    json_option,
    not_empty,
    reason_text,
    run_command,
)
from deepfs.errors import DeepFSError, ErrorCode, NotSupportedError, quote
from deepfs.search.globs import compile_tree
from deepfs.storage.gathering import gather, gather_each
from deepfs.text import paths
from deepfs.text.access import keep_inside
from deepfs.text.entries import EntryChange, Relation, TreeEntry, TreeListing, empty_directories, files_of, relation
from deepfs.types import Result

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_GOES_ON: Final = "Run the same command again to go on: what is there already is compared, and not stored again."
_WEEK_SECONDS: Final = 7 * 24 * 3600
_DELETED_AT_ONCE: Final = 64
_BATCH_FILES: Final = 1_000
"""The most files that are fetched and stored at once."""
_STREAMED_BYTES: Final = 8 * 1024 * 1024
"""Files from this size on are streamed, and not sent in batches."""
_MOST_REPORTED: Final = 20
"""How many files that could not be copied are reported one by one."""
_REFRESH_SECONDS: Final = 0.1


# --- the commands ----------------------------------------------------------------------------------------------------


def _shared_options(function: CallableT) -> CallableT:
    """The arguments and options that `cp` and `mv` share."""
    for option in (
        json_option,
        click.option(
            "-T", "--no-target-directory", "exact", is_flag=True, help="The target is the path of the copy itself."
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
        click.argument("given", type=ADDRESS, metavar="SOURCE... TARGET", nargs=-1, required=True, callback=not_empty),
    ):
        function = option(function)
    return function


def _checks(function: CallableT) -> CallableT:
    """The options of `cp` and `sync` about links, and about what is the same."""
    for option in (
        click.option("--size-only", is_flag=True, help="Take files of the same size to be the same."),
        click.option(
            "--verify",
            type=click.Choice(["read", "size", "none"]),
            default="read",
            show_default=True,
            help="How to check what was stored: read it back, compare its size, or not at all.",
        ),
        click.option(
            "--links",
            type=click.Choice(["skip", "follow"]),
            help="Leave symbolic links out, or copy the files that they lead to; by default each one is an error.",
        ),
    ):
        function = option(function)
    return function


@click.command()
@_shared_options
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories with all that is in them.")
@_checks
def cp(**options: Any) -> None:
    """Copy files and directories, also between backends.

    Run it again after an interruption: what is there already is compared, and not stored again.
    """
    _run(**options)


@click.command()
@_shared_options
def mv(**options: Any) -> None:
    """Move files and directories, also between backends.

    Between backends, what was copied and has not changed since is then deleted.
    """
    _run(recursive=True, moves=True, **options)


@click.command()
@click.argument("source", type=ADDRESS, metavar="SOURCE", callback=not_empty)
@click.argument("target", type=ADDRESS, metavar="TARGET", callback=not_empty)
@json_option
@_checks
@click.option("--delete", "deletes", is_flag=True, help="Delete files of the target that the source does not have.")
@click.option("--exclude", "excludes", metavar="GLOB", multiple=True, help="Leave alone what matches, at both ends.")
@click.option("--include", "includes", metavar="GLOB", multiple=True, help="Leave alone all that does not match.")
@click.option("-n", "--dry-run", is_flag=True, help="Write what would be copied and deleted, and change nothing.")
def sync(source: str, target: str, json: bool, **options: Any) -> None:
    """Make a directory hold what another one holds, by copying what is missing or different.

    Nothing is deleted if something could not be copied, or if the source has no files.
    """
    chosen = CopyOptions(sources=[source], target=target, exact=True, recursive=True, mirrors=True, **options)
    run_command(lambda on: copy(on, chosen), json=json)


def _run(given: tuple[str, ...], into: str | None, *, force: bool, json: bool, **options: Any) -> None:
    sources, target = (given, into) if into is not None else (given[:-1], given[-1])
    if not sources:
        raise click.UsageError("Missing argument 'TARGET'.")
    if force and options["no_clobber"]:
        raise click.UsageError("--force and --no-clobber exclude each other.")
    chosen = CopyOptions(sources=sources, target=target, is_directory=into is not None, **options)
    run_command(lambda on: copy(on, chosen), json=json)


class CopyOptions(Struct, frozen=True, kw_only=True):
    """What `cp` and `mv` are given; the help of their options says what these mean."""

    sources: Sequence[str]
    target: str
    is_directory: bool = False
    """The target was named by `--target-directory`."""
    exact: bool = False
    recursive: bool = False
    no_clobber: bool = False
    update: bool = False
    size_only: bool = False
    verify: Verify = "read"
    moves: bool = False
    links: Literal["skip", "follow"] | None = None
    mirrors: bool = False
    """The target becomes like the source: it is `sync`."""
    deletes: bool = False
    dry_run: bool = False
    includes: Sequence[str] = ()
    excludes: Sequence[str] = ()

    @property
    def verb(self) -> str:
        return "move" if self.moves else "copy"


async def copy(session: Session, options: CopyOptions) -> None:
    """Copy or move files and directories. Between backends, a move copies, and deletes what has not changed since."""
    totals, started = CopyTotals(), time.monotonic()
    copying = _Copying(session, options, totals)
    number = await interruptible(copying.run)
    if number is not None:
        session.report(f"interrupted. {_GOES_ON}", status=128 + number)
    seconds = time.monotonic() - started
    if session.as_json:
        counts = {name: getattr(totals, name) for name in ("files", "bytes", "skipped", "failed")}
        ending = {"verify": options.verify, "interrupted": number is not None}
        if options.mirrors:
            counts["deleted"] = totals.deleted
        session.json({**counts, "seconds": seconds, **ending})
    elif number is not None or (sys.stderr.isatty() and (options.recursive or totals.files > 1)):
        from rich.filesize import decimal

        failed = f", {totals.failed:,} failed" if totals.failed else ""
        done = f"{count_noun(totals.files, 'file')}, {decimal(totals.bytes)} in {seconds:.1f} s"
        session.screen.note(f"{done} ({totals.skipped:,} skipped{failed})")


class _RefusedCopyError(Exception):
    """A source that is not copied, or all of them; the text says why."""


class _CopyJob(Struct, frozen=True):
    """One source, and the place of its copy."""

    source: AddressedPlace
    listing: TreeListing
    target: AddressedPlace
    named: str
    """The path of the target as the user named it, or of the directory that the copy is put into."""
    exists: Literal["file", "directory"] | None
    """What is at the target."""
    is_one_storage: bool

    @property
    def is_directory(self) -> bool:
        return self.listing.entries[0].kind == "directory"


class _Copying:
    """One run of `cp` or `mv`."""

    def __init__(self, session: Session, options: CopyOptions, totals: CopyTotals) -> None:
        self._session = session
        self._options = options
        self._totals = totals
        self._made: set[tuple[int, str]] = set()
        """The targets of the sources before."""

    async def run(self) -> None:
        sources = [await self._session.place(text) for text in self._options.sources]
        target = await self._session.place(self._options.target, creates=not self._options.dry_run)
        await _show_progress(self._session, self._totals, partial(self._transfer_each, sources, target))

    async def _transfer_each(self, sources: Sequence[AddressedPlace], target: AddressedPlace) -> None:
        try:
            into = await self._is_put_into(target)
            for text, source in zip(self._options.sources, sources, strict=True):
                await self._transfer(text, source, target, into=into)
        except _RefusedCopyError as refused:
            self._session.report(refused)
        except FullError as full:
            reason = error_text(full.code)
            self._session.report(f"{target.quoted} stores nothing more: {reason}. {_GOES_ON}")

    async def _transfer(self, text: str, source: AddressedPlace, target: AddressedPlace, *, into: bool) -> None:
        """Copy or move one source; what goes wrong with it alone is reported."""
        try:
            job = await self._find_job(text, source, target, into=into)
            [real] = await target.backend.aresolve_paths([job.named])
            await self._carry_out(job, real or job.named, is_new=not into)
        except _RefusedCopyError as refused:
            self._totals.failed += 1
            self._session.report(refused)
        except DeepFSError as error:
            self._totals.failed += 1
            self._session.report(f"cannot {self._options.verb} {source.quoted}: {describe_error(error)}")

    # --- what the arguments mean ---

    async def _is_put_into(self, target: AddressedPlace) -> bool:
        """Whether the copies are put into the target, which is a directory then."""
        kind = await kind_at(target.backend, target.path)
        must = self._options.is_directory or len(self._options.sources) > 1
        if self._options.exact and must:
            raise _RefusedCopyError("with --no-target-directory, there is one source, and no --target-directory")
        if must and kind != "directory" and not (kind is None and _makes_directories(target)):
            raise _RefusedCopyError(f"target {target.quoted}: {_no_directory(kind)}")
        return must or (kind == "directory" and not self._options.exact)

    async def _find_job(self, text: str, source: AddressedPlace, target: AddressedPlace, *, into: bool) -> _CopyJob:
        is_whole = source.path == "/" or text.rstrip("/").rpartition("/")[2] in (".", "..")
        if is_whole and self._options.moves:
            raise _RefusedCopyError(f"cannot move {source.quoted}: Device or resource busy")
        kind = await kind_at(source.backend, source.path)
        if kind == "file" and self._options.mirrors:
            raise _RefusedCopyError(f"{source.quoted}: {error_text(ErrorCode.NOT_A_DIRECTORY)}")
        if kind == "directory" and not self._options.recursive:
            raise _RefusedCopyError(f"-r not specified; omitting directory {source.quoted}")
        name = paths.name(source.path)
        listing = await list_present(source.backend, source.path)
        if listing.entries and listing.entries[0].kind == "link" and not self._options.moves:
            # A symbolic link that is given itself is followed by a copy.
            [real] = await source.backend.aresolve_paths([source.path])
            if real is not None:
                source = source._replace(path=real)
                listing = await list_present(source.backend, real)
        if not listing.entries:
            raise _RefusedCopyError(f"cannot stat {source.quoted}: {error_text(ErrorCode.FILE_NOT_FOUND)}")
        is_slashed = kind == "file" and self._options.target.endswith("/")
        if is_slashed and not into and not _makes_directories(target):
            raise _RefusedCopyError(
                f"cannot create regular file {target.quoted}: {error_text(ErrorCode.NOT_A_DIRECTORY)}"
            )
        place = target
        if into and not self._options.is_directory and len(self._options.sources) == 1:
            marker = await to_thread.run_sync(_marker, source, target)
            if await _is_marked(marker):  # It is a copy that was interrupted, and not put into itself.
                self._session.screen.note(f"deepfs {self._session.name}: going on with the copy in {target.quoted}")
                into = False
        if (into or is_slashed) and not is_whole:
            place = target._replace(path=paths.join(target.path, name))
            place = place._replace(address=target.address._replace(shown=target.display(place.path)))
        return await self._plan_job(source, listing, place, target.path)

    async def _plan_job(
        self, source: AddressedPlace, listing: TreeListing, target: AddressedPlace, named: str
    ) -> _CopyJob:
        here = await source.backend.astorage_place(source.path)
        there = await target.backend.astorage_place(target.path)
        found = relation(here, there)
        if found is Relation.SAME:
            raise _RefusedCopyError(f"{source.quoted} and {target.quoted} are the same file")
        if found is Relation.INSIDE and self._options.moves:
            raise _RefusedCopyError(f"cannot move {source.quoted} to a subdirectory of itself, {target.quoted}")
        if found is Relation.INSIDE:
            raise _RefusedCopyError(f"cannot copy a directory, {source.quoted}, into itself, {target.quoted}")
        if self._options.deletes and relation(there, here) is Relation.INSIDE:
            raise _RefusedCopyError(f"{source.quoted} lies in {target.quoted}, where what it does not have is deleted")
        key = (id(target.backend), target.path)
        if key in self._made and target.path != "/":
            raise _RefusedCopyError(f"will not overwrite just-created {target.quoted} with {source.quoted}")
        self._made.add(key)
        if target.path != "/" and not _makes_directories(target):
            kind = await kind_at(target.backend, paths.parent(target.path))
            if kind != "directory":
                raise _RefusedCopyError(f"cannot create {target.quoted}: {_no_directory(kind)}")
        is_one = source.backend is target.backend and here.storage is not None and here.storage == there.storage
        exists = await kind_at(target.backend, target.path)
        if exists is None and (await list_present(target.backend, target.path)).entries:
            raise _RefusedCopyError(f"not writing through dangling symbolic link {target.quoted}")
        return _CopyJob(source, listing, target, named, exists, is_one)

    # --- carrying out ---

    async def _carry_out(self, job: _CopyJob, inside: str, *, is_new: bool) -> None:
        options = self._options
        with keep_inside(inside):
            if job.source.backend is job.target.backend and options.moves:
                await self._rename(job)
                return
            is_free = job.exists is None or not (
                job.is_directory or job.exists == "directory" or options.no_clobber or options.update
            )
            if job.is_one_storage and is_free and not options.mirrors and options.links is None:
                copied = await job.target.backend.acopy(job.source.path, job.target.path, overwrite=True)
                self._check(copied, job)
                return
        marker = await to_thread.run_sync(_marker, job.source, job.target)
        if is_new and job.is_directory and job.exists is None and not options.mirrors:
            with suppress(OSError):  # It only spares an option at the next run.
                await marker.parent.mkdir(parents=True, exist_ok=True)
                await marker.touch()
        failed = self._totals.failed
        is_put_into = job.target.path != job.named
        merge = TreeMerge(self._session, options, self._totals, job.source, job.target, is_put_into=is_put_into)
        await merge.run(job.listing, inside)
        if failed == self._totals.failed:
            with suppress(OSError):
                await marker.unlink(missing_ok=True)

    async def _rename(self, job: _CopyJob) -> None:
        """Move within a backend."""
        here, there = job.source.quoted, job.target.quoted
        if job.exists is not None and await self._is_left_alone(job):
            self._totals.skipped += 1
            return
        if job.exists == "directory" and not job.is_directory:
            raise _RefusedCopyError(f"cannot overwrite directory {there} with non-directory")
        if job.exists == "file" and job.is_directory:
            raise _RefusedCopyError(f"cannot overwrite non-directory {there} with directory {here}")
        if job.exists == "directory":
            change = EntryChange(job.target.path, "remove_directory")
            [outcome] = await job.target.backend.achange_entries([change])
            if outcome.error is not None or await kind_at(job.target.backend, job.target.path) is not None:
                raise _RefusedCopyError(f"cannot move {here} to {there}: Directory not empty")
        self._check(await job.source.backend.amove(job.source.path, job.target.path, overwrite=True), job)

    async def _is_left_alone(self, job: _CopyJob) -> bool:
        """Whether the options leave alone what is at the target."""
        if self._options.update and not self._options.no_clobber:
            here = await _modification_times(job.source.backend, [job.source.path])
            there = await _modification_times(job.target.backend, [job.target.path])
            return here.get(job.source.path, "~") <= there.get(job.target.path, "")
        return self._options.no_clobber

    def _check(self, result: Result, job: _CopyJob) -> None:
        if not result.ok:
            names = f"{job.source.quoted} to {job.target.quoted}"
            raise _RefusedCopyError(f"cannot {self._options.verb} {names}: {reason_text(result)}")
        files = [entry for entry in job.listing.entries if entry.kind != "directory"]
        self._totals.files += len(files)
        self._totals.bytes += sum(entry.size or 0 for entry in files)


def _no_directory(kind: str | None) -> str:
    return error_text(ErrorCode.FILE_NOT_FOUND if kind is None else ErrorCode.NOT_A_DIRECTORY)


def _makes_directories(place: AddressedPlace) -> bool:
    """Whether directories are only implied by the files in them, so that any path may be one."""
    return not place.backend.capabilities.keeps_empty_directories


async def _modification_times(backend: BackendProtocol, files: Sequence[str]) -> dict[str, str]:
    """When some files, and those beside them, were changed, by path."""
    results = await gather_each(backend.als, dict.fromkeys(map(paths.parent, files)))
    entries = (entry for result in results for entry in result.entries or ())
    return {entry.path: entry.modified_at for entry in entries if entry.modified_at is not None}


# --- a tree that is merged into what is there ------------------------------------------------------------------------


class TreeMerge:
    """The copy of what is at one place to another place, where what fails is reported and the rest is copied.

    `totals` counts other copies of the same command as well. The directory that the target is in exists, or need not.
    `is_put_into` is whether the user named that directory, and not the target itself.
    """

    def __init__(
        self,
        session: Session,
        options: CopyOptions,
        totals: CopyTotals,
        source: AddressedPlace,
        target: AddressedPlace,
        *,
        is_put_into: bool = False,
    ) -> None:
        self._session = session
        self._options = options
        self._totals = totals
        self._source = source
        self._target = target
        self._is_put_into = is_put_into
        self._lost = 0
        """The empty directories that the target cannot keep."""
        terms = TreeTerms(
            merges=True,
            moves=options.moves,
            verify=options.verify,
            streamed_bytes=_STREAMED_BYTES,
            batch_files=_BATCH_FILES,
        )
        ends = End(source.backend, source.path), End(target.backend, target.path)
        self._copy = TreeCopy(*ends, terms, self._report_failure, totals)

    async def run(self, listing: TreeListing, inside: str) -> None:
        """Copy what can be copied of the source's `listing`, and delete the source of a move.

        Nothing is put out of the directory of the target that `inside` names, links resolved. Raises FullError if the
        target stores nothing more, DeepFSError if an end does not work, or a move would lose an empty directory.
        """
        try:
            await self._plan(listing)
            empty = empty_directories(self._copy.entries)
            if self._options.moves and empty and not self._target.backend.capabilities.keeps_empty_directories:
                what = "it cannot be moved whole: the target keeps no empty directories. Nothing changed."
                raise NotSupportedError(self._source.display(empty[0].path), what)
            with keep_inside(inside):
                if self._options.dry_run:
                    self._copy.files = await self._copy.find_different()
                    self._announce("copy", [file.path for file in self._copy.files])
                else:
                    await self._copy.run()
                if self._options.deletes:
                    await self._delete_others(listing)
            if self._lost:
                name = self._session.name
                self._session.screen.note(f"deepfs {name}: empty directories the target cannot keep: {self._lost:,}")
            if self._options.moves:
                for failure in await self._copy.delete_source():
                    if failure.step == "delete":
                        self._report_failure(failure)
        finally:
            del self._copy  # It refers to this object; without it, the backends end with the command.

    async def _plan(self, listing: TreeListing) -> None:
        """Look at the target, and choose the files to copy. What cannot be copied is reported."""
        if listing.omission is not None:
            self._report(self._source.path, f"not all of it can be listed: {listing.omission.reason}")
        try:
            existing = await list_present(self._target.backend, self._target.path)
        except DeepFSError:
            if self._options.verify == "read":
                raise
            existing = TreeListing([])  # It may be a target that can be written and not read.
        self._copy.existing = {entry.path: entry for entry in existing.entries}
        blocked: set[str] = set()
        entries = await to_thread.run_sync(self._select, listing.entries, self._source.path)
        for entry in await self._follow_links(entries):
            is_blocked = paths.parent(entry.path) in blocked
            problem = None if is_blocked else self._problem(entry)
            if problem is not None:
                self._report(entry.path, problem)
            if problem is not None or is_blocked:
                blocked.add(entry.path)
            else:
                self._copy.entries.append(entry)
        files = [self._copy.plan_file(entry) for entry in self._copy.entries if entry.kind == "file"]
        self._copy.files = await self._choose(files)
        self._totals.skipped += len(files) - len(self._copy.files)
        self._totals.planned_files += len(self._copy.files)
        self._totals.planned_bytes += sum(file.size or 0 for file in self._copy.files)

    def _select(self, entries: Sequence[TreeEntry], top: str) -> Sequence[TreeEntry]:
        """The files that the patterns choose, by their paths beneath `top`, and the directories that they are in.

        A pattern that matches a directory is about all that is in it.
        """
        included = [compile_tree(pattern, is_relative=True) for pattern in self._options.includes]
        excluded = [compile_tree(pattern, is_relative=True) for pattern in self._options.excludes]
        if not included and not excluded:
            return entries

        def is_chosen(path: str) -> bool:
            relative = f"/{paths.relative(path, top)}"
            names = [*paths.ancestors(relative), relative]
            if any(glob.matches(name) for glob in excluded for name in names):
                return False
            return not included or any(glob.matches(name) for glob in included for name in names)

        chosen = {entry.path for entry in entries if entry.kind != "directory" and is_chosen(entry.path)}
        chosen |= {top, *(above for path in chosen for above in paths.ancestors(path))}
        return [entry for entry in entries if entry.path in chosen]

    async def _follow_links(self, entries: Sequence[TreeEntry]) -> Sequence[TreeEntry]:
        """The entries without links, or with the files that they lead to, as the options say."""
        if self._options.links == "skip":
            return [entry for entry in entries if entry.kind != "link"]
        if self._options.links is None:
            return entries
        backend = self._source.backend
        links = [entry.path for entry in entries if entry.kind == "link" and entry.leads_to == "file"]
        real = await backend.aresolve_paths(links) if links else []

        async def find_file(path: str | None) -> TreeEntry | None:
            found = [] if path is None else (await list_present(backend, path)).entries
            return found[0] if found and found[0].kind == "file" else None

        files = dict(zip(links, await gather_each(find_file, real), strict=True))
        return [
            entry if (file := files.get(entry.path)) is None else replace(file, path=entry.path) for entry in entries
        ]

    # --- what only the target has ---

    async def _delete_others(self, listing: TreeListing) -> None:
        """Delete what the target had and the source has not. What the patterns leave out stays."""
        existing = [*self._copy.existing.values()]
        chosen = await to_thread.run_sync(self._select, existing, self._target.path)
        there = {self._copy.at_target(entry.path) for entry in listing.entries}
        others = [entry for entry in chosen if entry.path not in there]
        files = [entry.path for entry in others if entry.kind != "directory"]
        if others and (self._totals.failed or not files_of(listing.entries)):
            why = "not all was copied" if self._totals.failed else f"{self._source.quoted} has no files"
            self._report_problem(f"nothing is deleted, since {why}")
            return
        if self._options.dry_run:
            self._announce("delete", files)
            return
        backend = self._target.backend
        for path, result in zip(files, await gather_each(backend.adelete, files, most=_DELETED_AT_ONCE), strict=True):
            if result.ok:
                self._totals.deleted += 1
            elif result.code is not ErrorCode.FILE_NOT_FOUND:
                there_shown = quote(self._target.display(path))
                self._report_problem(f"cannot delete {there_shown}: {reason_text(result)}")
        directories = [entry.path for entry in reversed(others) if entry.kind == "directory"]
        if directories and not _makes_directories(self._target):  # One that is not empty stays.
            await backend.achange_entries([EntryChange(path, "remove_directory") for path in directories])

    def _announce(self, change: str, files: Sequence[str]) -> None:
        """Tell what a run would do."""
        end = self._target if change == "delete" else self._source
        for path in map(end.display, files):
            if self._session.as_json:
                self._session.json({"change": change, "path": path})
            else:
                self._session.screen.line(f"{change} {self._session.screen.name(path)}")

    def _problem(self, entry: TreeEntry) -> str | None:
        """Why an entry cannot be copied; None if it can."""
        if entry.kind == "link":
            return "it is a symbolic link, which is not followed"
        if entry.kind == "special":
            return "it is neither a file nor a directory"
        there = self._copy.existing.get(self._copy.at_target(entry.path))
        if there is None:
            return None
        # Whoever may write at the target can have put a link there, to have something written elsewhere. So only the
        # directory that the user named may be one.
        is_named = entry.path == self._source.path and not self._is_put_into
        if there.kind == "link" and (there.leads_to != entry.kind or (entry.kind == "directory" and not is_named)):
            return f"{quote(self._target.display(there.path))} is a symbolic link, which is not followed"
        if there.kind in (entry.kind, "link"):
            return None
        if entry.kind == "file":
            return "a directory cannot be replaced by a file"
        return "a file cannot be replaced by a directory"

    async def _choose(self, files: list[PlannedFile]) -> list[PlannedFile]:
        """The files that the options do not leave out."""
        standing = {file: file.existing for file in files if file.existing is not None}
        left: set[PlannedFile] = set()
        if self._options.no_clobber:
            left |= standing.keys()
        if self._options.size_only:
            left |= {file for file, there in standing.items() if file.size == there.size is not None}
        if self._options.update:  # Without a time, a file counts as newer.
            here = await _modification_times(self._source.backend, [file.path for file in standing])
            there = await _modification_times(self._target.backend, [file.target for file in standing])
            left |= {file for file in standing if here.get(file.path, "~") <= there.get(file.target, "")}
        return [file for file in files if file not in left]

    # --- what fails ---

    def _report_failure(self, failure: CopyFailure) -> None:
        step, path, error, file = failure
        here = quote(self._source.display(path if file is None else file.path))
        there, reason = quote(self._target.display(path)), error_text(error.code)
        if step == "make_directory" and error.code is ErrorCode.UNSUPPORTED:
            self._lost += 1
        elif step != "make_directory" or error.code is not ErrorCode.ALREADY_EXISTS:
            texts = {
                "make_directory": f"cannot create directory {there}: {reason}",
                "fetch": f"cannot {self._options.verb} {here}: {reason}",
                "store": f"cannot {self._options.verb} {here}: {there}: {reason}",
                "check": f"cannot {self._options.verb} {here}: what was stored at {there} differs from it",
                "set_mode": f"the mode of {there} could not be set: {reason}",
                "delete": f"cannot move {here}: it was copied but not deleted: {reason}",
            }
            self._report_problem(texts[step])

    def _report(self, path: str, reason: str) -> None:
        self._report_problem(f"cannot {self._options.verb} {quote(self._source.display(path))}: {reason}")

    def _report_problem(self, problem: str) -> None:
        """Tell a problem, after which the command ends with status 1. Many of them are only counted."""
        self._totals.failed += 1
        self._session.status = max(self._session.status, 1)
        if self._totals.failed <= _MOST_REPORTED:
            self._session.report(problem)
        elif self._totals.failed == _MOST_REPORTED + 1:
            self._session.report("further errors are counted only")


# --- the mark of a copy that was begun -------------------------------------------------------------------------------


def _marker(source: AddressedPlace, target: AddressedPlace) -> Path:
    """The file that is there while a directory is copied to a path where nothing was. Makes system calls."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    ends = [os.getcwd(), source.address.url, source.path, target.address.url, target.path]
    return Path(base, "deepfs", "copies", blake2b(json.encode(ends), digest_size=16).hexdigest())


async def _is_marked(marker: Path) -> bool:
    try:
        return time.time() - (await marker.stat()).st_mtime < _WEEK_SECONDS
    except OSError:
        return False


# --- progress --------------------------------------------------------------------------------------------------------


async def _show_progress(session: Session, totals: CopyTotals, work: Callable[[], Awaitable[None]]) -> None:
    """Show a bar while a copy runs, if standard error is a terminal."""
    if session.as_json or not sys.stderr.isatty():
        await work()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    files = TextColumn("{task.fields[files]:,}/{task.fields[planned]:,} files")
    columns = (BarColumn(), files, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", files=0, planned=0, total=None)

        async def refresh() -> bool:
            while True:
                await anyio.sleep(_REFRESH_SECONDS)
                bar.update(
                    task,
                    completed=totals.passed_bytes,
                    total=totals.planned_bytes or None,
                    files=totals.files + totals.skipped,
                    planned=totals.planned_files,
                    refresh=True,
                )

        async def run() -> bool:
            await work()
            return True

        await gather([refresh, run], enough=any)
