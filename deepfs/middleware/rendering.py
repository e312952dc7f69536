"""Results and errors of the file tools in the form that models read, and what a model is told to do next."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, islice
from json import dumps
from math import inf
from typing import Any, Final, NamedTuple

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode, InvalidContentError, NoMatchError, NotFoundError
from deepfs.operations import Grep
from deepfs.search.globs import literal_brackets
from deepfs.text.paths import ancestors, join, normalize, relative
from deepfs.text.visible import (
    ESCAPES_NOTE,
    display_name,
    display_path,
    escape_controls,
    fence,
    one_line,
    output_text,
    stop_note,
    time_up,
)
from deepfs.types import ExecuteResponse, FileInfo, GrepMatch, GrepResult, ReadResult, Result

MAX_RESULT_CHARS: Final = 60_000
"""About 15,000 tokens."""
MIN_CHARS: Final = 400
"""The smallest budget of a result: room for the notes and some content."""

_NOTE = 200
"""The characters reserved for notes."""


class ToolAnswer(NamedTuple):
    """The answer of a file tool: what a model reads, and the result behind it, for programs."""

    content: str | list[dict[str, Any]]
    result: Result | ExecuteResponse | None = None
    shown: int | None = None
    """How many entries, paths or lines of the result the content shows, from the offset of the call on."""
    cut: int | None = None
    """How many characters of the first line the content shows, if not all of it; otherwise None."""


# --- lists -----------------------------------------------------------------------------------------------------------


def render_rows(rows: Sequence[str], budget: int, *notes: str, advice: str = "narrow the search") -> str:
    """The rows that fit into `budget` characters, the number of rows left out, and the notes that are not empty."""
    notes = tuple(one_line(note, budget // 4) for note in notes)
    shown = list(_take_fitting(rows, _room(budget, notes)))
    left_out = len(rows) - len(shown)
    more = f"{left_out:,} more lines are not shown: {advice}" if left_out else ""
    return "\n".join([*shown, *(f"[{note}]" for note in (more, *notes) if note)])


class _Page(NamedTuple):
    text: str
    shown: int
    """The number of rows in it."""


def page_rows(rows: Sequence[str], offset: int, limit: int, budget: int, *notes: str) -> _Page:
    """The rows from `offset` on, as far as `limit` and `budget` characters allow, and a note that says how to go on."""
    notes = tuple(one_line(note, budget // 4) for note in notes)
    room = _room(budget, notes)
    page = rows[offset : offset + limit]
    shown = list(_take_fitting(page, room)) or [f"{row[: room - 2]}…" for row in page[:1]]
    last, total = offset + len(shown), f"{len(rows):,}"
    where = ""
    if offset and offset >= len(rows):
        where = f"There are only {total}. Begin with offset=0"
    elif last < len(rows):
        where = f"{offset + 1:,} to {last:,} of {total}. Go on with offset={last}"
    return _Page("\n".join([*shown, *(f"[{note}]" for note in (where, *notes) if note)]), len(shown))


def _room(budget: int, notes: Sequence[str]) -> int:
    return budget - _NOTE - sum(len(note) + 3 for note in notes)


def _take_fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            return
        yield row


def page_entries(found: Sequence[FileInfo], offset: int, limit: int, budget: int, *notes: str) -> _Page:
    """The page of a listing, as of `page_rows`: the path of the directory, and under it names, with the sizes of files.

    Entries of the root, and of a directory whose path takes too much room, are shown by their paths.
    """
    directory = found[0].path.rstrip("/").rpartition("/")[0] if found else ""
    head = f"{display_path(directory)}:\n" if directory else ""
    if len(head) > budget // 4:
        head = ""
    show, prefix = (display_name, f"{directory}/") if head else (display_path, "")
    named = ((show(info.path.removeprefix(prefix)), info) for info in found)
    rows = [name if info.size is None or info.is_dir else f"{name}\t{info.size}" for name, info in named]
    page = page_rows(rows, offset, limit, budget - len(head), *notes)
    return page._replace(text=f"{head}{page.text}") if page.shown else page


# --- matches ---------------------------------------------------------------------------------------------------------


WHOLE_LINE: Final = 1_000
"""The longest line of a search that is shown whole, in characters."""
WINDOW: Final = 600
"""The characters that are shown of a longer line."""
_BEFORE: Final = 200
"""How many of them are before the match."""


class TextPlace(NamedTuple):
    """A line with a match, as far as it is known, and where the match starts in it; None if that is not known."""

    text: str
    start: int | None = 0


def matches(
    result: GrepResult, output_mode: str, place: Callable[[GrepMatch], TextPlace] = lambda match: TextPlace(match.text)
) -> list[str]:
    """The rows of a search result, in the form that `output_mode` names."""
    by_path: defaultdict[str, list[GrepMatch]] = defaultdict(list)
    for match in result.matches or ():
        by_path[display_path(match.path)].append(match)
    if output_mode == "count":
        return [f"{path}: {len(found)}" for path, found in by_path.items()]
    if output_mode == "content":
        return [row for path, found in by_path.items() for row in (f"{path}:", *_lines(found, place))]
    return list(by_path)


def _lines(found: Sequence[GrepMatch], place: Callable[[GrepMatch], TextPlace]) -> list[str]:
    """The matching lines (`12: text`) and the context lines around them (`13- text`), each line once."""
    rows: dict[int, str] = {}
    for match in found:
        for beside in (*(match.context_before or ()), *(match.context_after or ())):
            rows.setdefault(beside.line, f"  {beside.line}- {_window(beside.line, TextPlace(beside.text))}")
    rows.update({match.line: f"  {match.line}: {_window(match.line, place(match))}" for match in found})
    return [rows[line] for line in sorted(rows)]


def _window(line: int, place: TextPlace) -> str:
    """A line, or of a long one the part around the match, with the arguments with which read_file shows more."""
    text, start = place
    if len(text) <= WHOLE_LINE:
        return escape_controls(text)
    first = max(0, (start or 0) - _BEFORE)
    last = first + WINDOW
    shown = f"{'…' if first else ''}{escape_controls(text[first:last])}{'…' if last < len(text) else ''}"
    behind = "; the match may be further on" if start is None else f"; the match is at column={start}"
    return f"{shown} [cut; offset={line - 1}, column={first}{behind}]"


# --- text ------------------------------------------------------------------------------------------------------------


_ESCAPE_CHARS = 6
"""The length of the longest escape of a character."""


class _Shown(NamedTuple):
    rows: list[str]
    cut: int | None
    """The number of characters shown of the first line, if not all of it fits; otherwise None."""


def number_lines(path: str, read: ReadResult, offset: int, column: int, budget: int) -> ToolAnswer:
    """Number the lines that were read from `offset` on, and note in brackets how to read on if there is more.

    Raises InvalidContentError if the first line is shorter than `column`.
    """
    content = read.file_data.content if read.file_data else ""
    first = read.start_line
    if not content or first is None:
        # Backends of deepfs refuse an offset beyond the end; others may answer with nothing.
        is_end = offset > 0 and read.total_lines != 0
        return ToolAnswer(
            f"[{display_path(path)} {f'has no lines from offset={offset} on' if is_end else 'is empty'}]", read, 0
        )
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    if column > len(lines[0]):
        length = f"{len(lines[0]):,} characters"
        raise InvalidContentError(path, f"column {column:,} exceeds line {first}, which has {length}")
    shown = _rows(lines, first, column, budget - _NOTE)
    visible = lines[: len(shown.rows)] if shown.cut is None else [lines[0][column : column + shown.cut]]
    notes = [f"[{ESCAPES_NOTE}]"] if any(escape_controls(line) != line for line in visible) else []
    text = "\n".join([*shown.rows, *notes, *_advise_next_read(read, lines, shown, first, column)])
    return ToolAnswer(text, read, len(shown.rows), shown.cut)


def _rows(lines: Sequence[str], first: int, column: int, room: int) -> _Shown:
    texts = (text[:room] for text in chain([lines[0][column:]], islice(lines, 1, None)))  # More never fits.
    rows = list(_take_fitting((f"{number}\t{escape_controls(text)}" for number, text in enumerate(texts, first)), room))
    if rows:
        return _Shown(rows, None)
    prefix = f"{first}\t"
    cut = room - len(prefix)
    start = lines[0][column : column + cut]
    if len(escape_controls(start)) > cut:
        cut //= _ESCAPE_CHARS
    return _Shown([prefix + escape_controls(start[:cut])], cut)


def _advise_next_read(read: ReadResult, lines: Sequence[str], shown: _Shown, first: int, column: int) -> list[str]:
    if shown.cut is not None:
        end = column + shown.cut
        return [
            f"[Characters {column:,} to {end:,} of {len(lines[0]):,} in line {first}. "
            f"Read on with offset={first - 1}, column={end}]"
        ]
    last = first + len(shown.rows) - 1
    if len(shown.rows) == len(lines) and read.next_offset is None:
        return []
    total = "" if read.total_lines is None else f" of {read.total_lines:,}"
    return [f"[Lines {first:,} to {last:,}{total}. Read on with offset={last}]"]


# --- commands --------------------------------------------------------------------------------------------------------


def command_output(response: ExecuteResponse, longest: float = inf) -> str:
    """The output of a command, with notes in brackets: no output, cut output, and its exit code or that it was stopped.

    Output that has lines like notes stands between delimiters that it cannot know.
    """
    code, output, seconds = response.exit_code, response.output, response.timed_out
    if seconds is not None:
        output = output.removesuffix(stop_note(time_up(seconds))).removesuffix("\n")
    output = output_text(output)
    outcome = f"Exit code {code}" if code is not None else _stopping_note(seconds, longest)
    notes = [
        "" if output.strip() else "Only white space" if output else "No output",
        "Output was cut off: write it to a file, and read that" if response.truncated else "",
        outcome,
    ]
    shown = fence("output", output.removesuffix("\n")) if output else []
    return "\n".join([*shown, *(f"[{note}]" for note in notes if note)])


def _stopping_note(seconds: float | None, longest: float) -> str:
    """The note for a command that was stopped, after `seconds` if its time was up."""
    if seconds is None:
        return "No exit code: it is not known whether the command ended. If it was stopped, do less at once"
    if seconds >= longest:
        return f"Stopped after {seconds:g} s, the maximum. Do less at once"
    most = "" if longest == inf else f" (at most {longest:g})"
    return f"Stopped after {seconds:g} s. Set a larger timeout{most}, or do less at once"


_RESULT: Final = re.compile(
    r"(?:<output ([0-9a-f]{8})>\n(?P<fenced>.*)\n</output \1>|(?P<plain>.*?))(?P<notes>(?:\n\[(?!stderr\] )[^\n]*\])+)",
    re.DOTALL,
)
"""Matches a result of `execute`: output without delimiters has no lines like notes."""


def output_and_notes(shown: str) -> tuple[str, list[str]]:
    """The output in a result of `execute`, without its delimiters, and the notes."""
    found = _RESULT.fullmatch(shown)
    if found is None:
        return shown, []
    return found["plain"] if found["fenced"] is None else found["fenced"], found["notes"].strip("\n").split("\n")


ERROR_CHARS: Final = 4_000
"""The most characters of an error that are shown; those of other libraries may be of any length."""


class Advice(NamedTuple):
    """What to do next, and the tools that it names: it is for models that have these."""

    text: str
    tools: tuple[str, ...] = ()


_FIND: Final = Advice("Find the right path with ls or glob.", ("ls", "glob"))
_NARROW: Final = Advice("Narrow the path or the pattern.")
_RETRY: Final = Advice("Try once more; if it fails again, say so.")
_WITH_COMMANDS: Final = Advice("Change it with execute.", ("execute",))
_NEXT: Final[Mapping[tuple[str, ErrorCode], Advice]] = {
    ("ls", ErrorCode.NOT_A_DIRECTORY): Advice("Use read_file for a file.", ("read_file",)),
    ("read_file", ErrorCode.IS_DIRECTORY): Advice("List it with ls, or name a file.", ("ls",)),
    ("read_file", ErrorCode.INVALID_CONTENT): Advice("Give a smaller offset; one below 0 counts from the end."),
    ("write_file", ErrorCode.ALREADY_EXISTS): Advice("To change a part of it, use edit_file.", ("edit_file",)),
    ("write_file", ErrorCode.IS_DIRECTORY): Advice("Add the name of a file to the path."),
    ("edit_file", ErrorCode.TOO_LARGE): _WITH_COMMANDS,
    ("edit_file", ErrorCode.BINARY_FILE): _WITH_COMMANDS,
    ("glob", ErrorCode.INVALID_PATTERN): Advice("Correct the pattern, or set path."),
    ("glob", ErrorCode.NOT_A_DIRECTORY): Advice("Give a directory as path."),
    ("glob", ErrorCode.TIMEOUT): _NARROW,
    ("grep", ErrorCode.TIMEOUT): _NARROW,
    ("delete", ErrorCode.FILE_NOT_FOUND): Advice(
        "It may be deleted already; if not, find the right path with ls or glob.", ("ls", "glob")
    ),
    ("move", ErrorCode.NOT_A_DIRECTORY): Advice("Choose another destination."),
    ("execute", ErrorCode.INVALID_CONTENT): Advice("Correct the command."),
    ("apply_patch", ErrorCode.ALREADY_EXISTS): Advice("Choose another path, or update that file."),
}
"""What to do about a failure of a tool."""
_NEXT_OF_ANY: Final[Mapping[ErrorCode, tuple[Advice, ...]]] = {
    ErrorCode.FILE_NOT_FOUND: (_FIND, Advice("Check the path.")),
    ErrorCode.IS_DIRECTORY: (Advice("Name a file."),),
    ErrorCode.NOT_A_DIRECTORY: (Advice("Choose a path that is not below a file."),),
    ErrorCode.PERMISSION_DENIED: (Advice("Do not try again; choose a path that you may use."),),
    ErrorCode.INVALID_PATH: (Advice("Give another absolute path."),),
    ErrorCode.ALREADY_EXISTS: (Advice("To replace it, set overwrite."),),
    ErrorCode.NO_MATCH: (Advice("Read the file again and copy the text exactly, without line numbers."),),
    ErrorCode.BINARY_FILE: (Advice("Leave it as it is, and say so."),),
    ErrorCode.INVALID_PATTERN: (Advice("Correct the pattern."),),
    ErrorCode.TOO_LARGE: (Advice("Leave it as it is, and say so."),),
    ErrorCode.INVALID_CONTENT: (Advice("Give other text."),),
    ErrorCode.CONFLICT: (Advice("Read the file again, and decide by what it holds now."),),
    ErrorCode.QUOTA_EXCEEDED: (Advice("Write less, or delete files that nobody needs."),),
    ErrorCode.UNSUPPORTED: (Advice("Reach your aim with other tools."),),
    ErrorCode.TIMEOUT: (_RETRY,),
    ErrorCode.BACKEND_ERROR: (_RETRY,),
}
"""What to do about a failure where the tool has no advice, or that names tools which the model lacks."""
_KINDS: Final = {"ls": "Directory", "glob": "Directory", "grep": "Path", "delete": "Path", "move": "Path"}
"""What a tool needs to exist; a file, if it is not named here."""
_MAX_LEVELS: Final = 8
"""The most directories above a missing path that are tried for a suggestion."""


class Advisor:
    """Completes errors by what to do next, by the tool that failed, the tools that are offered, and the files."""

    def __init__(self, backend: BackendProtocol, offered: Collection[str]) -> None:
        self._backend = backend
        self.offered: frozenset[str] = frozenset(offered)

    async def advise(self, tool: str, error: DeepFSError, *paths: str, better: Advice | None = None) -> str:
        """The text of an error, and what to do next."""
        steps = [better]
        if isinstance(error, NotFoundError):
            error = error.with_paths(str)
            error.kind = _KINDS.get(tool, error.kind)
            steps += [await self._find_similar(tool, paths[0])] if paths and better is None else []
        elif isinstance(error, NoMatchError) and error.hint and not error.is_foreign:
            hint = "Leave them out." if error.is_decorated else "Copy the text exactly, or read the file again."
            steps = [Advice(hint)]
        steps += [_NEXT.get((tool, error.code))]
        if not error.advises:
            steps += _NEXT_OF_ANY.get(error.code, ())
        advice = next((step.text for step in steps if step and self.offered.issuperset(step.tools)), "")
        return f"{sentence(render_error(error))} {advice}" if advice else render_error(error)

    async def _find_similar(self, tool: str, path: str) -> Advice | None:
        """What a listing of the nearest directory above a missing path advises; None if that is not known."""
        with suppress(DeepFSError):
            wanted = normalize(path)
            for directory in islice(reversed(["/", *ancestors(wanted)]), _MAX_LEVELS):
                listed = await self._backend.als(directory)
                if listed.entries is not None:
                    here = {_name(info.path): info.path for info in listed.entries}
                    return _advise_missing(tool, path, directory, relative(wanted, directory).split("/"), here)
                if listed.code not in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
                    break
        return None


def _advise_missing(tool: str, path: str, directory: str, names: list[str], here: Mapping[str, str]) -> Advice | None:
    """What to do about a missing path, by the paths that are in the nearest directory that exists, by their names.

    Args:
        tool: The tool that failed.
        path: The path.
        directory: The nearest directory above it.
        names: The names in the path below this directory.
        here: The paths in this directory, by their names.
    """
    name = names[0]
    close = [] if name in here else closest(name, here)
    deleted = "It may be deleted already. " if tool == "delete" else ""
    if close:
        return Advice(f"{deleted}Did you mean {' or '.join(_show(here[each], name, each) for each in close)}?")
    if "*" in path:
        return Advice("Wildcards are not expanded in a path: find the paths with glob.", ("glob",))
    if len(names) == 1:
        return None
    if name in here:
        reads = tool in ("ls", "glob")
        use, tools = ("read it with read_file", ("read_file",)) if reads else ("use its own path", ())
        return Advice(f"{deleted}{display_path(here[name])} is a file: {use}.", tools)
    if directory != "/":
        return Advice(f"{deleted}The nearest directory that exists is {display_path(directory)}.")
    return Advice(f"{deleted}Paths start at the root of this filesystem: list it with ls.", ("ls",))


def sentence(text: str) -> str:
    """`text` with a full stop, unless it ends as a sentence."""
    return text if text.endswith((".", "?")) else f"{text}."


def plain_error(error: DeepFSError | str) -> str:
    """The text of an error for the middle of a sentence, without the mark that it begins with."""
    return str(error).removeprefix("Error: ")


def render_error(error: DeepFSError) -> str:
    """The text of an error as a model reads it."""
    text = escape_controls(str(error)[:ERROR_CHARS])
    return text if text.startswith("Error") else f"Error: {text}"


# --- names -----------------------------------------------------------------------------------------------------------

_MOST_NAMES: Final = 4_000
_MOST_COMPARED: Final = 50
_LONGEST_NAME: Final = 100


def closest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are most like `name`, the best first; names that look the same come before all others."""
    wanted = _fold(name)
    by_form: dict[str, str] = {}
    for each in islice(names, _MOST_NAMES):
        by_form.setdefault(_fold(each), each)
    if wanted in by_form:
        return [by_form[wanted]]
    likely = sorted(by_form, key=lambda form: -_count_shared(wanted, form))[:_MOST_COMPARED]
    # Many names share their extensions.
    stems = {form: form.rpartition(".")[0] or form for form in [wanted, *likely]}
    near = get_close_matches(stems.pop(wanted), [*dict.fromkeys(stems.values())], most, 0.6)
    return [by_form[form] for stem in near for form in likely if stems[form] == stem][:most]


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name[:_LONGEST_NAME]).casefold()


