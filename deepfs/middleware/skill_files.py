"""Skills as files: their sources, which are read when they change, their front matter, and how models see them.

A file is read again only if its size or time of change differs from what was read. That needs a storage that says where
a path lies (`astorage_place`), since one backend may have other files for each user; elsewhere all files of skills are
read each time, in one call.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from logging import getLogger
from typing import Any, Final, NamedTuple

from typing_extensions import TypedDict

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.middleware.rendering import plain_error
from deepfs.storage.gathering import gather
from deepfs.sync import in_thread
from deepfs.text import paths
from deepfs.text.visible import display_path, one_line, without_tags
from deepfs.types import FileInfo, GlobResult, convert_failure, error_from

_log = getLogger("deepfs")

MAX_SKILL_FILE_SIZE: Final = 10 * 1024 * 1024
"""The largest SKILL.md, in bytes."""
MAX_SKILL_NAME_LENGTH: Final = 64
MAX_SKILL_DESCRIPTION_LENGTH: Final = 1024
MAX_SKILL_COMPATIBILITY_LENGTH: Final = 500
MAX_SKILLS_LOAD_WARNINGS: Final = 20
"""The most warnings that the model is shown."""
MAX_SKILL_LOAD_WARNING_LENGTH: Final = 1000
SKILL_FILE: Final = "SKILL.md"

_MAX_FRONT_MATTER: Final = 64 * 1024
_MAX_DEPTH: Final = 20
"""The deepest nesting of lists and mappings. Parsers of YAML recurse, and that of libyaml would end the process."""
_TOO_DEEP: Final = f"its front matter is nested deeper than {_MAX_DEPTH} levels"
_MAX_SHOWN_NAME: Final = 256
_NOTHING: Final = frozenset({"~", "null", "Null", "NULL"})
"""How YAML writes that there is no value."""
_NAME: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_BETWEEN_TOOLS: Final = re.compile(r"[\s,]+")


class SkillMetadata(TypedDict):
    """What the front matter of a SKILL.md says, by the Agent Skills format."""

    path: str
    """The path of the SKILL.md."""
    name: str
    """1 to 64 characters: lowercase letters, digits and single hyphens; the name of the directory."""
    description: str
    """The purpose of the skill and the tasks that it fits, up to 1024 characters."""
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


def parse_skill(content: bytes, path: str) -> Skill:
    """Parse the content of a SKILL.md. What the format does not allow but can be used is a warning."""
    notes: list[str] = []
    try:
        metadata = _metadata(_load_front_matter(content), path, notes.append)
    except _UnusableError as error:
        return Skill(None, (f"{one_line(path)} is left out: {error}",))
    return Skill(metadata, tuple(f"{one_line(path)}: {note}" for note in notes))


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


def _load_front_matter(content: bytes) -> Mapping[Any, Any]:
    if len(content) > MAX_SKILL_FILE_SIZE:
        raise _UnusableError(too_large(len(content)))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnusableError("it is not UTF-8 text") from None
    end = _end_of_front_matter(text)
    if end is None:
        raise _UnusableError("it has no front matter, YAML between two lines `---` at its beginning, not too long")
    loaded = _yaml(text[: end[0]])
    if not isinstance(loaded, dict):
        raise _UnusableError("its front matter is not a mapping such as `name: …`")
    return loaded


def too_large(size: int) -> str:
    """Why a SKILL.md of this size is left out."""
    return f"it has {size:,} bytes, and a SKILL.md may have {MAX_SKILL_FILE_SIZE:,}"


_OPENING: Final = re.compile(r"---[ \t]*\r?\n")
_CLOSING: Final = re.compile(r"\n---[ \t]*(?:\r?\n|\Z)")


def _end_of_front_matter(text: str) -> tuple[int, int] | None:
    """Where the closing line of the front matter begins and ends; None if there is none."""
    opening = _OPENING.match(text)
    closing = opening and _CLOSING.search(text, opening.end() - 1, opening.end() + _MAX_FRONT_MATTER)
    return (closing.start() + 1, closing.end()) if closing else None


def _yaml(text: str) -> Any:
    import yaml

    # All values stay texts, as the format has them: `1.10` is no number, and no value can be too large to be made.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # Newer versions of libyaml have a limit of their own.
            raise _UnusableError(_TOO_DEEP) from None
        raise _UnusableError(f"its front matter is not YAML: {_problem(error)}") from None


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
            raise _UnusableError(_TOO_DEEP)
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
    compatibility = _clip("compatibility", _text(given.get("compatibility")), MAX_SKILL_COMPATIBILITY_LENGTH, note)
    return SkillMetadata(
        path=path,
        name=name,
        description=_clip("description", description, MAX_SKILL_DESCRIPTION_LENGTH, note),
        license=_text(given.get("license")) or None,
        compatibility=compatibility or None,
        metadata=_strings(given.get("metadata"), note),
        allowed_tools=_tools(given.get("allowed-tools"), note),
    )


def _text(value: Any) -> str:
    """A value as text; an empty text for none."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return "" if text in _NOTHING else text.strip()


