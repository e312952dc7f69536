"""A program written for deepagents that runs on deepfs: the imports are renamed, and one call says `overwrite=True`.

    pip install "deepfs[agents]"
    python ported_from_deepagents.py

An agent reports expenses: it reads receipts in the state of the thread, converts amounts by a tool, has a subagent
check the sum, and keeps what it learned about the person in a store, where the next thread finds it. The comments that
begin with "Ported" say what else may have to change; docs/differences.md has the whole list.
"""

from typing import Any

from common import chosen_model, option_parser
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

# Ported: these three lines began with `from deepagents`.
from deepfs import SubAgent, create_deep_agent
from deepfs.backends import CompositeBackend, StateBackend, StoreBackend
from deepfs.backends.utils import create_file_data
from deepfs.testing import Answer, Call, Turn

MEMORY = "/memories/AGENTS.md"
RECEIPTS = "date,amount,currency,what\n2026-03-01,40.00,USD,taxi\n2026-03-02,80.00,EUR,hotel\n"
EUROS = {"EUR": 1.0, "USD": 0.9}


@tool
def to_euros(amount: float, currency: str) -> float:
    """Convert an amount to euros."""
    return round(amount * EUROS[currency], 2)


CHECKER: SubAgent = {
    "name": "checker",
    "description": "Checks the sum of a report against the receipts.",
    "system_prompt": "Read the report and /receipts.csv. Say whether the sum is right.",
    "tools": [to_euros],
}


# --- the scripted model, which is no part of the port ----------------------------------------------------------------

CHECK = "Check /report.md"
SCRIPT: list[Answer] = [
    Turn("", [Call("read_file", {"file_path": "/receipts.csv"})], when="Report"),
    Turn("", [Call("to_euros", {"amount": 40.0, "currency": "USD"})], when="Report"),
    Turn(
        "",
        [Call("write_file", {"file_path": "/report.md", "content": "taxi 36.0\nhotel 80.0\nsum ?\n"})],
        when="Report",
    ),
    Turn("", [Call("edit_file", {"file_path": "/report.md", "old_string": "?", "new_string": "116.0"})], when="Report"),
    Turn("", [Call("task", {"subagent_type": "checker", "description": CHECK})], when="Report"),
    Turn("", [Call("grep", {"pattern": "sum", "path": "/", "output_mode": "content"})], when=CHECK),
    Turn("The sum is right.", when=CHECK),
    Turn("The report is in /report.md.", when="Report"),
    Turn(
        "",
        [Call("edit_file", {"file_path": MEMORY, "old_string": "- none", "new_string": "- tips apart"})],
        when="tips",
    ),
    Turn("I will list tips apart.", when="tips"),
    lambda messages: "You want tips apart." if "tips apart" in messages[0].text else "I do not know.",
]


# --- the program -----------------------------------------------------------------------------------------------------


def expense_agent(model: str | None) -> Any:
    """The agent, with files in the state of each thread and memories in a store."""
    store = InMemoryStore()
    # Ported: a namespace is exact. In deepagents, that of ("ada",) also shows the files of ("ada", "memories").
    memories = StoreBackend(store=store, namespace=lambda runtime: ("ada", "memories"))
    # Ported: `write` creates, and a file that exists is an error unless `overwrite` is set. So it is with `write_file`.
    memories.write("/AGENTS.md", "# What the person wants\n- none\n", overwrite=True)
    return create_deep_agent(
        model=chosen_model(model, SCRIPT),
        tools=[to_euros],
        system_prompt=f"You report expenses. Keep what the person wants in {MEMORY}.",
        subagents=[CHECKER],
        memory=[MEMORY],
        backend=CompositeBackend(default=StateBackend(), routes={"/memories/": memories}),
        checkpointer=InMemorySaver(),
        store=store,
    )


def ask(agent: Any, thread: str, request: str, **state: Any) -> Any:
    """One request in a thread. Prints the answer, and returns the state."""
    given = {"messages": [{"role": "user", "content": request}], **state}
    result = agent.invoke(given, {"configurable": {"thread_id": thread}})
    print(f"{thread}: {result['messages'][-1].text}")
    return result


def main() -> None:
    agent = expense_agent(option_parser(__doc__).parse_args().model)
    # Ported: files in the state have the same form in both, so threads that deepagents stored go on here.
    files = {"/receipts.csv": create_file_data(RECEIPTS)}
    result = ask(agent, "march", "Report my expenses of March.", files=files)
    print(result["files"]["/report.md"]["content"])
    ask(agent, "march", "From now on, list tips apart.")
    ask(agent, "april", "What do you know about me?")


if __name__ == "__main__":
    main()
