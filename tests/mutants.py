"""Breaks the package in each way that `mutants.toml` lists, and says which test notices.

    python tests/mutants.py                    # all of them, in a temporary checkout of HEAD
    python tests/mutants.py --at REV name ...  # some, in the tests of another commit

A mutant has the `file` under `deepfs`, what it `breaks` in words, the text `before` and `after`, and the `tests` that
should notice: files or directories under `tests`. The exit code is 1 if a mutant lives, or its text is no longer there.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_tests(checkout: Path, mutant: dict[str, Any]) -> str:
    """The first test that fails with the mutant, or an empty text."""
    tests = [test for test in mutant["tests"] if (checkout / "tests" / test.partition("::")[0]).exists()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qx",
        "-n3",
        "--dist=worksteal",
        "-p",
        "no:cacheprovider",
        "--no-header",
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout), "HYPOTHESIS_PROFILE": "quick"}
    ran = subprocess.run(
        [*command, *(f"tests/{test}" for test in tests)], cwd=checkout, env=environment, text=True, capture_output=True
    )
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    if ran.returncode not in {0, 1} and not found:
        return f"pytest ended with {ran.returncode}: {ran.stdout[-300:]}{ran.stderr[-300:]}"
    return found.group(1) if found else ""


def try_mutant(checkout: Path, mutant: dict[str, Any]) -> tuple[bool, str]:
    """Whether a test notices the mutant, and a line that says which."""
    file = checkout / "deepfs" / mutant["file"]
    text = file.read_text()
    if text.count(mutant["before"]) != 1:
        return False, f"its text stands {text.count(mutant['before'])} times in {mutant['file']}"
    file.write_text(text.replace(mutant["before"], mutant["after"]))
    try:
        noticed = run_tests(checkout, mutant)
    finally:
        file.write_text(text)
    return bool(noticed), noticed or "LIVES"


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the package, and say which test notices.")
    parser.add_argument("names", nargs="*", help="mutants to try; by default all")
    parser.add_argument("--at", default="HEAD", help="the commit whose package and tests are used")
    arguments = parser.parse_args()
    mutants: dict[str, dict[str, Any]] = tomllib.loads((HERE / "mutants.toml").read_text())
    living = 0
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory, "checkout")
        subprocess.run(["git", "-C", HERE, "worktree", "add", "-q", "--detach", checkout, arguments.at], check=True)
        try:
            for name in arguments.names or mutants:
                noticed, how = try_mutant(checkout, mutants[name])
                living += not noticed
                print(f"{name}: {mutants[name]['breaks']}\n    {how}", flush=True)
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", checkout], check=True)
    print(f"{len(arguments.names or mutants)} mutants, {living} not noticed")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
