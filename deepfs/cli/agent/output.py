"""How the turns of an agent are shown: as JSON, as plain text, or on a terminal, where a person answers questions.

All text of models, tools and files is shown with control characters as escapes: it cannot act on a terminal.
"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

import click
import tomli_w
from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text as Styled

from deepfs.cli.agent.turns import (
    APPROVE,
    Answer,
    Decision,
    Ended,
    Event,
    Message,
    Note,
    Question,
    Started,
    Text,
    ToolCall,
    ToolResult,
    refusal,
)
from deepfs.cli.screen import count_noun
from deepfs.text.visible import visible

_LONGEST_LINE: Final = 4_000
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
    """Shows events as plain text: what the agent says on one stream, all else, line by line, on `beside` if given.

    With `verbose`, arguments and results of calls are unfolded. Subclasses show the same in other forms.
    """

    def __init__(self, output: IO[str], beside: IO[str] | None = None, *, verbose: bool = False) -> None:
        self._output = output
        self._beside = beside
        self._verbose = verbose
        self._is_within_line = False
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
        if len(rest) > _LONGEST_LINE:
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
        self._output.write(text)
        self._output.flush()
        self._is_within_line = not text.endswith("\n")

    def _line(self, agent: str | None, line: str) -> None:
        """Show a line of a subagent, or about the agent itself."""
        if self._beside is not None:
            self._beside.write(f"{line}\n" if agent is None else f"[{for_terminal(agent)}] {line}\n")
            self._beside.flush()

    def _result(self, result: ToolResult, args: Mapping[str, Any]) -> None:
        """Show that a call has ended."""
        mark = "✓" if result.ok else "✗"
        line = f"{mark} {on_one_line(result.name)} {subject(args)}  {outcome(result, args)}"
        self._line(result.agent, line.rstrip())
        for row in unfold(result, args) if self._verbose else ():
            self._line(result.agent, f"    {row}")

    def _answer(self, answer: Answer) -> None:
        """Show the answer to a question."""
        self._line(answer.agent, f"{decision_label(answer)} {on_one_line(answer.name)} {subject(answer.args)}")

    def _note(self, text: str) -> None:
        """Show a note."""
        self._line(None, text)

    def refresh(self) -> None:
        """Show what is going on, after all events that are there."""

    def finish(self) -> None:
        """End what is shown in part."""
        if self._is_within_line:
            self._say("\n")

    def forget(self) -> None:
        """As `finish`; calls that have not ended are no longer shown."""
        self._calls.clear()
        self.finish()


class JsonOutput(Output):
    """Writes each event as a line of JSON."""

    def show(self, event: Event) -> None:
        """Write an event."""
        # ASCII, so that no control character of a text reaches a terminal, and lone surrogates do no harm.
        self._output.write(json.dumps(to_builtins(event, enc_hook=str)) + "\n")
        self._output.flush()


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


# --- on a terminal ----------------------------------------------------------------------------------------------------

_PREVIEW_ROWS: Final = 24
"""The rows of a change that are shown before a person asks for all."""
_RUNNING: Final = 4
"""The most calls, and subagents that speak, that are shown while they go on."""
_COLOURS: Final = ("cyan", "magenta", "blue", "yellow", "green")
_BLOCK_END: Final = re.compile(r"\n[ \t]*\n(?=\S)")
_FENCE: Final = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


class TerminalOutput(Output):
    """Shows Markdown by blocks as they are finished, and below them what is going on."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(console.file, verbose=verbose)
        self._console = console
        self._block = ""
        """What the agent has said and what is not printed yet."""
        self._colours: dict[str, str] = {}
        self._live: Live | None = None
        self._is_apart = True
        """Whether the last line is empty or none."""

    # --- what is going on ---

    def refresh(self) -> None:
        """Show what is going on: what the agent is saying, and the calls that run."""
        calls = [(call.agent, f"{on_one_line(call.name)} {subject(call.args)}") for call in self._calls.values()]
        said = [(agent, line[-self._console.width :]) for agent, line in self._unfinished.items()]
        running: list[tuple[str | None, str]] = [*calls[-_RUNNING:], *said[-_RUNNING:]]
        lines = [f"{on_one_line(agent, 24)} │ {text}" if agent else text for agent, text in running]
        rows = [Styled(f"… {line}", "dim", no_wrap=True, overflow="ellipsis") for line in lines]
        if self._block:
            tail = self._block[-self._console.width * 6 :]
            rows.append(Styled(tail if tail == self._block else f"…{tail}"))
        if not rows:
            self._stop()
            return
        if self._live is None:
            # Not refreshed by a thread of its own, whose output could mix with that of this thread.
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Group(*rows), refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def finish(self) -> None:
        """Print what is left of what the agent said, and take away what shows what is going on."""
        block, self._block = self._block, ""
        self._markdown(block)
        self._stop()

    # --- what is said ---

    def _say(self, text: str) -> None:
        self._block += text
        while (end := _end_of_block(self._block)) is not None:
            block, self._block = self._block[:end], self._block[end:].lstrip("\n")
            self._markdown(block)
        if len(self._block) > _LONGEST_LINE:
            block, self._block = self._block, ""
            self._stop()
            self._console.file.write(block)
            self._console.file.write("\n")

    def _markdown(self, block: str) -> None:
        if not block.strip():
            return
        self._set_apart()
        rendered: Styled | Segments = Styled(f"{block.strip()}\n")
        with suppress(Exception):  # What Markdown cannot show is shown as it is.
            rendered = _render(self._console, block)
        self._console.print(rendered, end="")
        self._is_apart = False

    def _set_apart(self) -> None:
        if not self._is_apart:
            self._console.print()
        self._is_apart = True

    def _print(self, agent: str | None, text: Styled, *, wraps: bool = True) -> None:
        """Print text whose rows all begin with the name of the subagent; without `wraps`, one row, cut at the edge."""
        self._rows(Styled() if agent is None else self._prefix(agent), text, wraps=wraps)

    def _rows(self, prefix: Styled, text: Styled, *, wraps: bool = True) -> None:
        """Print text whose rows all begin with `prefix`; without `wraps`, one row, cut at the edge."""
        self._is_apart = False
        rows = text.wrap(self._console, max(20, self._console.width - prefix.cell_len)) if wraps else [text]
        for row in rows:
            self._console.print(Styled.assemble(prefix, row), no_wrap=True, overflow="ellipsis", crop=True)

    def _prefix(self, agent: str) -> Styled:
        colour = self._colours.setdefault(agent, _COLOURS[len(self._colours) % len(_COLOURS)])
        return Styled(f"{on_one_line(agent, 24)} │ ", colour)

    def _line(self, agent: str | None, line: str) -> None:
        self._print(agent, Styled(line))

    # --- calls ---

    def _result(self, result: ToolResult, args: Mapping[str, Any]) -> None:
        mark = ("✓ ", "green") if result.ok else ("✗ ", "bold red")
        came_of_it = (f"  {outcome(result, args)}", "dim" if result.ok else "red")
        line = Styled.assemble(mark, (on_one_line(result.name), "bold"), f" {subject(args)}", came_of_it)
        self._print(result.agent, line, wraps=False)
        for row in unfold(result, args) if self._verbose else ():
            self._print(result.agent, Styled(f"    {row}", "dim"))

    def _answer(self, answer: Answer) -> None:
        style = "green" if answer.decision in ("approve", "edit") else "red"
        line = Styled.assemble((decision_label(answer), style), f" {on_one_line(answer.name)} {subject(answer.args)}")
        self._print(answer.agent, line, wraps=False)

    def _note(self, text: str) -> None:
        self._print(None, Styled(text, "dim"))

    # --- questions ---

    def question(self, question: Question, *, whole: bool = False) -> None:
        """Show a call that waits for approval, and what it would change."""
        self.finish()
        self._set_apart()
        name = (on_one_line(question.name), "bold")
        self._print(question.agent, Styled.assemble(("? ", "bold yellow"), name, f" {subject(question.args)}"))
        rows = (question.preview or "\n".join(argument_rows(question.args))).split("\n")
        left_out = 0 if whole else max(0, len(rows) - _PREVIEW_ROWS)
        for row in rows[: len(rows) - left_out]:
            self._rows(Styled("  "), _diff_row(for_terminal(row)))
        if left_out:
            self._console.print(Styled(f"  … {count_noun(left_out, 'more row')}: ? shows all", "dim"))


