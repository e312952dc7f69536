"""The questions of an agent, answered by a person with keys."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text as Styled

from deepfs.cli.agent_output import shown
from deepfs.cli.agent_terminal import TerminalOutput
from deepfs.cli.agent_turns import APPROVE, Decision, Question, refusal

__all__ = ["KeyedApprovals", "as_toml"]

if sys.platform != "win32":
    import termios
    import tty


class KeyedApprovals:
    """Asks a person, who answers by a key.

    Args:
        output: Shows the questions.
        console: The terminal.
        preview: Computes what a changed call would do, from the name of the tool and the arguments.
    """

    def __init__(
        self, output: TerminalOutput, console: Console, preview: Callable[[str, Mapping[str, Any]], str]
    ) -> None:
        self._output = output
        self._console = console
        self._preview = preview
        self._approved: set[str] = set()
        """The tools whose calls need no more questions."""

    def __call__(self, question: Question) -> Decision:
        """Ask until there is an answer.

        Args:
            question: The question.

        Returns:
            The answer.

        Raises:
            KeyboardInterrupt: The person does not want to answer now.
        """
        if question.name in self._approved and "approve" in question.allowed:
            return APPROVE
        asked, edited, shows_all = question, False, False
        while True:
            self._output.question(asked, whole=shows_all)
            key = self._key(question)
            shows_all = key == "?"
            if key == "e":
                asked, edited = self._edited(asked), True
            elif key == "r":
                return refusal(question, self._reason())
            elif key in ("a", "A"):
                if key == "A":
                    self._approved.add(question.name)
                is_same = not edited or asked.args == question.args
                return APPROVE if is_same else _edit_of(asked)

    def _key(self, question: Question) -> str:
        """One of the keys that the question allows."""
        keys = {"a": "approve", "r": "reject", "e": "edit", "A": f"approve all {question.name}", "?": "show all"}
        needs = {"a": "approve", "A": "approve", "e": "edit"}
        offered = {key: text for key, text in keys.items() if key not in needs or needs[key] in question.allowed}
        line = Styled()
        for key, text in offered.items():
            line.append("  " if key == "a" else "   ").append(key, "bold").append(f" {shown(text)}")
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

    def _edited(self, question: Question) -> Question:
        """The question about the call with the arguments that the person gives it in an editor."""
        try:
            args = _in_editor(question.args)
            return replace(question, args=args, preview=self._preview(question.name, args))
        except (ValueError, OSError) as error:
            self._console.print(Styled(f"  Nothing was changed: {shown(str(error))}", "red"))
            return question


def _edit_of(question: Question) -> Decision:
    return {"type": "edit", "edited_action": {"name": question.name, "args": dict(question.args)}}


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


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def as_toml(args: Mapping[str, Any]) -> str:
    """Arguments as a text that a person can edit. An argument that is None is left out.

    Args:
        args: The arguments, values of JSON.

    Raises:
        ValueError: They cannot be written as TOML.
    """
    given = {name: value for name, value in args.items() if value is not None}
    text = "".join(f"{_key(name)} = {_value(value)}\n" for name, value in given.items())
    try:
        is_same = tomllib.loads(text) == given and bool(text.encode() or not given)
    except ValueError:
        is_same = False
    if not is_same:
        raise ValueError("these arguments cannot be edited as text")
    return text


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _on_one_line(name)


def _on_one_line(text: str) -> str:
    return _CONTROL.sub(_escape, json.dumps(text, ensure_ascii=False))


def _value(value: Any) -> str:
    match value:
        case str() if "\n" in value:
            quoted = value.replace("\\", "\\\\").replace('"""', '""\\"')
            return f'"""\n{_CONTROL.sub(_escape, quoted)}"""'
        case str():
            return _on_one_line(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_key(name)} = {_value(each)}' for name, each in value.items())} }}"
        case _:
            return json.dumps(value)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
