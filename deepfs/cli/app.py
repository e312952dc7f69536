"""The commands and their options. What they do is in the other modules of this package, loaded when needed."""

from typing import Annotated

import typer

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE, Session, run

app = typer.Typer(
    name="deepfs",
    help="Files of agents, wherever they lie: in directories, SQLite, PostgreSQL, object stores, LangGraph.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Write JSON, one value a line.")]
Addresses = Annotated[list[str] | None, typer.Argument(help="Paths or URLs.", show_default=False)]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"deepfs {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    on: Annotated[
        str | None,
        typer.Option(help="A URL, or a TOML file of a tree: paths are paths in it.", envvar=BACKEND_VARIABLE),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = f"tree:{on}" if on is not None and on.endswith(".toml") and "://" not in on else on


def session_of(context: typer.Context, *, as_json: bool = False) -> Session:
    """The session of a command.

    Args:
        context: The context of the command.
        as_json: Whether results are written as JSON.
    """
    return Session(context.obj, as_json=as_json, name=context.info_name or "deepfs")


@app.command()
def ls(context: typer.Context, addresses: Addresses = None, json: Json = False) -> None:
    """List directories."""
    from deepfs.cli.listing import list_directories

    run(session_of(context, as_json=json), lambda session: list_directories(session, addresses or [""]), trouble=2)
