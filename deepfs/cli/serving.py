"""mcp."""

from typing import Any, Literal

import click

from deepfs.cli.options import run_command
from deepfs.config.addresses import TREE

__all__ = ["mcp"]


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
            places,
            on=tree or (None if places else session.on),
            variables=session.variables,
            address=address,
            **options,
        )
    )
