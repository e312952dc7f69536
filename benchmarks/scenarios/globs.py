"""Finding every Python file of Django."""

import subprocess
from pathlib import Path
from typing import Final

import anyio
from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.peers import listed_paths
from benchmarks.ripgrep import ripgrep, with_ripgrep
from deepfs.backends import FilesystemBackend

TITLE: Final = "glob **/*.py over Django"


async def measure(bench: Bench) -> None:
    """Race deepfs, deepagents, ripgrep's file list, and pathlib, blocking and through anyio."""
    race = await bench.race("glob **/*.py", contenders(inputs.django()), noun="files", rounds=21, seconds=15)
    bench.at_least("glob **/*.py: at least 9× deepagents", 9, race.ratios("deepagents", "deepfs"))
    bench.at_most("glob **/*.py: at most 1.5× rg --files", 1.5, race.ratios("deepfs", "rg --files"))
    bench.note("deepfs and deepagents return sizes and times besides the paths, which rg and pathlib do not.")
    bench.note("deepagents stops a glob after 5 s.")


def contenders(root: Path) -> list[Contender]:
    """Both packages, ripgrep's file list, and pathlib, blocking and through anyio."""
    ours, theirs = FilesystemBackend(root), PeerBackend(str(root))
    command = [ripgrep(), "--files", "--no-config", "--no-ignore", "--glob", "**/*.py", "--glob", "!.*"]

    def by_ripgrep() -> list[str]:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()

    def by_pathlib() -> list[str]:
        return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.py"))]

    async def by_anyio() -> list[str]:
        return sorted([path.relative_to(root).as_posix() async for path in anyio.Path(root).rglob("*.py")])

    return [
        Contender(
            name="deepfs",
            call='await fs.aglob("**/*.py")',
            run=lambda: ours.aglob("**/*.py"),
            rows=listed_paths,
            around=with_ripgrep,
            own=True,
        ),
        Contender(
            name="deepagents",
            call='await fs.aglob("**/*.py")',
            run=lambda: theirs.aglob("**/*.py"),
            rows=listed_paths,
            may_lose=True,
        ),
        Contender(
            name="rg --files",
            call=" ".join(["rg", *command[1:]]),
            run=by_ripgrep,
            rows=lambda found: [f"/{path}" for path in found],
        ),
        Contender(name="pathlib, blocking", call='sorted(root.rglob("*.py"))', run=by_pathlib, rows=_visible),
        Contender(
            name="anyio.Path", call='[p async for p in anyio.Path(root).rglob("*.py")]', run=by_anyio, rows=_visible
        ),
    ]


def _visible(found: list[str]) -> list[str]:
    """The paths without dot-names, which pathlib does not leave out."""
    return [f"/{path}" for path in found if "/." not in f"/{path}"]
