"""The command `deepfs`: its subcommands are in the other modules of this package, each loaded when it is needed."""

from importlib import import_module
from typing import Final

import click

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE
from deepfs.config.addresses import TREE

__all__ = ["app"]

_MODULES: Final = {
    "contents": ["cat", "head", "write", "edit"],
    "differences": ["diff", "patch"],
    "listing": ["ls", "tree", "glob", "du"],
    "searching": ["grep"],
    "versions": ["history", "restore", "watch"],
}
"""The commands of each module. A command is the object of that name in it."""
_HOMES: Final = {command: module for module, commands in _MODULES.items() for command in commands}


class _Commands(click.Group):
    """The subcommands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *_HOMES])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _HOMES:
            return super().get_command(context, name)
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
@click.version_option(__version__, prog_name="deepfs", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, on: str | None) -> None:
    """Files of agents, wherever they are: on disk, in SQLite, PostgreSQL, object stores or LangGraph.

    \b
    An ADDRESS is a path of this machine, or a URL with a path behind #:
      notes/plan.md   sqlite:///files.db?namespace=ada#/notes   s3://bucket/dir
      postgresql://user@host/db#/a.md   checkpoint+sqlite:///runs.db?thread=1
    """
    context.obj = on and _backend_url(on)


def _backend_url(on: str) -> str:
    url, _, path = on.partition("#")
    if path.strip("/"):
        raise click.UsageError("--on names a backend, without a path in it")
    return url if "://" in url or url.startswith(TREE) else f"{TREE}{url}"


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write a script by which a shell completes the commands of deepfs.

    \b
    For bash, add this line to ~/.bashrc:
      eval "$(deepfs completion bash)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "deepfs", "_DEEPFS_COMPLETE").source())


# --- copies ----------------------------------------------------------------------------------------------------------


def _copying(function: CallableT) -> CallableT:
    """The arguments and options that `cp` and `mv` share."""
    for option in (
        click.argument("given", metavar="SOURCE... TARGET", nargs=-1, required=True),
        click.option("-f", "--force", is_flag=True, help="Replace files that are there; this is the default."),
        click.option("-n", "--no-clobber", is_flag=True, help="Leave files alone that are there."),
        click.option("-u", "--update", is_flag=True, help="Leave files alone that are as new as the source, or newer."),
        click.option("-t", "--target-directory", "into", metavar="ADDRESS", help="Put all sources in this directory."),
        click.option(
            "-T", "--no-target-directory", "exact", is_flag=True, help="The target is never a directory above."
        ),
        _json,
    ):
        function = option(function)
    return function


def _transfer(
    given: tuple[str, ...],
    into: str | None,
    *,
    exact: bool,
    force: bool,
    json: bool,
    verify: str = "read",
    **terms: bool,
) -> None:
    from deepfs.cli.copying import Arguments, copy
    from deepfs.cli.transfers import Terms, Verify

    sources, target = (given, into) if into is not None else (given[:-1], given[-1])
    if not sources:
        raise click.UsageError("Missing argument 'TARGET'.")
    if force and terms["no_clobber"]:
        raise click.UsageError("--force and --no-clobber exclude each other.")
    arguments = Arguments(sources=sources, target=target, is_directory=into is not None, is_exact=exact)
    _run(lambda on: copy(on, arguments, Terms(**terms, verify=Verify(verify))), json=json)


@app.command()
@_copying
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories with all that is in them.")
@click.option("--size-only", is_flag=True, help="Take files of the same size to be the same.")
@click.option(
    "--verify",
    type=click.Choice(["read", "size", "none"]),
    default="read",
    show_default=True,
    help="How to check what was stored: read it back, compare its size, or not at all.",
)
def cp(given: tuple[str, ...], into: str | None, **options: Any) -> None:
    """Copy files and directories, also between backends.

    Run it again after an interruption: what is there already is compared, and not stored again.
    """
    _transfer(given, into, **options)


@app.command()
@_copying
def mv(given: tuple[str, ...], into: str | None, **options: Any) -> None:
    """Move files and directories, also between backends.

    Between backends, what was copied and has not changed since is then deleted.
    """
    _transfer(given, into, recursive=True, moves=True, **options)


@app.command()
@_files
@click.option("-r", "-R", "--recursive", is_flag=True, help="Delete directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="Say nothing of what is not there, and never ask.")
@click.option("-i", "--interactive", is_flag=True, help="Ask before each address.")
@click.option("--no-preserve-root", "root", is_flag=True, help="Delete all that is in a backend, if its root is given.")
def rm(files: tuple[str, ...], **options: bool) -> None:
    """Delete files, and directories with -r."""
    from deepfs.cli.copying import RemoveOptions, remove

    _run(lambda on: remove(on, files, RemoveOptions(**options)))
