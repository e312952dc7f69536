"""A coding agent in a sandbox: it writes a test that fails, repairs the code, and runs the test again.

    pip install "deepfs[agents,bubblewrap]"     # Linux
    python coding_agent.py                      # in a workspace that is removed at the end
    python coding_agent.py --workspace project  # in a new directory, which stays

Commands run in a BubblewrapSandbox: they see the programs of this machine, read-only, and the workspace, but no other
file, no process and no network. `Limits` bounds what they use. File tools and commands work on the same files, so the
agent edits with `edit_file` and runs the result with `execute`.
"""

import sys
from pathlib import Path

import anyio
from common import chosen_model, option_parser, show

from deepfs import create_deep_agent
from deepfs.errors import DeepFSError
from deepfs.sandboxes import BubblewrapSandbox, Limits
from deepfs.testing import Answer, Call, Turn

CODE = '''\
"""Names for the addresses of pages."""


def slug(title: str) -> str:
    """The title in small letters, with hyphens between its words."""
    return title.lower().replace(" ", "-")
'''

REQUEST = """\
slug() in /slug.py makes "a--b" of "A  B" (two spaces) and keeps spaces at the ends. Write /test_slug.py with unittest,
run it to see it fail, repair the code, and run it again."""

RUN_TESTS = "python3 -m unittest"

LIMITS = Limits(memory=512 * 1024**2, processes=32, cpu_seconds=20, workspace=64 * 1024**2)

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python takes stored bytecode for current if the time in seconds and the size agree, and agents edit faster."""


# --- the scripted model ----------------------------------------------------------------------------------------------

TEST = """\
import unittest

from slug import slug


class TestSlug(unittest.TestCase):
    def test_words_are_joined_by_single_hyphens(self) -> None:
        self.assertEqual(slug("A  B"), "a-b")

    def test_spaces_at_the_ends_are_left_out(self) -> None:
        self.assertEqual(slug(" A B "), "a-b")
"""

REPAIR = {
    "file_path": "/slug.py",
    "old_string": 'title.lower().replace(" ", "-")',
    "new_string": '"-".join(title.lower().split())',
}

SCRIPT: list[Answer] = [
    Turn("I read the code.", [Call("read_file", {"file_path": "/slug.py"})]),
    Turn("I write a test.", [Call("write_file", {"file_path": "/test_slug.py", "content": TEST})]),
    Turn("It must fail now.", [Call("execute", {"command": RUN_TESTS, "timeout": 20})]),
    Turn("It does. I repair the code.", [Call("edit_file", REPAIR)]),
    Turn("It must pass now.", [Call("execute", {"command": RUN_TESTS, "timeout": 20})]),
    "slug() splits the title into words now, and both tests pass.",
]


# --- the program -----------------------------------------------------------------------------------------------------


async def repair(workspace: Path | None, model: str | None) -> bool:
    """Let the agent work, and return whether the tests in the workspace pass afterwards."""
    async with BubblewrapSandbox(workspace, limits=LIMITS, env=NO_BYTECODE) as sandbox:
        (await sandbox.awrite("/slug.py", CODE)).unwrap()
        agent = create_deep_agent(chosen_model(model, SCRIPT), backend=sandbox)
        await show(agent, REQUEST)
        # What a model says about its work is no proof.
        checked = await sandbox.aexecute(RUN_TESTS, timeout=20)
    print(f"\n{checked.output}")
    return checked.exit_code == 0


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--workspace", type=Path, help="a new directory")
    given = parser.parse_args()
    try:
        passed = anyio.run(repair, given.workspace, given.model)
    except DeepFSError as error:  # There is no bubblewrap, or the workspace has such a file.
        sys.exit(str(error))
    if not passed:
        sys.exit("The tests do not pass.")


if __name__ == "__main__":
    main()
