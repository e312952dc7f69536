"""Converts the answers of deepfs and deepagents to one form."""

from typing import Any, Final

from deepagents.backends.utils import EMPTY_CONTENT_WARNING

__all__ = ["CLIPPED", "grep_rows", "listed_paths", "our_text", "their_text"]

CLIPPED: Final = 5_000
"""deepfs shows this many characters of a matching line; all answers are compared up to this length."""


def our_text(result: Any) -> str:
    """The text that a read of deepfs shows."""
    assert result.ok, result.error
    return str(result.file_data.content)


def their_text(result: Any) -> str:
    """The text that a read of deepagents shows; for an empty file, deepagents returns a reminder to the model."""
    assert result.error is None, result.error
    content = str(result.file_data["content"])
    return "" if content == EMPTY_CONTENT_WARNING else content


def listed_paths(result: Any) -> list[str]:
    """The paths of an `ls` or a `glob` of either package."""
    found = result.entries if hasattr(result, "entries") else result.matches
    return [info["path"] for info in found or ()]


def grep_rows(result: Any) -> list[tuple[str, int, str]]:
    """The matching lines of a `grep` of either package."""
    return [(match["path"], match["line"], match["text"][:CLIPPED]) for match in result.matches or ()]
