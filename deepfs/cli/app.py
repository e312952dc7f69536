"""The command `deepfs`. Most subcommands are in the other modules of this package, each loaded when it is needed."""

from importlib import import_module
from typing import Any, Final, Literal

import click
from click.shell_completion import get_completion_class

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE, VARIABLES_VARIABLE, Given, run_command
from deepfs.config.urls import TREE

_MODULES: Final = {
    "agent": ["agent"],
    "app": ["completion", "mcp"],
    "contents": ["cat", "head", "write", "edit"],
    "copying": ["cp", "mv"],
    "differences": ["diff", "patch"],
    "listing": ["ls", "tree", "glob", "grep", "du"],
    "removing": ["rm"],
    "versions": ["history", "restore", "undo", "watch"],
}
"""The commands of each module. A command is the object of that name in it."""
_HOMES: Final = {command: module for module, commands in _MODULES.items() for command in commands}


class _Subcommands(click.Group):
    """The subcommands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_HOMES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _HOMES:
            return None
        command = getattr(import_module(f"deepfs.cli.{_HOMES[name]}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Subcommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


# --- mcp ---


@click.command()
@click.argument("places", nargs=-1, metavar="[DIRECTORY|URL]...")
@click.option("--config", metavar="FILE.toml", help="Serve the tree of this file, with its settings in [mcp].")
@click.option(
    "--transport",
    type=click.Choice(["stdio", "http"]),
    default="stdio",
    show_default=True,
    help="How clients reach the server.",
)
@click.option("--host", help="The address to listen at, for http.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port, for http; 0 takes a free one.")
@click.option("--read-only", is_flag=True, help="Refuse changes.")
@click.option("--reference-names", is_flag=True, help="Offer the tools of the reference filesystem server.")
def mcp(
    places: tuple[str, ...],
    config: str | None,
    transport: Literal["stdio", "http"],
    host: str | None,
    port: int | None,
    read_only: bool,
    reference_names: bool,
) -> None:
    """Serve files to MCP clients: a directory, the backend of a URL, or the tree of a TOML file.

    With http, the variable DEEPFS_MCP_TOKEN has the token that clients must send.
    """
    try:
        from deepfs.mcp.serving import serve_places
    except ModuleNotFoundError as error:  # It names the extra.
        raise click.ClickException(str(error)) from None

    address: dict[str, Any] = {name: given for name, given in (("host", host), ("port", port)) if given is not None}
    options: dict[str, Any] = {"transport": transport, "read_only": read_only, "reference_names": reference_names}
    tree = None if config is None else f"{TREE}{config}"
    run_command(
        lambda session: serve_places(
            places, on=tree or (None if places else session.on), variables=session.variables, address=address, **options
        ),
        serves=True,
    )


# --- completion ---


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write a script by which a shell completes the commands of deepfs, and local files.

    \b
    For bash, add this line to ~/.bashrc:
      eval "$(deepfs completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "deepfs", "_DEEPFS_COMPLETE").source())
