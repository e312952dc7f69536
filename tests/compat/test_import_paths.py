"""The import paths in use: a name listed here stays importable from its path, wherever it is defined.

Paths may be added here, but never removed.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Final

import mcp.server.mcpserver  # noqa: F401 - It cannot be imported while the guard of blocking calls is on.
import pytest

from deepfs._moved import MOVED
from support.scripts import run_script

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
    "deepfs.compat.v1": "BackendProtocolV1 SandboxBackendProtocolV1 adapt_backend_protocol adapt_sandbox_protocol",
}

# Import paths in the README, the documentation and the examples.
DOCUMENTED: Final = {
    "deepfs.middleware.unanswered": "UnansweredCallsMiddleware",
    "deepfs.profiles": "apply_provider_profile",
    "deepfs": """DeepAgentState GeneralPurposeSubagentProfile HarnessProfile HarnessProfileConfig
        ProviderProfile register_harness_profile register_provider_profile BackendProtocol CompositeBackend
        DeleteResult EditResult ExecuteResponse FileDataV2 FileInfo FileUploadResponse FilesystemBackend
        FilesystemMiddleware FilesystemPermission FilesystemState FlatBackend FsspecBackend GlobResult
        GrepMatch GrepResult LsResult MemoryBackend PermissionedBackend ReadResult PostgresBackend S3Backend
        SqliteBackend StateBackend StoreBackend SubAgent SubAgentMiddleware WriteResult adapt_backend_protocol
        create_deep_agent filesystem_tools run_sync supports_execute""",
    "deepfs.backends": """BaseSandbox BubblewrapSandbox CompositeBackend DaytonaSandbox DenoSandbox
        FilesystemBackend FlatBackend FsspecBackend register_backend LandlockSandbox LocalShellBackend
        MemoryBackend ModalSandbox StateBackend StoreBackend""",
    "deepfs.backends.flat": "BlockingStorage Kind StorageBackend",
    "deepfs.backends.flat_storage": "Kind",
    "deepfs.backends.protocol": "BackendProtocol Capabilities",
    "deepfs.compat.deepagents": "from_deepagents to_deepagents",
    "deepfs.compat.utils": """FileInfo GrepMatch create_file_data update_file_data file_data_to_string
        slice_read_response perform_string_replacement grep_matches_from_files""",
    "deepfs.errors": """AccessError AlreadyExistsError DeepFSError ErrorCode FileMissingError
        InvalidContentError NotFoundError NotSupportedError PermissionDeniedError TooLargeError error_about""",
    "deepfs.compat.pydantic_ai": "WorkspaceFiles",
    "deepfs.middleware": """AsyncSubAgent Blobs PatchEditor SkillsMiddleware SubAgent SummarizationMiddleware
        SummarizationToolMiddleware UnsupportedContentMiddleware apply_patch_tool memory_tool""",
    "deepfs.middleware.background_tasks": "default_tasks",
    "deepfs.middleware.summarization": "SummarizationMiddleware SummarizationToolMiddleware",
    "deepfs.policy": """AuditRecord AuditedBackend Call ChangePolicy HistoryBackend
        HookedBackend PlannedChange QuotaBackend RateLimit ReadOnlyBackend TracedBackend WrapperBackend
        approved decide decide_beneath""",
    "deepfs.sandboxes.base": "BaseSandbox",
    "deepfs.search.globs": "compile_glob",
    "deepfs.search.query": "compile_query search",
    "deepfs.testing": """Answer BackendConformance BackendStateMachine Call FaultyBackend LatencyBackend
        ReadOnlyConformance ScriptedModel Turn""",
    "deepfs.text.edits": "replace",
    "deepfs.text.entries": "flat_place",
    "deepfs.text": "records",
    "deepfs.text.flat_tree": "Change ChangedError FileStat",
    "deepfs.text.paths": "normalize",
    "deepfs.text.records": "content_bytes new_file read_text",
    "deepfs.threads.locks": "path_locks",
    "deepfs.types": """EditResult FileData FileDataV2 GlobResult GrepMatch GrepResult LsResult ReadResult
        Result WriteResult""",
    "deepfs.mcp": "HttpSettings McpSettings StaticTokens create_server http_app",
    "deepfs.sandboxes": "BubblewrapSandbox LandlockSandbox Limits ModalSandbox",
}

# Import paths of modules that have moved; for `core`, the documented names.
FORMER: Final = {
    "deepfs.backends.adapted": """AdaptedBackend AdaptedSandbox Call adapt_backend_protocol
        adapt_sandbox_protocol awaitable caller_of own_operation""",
    "deepfs.backends.bubblewrap": "BubblewrapSandbox Limits bubblewrap_program",
    "deepfs.backends.context": "BackendContext",
    "deepfs.backends.daytona": "DaytonaSandbox",
    "deepfs.backends.deno": "DenoSandbox",
    "deepfs.backends.factories": "FactoryBackend backend_from",
    "deepfs.backends.modal": "ModalSandbox",
    "deepfs.backends.sandbox": "BaseSandbox",
    "deepfs.backends.utils": """FileInfo GrepMatch create_file_data update_file_data file_data_to_string
        slice_read_response perform_string_replacement grep_matches_from_files""",
    "deepfs.compat.v1": "BackendProtocolV1 SandboxBackendProtocolV1 adapt_backend_protocol adapt_sandbox_protocol",
    "deepfs.core": "filedata filemap identity locks paths patterns reading replace scan trees",
    "deepfs.core.filedata": "content_bytes new_file",
    "deepfs.core.filemap": "Change",
    "deepfs.core.identity": "flat_place",
    "deepfs.core.locks": "path_locks",
    "deepfs.core.paths": "normalize",
    "deepfs.core.patterns": "compile_glob",
    "deepfs.core.reading": "read_text",
    "deepfs.core.replace": "replace",
    "deepfs.core.scan": "compile_query search",
    "deepfs.core.trees": "EntryChange Omission TreeEntry TreeListing",
    "deepfs.middleware.patch_tool_calls": "PatchToolCallsMiddleware",
    "deepfs.middleware.permissions": "FilesystemPermission",
    "deepfs.policy.calls": "CHANGES Call call_of",
    "deepfs.policy.quota": "QuotaBackend",
    "deepfs.policy.wrapper": "WrapperBackend",
    "deepfs.profiles.harness": "HarnessProfile HarnessProfileConfig register_harness_profile",
    "deepfs.profiles.harness.harness_profiles": "GeneralPurposeSubagentProfile HarnessProfile register_harness_profile",
    "deepfs.profiles.provider": "ProviderProfile apply_provider_profile register_provider_profile",
    "deepfs.profiles.provider.provider_profiles": "ProviderProfile get_provider_profile register_provider_profile",
}

LISTED: Final = sorted(
    {(path, name) for table in (OF_DEEPAGENTS, DOCUMENTED, FORMER) for path in table for name in table[path].split()}
)
_imports: Final = re.compile(r"from (deepfs[\w.]*) import (\([^)]*\)|[\w, ]+)")


@pytest.mark.parametrize(("path", "name"), LISTED)
def test_a_listed_name_can_be_imported(path: str, name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {path} import {name}", namespace)
    assert namespace[name] is not None


def test_a_former_path_works_as_the_first_import() -> None:
    """Each path is the first import of deepfs: the whole package is unloaded afterwards."""
    printed = run_script(f"""
        import sys
        for path in {sorted(FORMER)}:
            __import__(path)
            for loaded in [name for name in sys.modules if name.partition(".")[0] == "deepfs"]:
                del sys.modules[loaded]
            sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__ == "deepfs._moved"]
    """)
    assert printed == ""


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, name in LISTED if MOVED.get(path)])
def test_a_former_path_has_the_objects_of_its_new_path(path: str, name: str) -> None:
    homes = [vars(import_module(home)) for home in MOVED[path]]
    assert any(getattr(import_module(path), name) is home[name] for home in homes if name in home)


def test_each_former_path_is_listed() -> None:
    assert sorted(MOVED) == sorted(FORMER)


@pytest.mark.parametrize("document", ["README.md", "docs/*.md", "examples/*.py"])
def test_documented_imports_are_listed(document: str) -> None:
    texts = [path.read_text() for path in ROOT.glob(document)]
    imported = {
        (path, name)
        for text in texts
        for path, names in _imports.findall(text)
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))
    }
    assert imported, "nothing is imported there"
    assert sorted(imported - set(LISTED)) == []


def test_every_path_of_the_state_has_the_same_class() -> None:
    import deepfs
    from deepfs.backends import state
    from deepfs.middleware import filesystem

    assert deepfs.FilesystemState is state.FilesystemState is filesystem.FilesystemState
