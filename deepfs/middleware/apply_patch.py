"""The tool `apply_patch`: patches of several files in the V4A format, which OpenAI's models were trained on."""

from functools import partial
from typing import Any

from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from deepfs.backends.protocol import BACKEND_TYPES, as_backend
from deepfs.middleware.arguments import ToolArguments
from deepfs.middleware.patching import apply_patches
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.tools import tool_of
from deepfs.sync import in_thread_if_large
from deepfs.text.patches import FilePatch, PatchError, parse_added_text, parse_hunks, parse_patch

__all__ = ["PatchEditor", "apply_patch_tool"]


class ApplyPatchArguments(ToolArguments):
    tool = "apply_patch"
    input: str = Field(description="The patch, from `*** Begin Patch` to `*** End Patch`.")


def apply_patch_tool(backend: BACKEND_TYPES) -> BaseTool:
    """Make the tool `apply_patch`, which changes files of `backend` by a patch in the V4A format.

    The whole patch is checked before the first file changes. Each file changes only if it is as it was read; if one
    cannot be changed, those before it are restored, unless they were changed again meanwhile. Rules of a
    PermissionedBackend hold for each file. The tool works async and sync.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.

    Returns:
        The tool.

    Raises:
        TypeError: If `backend` is not a backend.
    """
    files = as_backend(backend)

    async def apply_patch(input: str) -> str:
        try:
            return await apply_patches(files, await in_thread_if_large(len(input), partial(parse_patch, input)))
        except PatchError as error:
            raise ToolException(f"Error: {error}") from None

    return tool_of(files, apply_patch, "apply_patch", PROMPTS["apply_patch"], ApplyPatchArguments)


class PatchEditor:
    """An `ApplyPatchEditor` of the OpenAI Agents SDK, for its `ApplyPatchTool`, over any backend.

    A file changes only if it is as it was read. What cannot be done raises ValueError with a text for the model.

    Args:
        backend: Where the files are; a PermissionedBackend holds the model to rules.

    Raises:
        TypeError: If `backend` is not a backend.
    """

    def __init__(self, backend: BACKEND_TYPES) -> None:
        self._backend = as_backend(backend)

    async def create_file(self, operation: Any) -> str:
        """Create a file.

        Args:
            operation: The `ApplyPatchOperation`: `path`, and `diff` with a `+` before each line.

        Returns:
            What was done.

        Raises:
            ValueError: The file is there already, the diff is malformed, or the backend refuses.
        """
        content = parse_added_text(operation.diff or "", operation.path)
        return await apply_patches(self._backend, [FilePatch("add", operation.path, content)])

    async def update_file(self, operation: Any) -> str:
        """Change a file.

        Args:
            operation: The `ApplyPatchOperation`: `path`, `diff` with hunks in the V4A format, and a new path in
                `move_to`, or None.

        Returns:
            What was done.

        Raises:
            ValueError: The diff is malformed or does not fit the file, or the backend refuses.
        """
        move_to = getattr(operation, "move_to", None)
        hunks = parse_hunks(operation.diff or "", operation.path) if operation.diff or not move_to else ()
        return await apply_patches(self._backend, [FilePatch("update", operation.path, "", hunks, move_to)])

    async def delete_file(self, operation: Any) -> str:
        """Delete a file.

        Args:
            operation: The `ApplyPatchOperation` with the `path`.

        Returns:
            What was done.

        Raises:
            ValueError: No file is there, or the backend refuses.
        """
        return await apply_patches(self._backend, [FilePatch("delete", operation.path)])
