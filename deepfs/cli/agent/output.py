"""How the turns of an agent are shown: as JSON, as plain text, or on a terminal.

All text of models, tools and files is shown with control characters as escapes: it cannot act on a terminal.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TextIO

from msgspec import to_builtins

from deepfs.cli.agent.turns import Answer, Ended, Event, Message, Note, Started, Text, ToolCall, ToolResult
from deepfs.cli.screen import count_noun
from deepfs.text.visible import visible

LONGEST_LINE: Final = 4_000
"""The characters of an unfinished line or block after which it is written without waiting for its end."""
_UNFOLDED: Final = 20_000
"""The most characters of a result that are shown unfolded."""
_SUMMARY: Final = 200
_REJECTED: Final = "User rejected the tool call for "
"""How LangChain tells a model that a call was rejected."""


def for_terminal(text: str) -> str:
    """A text of others for a terminal: lines and tabs stay, other control characters and invisible ones are escapes."""
    return visible(text.replace("\r\n", "\n"))


def on_one_line(text: str, most: int = _SUMMARY) -> str:
    text = text[: most + 1].replace("\n", " ").replace("\t", " ")
    return for_terminal(text if len(text) <= most else f"{text[:most]}…")


# --- what a line says of a call --------------------------------------------------------------------------------------


def subject(args: Mapping[str, Any]) -> str:
    """What a call is about, on one line."""
    match args:
        case {"source": str(source), "destination": str(destination)}:
            text = f"{source} → {destination}"
        case {"pattern": str(pattern)}:
            text = f"{pattern} in {args['path']}" if args.get("path") else pattern
        case {"subagent_type": str(agent)}:
            text = f"{agent}: {on_one_line(str(args.get('description', '')), 50)}"
        case {"file_path": str(text)} | {"path": str(text)} | {"command": str(text)} | {"name": str(text)}:
            pass
        case _:
            text = ", ".join(f"{name}={value!r}" for name, value in args.items() if not isinstance(value, list | dict))
    return on_one_line(text, 160)


_COUNTED: Final = {"glob": "path", "grep": "line", "ls": "path", "read_file": "line"}


def outcome(result: ToolResult, args: Mapping[str, Any]) -> str:
    """What came of a call, on one line."""
    text = result.text
    match result.name if result.ok else "":
        case "delete" | "move":
            return ""
        case "glob" | "grep" | "ls" | "read_file" as name:
            rows = (row for row in text.splitlines() if not row.startswith("["))
            return count_noun(sum(not (name == "ls" and row.endswith(":")) for row in rows), _COUNTED[name])
        case "write_file":
            return count_noun(len(str(args.get("content", "")).splitlines()), "line")
        case "edit_file" if found := re.search(r"^Replaced (\d+) ", text, re.MULTILINE):
            return count_noun(int(found[1]), "replacement")
        case "execute" if codes := re.findall(r"^\[Exit code (-?\d+)", text, re.MULTILINE):
            return f"exit code {codes[-1]}"
        case "write_todos":
            todos = [each for each in args.get("todos", ()) if isinstance(each, Mapping)]
            return f"{sum(each.get('status') == 'completed' for each in todos)} of {len(todos)} done"
    lines = (line for line in text[:10_000].removeprefix("Error: ").splitlines() if line.strip())
    return on_one_line(next(lines, ""))


# --- outputs ---------------------------------------------------------------------------------------------------------


class Output:
    """Shows events; with `verbose`, arguments and results of calls unfolded. Subclasses say how."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._calls: dict[tuple[str | None, str], ToolCall] = {}
        """The calls that have not ended."""
        self._unfinished: dict[str, str] = {}
        """The unfinished line of each subagent."""

    def show(self, event: Event) -> None:
        """Show what has happened."""
        match event:
            case Text(agent=None):
                self._say(for_terminal(event.text))
            case Text(agent=str(agent)):
                self._lines(agent, for_terminal(event.text))
            case Message():
                self._end_line(event.agent)
            case ToolCall():
                self._calls[event.agent, event.id] = event
            case ToolResult():
                call = self._calls.pop((event.agent, event.id), None)
                if not event.text.startswith(_REJECTED):  # The answer was shown.
                    self._result(event, call.args if call else {})
            case Answer():
                self._answer(event)
            case Started():
                self._note(on_one_line(f"{event.model} · {event.tree} · thread {event.thread}"))
            case Note():
                self._note(for_terminal(event.text))
            case Ended():
                for agent in [*self._unfinished]:
                    self._end_line(agent)
                self.finish()

    def _lines(self, agent: str, text: str) -> None:
        """Show the finished lines of a subagent, and keep the rest."""
        *lines, rest = (self._unfinished.pop(agent, "") + text).split("\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], ""
        for line in lines:
            self._line(agent, line)
        if rest:
            self._unfinished[agent] = rest

    def _end_line(self, agent: str | None) -> None:
        if agent is None:
            self.finish()
        elif rest := self._unfinished.pop(agent, ""):
            self._line(agent, rest)

    def _say(self, text: str) -> None:
        """Show a part of what the agent itself says."""
        raise NotImplementedError

    def _line(self, agent: str, line: str) -> None:
        """Show a line of a subagent."""
        raise NotImplementedError

    def _result(self, result: ToolResult, args: Mapping[str, Any]) -> None:
        """Show that a call has ended."""
        raise NotImplementedError

    def _answer(self, answer: Answer) -> None:
        """Show the answer to a question."""
        raise NotImplementedError

    def _note(self, text: str) -> None:
        """Show a note."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Show what is going on, after all events that are there."""

    def finish(self) -> None:
        """End what is shown in part."""

    def forget(self) -> None:
        """As `finish`; calls that have not ended are no longer shown."""
        self._calls.clear()
        self.finish()


class JsonOutput(Output):
    """Writes each event as a line of JSON."""

    def __init__(self, output: TextIO) -> None:
        super().__init__()
        self._output = output

    def show(self, event: Event) -> None:
        """Write an event."""
        # ASCII, so that no control character of a text reaches a terminal, and lone surrogates do no harm.
        self._output.write(json.dumps(to_builtins(event, enc_hook=str)) + "\n")
        self._output.flush()


class PlainOutput(Output):
    """Writes what the agent says to one stream, and all else, line by line, to `beside`; None leaves that out."""

    def __init__(self, output: TextIO, beside: TextIO | None, *, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        self._output = output
        self._beside = beside
        self._is_within_line = False

    def _say(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()
        self._is_within_line = not text.endswith("\n")

    def finish(self) -> None:
        """End the line that the agent has begun."""
        if self._is_within_line:
            self._say("\n")

    def _line(self, agent: str | None, line: str) -> None:
        if self._beside is not None:
            self._beside.write(f"{line}\n" if agent is None else f"[{for_terminal(agent)}] {line}\n")
            self._beside.flush()

    def _result(self, result: ToolResult, args: Mapping[str, Any]) -> None:
        mark = "✓" if result.ok else "✗"
        line = f"{mark} {on_one_line(result.name)} {subject(args)}  {outcome(result, args)}"
        self._line(result.agent, line.rstrip())
        for row in unfold(result, args) if self._verbose else ():
            self._line(result.agent, f"    {row}")

    def _answer(self, answer: Answer) -> None:
        self._line(answer.agent, f"{decision_label(answer)} {on_one_line(answer.name)} {subject(answer.args)}")

    def _note(self, text: str) -> None:
        self._line(None, text)


_DECISION_LABELS: Final = {"approve": "approved:", "edit": "changed and approved:", "reject": "not approved:"}


def decision_label(answer: Answer) -> str:
    return _DECISION_LABELS.get(answer.decision, "answered:")


def argument_rows(args: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items()]


def unfold(result: ToolResult, args: Mapping[str, Any]) -> list[str]:
    """The arguments of a call, and its result, as rows."""
    text = "\n".join([*argument_rows(args), result.text])
    left_out = len(text) - _UNFOLDED
    rows = for_terminal(text[:_UNFOLDED]).split("\n")
    return [*rows, f"[{left_out:,} more characters]"] if left_out > 0 else rows
