"""One filesystem for agents over many storages, natively async.

Names are loaded when they are first used: importing deepfs loads no LangGraph, LangChain or driver.
"""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports
from deepfs._moved import install

if TYPE_CHECKING:
    from deepfs.backends.composite import CompositeBackend
    from deepfs.backends.filesystem import FilesystemBackend
    from deepfs.backends.flat import FlatBackend
    from deepfs.backends.fsspec import FsspecBackend
    from deepfs.backends.memory import MemoryBackend
    from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
    from deepfs.backends.postgres import PostgresBackend
    from deepfs.backends.protocol import BackendProtocol, Capabilities, SandboxBackendProtocol, supports_execute
    from deepfs.backends.sqlite import SqliteBackend
    from deepfs.backends.state import FilesystemState, StateBackend
    from deepfs.backends.store import StoreBackend
    from deepfs.compat.adapters import adapt_backend_protocol, adapt_sandbox_protocol
    from deepfs.graph import create_deep_agent
    from deepfs.middleware.async_subagents import AsyncSubAgentMiddleware
    from deepfs.middleware.filesystem import FilesystemMiddleware, FsToolName
    from deepfs.middleware.memory import MemoryMiddleware
    from deepfs.middleware.rubric import RubricMiddleware
    from deepfs.middleware.state import DeepAgentState
    from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
    from deepfs.middleware.task_records import AsyncSubAgent
    from deepfs.middleware.tools import filesystem_tools
    from deepfs.policy.permissions import PermissionedBackend
    from deepfs.policy.rules import FilesystemPermission
    from deepfs.profiles import (
        GeneralPurposeSubagentProfile,
        HarnessProfile,
        HarnessProfileConfig,
        ProviderProfile,
        register_harness_profile,
        register_provider_profile,
    )
    from deepfs.sync import run_sync, sync_shims
    from deepfs.types import (
        DeleteResult,
        EditResult,
        ErrorCode,
        ExecuteResponse,
        FileData,
        FileDataV1,
        FileDataV2,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GrepMatch,
        GrepResult,
        LsResult,
        ReadRawResult,
        ReadResult,
        WriteResult,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncSubAgent",
    "AsyncSubAgentMiddleware",
    "BackendProtocol",
    "Capabilities",
    "CompiledSubAgent",
    "CompositeBackend",
    "DeepAgentState",
    "DeleteResult",
    "EditResult",
    "ErrorCode",
    "ExecuteResponse",
    "FileData",
    "FileDataV1",
    "FileDataV2",
    "FileDownloadResponse",
    "FileInfo",
    "FileUploadResponse",
    "FilesystemBackend",
    "FilesystemMiddleware",
    "FilesystemPermission",
    "FilesystemState",
    "FlatBackend",
    "FsToolName",
    "FsspecBackend",
    "GeneralPurposeSubagentProfile",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "HarnessProfile",
    "HarnessProfileConfig",
    "LsResult",
    "MemoryBackend",
    "MemoryMiddleware",
    "ObjectStoreBackend",
    "PermissionedBackend",
    "PostgresBackend",
    "ProviderProfile",
    "ReadRawResult",
    "ReadResult",
    "RubricMiddleware",
    "S3Backend",
    "SandboxBackendProtocol",
    "SqliteBackend",
    "StateBackend",
    "StoreBackend",
    "SubAgent",
    "SubAgentMiddleware",
    "WriteResult",
    "__version__",
    "adapt_backend_protocol",
    "adapt_sandbox_protocol",
    "create_deep_agent",
    "filesystem_tools",
    "register_harness_profile",
    "register_provider_profile",
    "run_sync",
    "supports_execute",
    "sync_shims",
]

install()

if not TYPE_CHECKING:  # Type checkers see the imports above, and report other names.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "backends.composite": ["CompositeBackend"],
            "backends.filesystem": ["FilesystemBackend"],
            "backends.flat": ["FlatBackend"],
            "backends.fsspec": ["FsspecBackend"],
            "backends.memory": ["MemoryBackend"],
            "backends.object_store": ["ObjectStoreBackend", "S3Backend"],
            "backends.protocol": ["BackendProtocol", "Capabilities", "SandboxBackendProtocol", "supports_execute"],
            "backends.sqlite": ["SqliteBackend"],
            "backends.state": ["FilesystemState", "StateBackend"],
            "backends.postgres": ["PostgresBackend"],
            "backends.store": ["StoreBackend"],
            "compat.adapters": ["adapt_backend_protocol", "adapt_sandbox_protocol"],
            "graph": ["create_deep_agent"],
            "middleware.async_subagents": ["AsyncSubAgentMiddleware"],
            "middleware.filesystem": ["FilesystemMiddleware", "FsToolName"],
            "middleware.memory": ["MemoryMiddleware"],
            "middleware.state": ["DeepAgentState"],
            "middleware.task_records": ["AsyncSubAgent"],
            "middleware.rubric": ["RubricMiddleware"],
            "middleware.subagents": ["CompiledSubAgent", "SubAgent", "SubAgentMiddleware"],
            "middleware.tools": ["filesystem_tools"],
            "policy.permissions": ["PermissionedBackend"],
            "policy.rules": ["FilesystemPermission"],
            "profiles": [
                "GeneralPurposeSubagentProfile",
                "HarnessProfile",
                "HarnessProfileConfig",
                "ProviderProfile",
                "register_harness_profile",
                "register_provider_profile",
            ],
            "sync": ["run_sync", "sync_shims"],
            "types": [
                "DeleteResult",
                "EditResult",
                "ErrorCode",
                "ExecuteResponse",
                "FileData",
                "FileDataV1",
                "FileDataV2",
                "FileDownloadResponse",
                "FileInfo",
                "FileUploadResponse",
                "GlobResult",
                "GrepMatch",
                "GrepResult",
                "LsResult",
                "ReadRawResult",
                "ReadResult",
                "WriteResult",
            ],
        },
    )
