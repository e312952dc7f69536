"""Subagents that edit the same file of one tree at the same time, and no edit is lost.

    pip install "deepfs[agents]"
    python parallel_subagents.py                # on a directory that is removed at the end
    python parallel_subagents.py --tree work    # in a new directory, which stays

The agent hands one chapter to each of eight subagents, in one turn, so they run at the same time. Each ticks off its
line in /board.md, and adds its chapter to /index.md, right below the title; all share these two files. They hold no
lock and take no turns: an edit changes what it names in the file as it is at that moment. Where edits contradict each
other, one takes effect and the other is told.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from common import chosen_model, option_parser, show

from deepfs import FilesystemBackend, SubAgent, create_deep_agent
from deepfs.errors import AlreadyExistsError
from deepfs.testing import Call, Turn

CHAPTERS = ("atoms", "bonds", "crystals", "density", "energy", "fields", "gases", "heat")
BOARD, INDEX = "/board.md", "/index.md"

REQUEST = f"Have one subagent for each open chapter of {BOARD}, all in one turn, write it and tick it off."

WRITER = SubAgent(
    name="writer",
    description="Writes one chapter and ticks it off.",
    system_prompt=f"""\
You are given the name of one chapter. Write /chapters/<name>.md. Add a link to it in {INDEX} right below the title, and
change its line in {BOARD} from `[ ]` to `[x]`. Others work on the same files: change nothing else.""",
)


# --- the scripted model, which the agent and its subagents share -----------------------------------------------------


def script() -> Iterator[Turn]:
    """The turns. Those of a subagent answer only requests with its task, whichever comes first."""
    tasks = [Call("task", {"subagent_type": "writer", "description": f"Chapter: {name}"}) for name in CHAPTERS]
    yield Turn("I hand out the chapters.", tasks, when=BOARD)
    yield Turn("All chapters are written.", when=BOARD)
    for name in CHAPTERS:
        task, path = f"Chapter: {name}", f"/chapters/{name}.md"
        link = {"file_path": INDEX, "old_string": "# Index\n", "new_string": f"# Index\n- [{name}]({path})\n"}
        tick = {"file_path": BOARD, "old_string": f"[ ] {name}", "new_string": f"[x] {name}"}
        yield Turn("", [Call("write_file", {"file_path": path, "content": f"# {name.title()}\n"})], when=task)
        yield Turn("", [Call("edit_file", link), Call("edit_file", tick)], when=task)
        yield Turn(f"{name} is written.", when=task)


# --- the program -----------------------------------------------------------------------------------------------------


async def write_book(tree: Path, model: str | None) -> list[str]:
    """Have all chapters written, and return what is missing from the shared files at the end."""
    async with FilesystemBackend(tree) as files:
        board = "".join(f"- [ ] {name}\n" for name in CHAPTERS)
        (await files.awrite(BOARD, board)).unwrap()
        (await files.awrite(INDEX, "# Index\n")).unwrap()
        agent = create_deep_agent(chosen_model(model, [*script()]), subagents=[WRITER], backend=files)
        await show(agent, REQUEST)
        return await missing(files)


async def missing(files: FilesystemBackend) -> list[str]:
    """The edits that are not in the files."""
    board, index = [(await files.aread(path)).unwrap().content for path in (BOARD, INDEX)]
    print(f"\n{BOARD}\n{board}\n{INDEX}\n{index}")
    lost = [f"{name} in {BOARD}" for name in CHAPTERS if f"[x] {name}\n" not in board]
    return lost + [f"{name} in {INDEX}" for name in CHAPTERS if f"/chapters/{name}.md" not in index]


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--tree", type=Path, help="a new directory to work in")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        try:
            lost = anyio.run(write_book, given.tree or Path(temporary), given.model)
        except AlreadyExistsError as error:
            sys.exit(str(error))
    if lost:
        sys.exit(f"lost: {', '.join(lost)}")
    print(f"{2 * len(CHAPTERS)} edits of two files, none lost.")


if __name__ == "__main__":
    main()
