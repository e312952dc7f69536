"""What a model is told to do next when a call failed or found nothing."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from json import dumps
from typing import Final
from urllib.parse import unquote

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode, InvalidPathError, NoMatchError, NotFoundError
from deepfs.text.paths import ancestors, join, normalize, relative
from deepfs.text.visible import escaped, one_line, shown_path

__all__ = [
    "ERROR_CHARS",
    "Advisor",
    "closest",
    "into_directory",
    "literal_brackets",
    "no_file",
    "no_line",
    "shown_error",
]

ERROR_CHARS: Final = 4_000
"""The most characters of an error that are shown; those of other libraries may be of any length."""

_NEXT: Final[Mapping[tuple[str, ErrorCode], str]] = {
    ("ls", ErrorCode.NOT_A_DIRECTORY): "Use read_file for a file.",
    ("read_file", ErrorCode.IS_DIRECTORY): "List it with ls, or name a file.",
    ("read_file", ErrorCode.INVALID_CONTENT): "Give a smaller offset; one below 0 counts from the end.",
    ("write_file", ErrorCode.ALREADY_EXISTS): "To change a part of it, use edit_file.",
    ("write_file", ErrorCode.IS_DIRECTORY): "Add the name of a file to the path.",
    ("edit_file", ErrorCode.TOO_LARGE): "Change it with execute.",
    ("edit_file", ErrorCode.BINARY_FILE): "Change it with execute.",
    ("glob", ErrorCode.INVALID_PATTERN): "Correct the pattern, or set path.",
    ("glob", ErrorCode.NOT_A_DIRECTORY): "Give a directory as path.",
    ("glob", ErrorCode.TIMEOUT): "Narrow the path or the pattern.",
    ("grep", ErrorCode.TIMEOUT): "Narrow the path or the pattern.",
    ("delete", ErrorCode.FILE_NOT_FOUND): "It may be deleted already; if not, find the right path with ls or glob.",
    ("move", ErrorCode.NOT_A_DIRECTORY): "Choose another destination.",
    ("execute", ErrorCode.INVALID_CONTENT): "Correct the command.",
    ("apply_patch", ErrorCode.ALREADY_EXISTS): "Choose another path, or update that file.",
}
"""What to do about a failure of a tool."""
_NEXT_OF_ANY: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.FILE_NOT_FOUND: "Find the right path with ls or glob.",
    ErrorCode.IS_DIRECTORY: "Name a file.",
    ErrorCode.NOT_A_DIRECTORY: "Choose a path that is not below a file.",
    ErrorCode.PERMISSION_DENIED: "Do not try again; choose a path that you may use.",
    ErrorCode.INVALID_PATH: "Give another absolute path.",
    ErrorCode.ALREADY_EXISTS: "To replace it, set overwrite.",
    ErrorCode.NO_MATCH: "Read the file again and copy the text exactly, without line numbers.",
    ErrorCode.INVALID_PATTERN: "Correct the pattern.",
    ErrorCode.INVALID_CONTENT: "Give other text.",
    ErrorCode.CONFLICT: "Read the file again, and decide by what it holds now.",
    ErrorCode.QUOTA_EXCEEDED: "Write less, or delete files that nobody needs.",
    ErrorCode.UNSUPPORTED: "Reach your aim with other tools.",
    ErrorCode.TIMEOUT: "Try once more; if it fails again, say so.",
    ErrorCode.BACKEND_ERROR: "Try once more; if it fails again, say so.",
}
"""What to do about the failure of a tool that has no text of its own."""
_PLAIN: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.FILE_NOT_FOUND: "Check the path.",
    ErrorCode.BINARY_FILE: "Leave it as it is, and say so.",
    ErrorCode.TOO_LARGE: "Leave it as it is, and say so.",
}
"""What to do where the tools are not offered that the other texts name."""
_TOOLS: Final = re.compile(r"\b(?:ls|glob|read_file|edit_file|execute)\b")
"""The tools that these texts name."""
_KINDS: Final = {"ls": "Directory", "glob": "Directory", "grep": "Path", "delete": "Path", "move": "Path"}
"""What a tool needs to exist; a file, if it is not named here."""
_MAX_LEVELS: Final = 8
"""The most directories above a missing path that are tried for a suggestion."""


class Advisor:
    """Completes errors by what to do next, by the tool that failed, the tools that are offered, and the files.

    Args:
        backend: The backend of the tools.
        offered: The names of the tools that the model has.
    """

    def __init__(self, backend: BackendProtocol, offered: Collection[str]) -> None:
        self._backend = backend
        self._offered = frozenset(offered)

    def offers(self, tool: str) -> bool:
        """Whether the model has the tool.

        Args:
            tool: Its name.
        """
        return tool in self._offered

    async def advised(self, tool: str, error: DeepFSError, *paths: str, better: str = "") -> str:
        """The text of an error, and what to do next.

        Args:
            tool: The name of the tool that failed.
            error: The error.
            *paths: The paths of the call; the first is what had to exist.
            better: What to do, if that is known better than by the error.
        """
        if isinstance(error, NotFoundError):
            error = error.renamed(str)
            error.kind = _KINDS.get(tool, error.kind)
            better = better or (await self._missing(tool, paths[0]) if paths else "")
        elif isinstance(error, InvalidPathError):
            better = better or await self._meant(tool, paths)
        elif isinstance(error, NoMatchError) and error.hint and not error.is_foreign:
            better = "Leave them out." if error.is_decorated else "Copy the text exactly, or read the file again."
        steps = [better, _NEXT.get((tool, error.code), "")]
        if not error.advises:
            steps += [_NEXT_OF_ANY.get(error.code, ""), _PLAIN.get(error.code, "")]
        text = shown_error(error)
        advice = next((step for step in steps if step and self._offered.issuperset(_TOOLS.findall(step))), "")
        end = "" if text.endswith((".", "?")) else "."
        return f"{text}{end} {advice}" if advice else text

    async def _missing(self, tool: str, path: str) -> str:
        """What to do about a missing path; `""` if that is not known."""
        plain = _respelt(path)
        if plain and await self._is_there(plain):
            return f"Did you mean {shown_path(normalize(plain))}?"
        meant = await self._suggestion(tool, path)
        if "*" in path and not meant.startswith("Did you mean"):
            return "Wildcards are not expanded in a path: find the paths with glob."
        return f"It may be deleted already. {meant}" if meant and tool == "delete" else meant

    async def _is_there(self, path: str) -> bool:
        """Whether the path of a file or directory may be read."""
        read = await self._backend.aread(path, 0, 1)
        return read.ok or read.code is ErrorCode.IS_DIRECTORY

    async def _suggestion(self, tool: str, path: str) -> str:
        """A path like the missing one, by a listing of the nearest directory above it that exists; `""` without one."""
        try:
            wanted = normalize(path)
        except DeepFSError:
            return ""
        for directory in islice(reversed(["/", *ancestors(wanted)]), _MAX_LEVELS):
            listed = await self._backend.als(directory)
            if listed.entries is not None:
                found = [info.path for info in listed.entries]
                return _similar_path(tool, wanted, directory, found) or await self._in_root(wanted, directory, found)
            if listed.code not in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
                return ""
        return ""

    async def _in_root(self, path: str, directory: str, found: Sequence[str]) -> str:
        """What to do about a path of the host: nothing like it is in `directory`, which holds the paths `found`."""
        names = relative(path, directory).split("/")
        if len(names) == 1:
            return ""
        if directory != "/":
            return f"The nearest directory that exists is {shown_path(directory)}."
        meant = await self._from_root(names, found)
        return (
            f"Paths start at the root of this filesystem: {f'did you mean {meant}?' if meant else 'list it with ls.'}"
        )

    async def _from_root(self, names: Sequence[str], found: Sequence[str], *, is_new: bool = False) -> str:
        """For the names of a path of the host, the path that is meant: its end, from a name on that is in the root.

        Where nothing is at that path, it is what has this name in the root, unless the path is for something new.
        """
        here = {_name(each): each for each in found}
        place = next((place for place, name in enumerate(names) if name in here), None)
        if place is None:
            return ""
        path = "/" + "/".join(names[place:])
        return shown_path(path if is_new or await self._is_there(path) else here[names[place]])

    async def _meant(self, tool: str, paths: Sequence[str]) -> str:
        """The path that may be meant by the first one with `~`, `..` or a drive; `""` if there is none."""
        spelt = next((path for path in paths if _FOREIGN.search(path)), None)
        if spelt is None:
            return ""
        names = _resolved(spelt)
        listed = await self._backend.als("/")
        is_new = tool == "write_file" or (tool == "move" and spelt != paths[0])
        meant = await self._from_root(names, [info.path for info in listed.entries or ()], is_new=is_new)
        meant = meant or (shown_path("/" + "/".join(names)) if is_new and names else "")
        return f"Did you mean {meant}?" if meant else "List / with ls."


def shown_error(error: DeepFSError) -> str:
    """The text of an error as a model reads it."""
    text = escaped(str(error)[:ERROR_CHARS])
    return text if text.startswith("Error") else f"Error: {text}"


# --- names -----------------------------------------------------------------------------------------------------------

_MOST_NAMES: Final = 4_000
_MOST_COMPARED: Final = 50
_LONGEST_NAME: Final = 100


def closest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are most like `name`, the best first; names that look the same come before all others."""
    wanted = _folded(name)
    by_form: dict[str, str] = {}
    for each in islice(names, _MOST_NAMES):
        by_form.setdefault(_folded(each), each)
    if wanted in by_form:
        return [by_form[wanted]]
    likely = sorted(by_form, key=lambda form: -_shared(wanted, form))[:_MOST_COMPARED]
    stems = {form: _stem(form) for form in likely}
    near = get_close_matches(_stem(wanted), [*dict.fromkeys(stems.values())], most, 0.6)
    return [by_form[form] for stem in near for form in likely if stems[form] == stem][:most]


