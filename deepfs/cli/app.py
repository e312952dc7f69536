"""The command `deepfs`. Most subcommands are in the other modules of this package, each loaded when it is needed."""

from importlib import import_module
from typing import Any, Final, Literal

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE, VARIABLES_VARIABLE, Given, run_command
from deepfs.config.urls import TREE

_MODULES: Final = {
    "agent": ["agent"],
    "app": ["completion", "mcp"],
    "contents": ["cat", "head", "tail", "write", "edit", "mkdir", "rm"],
    "copying": ["cp", "mv", "sync"],
    "differences": ["diff", "patch", "history", "restore", "undo", "watch"],
    "listing": ["ls", "tree", "du", "stat"],
    "searching": ["find", "glob", "grep"],
    "workspaces": ["discard", "fork", "merge", "snapshot", "snapshots"],
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
        command.short_help = command.get_short_help_str(limit=200)  # Whole, on as many lines as it takes.
        if not any(parameter.name == "on" for parameter in command.params):
            command.params.append(_make_on_option())
        return command


def _make_on_option(**settings: Any) -> click.Option:
    return click.Option(
        ["--on"],
        metavar="URL|FILE.toml",
        expose_value=False,
        callback=_set_backend,
        help="The backend, or the tree that a TOML file describes, that addresses without a scheme are paths of.",
        **settings,
    )


def _set_backend(context: click.Context, parameter: click.Parameter, on: str | None) -> None:
    if not on:
        return
    url, _, path = on.partition("#")
    if "://" not in on:
        url = f"{TREE}{on}"
    elif path.strip("/"):
        raise click.UsageError("--on names a backend, without a path in it")
    context.obj = (context.obj or Given())._replace(on=url)


@click.group(
    cls=_Subcommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[_make_on_option(envvar=BACKEND_VARIABLE, show_envvar=True)],
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
def app(context: click.Context, variables: tuple[str, ...]) -> None:
    """Files of agents, wherever they are: on disk, in SQLite, PostgreSQL, Redis, object stores or LangGraph.

    \b
    An ADDRESS is a path of this machine, or a URL with a path behind #:
      notes/plan.md   sqlite:///files.db?namespace=ada#/notes   s3://bucket/dir
      postgresql://user@host/db#/a.md   checkpoint+sqlite:///runs.db?thread=1
    """
    context.obj = (context.obj or Given())._replace(variables=variables)


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
@click.option("--host", metavar="HOST", help="The address to listen at, for http.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65_535), help="The port, for http; 0 takes a free one.")
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


@add_completion_class
class _Bash(BashComplete):
    """Completion by bash, for which `:` and `=` begin another word, and which must quote what it inserts."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", 'COMPREPLY+=("$value"); compopt -o filenames; [[ $value == */ ]] && compopt -o nospace'
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        words, last = super().get_completion_args()
        joined, is_break = [""], False
        for word in (*words, last):
            was_break, is_break = is_break, word != "" and not word.strip(":=")
            if was_break or is_break:
                joined[-1] += word
            else:
                joined.append(word)
        self._kept = joined[-1] if is_break else joined[-1].removesuffix(last)
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value.removeprefix(self._kept)}"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write a script by which a shell completes the commands of deepfs, and addresses on this machine.

    \b
    For bash, add this line to ~/.bashrc:
      eval "$(deepfs completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "deepfs", "_DEEPFS_COMPLETE").source())
