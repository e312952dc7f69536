"""What an agent costs: imports, building it, its prompts, its state, its skills and its checkpoints."""

import base64
import json
import os
import random
import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from deepagents import FilesystemPermission as PeerPermission
from deepagents import create_deep_agent as create_peer_agent
from deepagents.backends import FilesystemBackend as PeerBackend
from deepagents.backends import StateBackend as PeerStateBackend
from deepagents.middleware.filesystem import FilesystemMiddleware as PeerMiddleware
from deepagents.middleware.filesystem import FilesystemState as PeerState
from deepagents.middleware.skills import SkillsMiddleware as PeerSkills
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from benchmarks import inputs, stores
from benchmarks.bench import MB, Bench, Contender, Timed, both
from benchmarks.tool_calls import Model
from deepfs import FilesystemBackend, FilesystemMiddleware, FilesystemPermission, FilesystemState, create_deep_agent
from deepfs.backends import BackendProtocol, SqliteBackend, StateBackend
from deepfs.middleware.skills import SkillsMiddleware

_TIMED: Final = "from time import perf_counter as now; start = now(); {}; print(now() - start)"
_FIRST_AGENT: Final = """
from time import process_time as now
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self

model, start = Model(messages=iter([AIMessage("Hello.")])), now()
from {package} import create_deep_agent
from {package}.backends import FilesystemBackend
agent = create_deep_agent(model, backend=FilesystemBackend(".", virtual_mode=True))
assert agent.invoke({{"messages": [("user", "Hello")]}})["messages"][-1].content == "Hello."
print(now() - start)
"""
_COMMAND: Final = """
import sys
from time import process_time as now
from deepfs.cli.app import app

try:
    app(sys.argv[1:])
finally:
    print(now(), file=sys.stderr)
"""
_CLIENT: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
_CALLS: Final[Sequence[dict[str, Any]]] = (
    {"id": 1, "method": "initialize", "params": _CLIENT},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
    {"id": 3, "method": "tools/call", "params": {"name": "read_file", "arguments": {"file_path": "/a"}}},
)
_REQUESTS: Final = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in _CALLS)
"""What a client of MCP sends until its first answer from a tool."""
_FILES: Final = {"a": "one\n", "b": "two\n", "of.patch": "--- a\n+++ a\n@@ -1 +1 @@\n-one\n+two\n"}
_COMMANDS: Final[Sequence[tuple[list[str], bytes, int]]] = (
    (["ls"], b"of.patch", 150),
    (["diff", "a", "b"], b"+two", 150),
    (["patch", "of.patch"], b"a", 150),
    (["mcp", "."], b"one", 1_000),
)
"""Commands, what they show, and the most milliseconds that they may take."""


