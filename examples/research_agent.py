"""A research agent that remembers: what it finds is kept in a SQLite database, and the next run starts with it.

    /            notes of this run, in the state of the graph
    /sources/    the documents to search: a directory, which the agent cannot change
    /memories/   a SQLite database, which every run of this program shares

    pip install "deepfs[agents]"
    python research_agent.py --sources ../docs
    python research_agent.py --sources ../docs       # answers from memory

The file /memories/AGENTS.md is shown to the model in each request (`memory=`). Other processes may use the database at
the same time; `deepfs tree sqlite:///memories.db` shows what is in it.
"""

import re
from pathlib import Path

import anyio
from common import chosen_model, option_parser, show
from langchain_core.messages import BaseMessage

from deepfs import CompositeBackend, FilesystemBackend, SqliteBackend, StateBackend, create_deep_agent
from deepfs.policy import ReadOnlyBackend
from deepfs.testing import Answer, Call, Turn

MEMORY = "/memories/AGENTS.md"
QUESTION = "What does write do with a file that exists?"

INSTRUCTIONS = f"""\
You answer questions about the documents in /sources. If your memory has the answer, give it. Otherwise search, read
what you found, and add one line to {MEMORY} with the fact and the path of its source, before you answer."""


# --- the scripted model: what a real one might do --------------------------------------------------------------------


def from_memory(messages: list[BaseMessage]) -> Turn:
    """Answer with the remembered fact, if the system prompt has it; otherwise search."""
    if remembered := re.search(r"^- (Writing .*)$", messages[0].text, re.MULTILINE):
        return Turn(f"I remember: {remembered[1]}")
    return Turn(
        "I search.", [Call("grep", {"pattern": "`write` creates", "path": "/sources", "output_mode": "content"})]
    )


def read_the_source(messages: list[BaseMessage]) -> Turn:
    """Read around the first match."""
    path, line = found_place(messages[-1].text)
    return Turn("I read.", [Call("read_file", {"file_path": path, "offset": line - 1, "limit": 3})])


def remember(messages: list[BaseMessage]) -> Turn:
    """Keep what was read, and where."""
    read = next(
        call for message in messages for call in getattr(message, "tool_calls", ()) if call["name"] == "read_file"
    )
    fact = f"- Writing creates a file, and refuses one that exists. Source: {read['args']['file_path']}\n"
    return Turn("I remember it.", [Call("write_file", {"file_path": MEMORY, "content": f"# Facts\n\n{fact}"})])


def found_place(matches: str) -> tuple[str, int]:
    """The path and line of the first match that `grep` shows."""
    place = re.search(r"(/sources/\S+?):?\n?\s*(\d+)[:\t]", matches)
    if place is None:
        raise ValueError(f"the script expects a match in /sources, not {matches!r}")
    return place[1], int(place[2])


SCRIPT: list[Answer] = [from_memory, read_the_source, remember, "It creates files only: one that exists is refused."]


# --- the program -----------------------------------------------------------------------------------------------------


async def research(question: str, sources: Path, database: Path, model: str | None) -> str:
    """Answer a question from the memory or from the sources."""
    routes = {"/sources/": ReadOnlyBackend(FilesystemBackend(sources)), "/memories/": SqliteBackend(database)}
    async with CompositeBackend(default=StateBackend(), routes=routes) as files:
        agent = create_deep_agent(
            chosen_model(model, SCRIPT), system_prompt=INSTRUCTIONS, memory=[MEMORY], backend=files
        )
        return await show(agent, question)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--sources", type=Path, default=Path(__file__).parents[1] / "docs", help="a directory")
    parser.add_argument("--memories", type=Path, default=Path("memories.db"), help="the database, made if missing")
    given = parser.parse_args()
    anyio.run(research, given.question, given.sources, given.memories, given.model)


if __name__ == "__main__":
    main()
