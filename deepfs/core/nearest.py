r"""What comes nearest to a text that is not in a file, told in a sentence to the one who looked for it.

The cost is bounded for files and texts of any size: all of a file is only searched for literal text; compared line by
line are at most `_REGION` characters of it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from heapq import nlargest

from deepfs.errors import quoted

__all__ = ["hint"]

_REGION = 1_000_000
_LINES = 50_000
_ANCHORS = 5
_BEFORE = 20_000
_LINE = 400
_WANTED_LINES = 50
_SHOWN = 120
_STARTS = 200
_COMPARED = 12
_SIMILAR = 0.6


def hint(content: str, old: str) -> str:
    """Where `old` nearly stands in `content`, and how it differs; empty where there is nothing to tell."""
    names_line_ends = "\r\n" in old
    content, old = content.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    if names_line_ends and (place := content.find(old)) >= 0:
        return rf"It stands on {_line_at(content, place)}, but the line ends (\r\n or \n) differ."
    if len(old) > 1 and old.endswith("\n") and content.endswith(old[:-1]):
        return f"It ends with a line break, but {_line_at(content, len(content))} is the last and has none."
    if not old.strip():
        return ""
    region = _Region(content, _wanted_lines(old))
    return _misread(content, old) or region.same_but_for() or _inner(content, old) or region.most_similar()


# --- the whole text is there, but for something that does not belong to it ---


def _misread(content: str, old: str) -> str:
    for text, extra in _plainer(old):
        if text.strip() and (place := content.find(text)) >= 0:
            return f"Without its {extra}, it stands on {_line_at(content, place)}."
    return ""


def _plainer(old: str) -> Iterator[tuple[str, str]]:
    """`old` without what a tool may have added to the text of a file."""
    yield re.sub(r"(?m)^ *\d+(?:\t|→)", "", old), "line numbers"
    yield re.sub(r"\\([nt\"'\\])", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), old), "backslashes"


def _inner(content: str, old: str) -> str:
    place = content.find(old.strip())
    return f"Without the white space around it, it stands on {_line_at(content, place)}." if place >= 0 else ""


def _line_at(content: str, place: int) -> str:
    """The number and the text of the line around `place`."""
    number = content.count("\n", 0, place) + 1
    start = content.rfind("\n", 0, place) + 1
    if place - start > _SHOWN:
        start = place
    line, _, _ = content[start : start + _LINE].partition("\n")
    return f"line {number} {_shown(line)}"


def _shown(line: str) -> str:
    return quoted((line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…").replace("\t", "\\t"))


# --- line by line ---


def _wanted_lines(old: str) -> list[str]:
    """The first lines of `old`, from the first that is not blank."""
    text = re.sub(r"^\s*\n", "", old).rstrip("\n")
    return [line[:_LINE] for line in text[: _WANTED_LINES * _LINE].split("\n", _WANTED_LINES)[:_WANTED_LINES]]


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _key(line: str) -> str:
    return _squeezed(line).casefold()


_DIFFERENCES: tuple[tuple[Callable[[str], str], str], ...] = (
    (str.rstrip, "white space at the end"),
    (str.strip, "indentation"),
    (_squeezed, "white space"),
    (str.casefold, "upper and lower case"),
    (_key, "white space and in upper and lower case"),
)


class _Region:
    """Lines of a file to compare with those `wanted`; the first and the last of these may be parts of a line."""

    def __init__(self, content: str, wanted: Sequence[str]) -> None:
        start = _region_start(content, wanted)
        self._first = content.count("\n", 0, start) + 1
        self._lines = [line[:_LINE] for line in content[start : start + _REGION].split("\n", _LINES)[:_LINES]]
        self._keys = [_key(line) for line in self._lines]
        self._wanted = wanted
        self._wanted_keys = [_key(line) for line in wanted]

    def same_but_for(self) -> str:
        """Where the wanted lines stand but for white space or case, or begin to stand."""
        starts = [i for i, key in enumerate(self._keys) if self._fits(key, self._wanted_keys[0], 0)]
        if not starts:
            return ""
        start = max(starts[:_STARTS], key=self._run)
        run = self._run(start)
        for i in range(run):
            if not self._fits(self._lines[start + i], self._wanted[i], i):
                return self._difference(start + i, i)
        return "" if run == len(self._wanted) else self._break(start + run, run)

    def most_similar(self) -> str:
        """The line that is most like the first wanted one, where one is like it at all."""
        wanted = self._wanted_keys[0][:_SHOWN]
        words = set(re.findall(r"\w+", wanted))
        candidates = nlargest(
            _COMPARED, range(len(self._keys)), key=lambda i: len(words.intersection(re.findall(r"\w+", self._keys[i])))
        )
        ratios = {i: SequenceMatcher(None, self._keys[i][:_SHOWN], wanted, autojunk=False).ratio() for i in candidates}
        nearest = max(candidates, key=ratios.__getitem__)
        return f"The nearest is {self._pair(nearest, 0)}." if ratios[nearest] >= _SIMILAR else ""

    def _fits(self, line: str, wanted: str, i: int) -> bool:
        """Whether `line` has what the wanted line `i` asks, as far as this line goes."""
        if len(self._wanted) == 1:
            return wanted in line
        if i == 0:
            return line.endswith(wanted)
        return line.startswith(wanted) if i == len(self._wanted) - 1 else line == wanted

    def _run(self, start: int) -> int:
        """How many wanted lines stand from line `start` on, but for white space and case."""
        run = 0
        for key in self._keys[start : start + len(self._wanted)]:
            if not self._fits(key, self._wanted_keys[run], run):
                break
            run += 1
        return run

    def _pair(self, line: int, i: int) -> str:
        there, wanted = _shown(self._lines[line]), _shown(self._wanted[i])
        return f"line {self._first + line}, which is {there} where the text to replace has {wanted}"

    def _difference(self, line: int, i: int) -> str:
        there, wanted = self._lines[line], self._wanted[i]
        name = next(name for relaxed, name in _DIFFERENCES if self._fits(relaxed(there), relaxed(wanted), i))
        return f"It differs in {name} from {self._pair(line, i)}."

    def _break(self, line: int, i: int) -> str:
        begin = f"It matches from line {self._first + line - i} on, but "
        return begin + (f"not {self._pair(line, i)}." if line < len(self._lines) else "the file ends before it does.")


def _region_start(content: str, wanted: Sequence[str]) -> int:
    """Where to compare lines: from the start of a small file, in a large one from somewhat before a wanted line."""
    if len(content) <= _REGION:
        return 0
    telling = sorted((line.strip() for line in wanted), key=len, reverse=True)[:_ANCHORS]
    place = next((place for line in telling if (place := content.find(line)) >= 0), 0)
    start = max(0, place - _BEFORE)
    return (content.find("\n", start, place) + 1 or start) if start else 0