async def imports(bench: Bench) -> None:
    """Import time, in a new interpreter that finds compiled modules, and the CPU time of whole processes."""
    both_have = ("deepfs", "deepagents")
    with inputs.scratch() as compiled, inputs.scratch() as place:
        # A package from an index is compiled when it is installed, a clone when it is first used, unless forbidden.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}

        async def imported(statement: str) -> Timed:
            command = [sys.executable, "-c", _TIMED.format(statement)]
            return Timed(float((await anyio.run_process(command, stderr=None, env=environment)).stdout), "imported")

        for statement, packages in (
            ("import {}", both_have),
            ("from {} import FilesystemBackend", ("deepfs",)),
            ("from {} import create_deep_agent", both_have),
            ("from {}.backends import FilesystemBackend", both_have),
        ):
            shown = {package: statement.format(package) for package in packages}
            for text in shown.values():
                await imported(text)
            contenders = [Contender(package, text, partial(imported, text)) for package, text in shown.items()]
            work = f"{statement.format('…')}, in a new interpreter"
            race = await bench.race(work, contenders, "import", seconds=60)
        claim = "from deepfs.backends import FilesystemBackend: at least 12× faster than from deepagents"
        bench.at_least(claim, 12, race.ratios("deepagents", "deepfs"))

        async def begin(package: str) -> Timed:
            program = [sys.executable, "-c", _FIRST_AGENT.format(package=package)]
            return Timed(float((await anyio.run_process(program, stderr=None, env=environment)).stdout), "answered")

        for package in both_have:
            await begin(package)
        call = "create_deep_agent(model, backend=FilesystemBackend(…)).invoke(…)"
        agents = [Contender(package, call, partial(begin, package)) for package in both_have]
        work = "The first agent of a process, and its turn: CPU time beyond langchain-core"
        race = await bench.race(work, agents, "turn", seconds=60)
        claim = "The first agent of a process, and its turn: at most 0.75 of the CPU time with deepagents"
        bench.at_most(claim, 0.75, race.ratios("deepfs", "deepagents"))

        def fill() -> None:
            for name, text in _FILES.items():
                (place / name).write_text(text)

        async def command(words: Sequence[str], expected: bytes) -> Timed:
            """Run a command; a server until its third answer."""
            program = [sys.executable, "-c", _COMMAND, *words]
            done = b""
            process: Any = await anyio.open_process(program, cwd=place, env=environment)
            async with process:
                if words[0] == "mcp":
                    await process.stdin.send(_REQUESTS)
                    while b'"id":3' not in done or not done.endswith(b"\n"):
                        done += await process.stdout.receive()
                await process.stdin.aclose()
                done += b"".join([part async for part in process.stdout])
                seconds = b"".join([part async for part in process.stderr])
            assert expected in done, done
            return Timed(float(seconds), "shown")

        for words, expected, most in _COMMANDS:
            run, name = partial(command, words, expected), f"deepfs {words[0]}"
            fill()
            await run()
            contender = Contender("deepfs", " ".join(["deepfs", *words]), run, before=fill)
            race = await bench.race(f"{name}: CPU time of the process", [contender], "answer")
            bench.at_most(f"{name}: at most {most} ms of CPU time", most, race.milliseconds("deepfs"), " ms")


_BUILT: Final = 10
_OPTIONS: Final[dict[str, Any]] = {
    "system_prompt": "You write reports.",
    "memory": ["/AGENTS.md"],
    "interrupt_on": {"delete": True},
    "subagents": [{"name": "reader", "description": "Reads.", "system_prompt": "You read."}],
}
_SHARED_TOOLS: Final = frozenset({"ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep", "task"})


async def agents(bench: Bench) -> None:
    """create_deep_agent: building it, and what it tells the model."""

    model = Model(messages=iter(()))

    def build(create: Callable[..., Any], rule: Any, options: dict[str, Any]) -> Any:
        if "skills" in options:
            options = {**options, "permissions": [rule(operations=["write"], paths=["/private/**"], mode="deny")]}
        return [create(model, **options) for _ in range(_BUILT)][-1]

    for work, options, claim in (
        ("agents built", _OPTIONS, "create_deep_agent: built"),
        ("agents without options", {}, "create_deep_agent without options:"),
        ("agents with skills and rules", {**_OPTIONS, "skills": ["/skills/"]}, "create_deep_agent with all options:"),
    ):
        runs = (
            partial(build, create, rule, options)
            for create, rule in ((create_deep_agent, FilesystemPermission), (create_peer_agent, PeerPermission))
        )
        call = f"{_BUILT}× create_deep_agent(model, {', '.join(f'{name}=…' for name in options)})"
        race = await bench.race(f"{_BUILT} {work}", both(call, *runs, _features), "agents")
        bench.at_least(f"{claim} at least 3× faster", 3, race.ratios("deepagents", "deepfs"))
    ours, theirs = _tokens(create_deep_agent), _tokens(create_peer_agent)
    same = _tokens(create_deep_agent, without=("write_todos", "move"))
    bench.at_most("Prompts and schemas: at most 55 % of the tokens of deepagents", 0.55, [ours / theirs])
    bench.note(
        f"The first request of an agent holds {ours:,} tokens of prompts and schemas with deepfs, {theirs:,} with "
        "deepagents, as langchain's count_tokens_approximately counts both. Those of deepfs include the tools "
        f"`write_todos` and `move`, which deepagents does not offer; without them they are {same:,}."
    )