def _render(console: Console, block: str) -> Segments:
    """A block of Markdown, without empty rows at its ends."""
    # Links are shown with their targets: a terminal's own links would hide them.
    markdown = Markdown(block, code_theme="ansi_dark", hyperlinks=False)
    rows = [_without_padding(row) for row in console.render_lines(markdown, pad=False)]
    first = next(index for index, row in enumerate(rows) if row)
    last = next(index for index in range(len(rows), 0, -1) if rows[index - 1])
    return Segments([segment for row in rows[first:last] for segment in (*row, Segment.line())])


def _without_padding(row: list[Segment]) -> list[Segment]:
    """A row without blanks at its end, which would come along when a person copies it."""
    while row and not row[-1].text.strip():
        row = row[:-1]
    return [*row[:-1], Segment(row[-1].text.rstrip(), row[-1].style)] if row else row


def _end_of_block(text: str) -> int | None:
    """Where the first block of Markdown ends; None if it may go on."""
    for found in _BLOCK_END.finditer(text):
        if len(_FENCE.findall(text, 0, found.start())) % 2 == 0:
            return found.end()
    return None


def _diff_row(row: str) -> Styled:
    style = "green" if row.startswith("+") else "red" if row.startswith("-") else "cyan" if row[:2] == "@@" else ""
    return Styled(row, "dim" if row.startswith("[") else style, overflow="fold")


