"""The answers of a sandbox: the contents, listings, trees and searches that operations make of its records.

A sandbox is not trusted, so names are checked too: they lie beneath what was asked, or the whole answer is refused.
"""

import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from math import isnan
from typing import Final, TypeAlias

from msgspec import Struct

from deepfs.disk.os_calls import is_temporary
from deepfs.errors import BackendError, DeadlineError, DeepFSError
from deepfs.sandboxes.wire import MAX_ENTRIES, Records, ScriptCalls, bound_of, failure_of, off_loop
from deepfs.search.request import FileFilter, GrepScan, glob_result
from deepfs.text import paths
from deepfs.text.entries import (
    Kind,
    Omission,
    TreeEntry,
    TreeListing,
    is_valid,
    join_omissions,
    omission_of_name,
    unreadable_omission,
)
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo, GlobResult, GrepResult, LsResult, replace_fields

# --- paths and times -------------------------------------------------------------------------------------------------


def parse_resolved_paths(answer: Records, count: int) -> list[str | None]:
    """For each of `count` paths the one that it resolves to; None if that is outside of the root, or unknown."""
    found: list[str | None] = []
    for _ in range(count):
        kind, name = answer.words_and_path(1)
        if kind not in (b"ok", b"no"):
            raise answer.damage_error()
        path = name.decode(errors="surrogateescape") or "/"
        found.append(path if kind == b"ok" and is_valid(path) else None)
    answer.end()
    return found


def _beneath(answer: Records, name: bytes, top: str, root: str) -> str:
    """The path of file operations for `name`, perhaps not text. Raises BackendError unless it is `top` or beneath."""
    path = name.decode(errors="surrogateescape")
    if not path.startswith("/") or "\0" in path:
        raise answer.damage_error()
    if root != "/":
        if path != root and not paths.is_beneath(path, root):
            raise answer.damage_error()
        path = path[len(root) :] or "/"
    if path != top and not paths.is_beneath(path, top):
        raise answer.damage_error()
    if path != "/" and not _NO_NAMES.isdisjoint(path.split("/")[1:]):
        raise answer.damage_error()
    return path


_NO_NAMES: Final = frozenset({"", ".", ".."})


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_LATEST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def _time(answer: Records, word: bytes) -> str:
    """The time that `word` states in seconds, moved into the years 1 to 9999; empty if it is no number."""
    try:
        return _time_text(word)
    except ValueError:
        raise answer.damage_error() from None


@lru_cache(256)
def _time_text(word: bytes) -> str:
    # Many files of a listing have one time, and share its text.
    seconds = float(word)
    if isnan(seconds):
        return ""
    return datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC).isoformat(timespec="microseconds")


# --- contents --------------------------------------------------------------------------------------------------------


class CachedContent(Struct, frozen=True):
    """The content of a file when it was last seen; `version` is its SHA-256, which the scripts compute too."""

    data: bytes
    version: str


FetchedFile: TypeAlias = tuple[CachedContent, str]
"""The content of a file, and its time of modification."""


def contents(
    answer: Records, wanted: Mapping[str, CachedContent | None], limit: int
) -> Iterator[tuple[str, FetchedFile | DeepFSError]]:
    """The files in an answer, or the errors about them, by the `wanted` paths, each with the content that is known.

    Those that a further call fetches are left out.
    """
    for number, (path, known) in enumerate(wanted.items()):
        answer.about = path
        match answer.words():
            case [b"ok", modified, size]:
                when, data = _time(answer, modified), answer.take(answer.number(size, limit))
                yield path, (_content_of(data), when)
            case [b"same", modified]:
                when = _time(answer, modified)
                unread = "the sandbox says that it is unchanged, but it was not read before"
                yield path, BackendError(path, unread) if known is None else (known, when)
            case [b"E", b"later"] if number:
                pass
            case [b"E", _, *_] as words:
                yield path, failure_of(words, path, limit)
            case _:
                raise answer.damage_error()
    answer.end()


def _content_of(data: bytes) -> CachedContent:
    return CachedContent(data, sha256(data).hexdigest())