def _features(agent: Any) -> list[str]:
    """What an agent of either library has: the tools of both, subagents, approvals, and skills."""
    tools = agent.nodes["tools"].bound.tools_by_name
    named = [name for name in ("general-purpose", "reader") if name in tools["task"].description]
    asks = ["approvals"] if any("after_model" in node and "TodoList" not in node for node in agent.nodes) else []
    skills = [node for node in agent.nodes if node == "SkillsMiddleware.before_agent"]
    return [*sorted(_SHARED_TOOLS & tools.keys()), *named, *asks, *skills]


def _tokens(create: Callable[..., Any], without: Collection[str] = ()) -> int:
    model = Model(messages=iter([AIMessage("Hello.")]))
    create(model).invoke({"messages": [HumanMessage("Hello")]})
    prompts = [message for message in model.seen if not isinstance(message, HumanMessage)]
    return count_tokens_approximately(prompts, tools=[tool for tool in model.tools if tool.name not in without])


async def state(bench: Bench) -> None:
    """StateBackend: a thousand reads and writes in one graph node."""
    number, text = 1_000, "a line of a note\n" * 20

    def run(backend: Any, kind: Any) -> Callable[[], Any]:
        async def node(_: Any) -> dict[str, Any]:
            for each in range(number):
                written = await backend.awrite(f"/new/{each}.md", text)
                assert written.error is None, written.error
                read = await backend.aread(f"/old/{each}.md")
                assert read.error is None, read.error
                shown.append(read.file_data["content"])
            return {}

        async def invoke() -> Any:
            shown.clear()
            files = {f"/old/{each}.md": stores.file_data(f"# {each}\n{text}") for each in range(number)}
            return shown, await graph.ainvoke({"files": files})

        shown: list[str] = []
        graph = StateGraph(kind).add_node("node", node).add_edge(START, "node").compile()
        return invoke

    def rows(answer: Any) -> list[Any]:
        shown, result = answer
        return [*enumerate(shown), *((path, data["content"]) for path, data in result["files"].items())]

    call = f'await graph.ainvoke({{"files": …}}): {number:,}× await fs.awrite(new, text); await fs.aread(old)'
    contenders = both(call, run(StateBackend(), FilesystemState), run(PeerStateBackend(), PeerState), rows)
    work = f"{number:,} writes and reads in one node, with 1,000 files in state"
    race = await bench.race(work, contenders, "texts read and files", rounds=7, seconds=60)
    claim = "1,000 reads and writes through StateBackend"
    bench.beats_peer(claim, 5, race)
    bench.complete(f"{claim}: complete", race)


_SOURCE: Final = "/skills"
_TEXT: Final = (
    "---\nname: {name}\ndescription: Use it for task {number}, and for others like it.\nlicense: MIT\n---\n\n"
    "# {name}\n\n" + "Do one thing after another.\n" * 40
)


async def skills(bench: Bench) -> None:
    """Skills: loading 500 of them by a new thread."""
    names = [f"task-{number:03}" for number in range(500)]
    texts = {f"{_SOURCE}/{name}/SKILL.md": _TEXT.format(name=name, number=at) for at, name in enumerate(names)}
    namespace = ("assistant", "skills")
    with inputs.scratch() as directory:
        async with stores.sqlite_store() as store, SqliteBackend(directory / "files.db") as database:
            await store.abatch([stores.put_op(namespace, path, text) for path, text in texts.items()])
            await database.aupload_files([(path, text.encode()) for path, text in texts.items()])
            await anyio.sleep(0.1)  # What just changed is read again.
            ours, theirs = stores.backends(store, namespace)
            peer = PeerSkills(backend=theirs, sources=[_SOURCE])
            call = "await SkillsMiddleware(backend=…).abefore_agent(…)"
            contenders = [
                Contender("deepfs", call, _loading(ours), _skills),
                Contender("SqliteBackend", call, _loading(database), _skills, own=True),
                Contender("deepagents", call, lambda: peer.abefore_agent({"messages": []}, None, {}), _skills),  # type: ignore[arg-type]
            ]
            race = await bench.race("500 skills, a new thread", contenders, "skills")
        bench.beats_peer("500 skills in a store", 3, race)
        for name, kind in (("deepfs", "a StoreBackend over SQLite"), ("SqliteBackend", "a SqliteBackend")):
            claim = f"500 skills in {kind}, after the first time: at most 20 ms"
            bench.at_most(claim, 20, race.milliseconds(name), " ms")