def _problem_of_name(name: str, directory: str) -> str | None:
    shown = repr(name[:MAX_SKILL_NAME_LENGTH])
    if len(name) > MAX_SKILL_NAME_LENGTH:
        return f"the name {shown}… has more than {MAX_SKILL_NAME_LENGTH} characters"
    if not _NAME.fullmatch(name) or name != name.lower():
        return f"the name {shown} may have only lowercase letters, digits and single hyphens between them"
    return None if name == directory else f"the name {shown} differs from that of the directory, {one_line(directory)}"


def _clip(key: str, text: str, most: int, note: Callable[[str], None]) -> str:
    """The first `most` characters of the value of a key, with a warning if it has more."""
    if len(text) <= most:
        return text
    note(f"the {key} has {len(text):,} characters; only the first {most:,} are used")
    return text[:most]


def _strings(value: Any, note: Callable[[str], None]) -> dict[str, str]:
    """The mapping `metadata`."""
    if not isinstance(value, dict | None) and _text(value):
        note("metadata is left out, since it is not a mapping")
    pairs = {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else {}
    if set("[,") & set(pairs.get("include_tools", "")):
        note("metadata.include_tools should be names with spaces between them")
    return pairs


def _tools(value: Any, note: Callable[[str], None]) -> list[str]:
    """The names of `allowed-tools`, which are a text or a list. A number is none."""
    if isinstance(value, dict):
        note("allowed-tools is left out, since it is neither a text nor a list")
        return []
    parts = [str(each) for each in value] if isinstance(value, list) else _BETWEEN_TOOLS.split(_text(value))
    return [name for name in map(str.strip, parts) if name and not name.isdecimal()]


# --- prompts ---------------------------------------------------------------------------------------------------------


def parse_skills(state: Mapping[str, Any]) -> list[SkillMetadata]:
    """The skills in the state of an agent, without entries that another program or version wrote in another form."""
    given: Any = state.get("skills_metadata")
    if not isinstance(given, list):
        return []
    texts = ("path", "name", "description")
    return [each for each in given if all(isinstance(each, dict) and isinstance(each.get(key), str) for key in texts)]


def render_skills(skills: Iterable[SkillMetadata], sources: Iterable[str]) -> str:
    """The list for a prompt; without skills, where a new one can be made."""
    lines = "\n".join(map(_line, skills))
    if not lines:
        return f"(none yet; a new one is `<name>/{SKILL_FILE}` in {' or '.join(map(display_path, sources))})"
    return f"<skills>\n{without_tags(lines, 'skill')}\n</skills>"


def _line(skill: SkillMetadata) -> str:
    description = one_line(" ".join(skill["description"].split()), MAX_SKILL_DESCRIPTION_LENGTH)
    needs = skill.get("compatibility")
    needed = f" [Needs: {one_line(' '.join(needs.split()), MAX_SKILL_COMPATIBILITY_LENGTH)}]" if needs else ""
    return f"- {one_line(skill['name'], MAX_SKILL_NAME_LENGTH)} ({display_path(skill['path'])}): {description}{needed}"


def render_warnings(warnings: Sequence[str]) -> str:
    """The warnings for a prompt; empty if there are none."""
    if not warnings:
        return ""
    lines = "\n".join(f"- {one_line(each, MAX_SKILL_LOAD_WARNING_LENGTH)}" for each in limit_warnings(warnings))
    return f"\n\nProblems with skills:\n<skill_warnings>\n{without_tags(lines, 'skill')}\n</skill_warnings>"


def limit_warnings(warnings: Sequence[str]) -> list[str]:
    """The first warnings, each cut to its longest length, and the number of the others."""
    most = MAX_SKILL_LOAD_WARNING_LENGTH
    cut = [each if len(each) <= most else f"{each[: most - 1]}…" for each in warnings[:MAX_SKILLS_LOAD_WARNINGS]]
    return cut if len(cut) == len(warnings) else [*cut[:-1], f"and {len(warnings) - len(cut) + 1} more"]


def render_pinned(skill: SkillMetadata, content: bytes) -> str | None:
    """The text of a message that has the instructions of a skill; None if `content` has none."""
    text = instructions(content)
    if text is None:
        return None
    name, path = (one_line(skill[key]).replace('"', "&quot;").replace("<", "&lt;") for key in ("name", "path"))
    return f'<skill name="{name}" path="{path}">\n{without_tags(text, "skill")}\n</skill>'


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
    """Lists sources and reads what changed."""

    def __init__(self, backend: BackendProtocol) -> None:
        self._backend = backend
        self._has_links = _keeps_directories(backend)
        self._seen: dict[tuple[Any, str], _Seen] = {}
        self._missing: set[str] = set()

    async def read(self, source: str, *, with_files: bool = False) -> Source:
        """List a source and return its skills; read only the files that changed.

        With `with_files`, all files beneath it are read, not only each SKILL.md. A storage that fails is a warning,
        never an exception.
        """
        try:
            return await self._read(paths.normalize(source), with_files)
        except DeepFSError as error:
            warning = f"Skills of {one_line(source)} cannot be read: {one_line(plain_error(error))}"
            return Source(source, warnings=[warning], is_listed=False, is_whole=False)

    async def _read(self, source: str, with_files: bool) -> Source:
        warnings: list[str] = []
        found = await self._list_files(source, "*" if with_files else f"*/{SKILL_FILE}", warnings)
        if found is None:
            if source not in self._missing:  # Told once: the directory may be meant to come later.
                self._missing.add(source)
                _log.warning("there is no directory of skills at %s", one_line(source))
            return Source(source)
        is_whole = not warnings
        wanted = {path: info for path, info in found.items() if self._is_fit(path, info, source, warnings)}
        count = len(warnings)
        seen = await self._find_known(source, wanted, warnings)
        is_whole = is_whole and count == len(warnings)
        has_none = not any(_is_skill(path, source) for path in found)
        if has_none and (await self._backend.aread(paths.join(source, SKILL_FILE), 0, 1)).ok:
            warnings.append(f"{one_line(source)} is a skill itself and no directory of skills: name its parent")
        skills: list[SkillMetadata] = []
        for path in sorted(seen):
            if (skill := seen[path].skill) is not None:
                warnings += skill.warnings
                skills += [skill.metadata] if skill.metadata is not None else []
        files = {path: (file.digest, file.is_script) for path, file in seen.items()} if with_files else {}
        return Source(source, skills, warnings, is_whole=is_whole, files=files)

    # --- listing ---

    async def _list_files(self, source: str, pattern: str, warnings: list[str]) -> dict[str, FileInfo] | None:
        """The files that `pattern` finds, with those of linked directories; None if the source does not exist."""
        calls: list[Callable[[], Awaitable[Any]]] = [partial(self._backend.aglob, pattern, source)]
        if self._has_links:
            calls.append(partial(self._backend.als, source))
        results: list[Any] = await gather(calls)
        found, *listings = results
        if found.code is ErrorCode.UNSUPPORTED:  # A source may do no more than list and give files.
            found, listings = GlobResult(matches=[]), [await self._backend.als(source)]
            if listings[0].entries is None:
                found = convert_failure(GlobResult, listings[0])
        if found.code is ErrorCode.FILE_NOT_FOUND:
            return None
        if not found.ok and found.matches is None:
            raise error_from(found)
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
        elif not is_skill and (info.size or 0) > MAX_SKILL_FILE_SIZE:
            warnings.append(f"{one_line(path)} is not copied to the sandbox: it has {info.size:,} bytes")
        elif not path.isprintable() or (not is_skill and "\\" in path):
            warnings.append(f"{one_line(path)} is left out: its path has characters that do not print, or a backslash")
        else:
            return True
        return False

    # --- reading ---

    async def _find_known(self, source: str, found: Mapping[str, FileInfo], warnings: list[str]) -> dict[str, _Seen]:
        """What is known of each file that exists, after reading those that changed in one call."""
        place = await self._backend.astorage_place(source)
        kind = place.storage[0] if isinstance(place.storage, tuple) and place.storage else place.storage
        # The state of a graph is that of each thread, and an unknown backend may be another one for each user.
        key = None if kind in {None, "state", "object"} else place.keys
        known: dict[str, _Seen] = {}
        for path, info in found.items():
            seen = None if key is None else self._seen.get((key, path))
            if seen is not None and seen.is_settled and seen.stamp == (info.size, info.modified_at):
                known[path] = seen
        stale = {path: info for path, info in found.items() if path not in known}
        if stale:
            fresh = await self._fetch(stale, source, warnings)
            if len(self._seen) > _MAX_REMEMBERED:
                self._seen = {}
            if key is not None:
                self._seen |= {(key, path): seen for path, seen in fresh.items()}
            known |= fresh
        return known

    async def _fetch(self, stale: Mapping[str, FileInfo], source: str, warnings: list[str]) -> dict[str, _Seen]:
        now = datetime.now(UTC)
        contents: list[tuple[str, bytes]] = []
        for path, response in zip(stale, await self._backend.adownload_files([*stale]), strict=True):
            if response.content is not None:
                contents.append((path, response.content))
            elif response.error != ErrorCode.FILE_NOT_FOUND.value:
                reason = one_line(str(response.error or "it has no content"))
                warnings.append(f"{one_line(path)} cannot be read: {reason}")
        return await in_thread(partial(_digest_files, contents, stale, source, now))


def _digest_files(
    contents: Sequence[tuple[str, bytes]], infos: Mapping[str, FileInfo], source: str, now: datetime
) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    for path, content in contents:
        info, digest = infos[path], sha256(content).hexdigest()
        skill = parse_skill(content, path) if _is_skill(path, source) else None
        stamp, is_script = (info.size, info.modified_at), content.startswith(b"#!")
        seen[path] = _Seen(stamp, _is_settled(info, now), digest, is_script, skill)
    return seen


def _keeps_directories(backend: object) -> bool:
    """Whether a backend or one in it may have links: those that keep empty directories."""
    if not isinstance(backend, BackendProtocol):
        return False
    own = not backend.inner_backends() and backend.capabilities.keeps_empty_directories
    return own or any(map(_keeps_directories, backend.inner_backends()))


def _is_skill(path: str, source: str) -> bool:
    directory, _, name = path.rpartition("/")
    return name == SKILL_FILE and directory != "" and paths.parent(directory) == source


def _is_settled(info: FileInfo, now: datetime) -> bool:
    """Whether a change after `now` would give the file another time, whose steps are seconds in some storages."""
    try:
        changed = datetime.fromisoformat(info.modified_at or "")
        age = (now - changed).total_seconds()
    except (TypeError, ValueError):
        return False
    return info.size is not None and age > (0.05 if changed.microsecond else 2)
