"""Many tasks of several processes edit one file: every edit that succeeded is in the file, and no other."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.counts import few_or_many
from support.processes import Process, started
from support.promises import keeps

PROCESSES = 4

EDITOR = """
import json, sys
import anyio
from deepfs.backends.filesystem import FilesystemBackend

root, first, tasks, rounds, mode = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
done = []

async def edit(backend, task):
    for turn in range(rounds):
        name = (first + task) * rounds + turn
        old, new = {
            "disjoint": (f"<{name}>", f"({name})"),
            "one place": ("<end>", f"({name})\\n<end>"),
            "taken": (f"<{name % 50}>", f"({name})"),
        }[mode]
        result = await backend.aedit("/log.txt", old, new)
        if result.ok:
            done.append(name)
        elif result.code != "no_match":
            raise AssertionError(result.error)

async def main():
    # Two objects over the directory in each process.
    backends = [FilesystemBackend(root), FilesystemBackend(root + "/")]
    print("ready", flush=True)
    sys.stdin.readline()
    async with anyio.create_task_group() as group:
        for task in range(tasks):
            group.start_soon(edit, backends[task % 2], task)

anyio.run(main, backend=sys.argv[6])
print(json.dumps(done), flush=True)
"""


def storm(root: Path, tasks: int, rounds: int, mode: str) -> list[int]:
    """The numbers of the edits that succeeded, in four processes that start together."""
    with ExitStack() as stack:
        editors: list[Process] = []
        for number in range(PROCESSES):
            loop = "trio" if number == 3 else "asyncio"
            arguments: tuple[Any, ...] = (root, number * tasks, tasks, rounds, mode, loop)
            editors.append(stack.enter_context(started(EDITOR, *arguments)))
        for editor in editors:
            assert editor.stdout is not None
            assert editor.stdout.readline() == "ready\n"
        for editor in editors:
            assert editor.stdin is not None
            editor.stdin.write("go\n")
            editor.stdin.flush()
        outputs = [editor.communicate()[0] for editor in editors]
        assert [editor.returncode for editor in editors] == [0] * PROCESSES
    return sorted(number for output in outputs for number in json.loads(output))


def found_in(root: Path) -> list[int]:
    return sorted(int(line[1:-1]) for line in (root / "log.txt").read_text().split() if line.startswith("("))


@keeps("Edits hold across processes that use deepfs.")
@pytest.mark.parametrize("rounds", few_or_many(1, 20))
@pytest.mark.parametrize("mode", ["disjoint", "one place", "taken"])
def test_200_edits_by_4_processes_of_50_tasks(tmp_path: Path, mode: str, rounds: int) -> None:
    """Disjoint edits and insertions at one place all succeed; of the edits that replace the same text, one succeeds."""
    edits = PROCESSES * 50 * rounds
    lines = {"disjoint": range(edits), "one place": ["end"], "taken": range(50)}[mode]
    (tmp_path / "log.txt").write_text("".join(f"<{line}>\n" for line in lines))
    succeeded = storm(tmp_path, 50, rounds, mode)
    found = found_in(tmp_path)
    assert found == succeeded
    assert len(succeeded) == (50 if mode == "taken" else edits)
    assert os.listdir(tmp_path) == ["log.txt"]
