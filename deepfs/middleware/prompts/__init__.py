"""The texts that models read, each in a Markdown file of its own."""

from pathlib import Path
from types import MappingProxyType
from typing import Final

__all__ = ["PROMPTS"]

# Read on import: constructors may run on an event loop, which reading files would block.
PROMPTS: Final = MappingProxyType(
    {file.stem: file.read_text("utf-8").strip() for file in sorted(Path(__file__).parent.glob("*.md"))}
)
"""The texts by file name, without `.md`."""
