"""Skills as files: the front matter of SKILL.md by the Agent Skills format, and the listing of sources.

A file is read again only if its size or time of change differs from what was read. That needs a storage that says where
a path lies (`astorage_place`), since one backend may have other files for each user; elsewhere all files of skills are
read each time, in one call, and only parsed if they changed.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from typing_extensions import TypedDict

from deepfs.backends.gathering import gather
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.text.visible import one_line
from deepfs.types import FileDownloadResponse, FileInfo, error_told

__all__ = [
    "MAX_SKILL_COMPATIBILITY_LENGTH",
    "MAX_SKILL_DESCRIPTION_LENGTH",
    "MAX_SKILL_FILE_SIZE",
    "MAX_SKILL_NAME_LENGTH",
    "Skill",
    "SkillMetadata",
    "SkillReader",
    "Source",
    "instructions",
    "parsed",
    "shown_error",
]

MAX_SKILL_FILE_SIZE: Final = 10 * 1024 * 1024
"""The largest SKILL.md, in bytes."""
MAX_SKILL_NAME_LENGTH: Final = 64
MAX_SKILL_DESCRIPTION_LENGTH: Final = 1024
MAX_SKILL_COMPATIBILITY_LENGTH: Final = 500

_FILE: Final = "SKILL.md"
_MAX_FRONT_MATTER: Final = 64 * 1024
_MAX_DEPTH: Final = 20
"""The deepest nesting of lists and mappings. Parsers of YAML recurse, and that of libyaml would end the process."""
_MAX_SHOWN_NAME: Final = 256
_MAX_REMEMBERED: Final = 20_000


class SkillMetadata(TypedDict):
    """What the front matter of a SKILL.md says, by the Agent Skills format."""

    path: str
    """The path of the SKILL.md."""
    name: str
    """1 to 64 characters: lowercase letters, digits and single hyphens; the name of the directory."""
    description: str
    """What the skill does and when to use it, up to 1024 characters."""
    license: str | None
    compatibility: str | None
    """What the skill needs of its environment, up to 500 characters."""
    metadata: dict[str, str]
    allowed_tools: list[str]
    """The tools that the skill uses."""


class Skill(NamedTuple):
    """A parsed SKILL.md: what it says, or None if it cannot be used, and what is wrong with it."""

    metadata: SkillMetadata | None
    warnings: tuple[str, ...] = ()


# --- front matter ----------------------------------------------------------------------------------------------------


class _UnusableError(Exception):
    """The file is no skill; the text says why."""


def parsed(content: bytes, path: str) -> Skill:
    """Parse the content of a SKILL.md. What the format does not allow but can be used is a warning."""
    notes: list[str] = []
    try:
        metadata = _metadata(_mapping(content), path, notes.append)
    except _UnusableError as error:
        return Skill(None, (f"{_shown(path)} is left out: {error}",))
    return Skill(metadata, tuple(f"{_shown(path)}: {note}" for note in notes))


def instructions(content: bytes) -> str | None:
    """The text of a SKILL.md after its front matter; None if it is no text or too large."""
    try:
        text = content.decode("utf-8-sig") if len(content) <= MAX_SKILL_FILE_SIZE else None
    except UnicodeDecodeError:
        return None
    if text is None:
        return None
    end = _end_of_front_matter(text)
    return (text if end is None else text[end[1] :]).rstrip()


def shown_error(error: DeepFSError) -> str:
    """The text of an error for a warning."""
    return one_line(str(error).removeprefix("Error: "))


def _shown(path: str) -> str:
    return one_line(path)


def _mapping(content: bytes) -> Mapping[Any, Any]:
    if len(content) > MAX_SKILL_FILE_SIZE:
        raise _UnusableError(_too_large(len(content)))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnusableError("it is not UTF-8 text") from None
    end = _end_of_front_matter(text)
    if end is None:
        raise _UnusableError("it has no front matter, YAML between two lines `---` at its beginning")
    loaded = _yaml(text[: end[0]])
    if not isinstance(loaded, dict):
        raise _UnusableError("its front matter is not a mapping such as `name: …`")
    return loaded


def _too_large(size: int) -> str:
    return f"it has {size:,} bytes, and a SKILL.md may have {MAX_SKILL_FILE_SIZE:,}"


_OPENING: Final = re.compile(r"---[ \t]*\r?\n")
_CLOSING: Final = re.compile(r"\n---[ \t]*(?:\r?\n|\Z)")


def _end_of_front_matter(text: str) -> tuple[int, int] | None:
    """Where the closing line of the front matter begins and ends; None if there is none."""
    opening = _OPENING.match(text)
    closing = opening and _CLOSING.search(text, opening.end() - 1, opening.end() + _MAX_FRONT_MATTER)
    return (closing.start() + 1, closing.end()) if closing else None


def _yaml(text: str) -> Any:
    from yaml import YAMLError, load, parse

    loader = _loader()
    try:
        _check_events(parse(text, Loader=loader))
        return load(text, Loader=loader)  # It is a safe loader.
    except YAMLError as error:
        raise _UnusableError(f"its front matter is not YAML: {_problem(error)}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        # The constructors of PyYAML raise these for values such as a date in month 13.
        raise _UnusableError(f"a value of its front matter cannot be read: {one_line(str(error), 200)}") from None


@cache
def _loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_events(events: Iterable[Any]) -> None:
    """Refuse aliases, with which a few lines could stand for gigabytes, and deep nesting."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent

    depth = documents = 0
    for event in events:
        documents += isinstance(event, DocumentStartEvent)
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if isinstance(event, AliasEvent):
            raise _UnusableError("its front matter has aliases (`*name`), which are not allowed")
        if depth > _MAX_DEPTH:
            raise _UnusableError(f"its front matter is nested deeper than {_MAX_DEPTH} levels")
        if documents > 1:
            return


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    place = f" (line {mark.line + 1})" if mark is not None else ""
    hint = ". Put a value that holds `: ` in quotes" if "mapping values" in problem else ""
    return one_line(f"{problem}{place}{hint}", 300)