def _stem(name: str) -> str:
    """A name without its extension, which many names share."""
    return name.rpartition(".")[0] or name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name[:_LONGEST_NAME]).casefold()


def _shared(first: str, second: str) -> int:
    """How many characters both have in common at the start and at the end, and of those that they consist of."""
    return _prefix(first, second) + _prefix(first[::-1], second[::-1]) + len(set(first) & set(second))


def _prefix(first: str, second: str) -> int:
    return next((place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)


_FOREIGN: Final = re.compile(r"^~|^/?[A-Za-z]:(?=[/\\])|^\\|(?:(?<=[/\\])|^)\.\.(?=[/\\]|$)")
"""Matches at the parts of a path that no path here has: a home directory, a drive, a parent directory."""
_OWN_HOME_OR_DRIVE: Final = re.compile(r"^~|^/?[A-Za-z]:(?=[/\\])")


def _resolved(path: str) -> list[str]:
    """The names of a path without `~` and without a drive, each `..` applied."""
    names: list[str] = []
    for name in re.split(r"[/\\]", _OWN_HOME_OR_DRIVE.sub("", path)):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names


def _respelt(path: str) -> str:
    """The path without quotes, escapes and the like, which models take from texts; `""` if it has none."""
    plain = unquote(path.strip(" \t\r\n\"'`[]<>").removeprefix("file://"))
    plain = re.sub(r"\\(?=[ ()&'\[\]])", "", plain).replace("\\", "/")
    return "" if plain == path else plain


def _similar_path(tool: str, path: str, directory: str, found: Sequence[str]) -> str:
    """What to do about a missing path, by the paths in `directory`, the nearest one above it that exists.

    The paths of directories end in `/`. The text is empty if nothing there is like it.
    """
    here = {_name(each): each for each in found}
    name, _, rest = relative(path, directory).partition("/")
    if name in here:
        use = "read it with read_file" if tool in ("ls", "glob") else "use its own path"
        return f"{shown_path(join(directory, name))} is a file: {use}." if rest else ""
    close = closest(name, here)
    if close:
        return f"Did you mean {' or '.join(_shown(here[each], name, each) for each in close)}?"
    return ""


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _shown(path: str, wanted: str, name: str) -> str:
    """The path; as a JSON string of ASCII if its name looks like the one that was given."""
    return dumps(path) if not path.isascii() and _folded(wanted) == _folded(name) else shown_path(path)


def into_directory(source: str, destination: str) -> str:
    """What to do if `source` was to be moved onto the directory `destination`."""
    return f"To move it into the directory, give {shown_path(join(normalize(destination), _name(source)))}."


# --- searches that found nothing -------------------------------------------------------------------------------------

_REGEX: Final = re.compile(
    r"\.[*+]|\\[.wWdDsSbB()\[\]|*+?]|\w\|\w|\(\?|\[\^?\w-\w|\([^()]*\|[^()]*\)|^\^|[\w)\]]\$$|\]\+"
)
"""Matches at what is common in regular expressions and rare in plain text."""
_WILD: Final = re.compile(r"[*?\[{]")
_OPTIONS: Final = re.compile(r"(?:--?[A-Za-z][\w-]* )+\S")
"""Matches at a pattern that begins with options of the program grep."""
_QUOTES: Final = ("'", '"', "`")


def no_line(pattern: str, path: str, glob: str, *, is_whole: bool, regex: bool, ignore_case: bool) -> str:
    """The note for a search without a match: where it looked, and what else to try.

    Args:
        pattern: What was searched for.
        path: Where.
        glob: The pattern of files, if any.
        is_whole: Whether all files there were searched.
        regex: Whether the pattern is a regular expression.
        ignore_case: Whether case did not matter.
    """
    files = f" in files {one_line(glob, 60)}" if glob else ""
    kind = "matches the expression" if regex else "contains the text"
    searched = "No line" if is_whole else "No line of what was searched"
    tried = f"[{searched} under {path}{files} {kind} {one_line(pattern, 100)}"
    if not regex and _REGEX.search(pattern):
        return f"{tried}, taken literally. For a regular expression set regex=true]"
    if _OPTIONS.match(pattern):
        return f"{tried}. Give options as arguments of their own, not in the pattern]"
    if pattern[:1] in _QUOTES and pattern[:1] == pattern[-1:]:
        return f"{tried}. Leave out the quotes unless the text has them]"
    if literal := literal_brackets(glob):
        return f"{tried}. {literal}]"
    if not ignore_case and pattern.lower() != pattern.upper() and not pattern.startswith("(?i"):
        return f"{tried}. Case matters unless ignore_case is set]"
    return f"{tried}]"


def literal_brackets(pattern: str) -> str:
    """How to write a glob if its brackets belong to names, as in `[slug]`; `""` if it has none but escaped ones."""
    literal = re.sub(r"\\.|[\[\]]", lambda sign: sign[0] if len(sign[0]) > 1 else f"\\{sign[0]}", pattern)
    return "" if literal == pattern else f"If the brackets are part of a name, write {one_line(literal, 100)}"


def no_file(path: str, pattern: str) -> str:
    """The note for a glob that found nothing: where it looked, and what else to try."""
    name = pattern.rstrip("/").rpartition("/")[2]
    shown = one_line(name, 60)
    tried = f"[No file under {path} matches {one_line(pattern, 100)}"
    if pattern.endswith("/") or not _WILD.search(pattern):
        return f"{tried}. Only files are found: try **/{shown}/** for a directory, *{shown}* for a part of a name]"
    if literal := literal_brackets(pattern):
        return f"{tried}. {literal}]"
    several = re.split(r"[,|]", pattern)
    if "{" not in pattern and len(several) > 1:
        return f"{tried}. Write several patterns as {{{one_line(','.join(map(str.strip, several)), 100)}}}]"
    if "\\" in pattern:
        return f"{tried}. Use / between names; a backslash only goes before a special character]"
    if pattern.strip("/").removeprefix("**/") == name:
        hidden = f"names that start with a dot need a part of the pattern that does, as in .github/{shown}"
        return f"{tried}. Case matters, and {hidden}]"
    if name not in ("*", "**"):
        return f"{tried}. The pattern {shown} alone matches at any depth]"
    return f"{tried}]"
