"""Completion of commands and options by a shell: completion."""

import click
from click.shell_completion import get_completion_class

from deepfs.cli.app import app

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write a script by which a shell completes the commands of deepfs.

    \b
    For bash, add this line to ~/.bashrc:
      eval "$(deepfs completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "deepfs", "_DEEPFS_COMPLETE").source())
