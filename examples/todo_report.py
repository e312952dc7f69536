"""A maintenance job without an event loop and without an agent: find TODOs in a tree, give each an owner, report them.

    pip install deepfs
    python todo_report.py src --owner ada            # TODO: … becomes TODO(ada): …, and /TODO.md lists all
    python todo_report.py src --owner ada --dry-run  # changes nothing, prints the report

Each operation has a sync method, which works in a plain script. `run_sync` runs an async function from there: here to
edit many files at the same time. What .gitignore names is left alone. An edit changes its text in the file as it is at
that moment, so what others save meanwhile is kept.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import anyio

from deepfs import EditResult, FilesystemBackend, GrepMatch, run_sync
from deepfs.errors import DeepFSError

REPORT = "/TODO.md"
AT_ONCE = 32
"""The most files that are edited at the same time."""


def find(files: FilesystemBackend, glob: str) -> list[GrepMatch]:
    """The lines with a TODO, but those of the report."""
    found = files.grep(r"\bTODO\b", glob=glob, regex=True)
    if found.truncated or found.skipped:
        print(f"The search is incomplete; {found.skipped} files could not be read.", file=sys.stderr)
    return [match for match in found.unwrap() if match.path != REPORT]


async def assign(files: FilesystemBackend, paths: Iterable[str], owner: str) -> dict[str, EditResult]:
    """Give the TODOs that have no owner to `owner`, in all files at once. Returns the outcome for each file."""
    outcomes: dict[str, EditResult] = {}
    places = anyio.CapacityLimiter(AT_ONCE)

    async def edit(path: str) -> None:
        async with places:
            outcomes[path] = await files.aedit(path, "TODO:", f"TODO({owner}):", replace_all=True)

    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(edit, path)
    return outcomes


def owner_of(match: GrepMatch) -> str:
    """The name in `TODO(name)`, or "nobody"."""
    named = re.search(r"\bTODO\((\w+)\)", match.text)
    return named[1] if named else "nobody"


def report(matches: Iterable[GrepMatch]) -> str:
    """All TODOs as Markdown, by owner."""
    lines = ["# TODO"]
    for owner, owned in groupby(sorted(matches, key=owner_of), key=owner_of):
        lines += ["", f"## {owner}", ""]
        lines += [f"- `{match.path}:{match.line}` {match.text.strip()}" for match in owned]
    return "\n".join(lines) + "\n"


def run(directory: Path, owner: str, glob: str, *, dry_run: bool) -> int:
    """Do the job. Returns how many files could not be changed."""
    with FilesystemBackend(directory, ignore="git") as files:
        matches = find(files, glob)
        if dry_run:
            print(report(matches))
            return 0
        without_owner = {match.path for match in matches if "TODO:" in match.text}
        outcomes = run_sync(assign, files, without_owner, owner)
        failed = {path: outcome.error for path, outcome in outcomes.items() if not outcome.ok}
        for path, error in sorted(failed.items()):
            print(f"{path}: {error}", file=sys.stderr)
        changed = sum(outcome.occurrences or 0 for outcome in outcomes.values())
        files.write(REPORT, report(find(files, glob)), overwrite=True).unwrap()
    print(f"{len(matches)} TODOs, {changed} given to {owner}. The report is {directory / REPORT.strip('/')}.")
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--owner", required=True, help="whose the TODOs without an owner become")
    parser.add_argument("--glob", default="**/*", help="which files")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, print the report")
    given = parser.parse_args()
    if not given.directory.is_dir():
        parser.error(f"{given.directory} is no directory")
    try:
        failed = run(given.directory, given.owner, given.glob, dry_run=given.dry_run)
    except DeepFSError as error:
        sys.exit(str(error))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
