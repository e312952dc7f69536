"""The files beneath one directory of a filesystem of fsspec: the primitives of a flat storage, written once.

The calls may be awaited or block; coroutines of blocking calls never suspend. What a filesystem answers is checked:
names that lie elsewhere or are no valid paths, values of other types and links are left out or counted, never followed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from deepfs._drivers import NO_BUCKET, condition_of
from deepfs.backends.fsspec.calls import FilesystemCalls, check_answer, is_transient, leaf_errors, stat_of
from deepfs.errors import (
    BackendError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    PermissionDeniedError,
    TooLargeError,
)
from deepfs.storage.runners import AsyncStorage, BlockingStorage, Kind, Plan, Request, Together
from deepfs.text import paths, records
from deepfs.text.flat_tree import Change, ChangedError, FileStat, PartlyDoneError, TaggedFiles, is_about_one_file
from deepfs.threads import pool
from deepfs.types import FileDataV2

T = TypeVar("T")

_MOST_ENTRIES: Final = 5_000_000
"""How many entries of one listing are kept."""
_MOST_DIRECTORIES: Final = 200_000
"""How many directories are listed for one operation."""
_LARGEST: Final = 1024 * 1024 * 1024
"""The size in bytes above which no file is fetched, since it is held in memory."""
_TEMPORARY: Final = ".deepfs-tmp-"
"""The start of the names of temporary files."""

_SAFE_RMDIR: Final = frozenset({"memory", "ftp", "sftp", "ssh", "smb"})
"""Filesystems whose `rmdir` fails where the directory is not empty. That of others may remove what is in it."""
_ABSOLUTE: Final = frozenset({"sftp", "ssh"})
"""Filesystems whose names begin with a slash, though they do not declare it."""
_RENAMES: Final = frozenset({"ftp", "sftp", "ssh"})
"""Filesystems where a file that is being written can be read, and `mv` replaces a file as a whole."""
_ARCHIVES: Final = frozenset({"libarchive", "tar", "zip"})
"""Filesystems that can only be read unless they were opened in another mode."""
_S3: Final = frozenset({"s3", "s3a"})
"""Filesystems that pass the header If-Match and metadata on with a file to store."""
_CHANGE: Final = "deepfschanges"
"""The name of the metadata that name a change."""


class _Entry(NamedTuple):
    path: str
    is_directory: bool
    stat: FileStat


def _unreadable(path: str) -> _Entry:
    """What cannot be read at a path. It is listed at no path of a file, so that searches count it as skipped."""
    return _Entry(f"{path}/", False, FileStat())


_Fetched: TypeAlias = tuple[str, FileDataV2 | DeepFSError, Any]
"""A path, the file there or the error about it, and its tag."""


def _as_files(fetched: Iterable[_Fetched | None]) -> TaggedFiles:
    found = [each for each in fetched if each is not None]
    return TaggedFiles({path: data for path, data, _ in found}, {path: tag for path, _, tag in found})


class FilesystemFiles:
    """The files beneath `root`, for one operation.

    Args:
        opened: Returns the calls of the filesystem, which it opens if it is not open yet.
        root: The directory in the filesystem.
        checks: Whether it is checked right before a change that nobody else has changed the file.
    """

    _calls: FilesystemCalls
    _tolerant = False
    """Whether directories that cannot be listed are counted instead of raising an error."""

    def __init__(self, opened: Callable[[], FilesystemCalls], root: str, *, checks: bool) -> None:
        self._opened = opened
        self._root = root
        self._checks = checks
        self._listed: dict[str, FileStat] = {}
        """What listings of this operation said."""

    def _open(self) -> None:
        """Open the filesystem, which may load modules and read files of configuration."""
        with leaf_errors("/"):
            self._calls = self._opened()
        self._protocols = self._calls.protocols
        marker = str(self._calls.filesystem.root_marker)
        self._begins_with_slash = f"{marker}{self._root}".startswith("/") or bool(self._protocols & _ABSOLUTE)

    # --- names ---

    def _name(self, path: str) -> str:
        """The name of `path` in the filesystem."""
        filesystem = self._calls.filesystem
        name = f"{self._root.strip('/')}{path}".strip("/")
        if self._begins_with_slash:
            name = f"/{name}"
        if str(filesystem._strip_protocol(name)).strip("/") != name.strip("/"):
            raise InvalidPathError(path, "the filesystem reads it as another name")
        return name

    def _path(self, name: object) -> str | None:
        """The path for a name that the filesystem gave; None if it lies elsewhere. It may be no valid path."""
        top = self._root.strip("/")
        if not isinstance(name, str):
            return None
        inner = name.lstrip("/")
        if not top:
            return f"/{inner}"
        return inner[len(top) :] if inner.startswith(f"{top}/") else None

    # --- looking ---

    async def stat(self, paths: Sequence[str]) -> dict[str, FileStat]:
        stats = await self._calls.each(self._stat, paths)
        return {path: stat for path, stat in zip(paths, stats, strict=True) if stat is not None}

    async def _stat(self, path: str) -> FileStat | None:
        with leaf_errors(path):
            name = self._name(path)
            self._forget_listings()
            try:
                info = await self._calls.call("info", name)
            except (FileNotFoundError, NotADirectoryError):
                return None
            kind = check_answer(info, dict).get("type")
        if kind == "link" or info.get("islink"):
            raise PermissionDeniedError(path, "it is a link, which is not followed")
        return None if kind != "file" else stat_of(info)

    def _forget_listings(self) -> None:
        """Drop what the filesystem remembers of earlier listings: others may have changed files since."""
        self._calls.filesystem.invalidate_cache()

    async def get(self, paths: Sequence[str]) -> TaggedFiles:
        return _as_files(await self._calls.each(self._file, paths))

    async def get_each(self, paths: Sequence[str], ahead: Sequence[str]) -> TaggedFiles:
        """As `get`, with the errors about one file among the files."""
        return _as_files(await self._calls.each(self._outcome, paths))

    async def _outcome(self, path: str) -> _Fetched | None:
        try:
            return await self._file(path)
        except DeepFSError as error:
            if not is_about_one_file(error):
                raise
            return path, error, None

    async def _file(self, path: str) -> _Fetched | None:
        # The tag is that of the file or of an earlier one: changes that rely on it are then refused.
        stat = self._listed.get(path) or await self._stat(path)
        if stat is None or (content := await self._content(path, stat)) is None:
            return None
        data = replace(records.new_file(content), created_at=stat.modified_at, modified_at=stat.modified_at)
        return path, data, stat.tag

    async def _content(self, path: str, stat: FileStat) -> bytes | None:
        if stat.size is not None and stat.size > _LARGEST:
            raise TooLargeError(path, stat.size, _LARGEST)
        with leaf_errors(path):
            try:
                content = await self._calls.call("cat_file", self._name(path))
            except FileNotFoundError:
                return None
            return bytes(check_answer(content, bytes, bytearray, memoryview))

    async def children(self, prefix: str) -> dict[str, FileStat]:
        entries = await self._entries(_directory(prefix))
        files = {entry.path: entry.stat for entry in entries if not entry.is_directory}
        below = [entry.path for entry in entries if entry.is_directory and paths.is_normal(entry.path)]
        for path, holds in zip(below, await self._calls.each(self._holds_files, below), strict=True):
            if holds:
                files[f"{path}/_"] = FileStat()
        return files

    async def _holds_files(self, directory: str) -> bool:
        """Whether there is a file under `directory`. One that cannot be listed is taken for one with files."""
        try:
            return bool(await self._walk(directory, 1))
        except PermissionDeniedError:
            return True

    async def list(self, prefix: str, limit: int | None = None) -> dict[str, FileStat]:
        directory = _directory(prefix)
        if limit is None and self._calls.overrides("find"):
            found = await self._find(directory)
            if not found:  # Where there is no bucket, `find` of s3fs finds nothing.
                await self._list_tolerantly(directory)
        else:
            found = await self._walk(directory, limit)
        self._listed |= found
        return found

    async def _find(self, directory: str) -> dict[str, FileStat]:
        """The files under `directory`, by the filesystem's own way to find them."""
        with leaf_errors(directory):
            self._forget_listings()
            try:
                answer = await self._calls.call("find", self._name(directory), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
            infos = check_answer(answer, dict).values()
            entries = list(self._check_entries(directory, infos))
        return {entry.path: entry.stat for entry in entries if not entry.is_directory}

    async def _walk(self, directory: str, limit: int | None = None) -> dict[str, FileStat]:
        """The files under `directory`, or some of them, at least `limit` if there are so many."""
        found: dict[str, FileStat] = {}
        valid = listed = 0
        pending = [directory]
        while pending and (limit is None or valid < limit):
            # With a limit, one directory after the other, so that few are listed.
            now = pending if limit is None else [pending.pop()]
            pending = [] if limit is None else pending
            listed += len(now)
            for entry in chain.from_iterable(await self._calls.each(self._list_tolerantly, now)):
                if not entry.is_directory:
                    found[entry.path] = entry.stat
                    valid += paths.is_normal(entry.path)
                elif paths.is_normal(entry.path):
                    pending.append(entry.path)
                else:
                    found[f"{entry.path}/"] = FileStat()
            if len(found) > _MOST_ENTRIES or listed + len(pending) > _MOST_DIRECTORIES:
                raise BackendError(None, "The filesystem lists too many entries")
        return found

    async def _list_tolerantly(self, directory: str) -> Sequence[_Entry]:
        try:
            return await self._entries(directory)
        except PermissionDeniedError:
            if not self._tolerant:
                raise
            return [_unreadable(f"{directory}/")]

    async def _entries(self, directory: str) -> Sequence[_Entry]:
        """What is directly in `directory`; nothing if it does not exist."""
        with leaf_errors(directory):
            self._forget_listings()
            try:
                answer = await self._calls.call("ls", self._name(directory), detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if condition_of(error, directory) is NO_BUCKET:
                    raise
                return []
            return list(self._check_entries(directory, check_answer(answer, list, tuple)))

    def _check_entries(self, directory: str, infos: Iterable[Any]) -> Iterator[_Entry]:
        inside = "/" if directory == "/" else f"{directory}/"
        for number, info in enumerate(infos):
            if number > _MOST_ENTRIES:
                raise BackendError(None, "The filesystem lists too many entries")
            if not isinstance(info, dict):
                yield _unreadable(inside)
                continue
            path, kind = self._path(info.get("name")), info.get("type")
            if path is None or not path.startswith(inside) or path == inside:
                # The directory itself, as markers of directories and listings of a file are; or a name elsewhere.
                continue
            if kind == "directory":
                yield _Entry(path.rstrip("/") if paths.is_normal(path.rstrip("/")) else path, True, FileStat())
            elif path.endswith("/") and not info.get("size"):
                continue  # A marker of a directory.
            elif kind != "file" or info.get("islink"):
                yield _unreadable(path)
            elif not path.rpartition("/")[2].startswith(_TEMPORARY):
                yield _Entry(path, False, stat_of(info))

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        """Store all changes, or none as far as that can be helped: files that were created are removed again."""
        self._check_writable(changes)
        additions = [change for change in changes if change.after is not None]
        removals = [change for change in changes if change.after is None]
        await self._calls.each(self._check, [change for change in changes if self._needs_check(change)])
        done: list[Change] = []

        async def add(change: Change) -> None:
            await self._put(change)
            done.append(change)

        async def remove(change: Change) -> None:
            await self._remove(change.path)
            done.append(change)

        try:
            await self._calls.each(add, additions)
            await self._calls.each(remove, removals)
        except DeepFSError as error:
            await self._undo(done, len(changes), error)
            raise
        await self._prune({paths.parent(change.path) for change in removals})

    def _check_writable(self, changes: Sequence[Change]) -> None:
        is_archive = bool(self._protocols & _ARCHIVES) and getattr(self._calls.filesystem, "mode", "r") == "r"
        if is_archive and changes:
            raise PermissionDeniedError(changes[0].path, "the archive can only be read")

    def _needs_check(self, change: Change) -> bool:
        """Whether it must be looked whether `change` may be made: the filesystem itself does not check it."""
        if self._conditions(change) or (change.condition == "create" and change.after is None):
            return False
        if change.condition == "replace":
            return self._checks and change.before is not None
        return self._checks or change.condition == "create"

    async def _check(self, change: Change) -> None:
        """Raise ChangedError if the file is not as `change` expects it at this moment."""
        now = await self._stat(change.path)
        if change.condition == "create":
            holds = now is None
        elif change.condition == "version":
            holds = now is not None and now.tag == change.origin
        else:  # The filesystem says nothing by which a version can be known.
            assert change.before is not None
            holds = await self._holds(change.path, now, records.content_bytes(change.before, change.path))
        if not holds:
            raise ChangedError(change.path)

    async def _undo(self, done: Sequence[Change], number: int, error: DeepFSError) -> None:
        """Remove the files that were created; raise PartlyDoneError if other changes have been made."""
        if any(change.after is None for change in done):
            kept = list(done)
        else:
            kept = [change for change in done if change.condition != "create"]
            for change in done:
                if change.condition == "create":
                    try:
                        await self._remove(change.path)
                    except DeepFSError:
                        kept.append(change)
        if kept:
            reason = f"{{cause}}: of {number} changes {len(kept)} took effect"
            raise PartlyDoneError(reason, [change.path for change in kept], error) from error

    async def _put(self, change: Change) -> None:
        """Store a file. If the outcome is not known, look whether it has been stored."""
        assert change.after is not None
        content, mark = records.content_bytes(change.after, change.path), uuid4().hex
        with leaf_errors(change.path):
            for _ in range(2):
                try:
                    return await self._send(change, content, mark)
                except Exception as error:
                    if not await self._may_try_again(change, content, mark, error):
                        return None
            return await self._send(change, content, mark)

    async def _send(self, change: Change, content: bytes, mark: str) -> None:
        name, options = self._name(change.path), self._conditions(change)
        if self._protocols & _S3:
            options["Metadata"] = {_CHANGE: mark}
        if not self._protocols & _RENAMES:
            await self._calls.call("pipe_file", name, content, attempts=1, **options)
            return
        above = name.rpartition("/")[0]
        temporary = f"{above}/{_TEMPORARY}{uuid4().hex}"
        try:
            await self._calls.call("pipe_file", temporary, content, attempts=1)
            await self._calls.call("mv", temporary, name, attempts=1)
        except BaseException:
            with suppress(Exception):
                await self._calls.call("rm_file", temporary, attempts=1)
            raise

    def _conditions(self, change: Change) -> dict[str, Any]:
        """The arguments by which the filesystem itself checks the condition of `change`."""
        if change.condition == "create" and self._calls.takes("pipe_file", "mode"):
            return {"mode": "create"}
        if change.condition == "version" and isinstance(change.origin, str) and self._protocols & _S3:
            return {"IfMatch": change.origin.strip('"') if self._calls.has_bare_tags else change.origin}
        return {}

    async def _may_try_again(self, change: Change, content: bytes, mark: str, error: Exception) -> bool:
        """Whether a change that failed may be made anew; False if it has been made after all.

        Raises `error` if it is final, and ChangedError if the condition of `change` does not hold any more.
        """
        path = change.path
        try:
            now = await self._stat(path)
            if await self._is_made(path, now, content, mark, error):
                return False
        except DeepFSError:
            raise error from None
        if change.condition == "create" and now is not None:
            raise ChangedError(path) from error
        if change.condition == "version" and (now is None or now.tag != change.origin):
            raise ChangedError(path) from error
        if is_transient(error) or isinstance(error, PermissionError | NotImplementedError):
            raise error
        if change.condition == "version" and self._protocols & _S3:
            # The tag still holds: Ceph before 17 compares it without its quotes.
            self._calls.has_bare_tags = not self._calls.has_bare_tags
            return True
        if await self._make_room(path):
            return True
        if isinstance(error, FileExistsError):
            raise IsDirectoryError(path, "the filesystem has an empty directory there") from error
        raise error

    async def _is_made(self, path: str, stat: FileStat | None, content: bytes, mark: str, error: Exception) -> bool:
        """Whether the file at `path`, whose stat was just seen, is what a change stored whose answer was `error`."""
        if stat is None:
            return False
        if self._protocols & _S3:
            # Its client sends requests again by itself, so that even a refusal may be due to this change.
            metadata = check_answer(await self._calls.call("metadata", self._name(path)), dict)
            return bool(metadata.get(_CHANGE) == mark)
        # The answer "it exists" was given to this change, so what is there is not due to it.
        return not isinstance(error, FileExistsError) and await self._holds(path, stat, content)

    async def _holds(self, path: str, stat: FileStat | None, content: bytes) -> bool:
        """Whether the file at `path`, whose stat was just seen, has this content."""
        if stat is None or stat.size not in (None, len(content)):
            return False
        return await self._content(path, stat) == content

    async def _make_room(self, path: str) -> bool:
        """Make the directory of `path` if it is missing, and remove empty ones at `path`; whether that was needed."""
        parent = paths.parent(path)
        try:
            await self._calls.call("info", self._name(parent))
        except FileNotFoundError:
            await self._calls.call("makedirs", self._name(parent), exist_ok=True)
            return True
        return await self._clear(path)

    async def _clear(self, directory: str) -> bool:
        """Remove `directory` with the empty directories in it; whether it existed and had no file."""
        if not self._protocols & _SAFE_RMDIR:
            return False
        for entry in await self._entries(directory):
            if not entry.is_directory or not await self._clear(entry.path):
                return False
        with suppress(Exception):
            await self._calls.call("rmdir", self._name(directory), attempts=1)
            return True
        return False

    async def _remove(self, path: str) -> None:
        with leaf_errors(path):
            try:
                await self._calls.call("rm_file", self._name(path), attempts=1)
            except FileNotFoundError:
                return
            except Exception:
                if await self._stat(path) is not None:
                    raise

    async def _prune(self, directories: Iterable[str]) -> None:
        """Remove `directories`, and those above them, where they are empty. Failures do not matter."""
        if not self._protocols & _SAFE_RMDIR:
            return
        for directory in sorted(directories, key=len, reverse=True):
            while directory != "/":
                try:
                    await self._calls.call("rmdir", self._name(directory), attempts=1)
                except FileNotFoundError:
                    pass  # Only implied by the files that were in it; the one above may exist all the same.
                except Exception:
                    break
                directory = paths.parent(directory)


def _directory(prefix: str) -> str:
    return prefix.rstrip("/") or "/"


# --- both kinds ------------------------------------------------------------------------------------------------------


class AwaitedFiles(FilesystemFiles, AsyncStorage):
    """The files of an async filesystem."""

    _is_open = False

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        self._tolerant = kind == "search"
        return await super().carry_out(plan, kind)

    async def _answer(self, request: Request) -> Any:
        if not self._is_open:
            await pool.run(self._open)
            self._is_open = True
        return await super()._answer(request)


class BlockingFiles(FilesystemFiles, BlockingStorage):
    """The files of a sync filesystem, in a worker thread."""

    failures: ClassVar[tuple[type[Exception], ...]] = (DeepFSError,)

    @contextmanager
    def transaction(self, kind: Kind) -> Iterator[None]:
        self._tolerant = kind == "search"
        self._open()
        yield

    def _answer(self, request: Request) -> Any:
        if type(request) is Together:
            return [self._answer(each) for each in request.requests]
        try:
            super()._answer(request).send(None)
        except StopIteration as end:
            return end.value
        raise RuntimeError("a call of a sync filesystem waited")
