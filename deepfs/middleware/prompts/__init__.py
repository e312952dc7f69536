"""The texts that models read, each in a Markdown file of its own."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from deepfs.text.arguments import check_string

__all__ = ["PROMPTS", "check_template"]

# Read on import: constructors may run on an event loop, which reading files would block.
PROMPTS: Final = MappingProxyType(
    {file.stem: file.read_text("utf-8").strip() for file in sorted(Path(__file__).parent.glob("*.md"))}
)
"""The texts by file name, without `.md`."""


def check_template(given: str | None, places: Sequence[str]) -> str | None:
    """Return the argument `system_prompt`: a template with these places, or None."""
    if given is None:
        return None
    missing = [f"{{{place}}}" for place in places if f"{{{place}}}" not in check_string("system_prompt", given)]
    if missing:
        raise ValueError(f"system_prompt lacks {', '.join(missing)}")
    try:
        given.format(**dict.fromkeys(places, ""))
    except (LookupError, ValueError) as error:
        raise ValueError(f"system_prompt has braces that are none of its places: {error}. Write {{{{ for {{") from None
    return given
