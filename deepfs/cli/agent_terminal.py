"""The turns of an agent on a terminal: Markdown, colours, and what is going on."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text as Styled

from deepfs.cli.agent_output import (
    LONGEST_LINE,
    Output,
    argument_rows,
    counted,
    on_one_line,
    outcome,
    shown,
    subject,
    told,
    unfolded,
)
from deepfs.cli.agent_turns import Answer, Question, ToolResult

__all__ = ["TerminalOutput"]

_PREVIEW_ROWS: Final = 24
"""The rows of a change that are shown before a person asks for all."""
_RUNNING: Final = 4
"""The most calls, and subagents that speak, that are shown while they go on."""
_COLOURS: Final = ("cyan", "magenta", "blue", "yellow", "green")
_BLOCK_END: Final = re.compile(r"\n[ \t]*\n(?=\S)")
_FENCE: Final = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


class TerminalOutput(Output):
    """Shows Markdown by blocks as they are finished, and below them what is going on.

    Args:
        console: The terminal.
        verbose: Whether arguments and results of calls are shown unfolded.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
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
        rows = [Styled(f"… {line}", "dim", no_wrap=True, overflow="ellipsis") for line in self._running()]
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

    def _running(self) -> list[str]:
        calls = [(call.agent, f"{on_one_line(call.name)} {subject(call.args)}") for call in self._calls.values()]
        said = [(agent, line[-self._console.width :]) for agent, line in self._unfinished.items()]
        running: list[tuple[str | None, str]] = [*calls[-_RUNNING:], *said[-_RUNNING:]]
        return [f"{on_one_line(agent, 24)} │ {text}" if agent else text for agent, text in running]

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
        if len(self._block) > LONGEST_LINE:
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
            rendered = _rendered(self._console, block)
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

    def _line(self, agent: str, line: str) -> None:
        self._print(agent, Styled(line))

    # --- calls ---

    def _result(self, result: ToolResult, args: Mapping[str, Any]) -> None:
        mark = ("✓ ", "green") if result.ok else ("✗ ", "bold red")
        came_of_it = (f"  {outcome(result, args)}", "dim" if result.ok else "red")
        line = Styled.assemble(mark, (on_one_line(result.name), "bold"), f" {subject(args)}", came_of_it)
        self._print(result.agent, line, wraps=False)
        for row in unfolded(result, args) if self._verbose else ():
            self._print(result.agent, Styled(f"    {row}", "dim"))

    def _answer(self, answer: Answer) -> None:
        style = "green" if answer.decision in ("approve", "edit") else "red"
        line = Styled.assemble((told(answer), style), f" {on_one_line(answer.name)} {subject(answer.args)}")
        self._print(answer.agent, line, wraps=False)

    def _note(self, text: str) -> None:
        self._print(None, Styled(text, "dim"))

    # --- questions ---

    def question(self, question: Question, *, whole: bool = False) -> None:
        """Show a call that waits for approval, and what it would change.

        Args:
            question: The question.
            whole: Whether all rows of the change are shown.
        """
        self.finish()
        self._set_apart()
        name = (on_one_line(question.name), "bold")
        self._print(question.agent, Styled.assemble(("? ", "bold yellow"), name, f" {subject(question.args)}"))
        rows = (question.preview or "\n".join(argument_rows(question.args))).split("\n")
        left_out = 0 if whole else max(0, len(rows) - _PREVIEW_ROWS)
        for row in rows[: len(rows) - left_out]:
            self._rows(Styled("  "), _diff_row(shown(row)))
        if left_out:
            self._console.print(Styled(f"  … {counted(left_out, 'more row')}: ? shows all", "dim"))


def _rendered(console: Console, block: str) -> Segments:
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
