"""What `deepfs agent` works with: its options, the settings of a tree, the agent, and the threads that are kept."""

import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

import anyio
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from msgspec import Struct, ValidationError, convert, field

from deepfs.backends.protocol import BackendProtocol
from deepfs.config.trees import load_tree, open_backend
from deepfs.config.urls import TREE, inert_serializer
from deepfs.policy.rules import FilesystemPermission
from deepfs.sync import in_thread

if sys.platform != "win32":
    import fcntl

# --- threads, which a SQLite database keeps with their checkpoints ---------------------------------------------------

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS deepfs_threads (
    name TEXT PRIMARY KEY, title TEXT NOT NULL, tree TEXT NOT NULL, place TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL
)
"""
_UPDATE: Final = """
INSERT INTO deepfs_threads VALUES (:name, :title, :tree, :place, :now, :now)
ON CONFLICT (name) DO UPDATE SET tree = :tree, place = :place, updated_at = :now
"""
_LONGEST_NAME: Final = 200
_LONGEST_TITLE: Final = 200


class SavedThread(Struct, frozen=True):
    """A conversation that can be resumed."""

    name: str
    title: str
    """The beginning of the first task."""
    tree: str
    """The address of the files, as the user gave it, without a password."""
    place: str
    """A digest of the whole address."""
    created_at: str
    updated_at: str


class Threads:
    """The threads in an open database, whose checkpoints `saver` keeps."""

    def __init__(self, saver: AsyncSqliteSaver) -> None:
        self.saver: AsyncSqliteSaver = saver

    async def list(self) -> list[SavedThread]:
        """All threads, the last used one first."""
        rows = await self.saver.conn.execute_fetchall("SELECT * FROM deepfs_threads ORDER BY updated_at DESC, name")
        return [SavedThread(*row) for row in rows]

    async def last(self, url: str) -> SavedThread | None:
        """The thread that was used last with these files."""
        return next((each for each in await self.list() if each.place == _digest(url)), None)

    async def record_use(self, name: str, task: str, tree: str, url: str) -> None:
        """Note that a thread gets a task."""
        title = " ".join(task.split())[:_LONGEST_TITLE]
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = {"name": name, "title": title, "tree": tree, "place": _digest(url), "now": now}
        await self.saver.conn.execute(_UPDATE, values)
        await self.saver.conn.commit()


def _digest(url: str) -> str:
    return sha256(url.encode()).hexdigest()


@asynccontextmanager
async def open_threads(file: str) -> AsyncIterator[Threads]:
    """Open a database of threads, and close it at the end. A new file, and its directories, are for this user only.

    Raises ValueError if the file is no database, OSError if it cannot be opened.
    """
    await anyio.to_thread.run_sync(_make, file)
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        saver.serde = inert_serializer()
        try:
            await saver.setup()
            await saver.conn.execute(_TABLE)
            await saver.conn.commit()
        except sqlite3.Error as error:
            raise ValueError(f"{file} cannot be used as a database of threads: {error}") from None
        yield Threads(saver)


def _make(file: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(file)), mode=0o700, exist_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


def default_file() -> str:
    """The database in this user's directory for state, as XDG has it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "deepfs", "threads.db")


def new_name() -> str:
    """A name for a new thread: the day, and a random part."""
    return f"{datetime.now():%Y%m%d}-{token_hex(3)}"


def check_name(name: str) -> str:
    """The name of a thread. Raises ValueError if it is empty, too long, or has characters that do not print."""
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"the name of a thread has 1 to {_LONGEST_NAME} characters that print: {name[:80]!r}")
    return name


class ThreadLock:
    """Keeps other processes from the thread that this one works on.

    The lock is on one byte of a file beside the database, so that a process that dies releases it, and nothing is left
    of a thread that is not used.
    """

    def __init__(self, file: str) -> None:
        self._descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: int | None = None

    def take(self, name: str) -> None:
        """Lock a thread in place of the one before. Raises ValueError, and keeps that, if another process has it."""
        byte = int.from_bytes(sha256(name.encode()).digest()[:7], "big")
        if sys.platform == "win32" or byte == self._held:
            return
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            raise ValueError(f"another process works on the thread {name!r}") from None
        if self._held is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._held)
        self._held = byte

    def close(self) -> None:
        """Unlock the thread, and close the file."""
        os.close(self._descriptor)


ASKED: Final = ("write_file", "edit_file", "delete", "execute")
"""The tools before which a person is asked, unless settings say otherwise; they include others with their effects."""
_STAGED: Final = frozenset({"write_file", "edit_file", "delete", "move"})
"""The tools whose effect can be staged."""
_TUNING: Final = frozenset({"max_retries", "max_tokens", "seed", "stop", "temperature", "timeout", "top_k", "top_p"})
"""Options of a model that do not say where it is reached, nor what is sent along."""

# --- what a user says ------------------------------------------------------------------------------------------------


class AgentOptions(Struct, kw_only=True):
    """The options of the command, whose help says what they mean."""

    task: str | None = None
    on: str | None = None
    variables: tuple[str, ...] = ()
    trust: bool = False
    model: str | None = None
    yes: bool = False
    staged: bool = False
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    threads: str | None = None
    thread: str | None = None
    resumes: bool = False
    lists: bool = False


