"""Options and arguments that several commands have, and how a command runs."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from deepfs.cli.session import Session, run

__all__ = [
    "address_argument",
    "addresses_argument",
    "directory_argument",
    "files_argument",
    "hidden_option",
    "if_match_option",
    "json_option",
    "not_empty",
    "run_command",
]

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def run_command(
    command: Callable[[Session], Awaitable[None]], *, trouble: int = 1, json: bool = False, pages: bool = False
) -> None:
    """Run a command in a session, and exit.

    `pages` is whether a person sees the output through a pager; `trouble` is as in `run`.
    """
    context = click.get_current_context()
    session = Session(context.obj, as_json=json, name=context.info_name or "")
    if pages and not json:
        session.screen.page()
    run(session, lambda: command(session), trouble=trouble)


def not_empty(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Refuse an empty address: most likely, it is a variable of the shell that is not set."""
    if "" in ([given] if isinstance(given, str) else given or ()):
        raise click.BadParameter("an empty address names nothing")
    return given


def json_option(function: CallableT) -> CallableT:
    return click.option("--json", is_flag=True, help="Write JSON, one value a line.")(function)


def hidden_option(function: CallableT) -> CallableT:
    return click.option("-a", "--all", "hidden", is_flag=True, help="Show names that start with a dot, too.")(function)


def addresses_argument(function: CallableT) -> CallableT:
    return click.argument("addresses", metavar="[ADDRESS]...", nargs=-1, callback=not_empty)(function)


def files_argument(function: CallableT) -> CallableT:
    return click.argument("files", metavar="ADDRESS...", nargs=-1, required=True, callback=not_empty)(function)


def address_argument(function: CallableT) -> CallableT:
    return click.argument("address", metavar="ADDRESS", callback=not_empty)(function)


def directory_argument(function: CallableT) -> CallableT:
    return click.argument("address", metavar="[ADDRESS]", default="")(function)


def if_match_option(function: CallableT) -> CallableT:
    return click.option("--if-match", metavar="VERSION", help="Only if the file has this version.")(function)