# --- answers by key --------------------------------------------------------------------------------------------------

if sys.platform != "win32":
    import termios
    import tty


class KeyedApprovals:
    """Asks a person, who answers by a key. `preview` tells what a changed call would do, by its name and arguments."""

    def __init__(
        self, output: TerminalOutput, console: Console, preview: Callable[[str, Mapping[str, Any]], str]
    ) -> None:
        self._output = output
        self._console = console
        self._preview = preview
        self._approved: set[str] = set()
        """The tools whose calls need no more questions."""

    def __call__(self, question: Question) -> Decision:
        """Ask until there is an answer. Raises KeyboardInterrupt if the person does not want to answer now."""
        if question.name in self._approved and "approve" in question.allowed:
            return APPROVE
        asked, edited, shows_all = question, False, False
        while True:
            self._output.question(asked, whole=shows_all)
            key = self._key(question)
            shows_all = key == "?"
            if key == "e":
                asked, edited = self._edit(asked), True
            elif key == "r":
                return refusal(question, self._reason())
            elif key in ("a", "A"):
                if key == "A":
                    self._approved.add(question.name)
                if not edited or asked.args == question.args:
                    return APPROVE
                return {"type": "edit", "edited_action": {"name": asked.name, "args": dict(asked.args)}}

    def _key(self, question: Question) -> str:
        """One of the keys that the question allows."""
        keys = {"a": "approve", "r": "reject", "e": "edit", "A": f"approve all {question.name}", "?": "show all"}
        needs = {"a": "approve", "A": "approve", "e": "edit"}
        offered = {key: text for key, text in keys.items() if key not in needs or needs[key] in question.allowed}
        line = Styled()
        for key, text in offered.items():
            line.append("  " if key == "a" else "   ").append(key, "bold").append(f" {for_terminal(text)}")
        with _keys() as next_key:
            self._console.print(line, no_wrap=True, overflow="ellipsis")
            while (key := next_key()) not in offered:
                pass
        return key

    def _reason(self) -> str:
        """Why a call is rejected, as the model reads it."""
        try:
            reason = input("  Why? (Enter: no reason) ").strip()
        except EOFError:
            reason = ""
        return reason or "The user rejected this call."

    def _edit(self, question: Question) -> Question:
        """The question about the call with the arguments that the person gives it in an editor."""
        try:
            args = _in_editor(question.args)
            return replace(question, args=args, preview=self._preview(question.name, args))
        except (ValueError, OSError) as error:
            self._console.print(Styled(f"  Nothing was changed: {for_terminal(str(error))}", "red"))
            return question


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Yield a function that waits for one key. What was typed before does not count, nor does pasted text.

    The function raises KeyboardInterrupt for Ctrl-C and Ctrl-D, and where the terminal is gone.
    """
    if sys.platform == "win32":
        yield lambda: input()[:1]
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def next_key() -> str:
        typed = os.read(descriptor, 1024)
        if typed in (b"", b"\x04"):
            raise KeyboardInterrupt
        return typed.decode(errors="replace") if len(typed) == 1 else ""

    try:
        tty.setcbreak(descriptor)  # It also discards what was typed before.
        yield next_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# --- arguments in an editor ------------------------------------------------------------------------------------------


def _in_editor(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as a person changes them, in TOML. Raises ValueError for what is no TOML."""
    try:
        text = click.edit(as_toml(args), extension=".toml")
    except click.ClickException as error:
        raise ValueError(error.format_message()) from None
    return dict(args) if text is None else tomllib.loads(text)


_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that an editor may not show. In the text, all stand in strings that may have escapes."""


def as_toml(args: Mapping[str, Any]) -> str:
    """Arguments as TOML, which a person can edit; None is left out. Raises ValueError if there is no such text."""
    given = {name: value for name, value in args.items() if value is not None}
    for multiline in (True, False):  # Strings of several lines lose CRLF.
        with suppress(TypeError, ValueError):
            text = tomli_w.dumps(given, multiline_strings=multiline)
            text = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
            text.encode()  # No file can hold half of a surrogate pair.
            if tomllib.loads(text) == given:
                return text
    raise ValueError("these arguments cannot be edited as text")