class _Subagent(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str
    system_prompt: str = ""
    model: str | None = None
    skills: list[str] = field(default_factory=list)


_Answers = Literal["approve", "edit", "reject", "respond"]


class AgentSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """The table `[agent]` of the TOML file of a tree; docs/agent-command.md describes it."""

    model: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    memory: list[str] = field(default_factory=list)
    skills: list[str] = field(default_factory=list)
    interrupt_on: list[str] | dict[str, bool | list[_Answers]] = field(default_factory=lambda: [*ASKED])
    subagents: list[_Subagent] = field(default_factory=list)

    @property
    def answers(self) -> Mapping[str, Any]:
        """For each tool, whether a person is asked, or the allowed answers."""
        given = self.interrupt_on
        return given if isinstance(given, dict) else dict.fromkeys(given, True)


async def _settings(url: str, options: AgentOptions) -> tuple[AgentSettings, Sequence[Any]]:
    """The settings of the agent of a tree, and the rules about its files."""
    if not url.startswith(TREE):
        return AgentSettings(), ()
    file = url.removeprefix(TREE)
    tree = await load_tree(file, variables=options.variables)
    try:
        settings = convert(tree.agent, AgentSettings)
    except ValidationError as error:
        raise ValueError(f"{file}: [agent]: {error}") from None
    if not options.trust and (claims := [*_claims(settings)]):
        raise ValueError(f"{file}: [agent]: {claims[0]}; --trust allows it, if the file is yours")
    rules: list[Any] = [(rule.operations, rule.paths, rule.mode) for rule in tree.permissions]
    return settings, [FilesystemPermission(*rule) for rule in rules]


def _claims(settings: AgentSettings) -> Iterator[str]:
    """What a file says that only one who is trusted may say: who wrote it may not be who runs the agent."""
    answers = settings.answers
    for name in (*ASKED, *answers):
        allowed = answers.get(name)
        if not allowed:
            yield f"interrupt_on does not ask before {name}"
        elif allowed is not True and "reject" not in allowed:
            yield f"interrupt_on does not let {name} be rejected"
    for name in settings.model_options:
        if name not in _TUNING:
            yield f"model_options has {name}"


# --- the agent -------------------------------------------------------------------------------------------------------


def _model(name: str | None, options: Mapping[str, Any]) -> Any:
    """The model of a name: `scripted:FILE`, or `provider:name`, which the profile of the provider completes."""
    if name is not None and name.startswith("scripted:"):
        from deepfs.testing import ScriptedModel

        return ScriptedModel.from_file(name.removeprefix("scripted:"), **options)
    if not options:
        return name
    from langchain.chat_models import init_chat_model

    return init_chat_model(name or _default_model(), **options)


def _default_model() -> str:
    from deepfs.graph import DEFAULT_MODEL

    return f"anthropic:{DEFAULT_MODEL}"


def _interrupt_on(settings: AgentSettings, options: AgentOptions) -> dict[str, Any]:
    """The tools that ask. If all calls are approved, they are the same, since threads name them, but none asks.

    Of staged changes, only the commit asks.
    """
    never: dict[str, Any] = {"when": lambda request: False} if options.yes else {}
    given = settings.answers
    if options.staged:
        given = {name: answers for name, answers in given.items() if name not in _STAGED} | {"commit_changes": True}
    every = ["approve", "edit", "reject", "respond"]
    return {
        name: {"allowed_decisions": every if answers is True else answers, **never} if answers else False
        for name, answers in given.items()
    }


def _graph(
    options: AgentOptions, settings: AgentSettings, rules: Sequence[Any], backend: BackendProtocol, threads: Threads
) -> Any:
    from deepfs.graph import create_deep_agent

    def subagent(spec: _Subagent) -> Any:
        model = {} if spec.model is None else {"model": _model(spec.model, {})}
        return {
            "name": spec.name,
            "description": spec.description,
            "system_prompt": spec.system_prompt,
            "skills": spec.skills,
            **model,
        }

    return create_deep_agent(
        _model(options.model or settings.model, settings.model_options),
        system_prompt=settings.system_prompt,
        subagents=[*map(subagent, settings.subagents)],
        memory=settings.memory,
        skills=settings.skills or None,
        permissions=rules,
        interrupt_on=_interrupt_on(settings, options),
        staged=options.staged,
        backend=backend,
        checkpointer=threads.saver,
    )


class Opened(Struct):
    """An agent, and what it works with."""

    backend: BackendProtocol
    threads: Threads
    graph: Any
    model: str


@asynccontextmanager
async def open_agent(options: AgentOptions, url: str, file: str) -> AsyncIterator[Opened]:
    """Open all that an agent works with, and close it at the end.

    Raises ValueError for a setting, a URL or a database that cannot be used, OSError for a file, and
    ModuleNotFoundError, whose text names the package.
    """
    settings, rules = await _settings(url, options)
    async with open_threads(file) as threads, open_backend(url, variables=options.variables) as backend:
        # In a thread, since it loads what the agent needs.
        graph = await in_thread(partial(_graph, options, settings, rules, backend, threads))
        name = options.model or settings.model
        yield Opened(backend, threads, graph, await in_thread(_default_model) if name is None else name)


def absolute_url(on: str | None) -> str:
    """The URL of a URL, a directory or the TOML file of a tree, with absolute paths; None is the current directory."""
    if on is None or "://" not in on:
        path = os.path.abspath(on or ".")
        is_tree = on is not None and not os.path.isdir(path) and on.endswith(".toml")
        return f"{TREE}{path}" if is_tree else f"file://{quote(path)}"
    if on.startswith(TREE):
        return TREE + os.path.abspath(on.removeprefix(TREE))
    scheme, _, rest = on.partition("://")
    location, mark, options = rest.partition("?")
    if scheme == "file":
        location = quote(os.path.abspath(unquote(location)))
    elif scheme.endswith("sqlite"):
        location = f"/{quote(os.path.abspath(unquote(location).removeprefix('/')))}"
    return f"{scheme}://{location}{mark}{options}"
