"""An agent at work: its turns run on the event loop, while this thread shows what happens and answers its questions."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import closing, suppress
from typing import Any, NoReturn

import anyio
from anyio.from_thread import BlockingPortal
from rich.console import Console

from deepfs._brief import address as shown_url
from deepfs.cli.agent.output import JsonOutput, Output, PlainOutput
from deepfs.cli.agent.setup import AgentOptions, Opened
from deepfs.cli.agent.terminal import KeyedApprovals, TerminalOutput
from deepfs.cli.agent.threads import ThreadLock, checked_name
from deepfs.cli.agent.turns import APPROVE, Conversation, Decision, Event, Note, Question, Started, Stopped, refusal
from deepfs.config.addresses import TREE

__all__ = ["Program", "has_person", "where_stopped"]

# --- events in this thread -------------------------------------------------------------------------------------------


class _Turn:
    """A turn that runs on the event loop, and whose events this thread takes. Made on the loop."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._send, self._receive = anyio.create_memory_object_stream[Event](1_000)
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    @classmethod
    async def begun(cls, events: AsyncIterator[Event]) -> "_Turn":
        return cls(events)

    async def run(self) -> None:
        try:
            with self._scope, self._send:
                async for event in self._events:
                    await self._send.send(event)
        finally:
            self._ended.set()

    async def some(self) -> list[Event]:
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


def _streamed(portal: BlockingPortal, events: AsyncIterator[Event]) -> Generator[list[Event]]:
    """The events of a turn, as many at once as there are.

    If the iterator is closed before its end, or by Ctrl-C, the turn is cancelled.
    """
    turn = portal.call(_Turn.begun, events)
    running = portal.start_task_soon(turn.run)
    try:
        while found := portal.call(turn.some):
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
    """An agent with its output and who answers its questions.

    Args:
        portal: Leads to the event loop.
        opened: What is open.
        options: The options.
        url: The URL of the files.
        lock: Keeps other processes from the thread.
    """

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
        self.output, self._decide = self._ways()
        self.asks: bool = isinstance(self._decide, KeyedApprovals)
        """Whether a person answers questions."""

    def _ways(self) -> tuple[Output, Callable[[Question], Decision]]:
        """How events are shown, and how questions are answered."""
        options = self.options
        if options.as_json:
            return JsonOutput(sys.stdout), self._unasked
        if not has_person() or options.quiet:
            beside = None if options.quiet else sys.stderr
            return PlainOutput(sys.stdout, beside, verbose=options.verbose), self._unasked
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        console = Console(highlight=False, markup=False, emoji=False, color_system=colours)
        output = TerminalOutput(console, verbose=options.verbose)
        return output, self._unasked if options.yes else KeyedApprovals(output, console, self._preview)

    def _unasked(self, question: Question) -> Decision:
        """The answer where no person is asked."""
        if self.options.yes and "approve" in question.allowed:
            return APPROVE
        return refusal(question, "Nobody is here to approve this call, so it was not run.")

    def _preview(self, name: str, args: Mapping[str, Any]) -> str:
        from deepfs.middleware.previews import preview_call

        preview = self.portal.call(preview_call, self.opened.backend, name, args)
        return preview.text if preview else ""

    # --- threads ---

    def open_thread(self, name: str) -> Conversation:
        """Work on a thread.

        Args:
            name: The name of the thread.

        Raises:
            ValueError: Another process works on it, or the name cannot be used.
        """
        self._lock.take(checked_name(name))
        self.thread = name
        self.conversation: Conversation = Conversation(self.opened.graph, name)
        self.output.show(Started(thread=name, model=self.opened.model, tree=self.tree))
        return self.conversation

    # --- turns ---

    def work(self, task: str) -> None:
        """Give the agent a task, and answer its questions until it is done.

        Args:
            task: The task.
        """
        stopped = self.portal.call(self.conversation.stopped)
        if stopped is not None:
            self.output.show(Note(text=f"{where_stopped(stopped)}. The new task leaves that."))
        self.portal.call(self.opened.threads.used, self.thread, task, self.tree, self.url)
        self._finish(self.conversation.task(task))

    def go_on(self) -> bool:
        """Go on with the turn that was cut off; False if there is none."""
        stopped = self.portal.call(self.conversation.stopped)
        if stopped is not None:
            self._finish(self.conversation.go_on(stopped, self._answers(stopped)))
        return stopped is not None

    def _finish(self, events: AsyncIterator[Event]) -> None:
        while True:
            with closing(_streamed(self.portal, events)) as streamed:
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
        self.output.show(question.answered(decision))
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
