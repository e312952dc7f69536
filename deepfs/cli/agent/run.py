"""What `deepfs agent` does: one task, or a talk with a person, or a list of threads.

The event loop runs in a thread of its own. The main thread shows events and waits for keys and lines, so that Ctrl-C
reaches it at once and nothing that it does holds up the agent.
"""

import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Final, NoReturn

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import json
from rich.console import Console

from deepfs._brief import address as shown_url
from deepfs.cli.agent.output import (
    JsonOutput,
    KeyedApprovals,
    Output,
    TerminalOutput,
    for_terminal,
)
from deepfs.cli.agent.setup import (
    AgentOptions,
    Opened,
    SavedThread,
    ThreadLock,
    absolute_url,
    check_name,
    default_file,
    new_name,
    open_agent,
    open_threads,
)
from deepfs.cli.agent.turns import (
    APPROVE,
    Conversation,
    Decision,
    Ended,
    Event,
    Note,
    Question,
    Started,
    Stopped,
    refusal,
)
from deepfs.cli.screen import discard_output, escape_output
from deepfs.cli.session import INTERRUPTED, PIPE_CLOSED, silence_backends
from deepfs.config.urls import TREE
from deepfs.types import error_from

# --- events in this thread -------------------------------------------------------------------------------------------


class _RunningTurn:
    """A turn that runs on the event loop, and whose events this thread takes. Made on the loop."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._send, self._receive = anyio.create_memory_object_stream[Event](1_000)
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    async def run(self) -> None:
        try:
            with self._scope, self._send:
                async for event in self._events:
                    await self._send.send(event)
        finally:
            self._ended.set()

    async def read_events(self) -> list[Event]:
        """The events that are there, at least one; none at the end."""
        found: list[Event] = []
        with suppress(anyio.EndOfStream, anyio.WouldBlock):
            found.append(await self._receive.receive())
            while len(found) < 100:
                found.append(self._receive.receive_nowait())
        return found

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()
        self._receive.close()


def _stream_events(portal: BlockingPortal, events: AsyncIterator[Event]) -> Generator[list[Event]]:
    """The events of a turn, as many at once as there are.

    If the iterator is closed before its end, or by Ctrl-C, the turn is cancelled.
    """
    turn = portal.call(_RunningTurn, events)
    running = portal.start_task_soon(turn.run)
    try:
        while found := portal.call(turn.read_events):
            yield found
        running.result()
    finally:
        try:
            portal.call(turn.stop)
        except KeyboardInterrupt:
            _leave()


def _leave() -> NoReturn:
    """End this process though a turn does not stop: what is stored is as after a crash, which is harmless."""
    sys.stdout.write("\x1b[?25h\n" if sys.stdout.isatty() else "")  # The cursor may be hidden.
    sys.stdout.flush()
    os._exit(130)


# --- the program -----------------------------------------------------------------------------------------------------


class Program:
    """An agent with its output and who answers its questions; `portal` leads to the event loop."""

    def __init__(
        self, portal: BlockingPortal, opened: Opened, options: AgentOptions, url: str, lock: ThreadLock
    ) -> None:
        self.portal = portal
        self.opened = opened
        self.options = options
        self.url = url
        self.tree: str = _tree_shown(options.on)
        self._lock = lock
        self.was_refused: bool = False
        self.thread: str = ""
        self.output: Output
        self.output, self._decide = self._choose_output()
        self.asks: bool = isinstance(self._decide, KeyedApprovals)
        """Whether a person answers questions."""

    def _choose_output(self) -> tuple[Output, Callable[[Question], Decision]]:
        """How events are shown, and how questions are answered."""
        options = self.options
        if options.as_json:
            return JsonOutput(sys.stdout), self._answer_unasked
        if not has_person() or options.quiet:
            beside = None if options.quiet else sys.stderr
            return Output(sys.stdout, beside, verbose=options.verbose), self._answer_unasked
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        console = Console(highlight=False, markup=False, emoji=False, color_system=colours)
        output = TerminalOutput(console, verbose=options.verbose)
        return output, self._answer_unasked if options.yes else KeyedApprovals(output, console, self._preview)

    def _answer_unasked(self, question: Question) -> Decision:
        """The answer where no person is asked."""
        if self.options.yes and "approve" in question.allowed:
            return APPROVE
        return refusal(question, "Nobody is here to approve this call, so it was not run.")

    def _preview(self, name: str, args: Mapping[str, Any]) -> str:
        from deepfs.middleware.previews import preview_call

        preview = self.portal.call(preview_call, self.opened.backend, name, args)
        return preview.text if preview else ""

    # --- threads ---

    def open_thread(self, name: str) -> None:
        """Work on a thread. Raises ValueError if another process does, or the name cannot be used."""
        self._lock.take(check_name(name))
        self.thread = name
        self.conversation: Conversation = Conversation(self.opened.graph, name)
        self.output.show(Started(thread=name, model=self.opened.model, tree=self.tree))

    # --- turns ---

    def work(self, task: str) -> None:
        """Give the agent a task, and answer its questions until it is done."""
        stopped = self.portal.call(self.conversation.find_stop)
        if stopped is not None:
            self.output.show(Note(text=f"{where_stopped(stopped)}. The new task leaves that."))
        self.portal.call(self.opened.threads.record_use, self.thread, task, self.tree, self.url)
        self._finish(self.conversation.task(task))

    def go_on(self) -> bool:
        """Go on with the turn that was cut off; False if there is none."""
        stopped = self.portal.call(self.conversation.find_stop)
        if stopped is not None:
            self._finish(self.conversation.go_on(stopped, self._answers(stopped)))
        return stopped is not None

    def _finish(self, events: AsyncIterator[Event]) -> None:
        while True:
            with closing(_stream_events(self.portal, events)) as streamed:
                for found in streamed:
                    for event in found:
                        self.output.show(event)
                    self.output.refresh()
            stopped = self.conversation.pending
            if stopped is None:
                return
            events = self.conversation.go_on(stopped, self._answers(stopped))

    def _answers(self, stopped: Stopped) -> dict[str, list[Decision]]:
        if stopped.foreign:
            raise ValueError(
                "the agent asks for something else than the approval of a call, which this program cannot answer"
            )
        return {name: [self._answer(each) for each in asked] for name, asked in stopped.questions.items()}

    def _answer(self, question: Question) -> Decision:
        decision = self._decide(question)
        self.was_refused |= decision["type"] not in ("approve", "edit")
        self.output.show(question.to_answer(decision))
        return decision


def _tree_shown(on: str | None) -> str:
    """What a user calls the files, without secrets."""
    given = (on or os.getcwd()).removeprefix(TREE)
    return shown_url(given) if "://" in given else given


def where_stopped(stopped: Stopped) -> str:
    asked = [each.name for questions in stopped.questions.values() for each in questions]
    if asked:
        return f"The last turn waits for approval of {', '.join(asked)}"
    calls = ", ".join(call.name for call in stopped.calls)
    return f"The last turn was cut off{f' within {calls}' if calls else ''}"


def has_person() -> bool:
    """Whether a person reads along and can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


