"""Agents at work: how long the turns of many agents take besides the model, and what they cost."""

import gc
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
from deepagents import create_deep_agent as create_peer_agent
from deepagents.backends import CompositeBackend as PeerComposite
from deepagents.backends import FilesystemBackend as PeerFiles
from deepagents.backends import StateBackend as PeerState
from deepagents.backends import StoreBackend as PeerStore
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from pydantic import Field, PrivateAttr

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender, in_new_process, percentile, percentiles, ticking
from benchmarks.record import Line, Race, point
from deepfs import create_deep_agent
from deepfs.backends import (
    CompositeBackend,
    FilesystemBackend,
    PostgresBackend,
    S3Backend,
    SqliteBackend,
    StateBackend,
)

_DIRECTORIES: Final = ("/django/http/", "/django/db/models/", "/django/contrib/admin/templates/")
_READ: Final = "/django/http/request.py"
_NAMES: Final = re.compile(r"[\w.-]+\.(?:py|html)\b")
_NUMBERS: Final = re.compile(r"^ *\d+\t|^(\[Lines|@@) .*$", re.MULTILINE)
"""The numbers of lines, and the line that says which ones are shown."""
_SEARCHES: Final = ("grep", "ls", "glob")


def _script(note: str, root: str, rounds: int) -> list[tuple[str, dict[str, Any]]]:
    """The calls of an agent, one a turn; it reads files that all agents share, below `root`, and edits its note."""
    calls: list[tuple[str, dict[str, Any]]] = [("write_file", {"file_path": note, "content": "draft 0\n" * 2})]
    for number in range(rounds):
        old, new = f"draft {number}\ndraft {number}\n", f"draft {number + 1}\ndraft {number + 1}\n"
        calls += [
            ("read_file", {"file_path": root + _READ, "offset": number * 50, "limit": 100}),
            ("grep", {"pattern": "get_absolute_uri", "path": f"{root}/django/http"}),
            ("ls", {"path": f"{root}/django/db/models"}),
            ("edit_file", {"file_path": note, "old_string": old, "new_string": new}),
            ("glob", {"pattern": "**/*.html", "path": f"{root}/django/contrib/admin/templates"}),
        ]
    return [*calls, ("read_file", {"file_path": note})]


class ScriptedModel(BaseChatModel):
    """A model that follows a script, and notes how long it waits for the next turn."""

    script: list[tuple[str, dict[str, Any]]] = Field(default_factory=list)
    latency: float = 0.0
    _answered_at: float | None = PrivateAttr(None)
    _waits: list[float] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        if self._answered_at is not None:
            self._waits.append(time.perf_counter() - self._answered_at)
        if self.latency:
            await anyio.sleep(self.latency)
        turn, message = sum(isinstance(message, AIMessage) for message in messages), AIMessage("done")
        if turn < len(self.script):
            name, arguments = self.script[turn]
            message = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{turn}"}])
        self._answered_at = time.perf_counter()
        return ChatResult(generations=[ChatGeneration(message=message)])

    def waits(self) -> list[float]:
        """The seconds from each answer to the next request; they are counted anew."""
        waits, self._waits, self._answered_at = self._waits, [], None
        return waits


def _rows(states: Sequence[dict[str, Any]], *, may_fail: bool = False) -> Collection[Any]:
    """What the agents were told, where both libraries tell the same: lines that were read, and names of files.

    Calls that failed are lost rows: with a thousand agents, globs of deepagents take more than its limit of 10 s.
    """
    rows = []
    for agent, state in enumerate(states):
        results = [message for message in state["messages"] if isinstance(message, ToolMessage)]
        for turn, result in enumerate(results):
            if result.status == "error":
                assert may_fail, result.text
                continue
            shown: Any = None
            if result.name in _SEARCHES:
                shown = frozenset(_NAMES.findall(result.text))
            elif result.name == "read_file":
                shown = _NUMBERS.sub("", result.text).strip()
            rows.append((agent, turn, result.name, shown))
        rows.append((agent, len(results), "ended", state["messages"][-1].text))
    return rows