def _count_shared(first: str, second: str) -> int:
    """How many characters both have in common at the start and at the end, and of those that they consist of."""
    return _prefix(first, second) + _prefix(first[::-1], second[::-1]) + len(set(first) & set(second))


def _prefix(first: str, second: str) -> int:
    return next((place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _show(path: str, wanted: str, name: str) -> str:
    """The path; as a JSON string of ASCII if its name looks like the one that was given."""
    return dumps(path) if not path.isascii() and _fold(wanted) == _fold(name) else display_path(path)


def into_directory(source: str, destination: str) -> Advice:
    """What to do if `source` was to be moved onto the directory `destination`."""
    return Advice(f"To move it into the directory, give {display_path(join(normalize(destination), _name(source)))}.")


# --- searches that found nothing -------------------------------------------------------------------------------------

_REGEX: Final = re.compile(
    r"\.[*+]|\\[.wWdDsSbB()\[\]|*+?]|\w\|\w|\(\?|\[\^?\w-\w|\([^()]*\|[^()]*\)|^\^|[\w)\]]\$$|\]\+"
)
"""Matches at what is common in regular expressions and rare in plain text."""
_WILD: Final = re.compile(r"[*?\[{]")
_OPTIONS: Final = re.compile(r"(?:--?[A-Za-z][\w-]* )+\S")
"""Matches at a pattern that begins with options of the program grep."""
_QUOTES: Final = ("'", '"', "`")


def no_line(request: Grep, path: str, *, is_whole: bool) -> str:
    """The note for a search without a match: where it looked, and what else to try."""
    pattern, glob = request.pattern, request.glob
    files = f" in files {one_line(glob, 60)}" if glob else ""
    kind = "matches the expression" if request.regex else "contains the text"
    searched = "No line" if is_whole else "No line of what was searched"
    tried = f"[{searched} under {path}{files} {kind} {one_line(pattern, 100)}"
    if not request.regex and _REGEX.search(pattern):
        return f"{tried}, taken literally. For a regular expression set regex=true]"
    if _OPTIONS.match(pattern):
        return f"{tried}. Give options as arguments of their own, not in the pattern]"
    if pattern[:1] in _QUOTES and pattern[:1] == pattern[-1:]:
        return f"{tried}. Leave out the quotes unless the text has them]"
    if hint := literal_brackets(glob or ""):
        return f"{tried}. {hint}]"
    if not request.ignore_case and pattern.lower() != pattern.upper() and not pattern.startswith("(?i"):
        return f"{tried}. Case matters unless ignore_case is set]"
    return f"{tried}]"


def no_file(path: str, pattern: str) -> str:
    """The note for a glob that found nothing: where it looked, and what else to try."""
    name = pattern.rstrip("/").rpartition("/")[2]
    shown = one_line(name, 60)
    tried = f"[No file under {path} matches {one_line(pattern, 100)}"
    if pattern.endswith("/") or not _WILD.search(pattern):
        return f"{tried}. Only files are found: try **/{shown}/** for a directory, *{shown}* for a part of a name]"
    if hint := literal_brackets(pattern):
        return f"{tried}. {hint}]"
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
