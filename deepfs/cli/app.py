"""The command `deepfs`: its subcommands are in the other modules of this package, each loaded when it is needed."""

from importlib import import_module
from typing import Final

import click

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE, VARIABLES_VARIABLE, Given
from deepfs.config.addresses import TREE

__all__ = ["app"]

_MODULES: Final = {
    "agent": ["agent"],
    "completion": ["completion"],
    "contents": ["cat", "head", "write", "edit"],
    "copying": ["cp", "mv"],
    "differences": ["diff", "patch"],
    "listing": ["ls", "tree", "glob", "du"],
    "removing": ["rm"],
    "searching": ["grep"],
    "serving": ["mcp"],
    "versions": ["history", "restore", "watch"],
}
"""The commands of each module. A command is the object of that name in it."""
_HOMES: Final = {command: module for module, commands in _MODULES.items() for command in commands}


class _Commands(click.Group):
    """The subcommands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_HOMES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _HOMES:
            return None
        command = getattr(import_module(f"deepfs.cli.{_HOMES[name]}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--on",
    metavar="URL|FILE.toml",
    envvar=BACKEND_VARIABLE,
    show_envvar=True,
    help="The backend, or the tree that a TOML file describes, that addresses without a scheme are paths of.",
)
@click.option(
    "--env",
    "variables",
    metavar="NAME",
    multiple=True,
    envvar=VARIABLES_VARIABLE,
    show_envvar=True,
    help="A variable of the environment that the TOML file may use as ${NAME}. May be repeated.",
)
@click.version_option(__version__, prog_name="deepfs", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, on: str | None, variables: tuple[str, ...]) -> None:
    """Files of agents, wherever they are: on disk, in SQLite, PostgreSQL, object stores or LangGraph.

    \b
    An ADDRESS is a path of this machine, or a URL with a path behind #:
      notes/plan.md   sqlite:///files.db?namespace=ada#/notes   s3://bucket/dir
      postgresql://user@host/db#/a.md   checkpoint+sqlite:///runs.db?thread=1
    """
    context.obj = Given(on and _backend_url(on), variables)


def _backend_url(on: str) -> str:
    url, _, path = on.partition("#")
    if path.strip("/"):
        raise click.UsageError("--on names a backend, without a path in it")
    return url if "://" in url else f"{TREE}{url}"