@dataclass
class Crowd:
    """Agents of one library over one storage, and what their last run cost."""

    agents: list[Any]
    models: list[ScriptedModel]
    root: str
    rounds: int
    given: dict[str, Any]
    runs: int = 0
    cpu: float = 0.0
    lags: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    async def run(self) -> list[dict[str, Any]]:
        """Run all agents at once, each with a new note."""
        states: list[dict[str, Any]] = [{}] * len(self.agents)

        async def work(number: int) -> None:
            states[number] = await self.agents[number].ainvoke(self.given)

        self.runs += 1
        for number, model in enumerate(self.models):
            model.script = _script(f"{self.root}/notes/{self.runs}-{number}.md", self.root, self.rounds)
        self.lags, started = [], time.process_time()
        async with ticking(self.lags), anyio.create_task_group() as tasks:
            for number in range(len(self.agents)):
                tasks.start_soon(work, number)
        self.cpu = time.process_time() - started
        self.waits = [wait for model in self.models for wait in model.waits()]
        return states

    def describe(self, seconds: float) -> str:
        """What a run of so many seconds tells, as shown."""
        turns = len(self.waits)
        return (
            f"{turns / seconds:,.0f} turns a second, of {self.cpu / turns * 1000:.2f} ms of CPU; a turn takes "
            f"{percentiles(self.waits)} besides the model; the event loop is late by {percentiles(self.lags)}"
        )


# --- storages --------------------------------------------------------------------------------------------------------


@dataclass
class _Storage:
    """One storage for both libraries; the shared files are below `root`, and the state begins with `files`."""

    ours: Any
    theirs: Any = None
    root: str = ""
    files: dict[str, Any] = field(default_factory=dict)


def _texts() -> dict[str, str]:
    """The shared files, by path."""
    top = inputs.django()
    paths = [path for name in _DIRECTORIES for path in sorted(Path(top, name[1:]).rglob("*")) if path.is_file()]
    return {f"/{path.relative_to(top)}": path.read_text() for path in paths if path.suffix in {".py", ".html"}}


def _on_disk(directory: Path) -> str:
    for path, text in _texts().items():
        place = Path(directory, path[1:])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return str(directory)


async def _filled(backend: Any) -> Any:
    uploaded = await backend.aupload_files([(path, text.encode()) for path, text in _texts().items()])
    assert all(each.error is None for each in uploaded), uploaded[:3]
    return backend


async def _peer_store(stack: AsyncExitStack, name: str) -> PeerStore:
    store = await stack.enter_async_context(stores.STORES[name]())
    namespace = ("files",)
    await store.abatch([stores.put_op(namespace, path, text) for path, text in _texts().items()])
    return PeerStore(store=store, namespace=lambda _: namespace)


@asynccontextmanager
async def _storage(name: str) -> AsyncIterator[_Storage]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(inputs.scratch())
        if name == "disk":
            roots = [_on_disk(directory / library) for library in ("ours", "theirs")]
            yield _Storage(FilesystemBackend(roots[0]), PeerFiles(roots[1], virtual_mode=True))
        elif name == "state":
            files = {path: stores.file_data(text) for path, text in _texts().items()}
            yield _Storage(StateBackend(), PeerState(), files=files)
        elif name == "SQLite":
            ours = await stack.enter_async_context(SqliteBackend(directory / "files.db"))
            yield _Storage(await _filled(ours), await _peer_store(stack, "AsyncSqliteStore"))
        elif name == "Postgres":
            places = stack.enter_context(stores.postgres())
            ours = await stack.enter_async_context(PostgresBackend(stack.enter_context(places()), "files"))
            yield _Storage(await _filled(ours), await _peer_store(stack, "AsyncPostgresStore"))
        elif name == "S3 with 20 ms":
            yield _Storage(await _filled(S3Backend(**stack.enter_context(stores.slow_s3(0.020)))))
        else:  # A composite: the shared files on disk, the notes in the state.
            root = _on_disk(directory)
            ours = CompositeBackend(StateBackend(), {"/src/django/": FilesystemBackend(f"{root}/django")})
            theirs = PeerComposite(PeerState(), {"/src/django/": PeerFiles(f"{root}/django", virtual_mode=True)})
            yield _Storage(ours, theirs, root="/src")


