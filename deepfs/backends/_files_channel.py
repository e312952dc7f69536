"""The channels of graph state that hold files; imported when first used, because it imports LangGraph."""

from typing import Annotated, Any, TypeAlias

from langgraph.channels.delta import DeltaChannel

# As in the states of LangGraph and LangChain: a TypedDict of `typing` cannot be mixed with one of these.
from typing_extensions import TypedDict

from deepfs.core.fold import fold, fold_conflicts

__all__ = ["FileConflicts", "Files", "FilesystemState"]

Files: TypeAlias = Annotated[dict[str, Any], DeltaChannel(fold, dict, snapshot_frequency=50)]
"""Files by path. A checkpoint holds what changed; every 50th change, all of them."""

FileConflicts: TypeAlias = Annotated[list[dict[str, Any]], DeltaChannel(fold_conflicts, list, snapshot_frequency=50)]
"""Changes that took no effect because a parallel task made another one. Write None to forget them."""


class FilesystemState(TypedDict, total=False):
    """The state that StateBackend needs, to inherit from; a dataclass or pydantic state declares `Files` fields."""

    files: Files
    file_conflicts: FileConflicts