class SandboxContents:
    """Fetches files by calls to the scripts, and caches them: what is unchanged is not transferred again.

    `name_of` returns the name in the sandbox of a path for file operations. One answer holds up to `most` bytes of
    content; a larger file is `too_large`.
    """

    def __init__(self, calls: ScriptCalls, name_of: Callable[[str], bytes], most: int) -> None:
        self._calls = calls
        self._name_of = name_of
        self._most = most
        self._files: OrderedDict[str, CachedContent] = OrderedDict()
        self._size = 0

    def get(self, path: str) -> CachedContent | None:
        """The cached content of a file, if any."""
        if path in self._files:
            self._files.move_to_end(path)
        return self._files.get(path)

    def learn(self, path: str, data: bytes) -> None:
        """Cache the content of a file."""
        self._keep(path, _content_of(data))

    def _keep(self, path: str, known: CachedContent) -> None:
        """Cache the content of a file; evict the least recently used files beyond the limit."""
        self.forget(path)
        self._files[path] = known
        self._size += len(known.data)
        while self._size > _MAX_CACHED:
            self.forget(next(iter(self._files)))

    def forget(self, path: str) -> None:
        """Remove a file from the cache."""
        known = self._files.pop(path, None)
        self._size -= len(known.data) if known else 0

    async def fetch(self, wanted: list[str]) -> list[FetchedFile | DeepFSError]:
        """Fetch files, in one call if their names and contents fit: for each path the file, or why there is none."""
        found: dict[str, FetchedFile | DeepFSError] = {}
        for group in self._calls.groups(dict.fromkeys(wanted), self._words):
            # Each call answers at least its first path, so there are no more calls than paths.
            while missing := [path for path in group if path not in found]:
                await self._fetch(missing, found)
        return [found[path] for path in wanted]

    async def _fetch(self, group: list[str], found: dict[str, FetchedFile | DeepFSError]) -> None:
        """Add the files of `group` to `found`, as many as one answer may hold."""
        before = {path: self.get(path) for path in group}
        words = [word for path in group for word in self._words(path)]
        most = str(self._most).encode()
        bound = bound_of(len(group), self._most)
        answer = await self._calls.call("fetch", most, *words, about=group[0], bound=bound)
        for path, file in await off_loop(answer.size, lambda: [*contents(answer, before, self._most)]):
            found[path] = file
            if isinstance(file, DeepFSError):
                self.forget(path)
            elif file[0] is not before[path]:
                self._keep(path, file[0])

    async def file(self, path: str) -> FetchedFile:
        """Fetch one file. Raises DeepFSError if it cannot be fetched."""
        (found,) = await self.fetch([path])
        if isinstance(found, DeepFSError):
            raise found
        return found

    def _words(self, path: str) -> list[bytes]:
        known = self.get(path)
        return [self._name_of(path), known.version.encode() if known else b""]


_MAX_CACHED: Final = 16 * 1024 * 1024
"""The most bytes of content that are cached."""


# --- listings --------------------------------------------------------------------------------------------------------


def infos(answer: Records, top: str, root: str, *, deep: bool = False) -> Iterator[FileInfo | None]:
    """The entries of the listing of `top`, with the paths of file operations; with `deep`, at any depth.

    None stands for one whose name is not UTF-8. Raises BackendError if one lies elsewhere.
    """
    while answer:
        mode, size, modified, name = answer.words_and_path(3)
        path = _beneath(answer, name, top, root)
        if path == top or not (deep or paths.parent(path) == top):
            raise answer.damage_error()
        if not is_temporary(paths.name(path)):
            yield _info(answer, path, answer.mode(mode), size, modified) if _is_text(path) else None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _info(answer: Records, path: str, mode: int, size: bytes, modified: bytes) -> FileInfo:
    when = _time(answer, modified) or None
    if stat.S_ISDIR(mode):
        return FileInfo(f"{path}/", is_dir=True, modified_at=when)
    return FileInfo(path, is_dir=False, size=answer.number(size), modified_at=when)


