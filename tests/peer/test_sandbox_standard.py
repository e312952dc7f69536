"""LangChain's suite for sandboxes of deepagents; commands and file tools use the same paths."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from deepfs.compat.deepagents import to_deepagents
from deepfs.process import Command, capture
from deepfs.types import ExecuteResponse
from support.sandboxes import LocalSandbox

T = TypeVar("T")

pytestmark = pytest.mark.anyio

_NOBODY = 65534
_OUTPUT_BYTES = 2_000_000
_DEVIATIONS = {
    "test_write_existing_file_fails": "deepagents 0.7 replaces what is there, and so does to_deepagents",
    **dict.fromkeys(
        [
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_question_mark",
        ],
        "the protocol of deepagents 0.7 has absolute paths in glob: its permissions look at no others",
    ),
    **dict.fromkeys(
        [
            "test_aread_large_text_payload_paginated_roundtrip",
            "test_awrite_aread_adownload_large_text_with_escaped_content",
            "test_write_read_download_large_text_with_escaped_content",
        ],
        "a window keeps the end of its last line, as the files in state of deepagents have it",
    ),
    "test_glob_with_directories": "glob finds files only, on every backend",
    "test_ls_lists_nested_directories": "directories end in `/`, on every backend",
    **dict.fromkeys(
        ["test_download_error_invalid_path_relative", "test_upload_relative_path_returns_invalid_path"],
        "a missing leading `/` is added, on every backend",
    ),
}
"""Tests of the suite that contradict the contract of deepfs, with the reason."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The suite needs asyncio."""
    return "asyncio"


@pytest.fixture(scope="class")
def directory() -> Iterator[Path]:
    """An empty directory that any user can access; the directories of pytest are closed to other users."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o777)
        yield Path(directory)


@pytest.fixture(scope="class")
def tools(directory: Path) -> Path:
    """A directory with a `python` command, which the suite needs."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "python").symlink_to(_python())
    return tools


def _python() -> str:
    return os.path.realpath(shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable)


class _Suite(SandboxIntegrationTests):
    root: str = ""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox_backend(cls, sandbox: SandboxBackendProtocol) -> SandboxBackendProtocol:
        return sandbox

    @property
    def sandbox_root_dir(self) -> str:
        return f"{self.root}/files"

    def test_unreadable_files_are_not_downloaded(
        self, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str
    ) -> None:
        """The suite's own test never makes such a file, because its directory is missing."""
        path = self.sandbox_path("unreadable/secret.txt", root_dir=sandbox_test_root)
        made = sandbox_backend.execute(f"mkdir -p {os.path.dirname(path)} && echo secret > {path} && chmod 644 {path}")
        assert made.exit_code == 0
        assert sandbox_backend.download_files([path])[0].content == b"secret\n"
        assert sandbox_backend.execute(f"chmod 000 {path}").exit_code == 0
        [denied] = sandbox_backend.download_files([path])
        assert (denied.content, denied.error) == (None, "permission_denied")

    @pytest.fixture(autouse=True)
    def _expected(self, request: pytest.FixtureRequest) -> None:
        if reason := _DEVIATIONS.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


class _Unprivileged(LocalSandbox):
    """Runs commands as nobody, with `python` on the PATH; file operations use the same paths as commands."""

    answer_bytes: int = 1_000_000

    def __init__(self, tools: Path) -> None:
        super().__init__(Path("/"), max_output_bytes=_OUTPUT_BYTES)
        self.tools = tools

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        env = {"PATH": f"{self.tools}:{os.defpath}"}
        return await capture(Command([*become, "/bin/sh", "-c", command], "/", env, timeout or 60), _OUTPUT_BYTES)


class TestOverCommands(_Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, directory: Path, tools: Path) -> SandboxBackendProtocol:
        cls.root = str(directory)
        return to_deepagents(_Unprivileged(tools))
