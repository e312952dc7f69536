r"""Names, content and output of others, in a form in which they cannot pass for the text around them in a prompt.

A name with characters that do not print is shown as a string of JSON, as models write it in the arguments of tools. In
content, control characters and those that break lines or turn the direction of writing are shown as escapes: `\r`,
`\x1b`, `\u202e`. Other invisible characters of content stay, since scripts and emoji need them.
"""

import re
from json import dumps
from secrets import token_hex
from typing import Final

from deepfs.errors import clip

ESCAPES_NOTE: Final = r"Control characters are shown as escapes such as \r"
EMPTY_CONTENT_WARNING: Final = "[The file is empty]"

# Compiled when first used, which takes a millisecond: most programs show no text of others.
_UNSEEN: Final = "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_INVISIBLE: Final = (
    "[\xad\u061c\u180e\u200b\u200e\u200f\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that show nothing and that no writing or emoji needs, but for rare ones."""
_STYLES: Final = "(?:\x1b\\[|\x9b)[0-9;:]*[mK]"
"""Colours and erased line ends, the escape sequences that most programs print."""
_BREAK: Final = "[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
_BLANKS: Final = (
    "[ \t\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f"
    "\u2000-\u200f\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*+"
)
"""A possessive pattern, so that a search stays linear, for characters of a line that show nothing."""
_NOTE_LIKE: Final = (
    rf"(?mi)^{_BLANKS}(?!\[stderr\] )(?:[\[\u3010\u3014\u27e6\uff3b]|<{_BLANKS}(?:/{_BLANKS})?(?:output|text)\b)"
)
"""Matches at a line that could be taken for a note of deepfs, or for a delimiter of `fenced`."""


def display_path(path: str) -> str:
    """A path for a line of a prompt: as it is, or as a JSON string if it could be mistaken for something else."""
    return path if path.isprintable() and path.startswith("/") else dumps(path)


def display_name(name: str) -> str:
    """A name for a line of its own: as it is, or as a JSON string if it could be mistaken for something else."""
    is_plain = name.isprintable() and name[:1] not in ("", " ", '"') and ": " not in f"{name} "
    return name if is_plain and not re.match(_NOTE_LIKE, name) else dumps(name)


def escape_controls(text: str) -> str:
    """Content with control characters and line breaks other than LF as escapes; a tab stays."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNSEEN, _escape, text)


def visible(text: str) -> str:
    """`escape_controls`, and invisible characters as escapes too: content that a person is to judge by its looks."""
    return text if text.isascii() and text.isprintable() else re.sub(_INVISIBLE, _escape, escape_controls(text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def one_line(text: str, most: int = 300) -> str:
    """A text from elsewhere for a note: on one line, without control characters, and cut after `most` characters."""
    return escape_controls(clip(text, most)).replace("\n", "\\n")


def time_up(seconds: float) -> str:
    """Why a command was stopped whose time was up."""
    return f"its time of {seconds:g} s was up"


def stop_note(reason: str) -> str:
    """The last line of the output of a command that was stopped."""
    return f"[The command was stopped: {reason}]\n"


def output_text(output: str) -> str:
    """The output of a command, without colours, and with other control characters as escapes."""
    return escape_controls(re.sub(_STYLES, "", output).replace("\r\n", "\n"))


def fence(kind: str, *texts: str) -> list[str]:
    """The texts, each between `<kind nonce>` and `</kind nonce>` if one has a line that could pass for a note."""
    if not any(re.search(_NOTE_LIKE, re.sub(_BREAK, "\n", text)) for text in texts):
        return [*texts]
    nonce = token_hex(4)
    return ["\n".join([f"<{kind} {nonce}>", text.removesuffix("\n"), f"</{kind} {nonce}>"]) for text in texts]


def without_tags(text: str, tag: str) -> str:
    """Content for an element `<tag>`: `<` before the name of the tag is `&lt;`, so that it cannot end the element."""
    blanks = f"(?:{_BLANKS}\n*+)*+"
    name = blanks.join(map(re.escape, tag))
    return re.sub(rf"<(?={blanks}(?:/{blanks})?{name})", "&lt;", escape_controls(text), flags=re.IGNORECASE)
