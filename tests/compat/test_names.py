"""The import paths that the documentation of deepagents uses resolve after replacing the name of the package."""

from importlib import import_module
from typing import Final

import pytest

NAMES: Final = {
    "deepfs": """adapt_backend_protocol adapt_sandbox_protocol FilesystemState create_deep_agent FilesystemMiddleware
        FilesystemPermission SubAgent CompiledSubAgent SubAgentMiddleware MemoryMiddleware""",
    "deepfs.middleware": """FilesystemMiddleware FilesystemPermission SubAgent CompiledSubAgent SubAgentMiddleware
        MemoryMiddleware""",
    "deepfs.middleware.memory": "MemoryMiddleware",
    "deepfs.middleware.filesystem": "FilesystemMiddleware FilesystemPermission FilesystemState",
    "deepfs.middleware.subagents": "CompiledSubAgent SubAgent SubAgentMiddleware",
    "deepfs.backends": """StateBackend StoreBackend FilesystemBackend LocalShellBackend CompositeBackend BackendContext
        NamespaceFactory BackendProtocol""",
    "deepfs.backends.protocol": """BackendProtocol BackendProtocolV1 BackendProtocolV2 SandboxBackendProtocol
        SandboxBackendProtocolV2 AnyBackendProtocol BackendFactory BACKEND_TYPES FileData FileInfo GrepMatch LsResult
        ReadResult ReadRawResult GrepResult GlobResult WriteResult EditResult DeleteResult ExecuteResponse
        FileUploadResponse FileDownloadResponse FileOperationError""",
    "deepfs.compat.utils": """FileInfo GrepMatch create_file_data update_file_data file_data_to_string
        slice_read_response perform_string_replacement grep_matches_from_files""",
    "deepfs.backends.state": "StateBackend FilesystemState",
    "deepfs.backends.store": "StoreBackend",
    "deepfs.backends.filesystem": "FilesystemBackend",
    "deepfs.backends.composite": "CompositeBackend",
    "deepfs.backends.local_shell": "LocalShellBackend",
    "deepfs.sandboxes.base": "BaseSandbox",
    "deepfs.compat.v1": "BackendProtocolV1 SandboxBackendProtocolV1 adapt_backend_protocol adapt_sandbox_protocol",
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in NAMES for name in NAMES[module].split()])
def test_a_name_resolves(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


def test_one_state_by_each_name() -> None:
    import deepfs
    from deepfs.backends import state
    from deepfs.middleware import filesystem

    assert deepfs.FilesystemState is state.FilesystemState is filesystem.FilesystemState
