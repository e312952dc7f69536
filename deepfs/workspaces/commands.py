"""Commands in a workspace: each runs in a sandbox on a copy of the files, and what it changed is brought back."""

import os
from collections.abc import Mapping
from hashlib import file_digest
from typing import Final, NamedTuple

import anyio

from deepfs.backends._trees import End
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol
from deepfs.backends.transfer import CopyFailure, TreeCopy, TreeTerms
from deepfs.errors import NotSupportedError
from deepfs.operations import Execute
from deepfs.storage.gathering import in_batches
from deepfs.text import paths
from deepfs.text.entries import files_of
from deepfs.text.lines import digest
from deepfs.text.visible import visible
from deepfs.threads import pool
from deepfs.types import ContentChange, ExecuteResponse

_TICK: Final = 0.02
"""Seconds in which a file system may give two changes of a file one time."""
_BATCH_BYTES: Final = 16 * 1024 * 1024
_SHOWN: Final = 10
"""How many paths that could not be brought back are named."""


class _FileState(NamedTuple):
    """What changes with each change of a file, whatever the command does to hide it."""

    inode: int
    size: int
    modified: int
    changed: int


class _CopiedFile(NamedTuple):
    """A file of the copy before the command runs."""

    state: _FileState
    version: str


async def copy_to_sandbox(workspace: BackendProtocol, sandbox: SandboxBackendProtocol) -> Mapping[str, _CopiedFile]:
    """Copy all files into an empty sandbox, and return what they are there."""
    if not isinstance(sandbox, FilesystemBackend):
        raise NotSupportedError(None, "commands of a workspace need a sandbox with a directory of this machine")
    copying = TreeCopy(End(workspace, "/"), End(sandbox, "/"), TreeTerms(merges=True), _fail)
    copying.entries = (await workspace.alist_tree("/")).entries
    copying.existing = {"/": copying.entries[0]}
    copying.files = [copying.plan_file(each) for each in files_of(copying.entries) if each.leads_to in (None, "file")]
    await copying.run()
    copied = await pool.run(_list_copied, sandbox._given_root)
    await anyio.sleep(_TICK)
    return copied


def _fail(failure: CopyFailure) -> None:
    if failure.step != "set_mode":
        raise failure.error


async def run_on_copy(
    sandbox: SandboxBackendProtocol, operation: Execute, before: Mapping[str, _CopiedFile]
) -> tuple[ExecuteResponse, list[ContentChange]]:
    """Run a command in a sandbox with the files `before`; return its answer, and what it changed.

    Each change has the version that was copied as its condition: what others changed meanwhile is not replaced.
    """
    answer: ExecuteResponse = await sandbox.arun(operation)
    after, lost = await pool.run(_list_states, sandbox._given_root)  # type: ignore[attr-defined]
    gone = [path for path in sorted(before.keys() - after.keys()) if {path, *paths.ancestors(path)}.isdisjoint(lost)]
    changes = [ContentChange(path, None, if_match=before[path].version) for path in gone]
    changed = [(path, state.size) for path, state in after.items() if path not in before or before[path].state != state]
    for batch in in_batches(changed, lambda each: each[1], most_bytes=_BATCH_BYTES):
        for download in await sandbox.adownload_files([path for path, _ in batch]):
            if download.content is None:
                lost.append(download.path)
                continue
            known = before[download.path].version if download.path in before else None
            changes.append(ContentChange(download.path, download.content, if_match=known))
    return note_lost(answer, lost, "only readable files with valid names are kept"), changes


def note_lost(answer: ExecuteResponse, lost: list[str], reason: str) -> ExecuteResponse:
    """The answer of a command, with a note of what could not be brought back."""
    if not lost:
        return answer
    shown = ", ".join(visible(path) for path in lost[:_SHOWN])
    more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
    output = f"{answer.output}\n[Not kept: {shown}{more}: {reason}]"
    return ExecuteResponse(output, 1 if answer.exit_code == 0 else answer.exit_code, answer.truncated)


def _list_copied(root: str) -> dict[str, _CopiedFile]:
    copied: dict[str, _CopiedFile] = {}
    for path, state in _list_states(root)[0].items():
        with open(root + path, "rb") as file:
            copied[path] = _CopiedFile(state, file_digest(file, digest).hexdigest())
    return copied


def _list_states(root: str) -> tuple[dict[str, _FileState], list[str]]:
    """The files under a directory by their paths, and what there cannot be kept: links, and names in no valid path.

    What the command made unreadable is made readable.
    """
    states: dict[str, _FileState] = {}
    lost: list[str] = []
    pending = [(os.fsencode(root), "")]
    while pending:
        directory, above = pending.pop()
        try:
            if not os.access(directory, os.R_OK | os.X_OK):
                os.chmod(directory, 0o700)
            with os.scandir(directory) as entries:
                for entry in entries:
                    path = f"{above}/{os.fsdecode(entry.name)}"
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if not (is_directory or entry.is_file(follow_symlinks=False)) or not paths.is_normal(path):
                        lost.append(path)
                    elif is_directory:
                        pending.append((entry.path, path))
                    else:
                        found = entry.stat(follow_symlinks=False)
                        states[path] = _FileState(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                        if not found.st_mode & 0o400:
                            os.chmod(entry.path, 0o600)
        except FileNotFoundError:
            continue  # It was deleted, perhaps by a process that the command left.
        except OSError:
            lost.append(above or "/")
    return states, lost