def _metadata(given: Mapping[Any, Any], path: str, note: Callable[[str], None]) -> SkillMetadata:
    name, description = (_text(given.get(key)) for key in ("name", "description"))
    missing = [key for key, value in (("name", name), ("description", description)) if not value]
    if missing:
        raise _UnusableError(f"its front matter has no {' and no '.join(missing)}")
    if len(name) > _MAX_SHOWN_NAME:
        raise _UnusableError(f"its name has {len(name):,} characters, and {MAX_SKILL_NAME_LENGTH} are allowed")
    if problem := _problem_of_name(name, paths.parent(path).rpartition("/")[2]):
        note(problem)
    compatibility = _clipped("compatibility", _text(given.get("compatibility")), MAX_SKILL_COMPATIBILITY_LENGTH, note)
    return SkillMetadata(
        path=path,
        name=name,
        description=_clipped("description", description, MAX_SKILL_DESCRIPTION_LENGTH, note),
        license=_text(given.get("license")) or None,
        compatibility=compatibility or None,
        metadata=_strings(given.get("metadata"), note),
        allowed_tools=_tools(given.get("allowed-tools"), note),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _problem_of_name(name: str, directory: str) -> str | None:
    shown = repr(name[:MAX_SKILL_NAME_LENGTH])
    if len(name) > MAX_SKILL_NAME_LENGTH:
        return f"the name {shown}… has more than {MAX_SKILL_NAME_LENGTH} characters"
    letters = name.replace("-", "")
    is_plain = all((each.isalpha() and each.islower()) or each.isdigit() for each in letters)
    if not is_plain or not letters or name.startswith("-") or name.endswith("-") or "--" in name:
        return f"the name {shown} may have only lowercase letters, digits and single hyphens between them"
    return None if name == directory else f"the name {shown} differs from that of the directory, {one_line(directory)}"


def _clipped(key: str, text: str, most: int, note: Callable[[str], None]) -> str:
    if len(text) <= most:
        return text
    note(f"the {key} has {len(text):,} characters; only the first {most:,} are used")
    return text[:most]


def _strings(value: Any, note: Callable[[str], None]) -> dict[str, str]:
    if not isinstance(value, dict):
        if value:
            note("metadata is left out, since it is not a mapping")
        return {}
    tools = value.get("include_tools")
    if isinstance(tools, list) or (isinstance(tools, str) and "," in tools):
        note("metadata.include_tools should be names with spaces between them")
    return {str(key): str(item) for key, item in value.items()}


def _tools(value: Any, note: Callable[[str], None]) -> list[str]:
    if isinstance(value, str):
        return [tool for tool in re.split(r"[\s,]+", value) if tool]
    if isinstance(value, list):
        return [tool.strip() for tool in value if isinstance(tool, str) and tool.strip()]
    if value is not None:
        note("allowed-tools is left out, since it is neither a text nor a list")
    return []


# --- sources ---------------------------------------------------------------------------------------------------------


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
        found = await self._listed(source, "*" if with_files else f"*/{_FILE}", warnings)
        if found is None:
            return Source(source)
        is_whole = not warnings
        wanted = {path: info for path, info in found.items() if self._is_fit(path, info, source, warnings)}
        count = len(warnings)
        seen = await self._known(source, wanted, warnings)
        is_whole = is_whole and count == len(warnings)
        if not any(_is_skill(path, source) for path in found) and await self._is_file(paths.join(source, _FILE)):
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
        if found.code is ErrorCode.FILE_NOT_FOUND:
            return None
        if not found.ok and found.matches is None:
            raise _failed(found)
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
            inner = await self._backend.aglob(pattern.rpartition("/")[2], directory)
            found = {match.path: match for match in inner.matches or ()}
            files |= found or {paths.join(directory, _FILE): FileInfo(paths.join(directory, _FILE))}

    def _is_fit(self, path: str, info: FileInfo, source: str, warnings: list[str]) -> bool:
        """Whether to read a file. Those that are too large are not, and those whose names do not print."""
        is_skill = _is_skill(path, source)
        if is_skill and (info.size or 0) > MAX_SKILL_FILE_SIZE:
            warnings.append(f"{_shown(path)} is left out: {_too_large(info.size or 0)}")
        elif not is_skill and (info.size or 0) > self._max_bytes:
            warnings.append(f"{_shown(path)} is not copied to the sandbox: it has {info.size:,} bytes")
        elif not path.isprintable() or (not is_skill and "\\" in path):
            warnings.append(f"{_shown(path)} is left out: its path has characters that do not print, or a backslash")
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
                warnings.append(f"{_shown(path)} cannot be read: {one_line(_reason(response))}")
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
    return name == _FILE and directory != "" and paths.parent(directory) == source


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


def _reason(response: FileDownloadResponse) -> str:
    return str(response.error or "it has no content")


def _failed(result: Any) -> DeepFSError:
    return error_told(result)