_FAILED: Final = 1
_WRONG_USE: Final = 2
_REFUSED: Final = 3


def _message(error: BaseException, options: AgentOptions) -> str:
    """An error on one line, or with its traceback."""
    if options.verbose:
        return for_terminal("".join(traceback.format_exception(error))).strip()
    known = isinstance(error, ValueError | OSError | ImportError) and type(error).__module__ in (
        "builtins",
        "deepfs.errors",
    )
    return for_terminal(str(error) if known else f"{type(error).__name__}: {error}")


# --- one task --------------------------------------------------------------------------------------------------------


def _do_task(program: Program, task: str | None) -> int:
    """Do one task, or end the turn that was cut off. Returns the exit status."""
    status, ended, error = 0, "done", None
    try:
        if task is not None:
            program.work(task)
        elif not program.go_on():
            raise ValueError("this thread has nothing to go on with: give a task")
        if program.was_refused:
            status, ended = _REFUSED, "refused"
    except KeyboardInterrupt:
        status, ended = INTERRUPTED, "interrupted"
    except BrokenPipeError:
        raise
    except Exception as caught:
        status, ended, error = _FAILED, "failed", _message(caught, program.options)
    program.output.show(Ended(status=ended, thread=program.thread, answer=program.conversation.answer, error=error))
    if error is not None:
        _report(error)
    elif status == _REFUSED and not (program.asks or program.options.yes or program.options.as_json):
        _report("a call was not approved; --yes approves all calls")
    return status


def _report(text: str) -> None:
    print(f"deepfs agent: {text}", file=sys.stderr, flush=True)


# --- in turns --------------------------------------------------------------------------------------------------------

_HELP: Final = """\
/files [PATTERN]  list the files, or those that match
/new              begin a new thread
/thread NAME      go to a thread
/threads          list the threads
/continue         go on with a turn that was cut off
/quit             end, as Ctrl-D does
Ctrl-C            stop the turn, or clear the line
A line that ends in \\ goes on in the next one."""

_MOST_FILES: Final = 200


