"""The sources of skills: directories that are listed, and whose files are read when they change.

A file is read again only if its size or time of change differs from what was read. That needs a storage that says where
a path lies (`astorage_place`), since one backend may have other files for each user; elsewhere all files of skills are
read each time, in one call, and only parsed if they changed.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.middleware.skill_texts import MAX_SKILL_FILE_SIZE, SKILL_FILE, Skill, SkillMetadata, parsed, too_large
from deepfs.storage.gathering import gather
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.text.visible import one_line
from deepfs.types import FileInfo, GlobResult, error_told, failed_as

__all__ = ["SkillReader", "SkillSource", "Source", "normal_path", "path_and_label", "shown_error"]

SkillSource: TypeAlias = str | tuple[str, str]
"""A directory of skills: its path, or its path and a label for the prompt."""

_MAX_REMEMBERED: Final = 20_000


# --- arguments -------------------------------------------------------------------------------------------------------


def path_and_label(source: Any) -> tuple[str, str]:
    """The path of a source, and its label for the prompt. Raises TypeError if it is neither a path nor a pair."""
    match source:
        case str():
            return source, _label(source)
        case tuple((str(path), str(label))):
            return path, label
    raise TypeError(f"a source of skills is a path or a pair of a path and a label, not {source!r}")


_LAST: Final = re.compile(r"(?:([^/]+)/+)?([^/]+)/*\Z")


def _label(path: str) -> str:
    """The last directory of a path as a label; `skills` says nothing, so it is the one above then."""
    found = _LAST.search(path.replace("\\", "/").replace("/./", "/"))
    above, last = (found[1] or "", found[2]) if found else ("", "unnamed")
    special = {"built_in_skills": "Built-in", "skills": re.sub("[_-]", " ", above.lstrip(".")).title()}
    return special.get(last.lower()) or last.capitalize()


def normal_path(path: str) -> str:
    """The normalised path of a source; the path itself if it is not valid."""
    try:
        return paths.normalize(path)
    except DeepFSError:
        return path  # Loading it fails, with a warning.


def shown_error(error: DeepFSError) -> str:
    """The text of an error for a warning."""
    return one_line(str(error).removeprefix("Error: "))


# --- reading ---------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """A file as it was last read."""

    stamp: tuple[int | None, str | None]
    is_settled: bool
    """Whether a later change would have another size or time."""
    digest: str
    is_script: bool
    skill: Skill | None
    """None for a file that is no SKILL.md."""


class Source(NamedTuple):
    """A source as it was read: its skills, what is wrong with it, and its files if they were asked for."""

    path: str
    skills: Sequence[SkillMetadata] = ()
    warnings: Sequence[str] = ()
    is_listed: bool = True
    """False if the storage failed, so that nothing is known of the skills."""
    is_whole: bool = True
    """False if some files are missing that the source has."""
    files: Mapping[str, tuple[str, bool]] = {}
    """The SHA-256 of each file, and whether it starts with `#!`."""


class SkillReader:
    """Lists sources and reads what changed.

    Args:
        backend: The backend of the sources.
        max_bytes: The largest file besides SKILL.md that is read.
    """

    def __init__(self, backend: BackendProtocol, max_bytes: int = MAX_SKILL_FILE_SIZE) -> None:
        self._backend = backend
        self._max_bytes = max_bytes
        self._has_links = _keeps_directories(backend)
        self._seen: dict[tuple[Any, str], _Seen] = {}
        self._skills: dict[tuple[str, str], Skill] = {}

    async def read(self, source: str, *, with_files: bool = False) -> Source:
        """List a source and return its skills; read only the files that changed.

        Args:
            source: The directory with the directories of skills.
            with_files: Whether to read all files beneath it, not only each SKILL.md.

        Returns:
            The source. A storage that fails is a warning, never an exception.
        """
        try:
            return await self._read(paths.normalize(source), with_files)
        except DeepFSError as error:
            warning = f"Skills of {one_line(source)} cannot be read: {shown_error(error)}"
            return Source(source, warnings=[warning], is_listed=False, is_whole=False)

    async def _read(self, source: str, with_files: bool) -> Source:
        warnings: list[str] = []
        found = await self._listed(source, "*" if with_files else f"*/{SKILL_FILE}", warnings)
        if found is None:
            return Source(source)
        is_whole = not warnings
        wanted = {path: info for path, info in found.items() if self._is_fit(path, info, source, warnings)}
        count = len(warnings)
        seen = await self._known(source, wanted, warnings)
        is_whole = is_whole and count == len(warnings)
        if not any(_is_skill(path, source) for path in found) and await self._is_file(paths.join(source, SKILL_FILE)):
            warnings.append(f"{one_line(source)} is a skill itself and no directory of skills: name its parent")
        skills: list[SkillMetadata] = []
        for path in sorted(seen):
            if (skill := seen[path].skill) is not None:
                warnings += skill.warnings
                skills += [skill.metadata] if skill.metadata is not None else []
        files = {path: (file.digest, file.is_script) for path, file in seen.items()} if with_files else {}
        return Source(source, skills, warnings, is_whole=is_whole, files=files)

    async def _is_file(self, path: str) -> bool:
        return (await self._backend.aread(path, 0, 1)).ok

    # --- listing ---

    async def _listed(self, source: str, pattern: str, warnings: list[str]) -> dict[str, FileInfo] | None:
        """The files that `pattern` finds, with those of linked directories; None if the source does not exist."""
        calls: list[Callable[[], Awaitable[Any]]] = [partial(self._backend.aglob, pattern, source)]
        if self._has_links:
            calls.append(partial(self._backend.als, source))
        results: list[Any] = await gather(calls)
        found, *listings = results
        if found.code is ErrorCode.UNSUPPORTED:  # A source may do no more than list and give files.
            found, listings = GlobResult(matches=[]), [await self._backend.als(source)]
            if listings[0].entries is None:
                found = failed_as(GlobResult, listings[0])
        if found.code is ErrorCode.FILE_NOT_FOUND:
            return None
        if not found.ok and found.matches is None:
            raise error_told(found)
        if found.truncated or not found.ok:
            warnings.append(f"Some files of {one_line(source)} are not listed: there are too many, or some cannot be")
        files = {info.path: info for info in found.matches or ()}
        for listing in listings:
            await self._add_linked(files, source, pattern, listing)
        return files

    async def _add_linked(self, files: dict[str, FileInfo], source: str, pattern: str, listing: Any) -> None:
        """Add the files of directories that no search enters, since they are links."""
        entered = {path[len(source.rstrip("/")) + 1 :].partition("/")[0] for path in files}
        for info in listing.entries or ():
            name = info.path.rstrip("/").rpartition("/")[2]
            if not info.is_dir or name in entered or name.startswith("."):
                continue
            directory = paths.join(source, name)
            inner = await self._backend.aglob(f"/{SKILL_FILE}" if "/" in pattern else pattern, directory)
            found = {match.path: match for match in inner.matches or ()}
            files |= found or {paths.join(directory, SKILL_FILE): FileInfo(paths.join(directory, SKILL_FILE))}

    def _is_fit(self, path: str, info: FileInfo, source: str, warnings: list[str]) -> bool:
        """Whether to read a file. Those that are too large are not, and those whose names do not print."""
        is_skill = _is_skill(path, source)
        if is_skill and (info.size or 0) > MAX_SKILL_FILE_SIZE:
            warnings.append(f"{one_line(path)} is left out: {too_large(info.size or 0)}")
        elif not is_skill and (info.size or 0) > self._max_bytes:
            warnings.append(f"{one_line(path)} is not copied to the sandbox: it has {info.size:,} bytes")
        elif not path.isprintable() or (not is_skill and "\\" in path):
            warnings.append(f"{one_line(path)} is left out: its path has characters that do not print, or a backslash")
        else:
            return True
        return False

    # --- reading ---

    async def _known(self, source: str, found: Mapping[str, FileInfo], warnings: list[str]) -> dict[str, _Seen]:
        """What is known of each file that exists, after reading those that changed in one call."""
        place = await self._place(source)
        seen = {path: self._seen.get((place, path)) if place is not None else None for path in found}
        known = {path: each for path, each in seen.items() if each and _is_current(each, found[path])}
        stale = [path for path in found if path not in known]
        if stale:
            fresh = await self._fetched({path: found[path] for path in stale}, source, warnings)
            self._remember(place, fresh)
            known |= fresh
        return known

    async def _place(self, source: str) -> Any:
        """What names the storage of the source for all users and threads; None if nothing does."""
        place = await self._backend.astorage_place(source)
        storage = place.storage
        kind = storage[0] if isinstance(storage, tuple) and storage else storage
        # The state of a graph is that of each thread, and an unknown backend may be another one for each user.
        return None if kind in {None, "state", "object"} else place.keys

    async def _fetched(self, stale: Mapping[str, FileInfo], source: str, warnings: list[str]) -> dict[str, _Seen]:
        now = datetime.now(UTC)
        contents: list[tuple[str, bytes]] = []
        for path, response in zip(stale, await self._backend.adownload_files([*stale]), strict=True):
            if response.content is not None:
                contents.append((path, response.content))
            elif response.error != ErrorCode.FILE_NOT_FOUND.value:
                warnings.append(
                    f"{one_line(path)} cannot be read: {one_line(str(response.error or 'it has no content'))}"
                )
        return await in_thread(partial(self._digested, contents, stale, source, now))

    def _digested(
        self, contents: Sequence[tuple[str, bytes]], infos: Mapping[str, FileInfo], source: str, now: datetime
    ) -> dict[str, _Seen]:
        if len(self._skills) > _MAX_REMEMBERED:
            self._skills = {}
        seen: dict[str, _Seen] = {}
        for path, content in contents:
            info, digest = infos[path], sha256(content).hexdigest()
            skill = self._parsed(digest, path, content) if _is_skill(path, source) else None
            stamp, is_script = (info.size, info.modified_at), content.startswith(b"#!")
            seen[path] = _Seen(stamp, _is_settled(info, now), digest, is_script, skill)
        return seen

    def _parsed(self, digest: str, path: str, content: bytes) -> Skill:
        skill = self._skills.get((digest, path)) or parsed(content, path)
        self._skills[digest, path] = skill
        return skill

    def _remember(self, place: Any, fresh: Mapping[str, _Seen]) -> None:
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen = {}
        if place is not None:
            self._seen |= {(place, path): seen for path, seen in fresh.items()}


def _keeps_directories(backend: object) -> bool:
    """Whether a backend or one in it may have links: those that keep empty directories."""
    if not isinstance(backend, BackendProtocol):
        return False
    own = not backend.inner_backends() and backend.capabilities.keeps_empty_directories
    return own or any(map(_keeps_directories, backend.inner_backends()))


def _is_skill(path: str, source: str) -> bool:
    directory, _, name = path.rpartition("/")
    return name == SKILL_FILE and directory != "" and paths.parent(directory) == source


def _is_current(seen: _Seen, info: FileInfo) -> bool:
    return seen.is_settled and seen.stamp == (info.size, info.modified_at)


def _is_settled(info: FileInfo, now: datetime) -> bool:
    """Whether a change after `now` would give the file another time, whose steps are seconds in some storages."""
    try:
        changed = datetime.fromisoformat(info.modified_at or "")
        age = (now - changed).total_seconds()
    except (TypeError, ValueError):
        return False
    return info.size is not None and age > (0.05 if changed.microsecond else 2)