# --- the scenario ----------------------------------------------------------------------------------------------------

_STORAGES: Final = ("disk", "state", "SQLite", "Postgres", "S3 with 20 ms", "a composite of disk and state")
_LATENCY: Final = 0.2


async def agents_at_work(bench: Bench) -> None:
    """Agents at work: turns a second, waits, lag and CPU of many agents at once."""
    lines: dict[str, list[Any]] = {}
    for number in (1, 10) if bench.quick else (1, 10, 100, 1_000):
        for latency in (0.0, _LATENCY):
            race, crowds = await _race(bench, "disk", number, latency)
            if not latency:
                turns = len(crowds["deepfs"].waits)
                for entry in race.entries:
                    each = [turns / seconds for seconds in entry.seconds]
                    lines.setdefault(entry.name, []).append(point(number, each))
    for storage in _STORAGES[1:]:
        await _race(bench, storage, 2 if bench.quick else 10, 0.0)
    race, crowds = await _race(bench, "disk", 5 if bench.quick else 50, 0.0)
    bench.at_least("50 agents on disk: at least 1.5× deepagents", 1.5, race.ratios("deepagents", "deepfs"))
    longest, theirs = (percentile(crowds[name].waits, 99) for name in ("deepfs", "deepagents"))
    bench.at_most("50 agents on disk: p99 of a turn at most that of deepagents", 1, [longest / theirs])
    lag = max(crowds["deepfs"].lags) * 1000
    bench.at_most("50 agents on disk: the event loop at most 100 ms late", 100, [lag], " ms")
    _, crowds = await _race(bench, "disk", 5 if bench.quick else 50, 0.0, frozen=True)
    lag = max(crowds["deepfs"].lags) * 1000
    bench.at_most("50 agents on disk, after gc.freeze(): at most 100 ms late", 100, [lag], " ms")
    title = "Turns a second of agents at work on disk, the model taking no time"
    bench.plot("agents-at-work", title, ("agents", "turns a second"), [Line(*line) for line in lines.items()])
    await _split(bench)
    await _memory(bench)