class _Talk:
    """A talk with a person, who gives tasks and commands."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self) -> int:
        """Talk until the person ends it. Returns the exit status."""
        self._say("Type a task, /help for the commands, or Ctrl-D to end.")
        self._resume()
        while True:
            try:
                line = _read_line().strip()
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return 0
            if line in ("/quit", "/exit"):
                return 0
            if line:
                self._guard(partial(self._do, line))

    def _do(self, line: str) -> None:
        if line.startswith("/"):
            self._command(*line[1:].split(maxsplit=1))
        else:
            self._program.work(line)

    def _guard(self, action: Callable[[], object]) -> None:
        """Act, and tell errors: the talk goes on."""
        output = self._program.output
        try:
            action()
            output.finish()
        except KeyboardInterrupt:
            output.forget()
            self._say("Stopped. /continue goes on.")
        except Exception as error:
            output.forget()
            self._say(f"Error: {_message(error, self._program.options)}")

    def _say(self, text: str) -> None:
        self._program.output.show(Note(text=text))

    def _resume(self) -> None:
        """Show where the thread is, and ask the questions that wait."""
        program = self._program
        messages, task = program.portal.call(program.conversation.recent)
        if messages:
            self._say(f"The thread has {messages} messages. The last task: {' '.join(task.split())[:200]}")
        stopped = program.portal.call(program.conversation.find_stop)
        if stopped is not None and stopped.questions:
            self._guard(program.go_on)
        elif stopped is not None:
            self._say(f"{where_stopped(stopped)}. /continue goes on; a new task leaves that.")

    def _command(self, name: str = "", argument: str = "") -> None:
        match name:
            case "help":
                self._say(_HELP)
            case "files":
                self._files(argument.strip())
            case "threads":
                self._say("\n".join(_rows_of(self._program.portal.call(self._program.opened.threads.list))))
            case "new":
                self._program.open_thread(new_name())
            case "thread" if argument.strip():
                self._program.open_thread(argument.strip())
                self._resume()
            case "continue":
                if not self._program.go_on():
                    self._say("Nothing was cut off.")
            case _:
                self._say("There is no such command. /help lists them.")

    def _files(self, pattern: str) -> None:
        found = self._program.portal.call(self._program.opened.backend.aglob, pattern or "**")
        if not found.ok:
            raise error_from(found)
        entries = [entry for entry in found.matches or () if not entry.is_dir]
        rows = [f"{entry.size or 0:>9,}  {entry.path}" for entry in entries[:_MOST_FILES]]
        if len(entries) > _MOST_FILES:
            rows.append(f"… {len(entries) - _MOST_FILES:,} more: /files PATTERN shows some")
        self._say("\n".join(rows) or "There are no files.")


def _read_line() -> str:
    """A line that a person types, with those that it goes on in."""
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("… "))
    return "\n".join(lines)


# --- the list of threads ---------------------------------------------------------------------------------------------


def _rows_of(threads: list[SavedThread]) -> list[str]:
    width = max((len(each.name) for each in threads), default=0)
    rows = [
        f"{each.name:<{width}}  {each.updated_at[:16].replace('T', ' ')}  {each.tree}  {each.title}" for each in threads
    ]
    return [for_terminal(row) for row in rows] or ["There are no threads."]


def _list_threads(portal: BlockingPortal, options: AgentOptions, file: str) -> int:
    with portal.wrap_async_context_manager(open_threads(file)) as opened:
        threads = portal.call(opened.list)
    rows = [json.encode(each).decode() for each in threads] if options.as_json else _rows_of(threads)
    print("\n".join(rows))
    return 0


# --- the command -----------------------------------------------------------------------------------------------------


def run_agent(**given: Any) -> NoReturn:
    """Run the command, and exit: with 0, or 1 after a failure, 2 after wrong use, 3 if a call was not approved."""
    options = AgentOptions(**given)
    escape_output()
    silence_backends()
    try:
        status = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        status = PIPE_CLOSED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        _report(_message(error, options))
        status = _WRONG_USE
    sys.exit(status)


def _run(options: AgentOptions) -> int:
    file = os.path.abspath(options.threads or default_file())
    with start_blocking_portal("asyncio") as portal, ExitStack() as stack:
        if options.lists:
            return _list_threads(portal, options, file)
        task = _read_task(options)
        url = absolute_url(options.on)
        opened = stack.enter_context(portal.wrap_async_context_manager(open_agent(options, url, file)))
        lock = stack.enter_context(closing(ThreadLock(file)))
        program = Program(portal, opened, options, url, lock)
        program.open_thread(_thread_name(portal, opened, options, url))
        if task is not None or not has_person() or options.as_json:
            return _do_task(program, task)
        with suppress(ImportError):
            import readline  # noqa: F401 - lines are then edited, and come back by the arrow keys
        return _Talk(program).run()


def _read_task(options: AgentOptions) -> str | None:
    """The task; None to talk, or to end the turn that was cut off. Raises ValueError if there is none."""
    task = sys.stdin.read() if options.task == "-" else options.task
    if task is not None and not task.strip():
        raise ValueError("the task is empty")
    names_thread = options.resumes or options.thread is not None
    if task is None and not names_thread and (options.as_json or not has_person()):
        raise ValueError("there is no task: give one, or - to read it from the standard input")
    return task


def _thread_name(portal: BlockingPortal, opened: Opened, options: AgentOptions, url: str) -> str:
    if not options.resumes:
        return options.thread or new_name()
    last = portal.call(opened.threads.last, url)
    if last is None:
        raise ValueError("there is no thread with these files to continue")
    return last.name
