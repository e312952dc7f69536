"""What SECURITY.md promises also of backends that come from deepagents, or go there."""

from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend as PeerFilesystem
from deepagents.backends import LocalShellBackend as PeerShell
from deepagents.backends.protocol import ReadResult as PeerRead

from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.compat.deepagents import from_deepagents, to_deepagents
from support.fuzzing import fuzz, seed_of
from support.promises import keeps


@keeps("What does raise is the calling program's")
def test_no_call_of_a_backend_of_deepagents_raises(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    theirs = PeerFilesystem(tmp_path / "root", virtual_mode=True)
    for adapted in (from_deepagents(theirs), from_deepagents(to_deepagents(MemoryBackend()))):
        fuzz(adapted, seed_of(pytestconfig), 500)


class _Verbose(PeerFilesystem):
    def read(self, *args: Any, **options: Any) -> PeerRead:
        return PeerRead(error="broken " * 10_000)


@keeps("Errors of other libraries are cut after 10,000 characters.")
def test_a_long_error_of_another_library_is_cut(tmp_path: Path) -> None:
    result = from_deepagents(_Verbose(tmp_path, virtual_mode=True)).read("/file")
    assert 10_000 <= len(str(result.error)) < 10_100


def test_a_shell_keeps_the_timeout_of_its_operator_on_the_way_from_and_to_deepagents(tmp_path: Path) -> None:
    adapted: Any = from_deepagents(PeerShell(tmp_path, virtual_mode=True, timeout=1))
    assert "timed out after 1 seconds" in adapted.execute("sleep 20", timeout=3600).output
    handed: Any = to_deepagents(LocalShellBackend(tmp_path, timeout=0.5))
    assert "its time of 0.5 s was up" in handed.execute("sleep 20", timeout=3600).output