@contextmanager
def _frozen() -> Iterator[None]:
    """Leave what is there out of the collections of garbage, as a service may do before it serves."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _race(
    bench: Bench, storage: str, number: int, latency: float, *, frozen: bool = False
) -> tuple[Race, dict[str, Crowd]]:
    rounds = 1 if number >= 100 or bench.quick else 4
    async with _storage(storage) as place:
        given = {"messages": [("user", "go")], **({"files": place.files} if place.files else {})}

        def crowd(create: Callable[..., Any], backend: Any) -> Crowd:
            models = [ScriptedModel(latency=latency) for _ in range(number)]
            return Crowd([create(model, backend=backend) for model in models], models, place.root, rounds, given)

        crowds = {"deepfs": crowd(create_deep_agent, place.ours)}
        theirs = None if place.theirs is None else crowd(create_peer_agent, place.theirs)
        if theirs is not None:
            crowds["deepagents"] = theirs
        call = f"await create_deep_agent(model, backend=…).ainvoke(…), {number:,} at once"
        work = f"{number:,} {'agents' if number > 1 else 'agent'} on {storage}, whose model takes {latency * 1000:g} ms"
        work += ", after gc.freeze()" if frozen else ""
        around = _frozen if frozen else nullcontext
        contenders = [
            Contender(
                name, call, each.run, partial(_rows, may_fail=each is theirs), may_lose=each is theirs, around=around
            )
            for name, each in crowds.items()
        ]
        race = await bench.race(work, contenders, "results", rounds=5, seconds=10, patience=20)
    for name, each in crowds.items():
        bench.note(f"{work}: {name} {each.describe(median(race.entry(name).seconds))}.")
    return race, crowds


async def _split(bench: Bench) -> None:
    """Where the CPU of a turn goes: a bare agent, and the operations alone, take their parts; the rest is deepfs."""
    number, rounds, root = 10, 4, ""
    async with _storage("disk") as place:
        models = [ScriptedModel() for _ in range(number)]
        agents = [create_deep_agent(model, backend=place.ours) for model in models]
        whole = Crowd(agents, models, root, rounds, {"messages": [("user", "go")]})
        [state, *_] = await whole.run()
        results = [message for message in state["messages"] if isinstance(message, ToolMessage)]
        tools = [_echo(message) for message in {message.name: message for message in results}.values()]
        models = [ScriptedModel() for _ in range(number)]
        limit = {"recursion_limit": 1_000}
        agents = [create_agent(model, tools).with_config(limit) for model in models]
        bare = Crowd(agents, models, root, rounds, whole.given)
        turns = number * (len(results) + 1)
        costs: dict[str, list[float]] = {"all": [], "bare": [], "model": [], "backend": []}
        for run in range(2 if bench.quick else 7):
            await whole.run()
            costs["all"].append(whole.cpu / turns)
            states = await bare.run()
            costs["bare"].append(bare.cpu / turns)
            started = time.process_time()
            for model, state in zip(models, states, strict=True):
                for turn in range(len(results) + 1):
                    await model.ainvoke(state["messages"][: 1 + 2 * turn])
            costs["model"].append((time.process_time() - started) / turns)
            started = time.process_time()
            for agent in range(number):
                for name, arguments in _script(f"/notes/alone-{run}-{agent}.md", root, rounds):
                    await _operate(place.ours, name, arguments)
            costs["backend"].append((time.process_time() - started) / turns)
    claim = "10 agents on disk: at most 3× the CPU of a bare agent, a turn"
    bench.at_most(claim, 3, [one / other for one, other in zip(costs["all"], costs["bare"], strict=True)])
    cost = {name: median(each) * 1000 for name, each in costs.items()}
    rest = cost["all"] - cost["bare"] - cost["backend"]
    bench.note(
        f"10 agents on disk: a turn takes {cost['all']:.2f} ms of CPU, of which the model takes {cost['model']:.2f}, "
        f"LangGraph and LangChain {cost['bare'] - cost['model']:.2f} (an agent without middleware, whose tools return "
        f"the same texts), operations of the backend {cost['backend']:.2f}, middleware and tools of deepfs {rest:.2f}."
    )


def _echo(message: ToolMessage) -> StructuredTool:
    """A tool that returns what another one of its name did."""

    async def answer(**arguments: Any) -> str:
        return message.text

    schema = {"type": "object", "properties": {}}
    return StructuredTool(name=message.name or "", description="", args_schema=schema, coroutine=answer)


async def _operate(backend: Any, name: str, arguments: dict[str, Any]) -> None:
    """What a tool does with the backend."""
    given = {**arguments}
    path = given.pop("file_path", None) or given.pop("path", None)
    if name == "write_file":
        result = await backend.awrite(path, given["content"])
    elif name == "edit_file":
        result = await backend.aedit(path, given["old_string"], given["new_string"])
    elif name == "read_file":
        result = await backend.aread(path, **given)
    elif name == "ls":
        result = await backend.als(path)
    else:
        result = await getattr(backend, f"a{name}")(given["pattern"], path)
    assert result.error is None, result.error


_MANY: Final = 300

_IDLE: Final = f"""
from importlib import import_module
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        [tool.tool_call_schema.model_json_schema() for tool in tools]  # As those of providers do.
        return self

async def main(library):
    create, backends = import_module(library).create_deep_agent, import_module(library + ".backends")
    backend, agents = backends.FilesystemBackend("/tmp", virtual_mode=True), []

    async def make(number):
        for _ in range(number):
            agent = create(Model(messages=iter([AIMessage("done")])), backend=backend)
            await agent.ainvoke({{"messages": [("user", "go")]}})
            agents.append(agent)

    await make(1)
    return await measured(make({_MANY}))
"""


async def _memory(bench: Bench) -> None:
    added = {name: [] for name in ("deepfs", "deepagents")}
    for _ in range(1 if bench.quick else 3):
        for name, each in added.items():
            each.append((await in_new_process(_IDLE, name)).added / _MANY / 1000)
    bench.note(
        f"An idle agent takes {', '.join(f'{median(each):.0f} kB with {name}' for name, each in added.items())}."
    )
    bench.at_most("an idle agent: at most 150 kB", 150, added["deepfs"], " kB")
