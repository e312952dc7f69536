"""Unified diffs, as `diff -u`, git and others write them: read, and applied to a text byte by byte.

A hunk is where its number says, moved by as many lines as the hunk before it was. If its lines are not there, they must
be in one other place: a place is never guessed. Unlike GNU patch, lines of context are never left out.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from io import StringIO
from itertools import chain
from typing import Final

from deepfs.text.edits import find_misreading
from deepfs.text.patches import FilePatch, LineIndex, NumberedHunk, Patched, PatchError, quote_line

_NO_FILE: Final = "/dev/null"
_RANGES: Final = re.compile(r"@@ -(\d{1,18})(?:,(\d{1,18}))? \+(\d{1,18})(?:,(\d{1,18}))? @@")
_SIGNATURE: Final = re.compile(r"-- ?\Z")
"""The line before the signature of a mail, which git writes beneath a patch."""
_KINDS: Final = {"100": "", "120": "a link", "160": "a submodule", "040": "a directory"}
"""What the modes of git that start so are."""

# --- reading ---


class _FilePart:
    """What a diff says of one file."""

    def __init__(self) -> None:
        self.names: tuple[str | None, str | None] = (None, None)
        """Its name on both sides in the diff; None where nothing is there."""
        self.stamps: tuple[str, str] = ("", "")
        self.notes: dict[str, str] = {}
        """The lines of git: `rename from`, `new file mode` and others."""
        self.is_git: bool = False
        self.hunks: list[NumberedHunk] = []

    @property
    def shown(self) -> str:
        return next((name for name in reversed(self.names) if name is not None), "a file")


def parse_unified(diff: str, strip: int | None = None) -> list[FilePatch]:
    """Return what a unified diff does with each file. Text around the parts is left out, as in a mail.

    Args:
        diff: The diff.
        strip: How many leading parts of each name to leave off, as the option `-p` of patch and git. None: as many as
            make the names on both sides the same, such as `a/` and `b/`, or `old/` and `new/`.

    Raises:
        PatchError: The diff is malformed, or says what cannot be done here: to change binary files, links, submodules.
    """
    parts = _parts(_lines(diff))
    if not parts:
        raise PatchError("The patch changes no file: there is no line '--- file' with a line '+++ file' beneath it.")
    count = _strip_of(parts) if strip is None else strip
    return [_file_patch(part, count) for part in parts]


def _lines(diff: str) -> list[str]:
    """The lines, without the CR that a mail adds to all of them."""
    lines = diff.removesuffix("\n").split("\n")
    heads = [line for line in lines if line.startswith(("--- ", "+++ ", "diff --git "))]
    if heads and all(line.endswith("\r") for line in heads):
        return [line.removesuffix("\r") for line in lines]
    return lines


def _parts(lines: Sequence[str]) -> list[_FilePart]:
    parts: list[_FilePart] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("diff --git "):
            parts.append(_FilePart())
            number = _read_notes(parts[-1], lines, number)
        elif _is_head(lines, number):
            parts.append(_FilePart())
            number = _read_names(parts[-1], lines, number)
        elif line.startswith("@@ -"):
            if not parts:
                raise PatchError(f"Line {number + 1} of the patch, {quote_line(line)}, belongs to no file.")
            number = _read_hunk(parts[-1], lines, number)
        elif line == "GIT binary patch" or (line.startswith("Binary files ") and line.endswith(" differ")):
            what = parts[-1].shown if line.startswith("GIT") and parts else line
            raise PatchError(f"The patch changes a binary file, which is not done here: {quote_line(what)}.")
        else:
            number += 1
    return parts


def _is_head(lines: Sequence[str], number: int) -> bool:
    """Whether the two lines that name a file begin here."""
    return lines[number].startswith("--- ") and number + 1 < len(lines) and lines[number + 1].startswith("+++ ")


def _read_names(part: _FilePart, lines: Sequence[str], number: int) -> int:
    (old, old_stamp), (new, new_stamp) = (_name(line[len("--- ") :]) for line in lines[number : number + 2])
    part.names, part.stamps = (old, new), (old_stamp, new_stamp)
    return number + 2


_NOTES: Final = (
    "old mode", "new mode", "deleted file mode", "new file mode", "copy from", "copy to", "rename from", "rename to",
    "similarity index", "dissimilarity index", "index",
)  # fmt: skip


def _read_notes(part: _FilePart, lines: Sequence[str], number: int) -> int:
    """Read the head that git writes. Returns the number of the line beneath it."""
    part.is_git = True
    part.notes["diff --git"] = lines[number][len("diff --git ") :]
    part.names = _both_names(part.notes["diff --git"])
    number += 1
    while number < len(lines):
        note = next((note for note in _NOTES if lines[number].startswith(f"{note} ")), None)
        if note is None:
            break
        part.notes[note] = lines[number][len(note) + 1 :]
        number += 1
    mode = part.notes["index"].rpartition(" ")[2] if " " in part.notes.get("index", "") else ""
    for each in (*(part.notes.get(note, "") for note in _NOTES[:4]), mode):
        kind = _KINDS.get(each[:3], f"of mode {each}") if each else ""
        if kind:
            raise PatchError(f"The patch changes what is {kind}, which is not done here: {part.shown}.")
    if _note_name(part.notes, "from") is not None and part.notes["diff --git"].count(" ") > 1:
        part.names = (None, None)  # The names differ, so it is not known which of the spaces is between them.
    if number < len(lines) and _is_head(lines, number):
        named = _FilePart()
        _read_names(named, lines, number)
        if all(name is None or known in (None, name) for name, known in zip(named.names, part.names, strict=True)):
            part.names, part.stamps = named.names, named.stamps
            number += 2
    return number


def _read_hunk(part: _FilePart, lines: Sequence[str], number: int) -> int:
    """Read the hunk that begins at a line. Returns the number of the line beneath it."""
    found, head = _RANGES.match(lines[number]), number + 1
    if found is None:
        raise PatchError(f"Line {head} of the patch is no head of a hunk: {quote_line(lines[number])}.")
    start, old_left, _, new_left = (int(given or "1") for given in found.groups())
    is_insertion = old_left == 0
    number += 1
    old, new, signs = list[str](), list[str](), list[str]()
    while old_left > 0 or new_left > 0:
        line = lines[number] if number < len(lines) else "?"
        sign = line[:1] or " "  # Some programs leave out the space of an empty line.
        if line.startswith("\\") and signs:
            _end_without_newline(old, new, signs[-1])
        elif sign in " -+" and (old_left > 0 or sign == "+") and (new_left > 0 or sign == "-"):
            signs.append(sign)
            if sign != "+":
                old_left -= 1
                old.append(line[1:] + "\n")
            if sign != "-":
                new_left -= 1
                new.append(line[1:] + "\n")
        else:
            raise PatchError(f"The hunk at line {head} of the patch has not the lines that its head announces.")
        number += 1
    if number < len(lines) and lines[number].startswith("\\"):
        _end_without_newline(old, new, signs[-1] if signs else " ")
        number += 1
    following = lines[number] if number < len(lines) else ""
    is_more = following.startswith(("-", "+", " ")) and not _SIGNATURE.match(following)
    if is_more and not _is_head(lines, number):
        raise PatchError(f"The hunk at line {head} of the patch has more lines than its head announces.")
    if not any(sign != " " for sign in signs):
        raise PatchError(f"The hunk at line {head} of the patch changes nothing.")
    changed = [place for place, sign in enumerate(signs) if sign != " "]
    leading, trailing = changed[0], len(signs) - 1 - changed[-1]
    above = start if is_insertion else start - 1
    part.hunks.append(NumberedHunk(above, tuple(old), tuple(new), leading, trailing))
    return number


def _end_without_newline(old: list[str], new: list[str], sign: str) -> None:
    for lines in ([old] if sign != "+" else []) + ([new] if sign != "-" else []):
        lines[-1] = lines[-1].removesuffix("\n")


# --- names ---


def _name(text: str) -> tuple[str | None, str]:
    """The name in a line of a head, None where nothing is there, and the time beside it."""
    quoted = _QUOTED.match(text)
    name, _, stamp = text.partition("\t")
    if quoted:
        name, stamp = _unquote(quoted[0]), text[quoted.end() :].strip()
    return None if name == _NO_FILE else name, stamp


_QUOTED: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPED: Final = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))


def _unquote(name: str) -> str:
    """A name as git quotes it: with the escapes of C, and bytes as octal numbers."""
    if not name.startswith('"'):
        return name

    def byte(found: re.Match[bytes]) -> bytes:
        given = found[1]
        return bytes([int(given, 8) if len(given) == 3 else _ESCAPED.get(given[0], given[0])])

    try:
        return _ESCAPE.sub(byte, name[1:-1].encode()).decode()
    except UnicodeDecodeError:
        raise PatchError(f"The patch changes a file whose name is no text (UTF-8): {quote_line(name)}.") from None


def _both_names(text: str) -> tuple[str | None, str | None]:
    """The two names behind `diff --git`; None if it is not plain where the first one ends."""
    quoted = _QUOTED.match(text)
    if quoted:
        return _unquote(quoted[0]), _unquote(text[quoted.end() + 1 :])
    if text.endswith('"') and ' "' in text:
        name, _, rest = text.partition(' "')
        return name, _unquote(f'"{rest}')
    middle = len(text) // 2
    if text.count(" ") != 1 and (text[middle : middle + 1] != " " or len(text) % 2 == 0):
        return None, None
    one, other = (text[:middle], text[middle + 1 :]) if text.count(" ") != 1 else text.split(" ")
    return one, other


_SLASHES: Final = re.compile("/+")


def _strip_of(parts: Sequence[_FilePart]) -> int:
    """How many leading parts of the names make those on both sides the same."""
    found = {_difference(part, *part.names) for part in parts} - {None}
    if len(found) > 1:
        raise PatchError("The names in the patch do not tell how many leading parts to leave off. Say it with -p.")
    if found:
        return found.pop() or 0
    sides = zip(*(part.names for part in parts), strict=True)
    is_usual = all(
        name is None or name.startswith(prefix)
        for names, prefix in zip(sides, ("a/", "b/"), strict=True)
        for name in names
    )
    return 1 if is_usual else 0


def _difference(part: _FilePart, old: str | None, new: str | None) -> int | None:
    """The leading parts by which the names of one file differ; None if they tell nothing."""
    if old is None or new is None:  # The line of git has both names.
        old, new = _both_names(part.notes.get("diff --git", ""))
    if old is None or new is None:
        return None
    source = _note_name(part.notes, "from")
    if source is not None and _has_no_prefixes(part):
        return 0
    if source is not None:
        return len(_SLASHES.split(old)) - len(_SLASHES.split(source)) if old.endswith(source) else None
    one, other = _SLASHES.split(old), _SLASHES.split(new)
    if len(one) != len(other):
        return None
    same = next((i for i, (a, b) in enumerate(zip(reversed(one), reversed(other), strict=True)) if a != b), len(one))
    return len(one) - same if same else 0 if one[:-1] == other[:-1] else None


def _strip(name: str | None, count: int) -> str | None:
    """A name without leading parts; None if it has not more."""
    if name is None:
        return None
    return "/".join(_SLASHES.split(name)[count:]) or None


def _file_patch(part: _FilePart, strip: int) -> FilePatch:
    notes, hunks = part.notes, tuple(part.hunks)
    old, new = (_strip(name, strip) for name in part.names)
    # Behind these words git leaves out the prefixes `a/` and `b/`, if there are any.
    less = strip if _has_no_prefixes(part) else max(strip - 1, 0)
    source, target = (_strip(_note_name(notes, side), less) for side in ("from", "to"))
    old, new = source or old, target or new
    path = old or new
    if path is None:
        raise PatchError(f"The patch does not tell the name of a file, or -p leaves nothing of it: {part.shown}.")
    mode = notes.get("new file mode", notes.get("new mode"))
    is_executable = None if mode is None else mode.endswith("755")
    if "copy from" in notes:
        return FilePatch("add", new or path, exact=hunks, copy_of=path, is_executable=is_executable)
    if "rename from" in notes:
        return FilePatch("update", path, move_to=new, exact=hunks, is_executable=is_executable)
    if _is_absent(part, 0):
        text = apply_numbered(part.shown, "", hunks).text
        return FilePatch("add", new or path, text, exact=(), is_executable=is_executable or None)
    other = new if new not in (None, path) else None
    if _is_absent(part, 1):
        return FilePatch("delete", path, exact=hunks, other_path=other)
    if not hunks and is_executable is None:
        raise PatchError(f"The patch has no hunk for {part.shown}.")
    return FilePatch("update", path, exact=hunks, other_path=other, is_executable=is_executable)


def _note_name(notes: Mapping[str, str], side: str) -> str | None:
    """The name behind `rename from` or `copy from`, or the one behind `to`."""
    name = notes.get(f"rename {side}", notes.get(f"copy {side}"))
    return None if name is None else _unquote(name)


def _has_no_prefixes(part: _FilePart) -> bool:
    """Whether the names of a moved or copied file are the same in all lines."""
    return any(
        part.notes["diff --git"] == f"{part.notes[f'{what} from']} {part.notes[f'{what} to']}"
        for what in ("rename", "copy")
        if f"{what} from" in part.notes and f"{what} to" in part.notes
    )


def _is_absent(part: _FilePart, side: int) -> bool:
    """Whether there is no file before, or after, the patch."""
    if part.is_git and ("new file mode", "deleted file mode")[side] in part.notes:
        return True
    lines = [line for hunk in part.hunks for line in (hunk.old, hunk.new)[side]]
    is_named = part.names[side] is not None and not _is_epoch(part.stamps[side])
    return not lines and not is_named and any(part.names) and bool(part.hunks)


def _is_epoch(stamp: str) -> bool:
    """Whether a time is the one that `diff -N` writes for what is not there."""
    with suppress(ValueError):
        date, time, zone = stamp.split(" ")
        return datetime.fromisoformat(f"{date} {time[:8]}{zone[:3]}:{zone[3:]}").timestamp() == 0
    return False


# --- applying ---


def apply_numbered(path: str, text: str, hunks: Sequence[NumberedHunk]) -> Patched:
    """Apply the hunks of a unified diff to a text.

    Raises PatchError if the lines of a hunk are not in the text, or not where it says but in several other places.
    """
    lines = StringIO(text, newline="\n").readlines()
    index: LineIndex | None = None
    result: list[str] = []
    done = drift = 0
    for number, hunk in enumerate(hunks, 1):
        place = hunk.start + drift
        is_there = done <= place <= len(lines) and tuple(lines[place : place + len(hunk.old)]) == hunk.old
        # Less context above than beneath, or the other way round, means the start or the end of the file.
        is_there = is_there and (hunk.leading >= hunk.trailing or place == 0)
        is_there = is_there and (hunk.trailing >= hunk.leading or place + len(hunk.old) == len(lines))
        if not is_there or (not hunk.old and place == 0 and lines):
            index = index or LineIndex(path, lines, chain.from_iterable(each.old for each in hunks))
            place = _find_moved(path, number, hunk, index, lines, done)
        drift = place - hunk.start
        result += lines[done:place]
        result += hunk.new
        done = place + len(hunk.old)
    result += lines[done:]
    if any(not line.endswith("\n") for line in result[:-1]):
        raise PatchError(f"{path} goes on where the patch has its end.")
    return Patched("".join(result), 0)


def _find_moved(path: str, number: int, hunk: NumberedHunk, index: LineIndex, lines: Sequence[str], done: int) -> int:
    """The place of a hunk whose lines are not where it says."""
    where = f"Hunk {number} of {path}, at line {hunk.start + 1},"
    if not hunk.old and hunk.start == 0:
        raise PatchError(f"{where} is for an empty file, or needs lines of context.")
    places = index.places(hunk.old, done, 2) if hunk.old else []
    if hunk.leading < hunk.trailing:  # It was at the start of the file.
        places = [place for place in places[:1] if place == 0]
    elif hunk.trailing < hunk.leading:
        places = [len(lines) - len(hunk.old)] if hunk.old and index.ends_with(hunk.old, done) else []
    if len(places) > 1:
        raise PatchError(f"{where} does not fit there, and its lines are in several other places.")
    if not places:
        raise PatchError(f"{where} does not fit: the file has other lines{_hint(hunk, lines)}")
    return places[0]


def _hint(hunk: NumberedHunk, lines: Sequence[str]) -> str:
    """What may be the reason that lines are not found."""
    found = {line.rstrip("\r\n") for line in lines}
    absent = next((line for line in hunk.old if line.rstrip("\r\n") not in found), None)
    if absent is not None:
        text = absent.rstrip()
        spelt = find_misreading("".join(lines), text).text
        return f", and not {quote_line(text)}.{f' {spelt}' if spelt else ''}"
    whole = set(lines)
    return ", or other line ends." if any(line not in whole for line in hunk.old) else "."