def _loading(backend: BackendProtocol) -> Callable[[], Any]:
    loaded = SkillsMiddleware(backend=backend, sources=[_SOURCE])
    return lambda: loaded.abefore_agent({}, None)


def _skills(update: Any) -> Collection[Hashable]:
    return [tuple(sorted((key, str(value)) for key, value in each.items())) for each in update["skills_metadata"]]


_TURNS: Final = 100
_IMAGES: Final = 20


async def checkpoints(bench: Bench) -> None:
    """Checkpoints of 100 turns with 20 images: their bytes with media inline, and with media stored by hash."""
    size = 20_000 if bench.quick else MB

    def ours(place: Path, stored: bool) -> Any:
        return FilesystemMiddleware(FilesystemBackend(place), offload_binary_content=stored)

    def theirs(place: Path, stored: bool) -> Any:
        return PeerMiddleware(backend=PeerBackend(place, virtual_mode=True), offload_binary_content=stored)

    with inputs.scratch() as root:
        places = [
            (made, stored, root / f"{made.__name__}-{stored}") for made in (ours, theirs) for stored in (False, True)
        ]
        inline, hashed, *peer = (_written(made(place, stored), place, size) for made, stored, place in places)
    work = f"{_TURNS} turns with {_IMAGES} images of {size // 1000:,} kB in a SQLite checkpointer"
    for what, one, other in zip(("the last checkpoint", "all that is written"), hashed, inline, strict=True):
        bench.at_most(f"{work}: {what}, at most 1 % of that with media inline", 1, [100 * one / other], " %")
    told = [f"{last / MB:,.2f} and {written / MB:,.0f} MB" for last, written in (inline, hashed, *peer)]
    bench.note(
        "Half of the images are read by a tool, half are sent by a person, whose messages LangGraph saves before any "
        f"node runs. Last checkpoint and all writes of langchain's create_agent: with deepfs {told[0]} inline, "
        f"{told[1]} by hash; with deepagents {told[2]} inline, {told[3]} with offload_binary_content=True, which is "
        "not its default."
    )


def _written(middleware: Any, root: Path, size: int) -> tuple[int, int]:
    """The bytes of the last checkpoint of the conversation, and of all its checkpoints and writes."""
    made, script, written = random.Random(1), list[AIMessage](), 0
    root.mkdir()
    model = Model(messages=iter(script.pop, None))
    with SqliteSaver.from_conn_string(":memory:") as saver:
        agent = create_agent(model, middleware=[middleware], checkpointer=saver)
        for turn in range(_TURNS):
            said, script[:] = HumanMessage("Go on."), [AIMessage("I see.")]
            number, others = divmod(turn, _TURNS // _IMAGES)
            image = b"" if others else b"\x89PNG\r\n\x1a\n" + made.randbytes(size)
            if image and number % 2:
                (root / f"{number}.png").write_bytes(image)
                call = {"id": f"call-{turn}", "name": "read_file", "args": {"file_path": f"/{number}.png"}}
                script.append(AIMessage("", tool_calls=[call]))
            elif image:
                shown = base64.b64encode(image).decode("ascii")
                said = HumanMessage([{"type": "image", "base64": shown, "mime_type": "image/png"}])
            agent.invoke({"messages": [said]}, {"configurable": {"thread_id": "1"}})
            written += _sum(saver, "checkpoint", "checkpoints") + _sum(saver, "value", "writes")
            # Only what the next turn needs stays in memory.
            saver.conn.execute("DELETE FROM writes")
            newest = "(SELECT max(checkpoint_id) FROM checkpoints)"
            saver.conn.execute(f"DELETE FROM checkpoints WHERE checkpoint_id < {newest}")
            last = _sum(saver, "checkpoint", "checkpoints")
            written -= last
        return last, written


def _sum(saver: SqliteSaver, column: str, table: str) -> int:
    return int(saver.conn.execute(f"SELECT sum(length({column})) FROM {table}").fetchone()[0] or 0)
