"""What `deepfs agent` does: one task, or a talk with a person, or a list of threads.

The event loop runs in a thread of its own. The main thread shows events and waits for keys and lines, so that Ctrl-C
reaches it at once and nothing that it does holds up the agent.
"""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Final, NoReturn

from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import json

from deepfs.cli.agent.output import escaping_streams, shown
from deepfs.cli.agent.program import Program, has_person, where_stopped
from deepfs.cli.agent.setup import AgentOptions, Opened, absolute_url, opened_agent
from deepfs.cli.agent.threads import Thread, ThreadLock, default_file, new_name, open_threads
from deepfs.cli.agent.turns import Ended, Note
from deepfs.cli.screen import discard_output
from deepfs.types import error_told

__all__ = ["run_agent"]

FAILED: Final = 1
WRONG_USE: Final = 2
REFUSED: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


def _message(error: BaseException, options: AgentOptions) -> str:
    """An error on one line, or with its traceback."""
    if options.verbose:
        return shown("".join(traceback.format_exception(error))).strip()
    known = isinstance(error, ValueError | OSError | ImportError) and type(error).__module__ in (
        "builtins",
        "deepfs.errors",
    )
    return shown(str(error) if known else f"{type(error).__name__}: {error}")


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
            status, ended = REFUSED, "refused"
    except KeyboardInterrupt:
        status, ended = INTERRUPTED, "interrupted"
    except BrokenPipeError:
        raise
    except Exception as caught:
        status, ended, error = FAILED, "failed", _message(caught, program.options)
    program.output.show(Ended(status=ended, thread=program.thread, answer=program.conversation.answer, error=error))
    if error is not None:
        _tell(error)
    elif status == REFUSED and not (program.asks or program.options.yes or program.options.as_json):
        _tell("a call was not approved; --yes approves all calls")
    return status


def _tell(text: str) -> None:
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
                self._guarded(partial(self._do, line))

    def _do(self, line: str) -> None:
        if line.startswith("/"):
            self._command(*line[1:].split(maxsplit=1))
        else:
            self._program.work(line)

    def _guarded(self, action: Callable[[], object]) -> None:
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
        stopped = program.portal.call(program.conversation.stopped)
        if stopped is not None and stopped.questions:
            self._guarded(program.go_on)
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
            raise error_told(found)
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


def _remember_lines(directory: str) -> None:
    """Edit lines with readline, where there is one, and keep them for the next time."""
    try:
        import readline
    except ImportError:
        return
    file = os.path.join(directory, "history")
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        readline.read_history_file(file)
    readline.set_history_length(1_000)
    atexit.register(_write_history, file)


def _write_history(file: str) -> None:
    import readline

    with suppress(OSError):
        readline.write_history_file(file)


# --- the list of threads ---------------------------------------------------------------------------------------------


def _rows_of(threads: list[Thread]) -> list[str]:
    width = max((len(each.name) for each in threads), default=0)
    rows = [
        f"{each.name:<{width}}  {each.updated_at[:16].replace('T', ' ')}  {each.tree}  {each.title}" for each in threads
    ]
    return [shown(row) for row in rows] or ["There are no threads."]


async def _listed(file: str) -> list[Thread]:
    async with open_threads(file) as threads:
        return await threads.list()


def _list_threads(portal: BlockingPortal, options: AgentOptions, file: str) -> int:
    threads = portal.call(_listed, file)
    rows = [json.encode(each).decode() for each in threads] if options.as_json else _rows_of(threads)
    print("\n".join(rows))
    return 0


# --- the command -----------------------------------------------------------------------------------------------------


def run_agent(**given: Any) -> NoReturn:
    """Run the command, and exit: with 0, or 1 after a failure, 2 after wrong use, 3 if a call was not approved.

    Args:
        given: What the user said: the attributes of AgentOptions.
    """
    options = AgentOptions(**given)
    escaping_streams()
    try:
        status = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        status = PIPE_CLOSED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        _tell(_message(error, options))
        status = WRONG_USE
    sys.exit(status)


def _run(options: AgentOptions) -> int:
    file = os.path.abspath(options.threads or default_file())
    with start_blocking_portal("asyncio") as portal, ExitStack() as stack:
        if options.lists:
            return _list_threads(portal, options, file)
        task = _given_task(options)
        url = absolute_url(options.on)
        opened = stack.enter_context(portal.wrap_async_context_manager(opened_agent(options, url, file)))
        lock = stack.enter_context(closing(ThreadLock(file)))
        program = Program(portal, opened, options, url, lock)
        program.open_thread(_thread_name(portal, opened, options, url))
        if task is not None or not has_person() or options.as_json:
            return _do_task(program, task)
        _remember_lines(os.path.dirname(file))
        return _Talk(program).run()


def _given_task(options: AgentOptions) -> str | None:
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
