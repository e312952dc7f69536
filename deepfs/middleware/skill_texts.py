"""Skills as text: the front matter of SKILL.md by the Agent Skills format, and what a model is shown of skills."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from typing_extensions import TypedDict

from deepfs.text import paths
from deepfs.text.visible import one_line, shown_path, without_tags

__all__ = [
    "MAX_SKILLS_LOAD_WARNINGS",
    "MAX_SKILL_COMPATIBILITY_LENGTH",
    "MAX_SKILL_DESCRIPTION_LENGTH",
    "MAX_SKILL_FILE_SIZE",
    "MAX_SKILL_LOAD_WARNING_LENGTH",
    "MAX_SKILL_NAME_LENGTH",
    "SKILL_FILE",
    "Skill",
    "SkillMetadata",
    "bounded",
    "checked_template",
    "known_skills",
    "parsed",
    "pinned_text",
    "shown_skills",
    "shown_warnings",
    "too_large",
]

MAX_SKILL_FILE_SIZE: Final = 10 * 1024 * 1024
"""The largest SKILL.md, in bytes."""
MAX_SKILL_NAME_LENGTH: Final = 64
MAX_SKILL_DESCRIPTION_LENGTH: Final = 1024
MAX_SKILL_COMPATIBILITY_LENGTH: Final = 500
MAX_SKILLS_LOAD_WARNINGS: Final = 20
"""The most warnings that the model is shown."""
MAX_SKILL_LOAD_WARNING_LENGTH: Final = 1000
SKILL_FILE: Final = "SKILL.md"

_PLACES: Final = ("skills_locations", "skills_load_warnings", "skills_list")
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


def parsed(content: bytes, path: str) -> Skill:
    """Parse the content of a SKILL.md. What the format does not allow but can be used is a warning."""
    notes: list[str] = []
    try:
        metadata = _metadata(_mapping(content), path, notes.append)
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


def _mapping(content: bytes) -> Mapping[Any, Any]:
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


def _clipped(key: str, text: str, most: int, note: Callable[[str], None]) -> str:
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


def known_skills(state: Mapping[str, Any]) -> list[SkillMetadata]:
    """The skills in the state of an agent, without entries that another program or version wrote in another form."""
    given: Any = state.get("skills_metadata")
    return [each for each in given if _is_known(each)] if isinstance(given, list) else []


def _is_known(skill: Any) -> bool:
    return isinstance(skill, dict) and all(isinstance(skill.get(key), str) for key in ("path", "name", "description"))


def shown_skills(skills: Iterable[SkillMetadata], sources: Iterable[str]) -> str:
    """The list for a prompt; without skills, where a new one can be made."""
    lines = "\n".join(map(_line, skills))
    if not lines:
        return f"(none yet; a new one is `<name>/{SKILL_FILE}` in {' or '.join(map(shown_path, sources))})"
    return f"<skills>\n{without_tags(lines, 'skill')}\n</skills>"


def _line(skill: SkillMetadata) -> str:
    description = one_line(" ".join(skill["description"].split()), MAX_SKILL_DESCRIPTION_LENGTH)
    needs = skill.get("compatibility")
    needed = f" [Needs: {one_line(' '.join(needs.split()), MAX_SKILL_COMPATIBILITY_LENGTH)}]" if needs else ""
    return f"- {one_line(skill['name'], MAX_SKILL_NAME_LENGTH)} ({shown_path(skill['path'])}): {description}{needed}"


def shown_warnings(warnings: Sequence[str]) -> str:
    """The warnings for a prompt; empty if there are none."""
    if not warnings:
        return ""
    lines = "\n".join(f"- {one_line(each, MAX_SKILL_LOAD_WARNING_LENGTH)}" for each in bounded(warnings))
    return f"\n\nProblems with skills:\n<skill_warnings>\n{without_tags(lines, 'skill')}\n</skill_warnings>"


def bounded(warnings: Sequence[str]) -> list[str]:
    """The first warnings, each cut to its longest length, and the number of the others."""
    cut = [_cut(each) for each in warnings[:MAX_SKILLS_LOAD_WARNINGS]]
    if len(cut) == len(warnings):
        return cut
    return [*cut[:-1], f"and {len(warnings) - len(cut) + 1} more"]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SKILL_LOAD_WARNING_LENGTH else f"{text[: MAX_SKILL_LOAD_WARNING_LENGTH - 1]}…"


def pinned_text(skill: SkillMetadata, content: bytes) -> str | None:
    """The text of a message that has the instructions of a skill; None if `content` has none."""
    text = instructions(content)
    if text is None:
        return None
    name, path = (one_line(skill[key]).replace('"', "&quot;").replace("<", "&lt;") for key in ("name", "path"))
    return f'<skill name="{name}" path="{path}">\n{without_tags(text, "skill")}\n</skill>'


def checked_template(template: Any) -> str | None:
    """Check the argument `system_prompt`: a template with the three places for skills, or None."""
    if template is None:
        return None
    if not isinstance(template, str):
        raise TypeError(f"system_prompt is a text or None, not {template!r}")
    missing = [place for place in _PLACES if f"{{{place}}}" not in template]
    if missing:
        raise ValueError(f"system_prompt lacks {', '.join(f'{{{place}}}' for place in missing)}")
    try:
        template.format(**dict.fromkeys(_PLACES, ""))
    except (LookupError, ValueError) as error:
        raise ValueError(f"system_prompt has braces that are none of its places: {error}. Write {{{{ for {{") from None
    return template
