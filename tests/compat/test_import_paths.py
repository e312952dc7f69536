"""The paths by which names are imported: those of deepagents, and those that the documentation and the examples use."""

import re
from importlib import import_module
from pathlib import Path
from typing import Final

import mcp.server.mcpserver  # noqa: F401 - It cannot be imported while the guard of blocking calls is on.
import pytest

ROOT: Final = Path(__file__).parents[2]

# Documented import paths of deepagents, with the package name replaced.
OF_DEEPAGENTS: Final = {
    "deepfs": """adapt_backend_protocol adapt_sandbox_protocol FilesystemState create_deep_agent
        FilesystemMiddleware FilesystemPermission SubAgent CompiledSubAgent SubAgentMiddleware
        MemoryMiddleware""",
    "deepfs.middleware": """FilesystemMiddleware FilesystemPermission SubAgent CompiledSubAgent
        SubAgentMiddleware MemoryMiddleware""",
    "deepfs.middleware.memory": "MemoryMiddleware",
    "deepfs.middleware.filesystem": "FilesystemMiddleware FilesystemPermission FilesystemState",
    "deepfs.middleware.subagents": "CompiledSubAgent SubAgent SubAgentMiddleware",
    "deepfs.backends": """StateBackend StoreBackend FilesystemBackend LocalShellBackend CompositeBackend
        BackendContext NamespaceFactory BackendProtocol""",
    "deepfs.backends.protocol": """BackendProtocol BackendProtocolV1 BackendProtocolV2 SandboxBackendProtocol
        SandboxBackendProtocolV2 AnyBackendProtocol BackendFactory BACKEND_TYPES FileData FileInfo GrepMatch
        LsResult ReadResult ReadRawResult GrepResult GlobResult WriteResult EditResult DeleteResult
        ExecuteResponse FileUploadResponse FileDownloadResponse FileOperationError""",
    "deepfs.backends.utils": """FileInfo GrepMatch create_file_data update_file_data file_data_to_string
        slice_read_response perform_string_replacement grep_matches_from_files""",
    "deepfs.backends.state": "StateBackend FilesystemState",
    "deepfs.backends.store": "StoreBackend",
    "deepfs.backends.filesystem": "FilesystemBackend",
    "deepfs.backends.composite": "CompositeBackend",
    "deepfs.backends.local_shell": "LocalShellBackend",
    "deepfs.backends.sandbox": "BaseSandbox",
}

_imports: Final = re.compile(r"from (deepfs[\w.]*) import (\([^)]*\)|[\w, ]+)")


def test_documented_names_of_deepagents_are_there() -> None:
    named = [(path, name) for path, names in OF_DEEPAGENTS.items() for name in names.split()]
    assert [(path, name) for path, name in named if not hasattr(import_module(path), name)] == []


@pytest.mark.parametrize("document", ["README.md", "docs/*.md", "examples/*.py"])
def test_documented_names_are_there(document: str) -> None:
    imported = {
        (path, name)
        for text in map(Path.read_text, ROOT.glob(document))
        for path, names in _imports.findall(text)
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))
    }
    assert imported, "nothing is imported there"
    assert [(path, name) for path, name in imported if not hasattr(import_module(path), name)] == []


def test_every_path_of_the_state_has_the_same_class() -> None:
    import deepfs
    from deepfs.backends import state
    from deepfs.middleware import filesystem

    assert deepfs.FilesystemState is state.FilesystemState is filesystem.FilesystemState