def list_directory(answer: Records, top: str, root: str) -> LsResult:
    """The listing of `top`, with each of its entries once; `skipped` counts those whose name is not UTF-8."""
    entries: dict[str, FileInfo] = {}
    skipped = 0
    for info in infos(answer, top, root):
        if info is None:
            skipped += 1
        else:
            entries.setdefault(info.path.rstrip("/"), info)
        if len(entries) + skipped > MAX_ENTRIES:
            raise BackendError(top, f"more than {MAX_ENTRIES:,} entries lie in it")
    return LsResult(entries=sorted(entries.values(), key=lambda info: info.path), skipped=skipped)


def tree_listing(answer: Records, top: str, root: str) -> TreeListing:
    """The entries of a tree. Raises BackendError if one lies outside of the tree, or if a record is malformed."""
    found: dict[str, TreeEntry] = {}
    omission: Omission | None = None
    while answer:
        mode, size, target, name = answer.words_and_path(3)
        path = "" if mode == b"bad" else _beneath(answer, name, top, root)
        if not path:
            omission = join_omissions(omission, unreadable_omission())
        elif not is_valid(path):
            omission = join_omissions(omission, omission_of_name(paths.name(path)))
        elif path == top or not is_temporary(paths.name(path)):
            found.setdefault(path, _tree_entry(path, answer.mode(mode), answer.number(size), answer.mode(target)))
        if len(found) > MAX_ENTRIES:
            raise BackendError(top, f"more than {MAX_ENTRIES:,} entries lie in it")
    if top not in found:
        raise answer.damage_error()
    return TreeListing(sorted(found.values(), key=lambda entry: entry.path), omission)


def _tree_entry(path: str, mode: int, size: int, target: int) -> TreeEntry:
    kind = _kind(mode)
    if kind == "link":
        return TreeEntry(path, kind, leads_to=_kind(target) if target else None)
    return TreeEntry(path, kind, size if kind == "file" else None, stat.S_IMODE(mode) & 0o777)


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "special"


# --- searches --------------------------------------------------------------------------------------------------------


def glob_files(deadline: Deadline, answer: Records, root: str, files: FileFilter) -> GlobResult:
    """The files of a listing that the filter chooses. Those whose name is not UTF-8 make the result incomplete."""
    matches: dict[str, FileInfo] = {}
    is_late = is_partial = False
    try:
        for info in infos(answer, files.root, root, deep=True):
            deadline.check()
            if info is None:
                is_partial = True
            elif not info.is_dir and info.path in files:
                matches.setdefault(info.path, info)
            if len(matches) > MAX_ENTRIES:
                break
    except DeadlineError:
        is_late = True
    found = glob_result(sorted(matches.values(), key=lambda info: info.path), is_late=is_late)
    return (
        replace_fields(found, truncated=True, truncation_reason="unreadable") if is_partial and not is_late else found
    )


def grep_files(deadline: Deadline, answer: Records, root: str, grep: GrepScan) -> GrepResult:
    """The lines that `grep` finds in the files of an answer. Those whose name is no valid path count as skipped."""
    grep.deadline = deadline
    found: dict[str, bytes | None] = {}
    """The contents of files; None for one that could not be read or is too large."""
    is_whole = True
    try:
        while answer:
            deadline.check()
            kind, size, name = answer.words_and_path(2)
            if kind == b"full":  # The sandbox left out further files.
                answer.end()
                is_whole = False
                break
            path = _beneath(answer, name, grep.files.root, root)
            if kind not in (b"file", b"skip"):
                raise answer.damage_error()
            length = answer.number(size, grep.max_bytes)
            data = answer.take(length) if kind == b"file" else None
            if is_temporary(paths.name(path)):
                continue
            if len(found) >= MAX_ENTRIES:
                is_whole = False
                break
            if is_valid(path):
                found.setdefault(path, data)
            else:
                grep.skip()
        for path in sorted(found):
            deadline.check(path)
            data = found[path]
            if path in grep.files:
                if data is None:
                    grep.skip()
                else:
                    grep.scan(path, data)
            if grep.truncated:
                break
    except DeadlineError:
        is_whole = False
    grep.truncated = grep.truncated or not is_whole
    return grep.result()
