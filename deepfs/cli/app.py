"""The commands and their options. What they do is in the other modules of this package, loaded when needed."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from deepfs import __version__
from deepfs.cli.session import BACKEND_VARIABLE, Session, run
from deepfs.config.addresses import TREE

__all__ = ["app"]

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


def _run(
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


def _json(function: CallableT) -> CallableT:
    return click.option("--json", is_flag=True, help="Write JSON, one value a line.")(function)


def _hidden(function: CallableT) -> CallableT:
    return click.option("-a", "--all", "hidden", is_flag=True, help="Show names that start with a dot, too.")(function)


def _addresses(function: CallableT) -> CallableT:
    return click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)(function)


def _files(function: CallableT) -> CallableT:
    return click.argument("files", metavar="ADDRESS...", nargs=-1, required=True)(function)


def _address(function: CallableT) -> CallableT:
    return click.argument("address", metavar="ADDRESS")(function)


def _directory(function: CallableT) -> CallableT:
    return click.argument("address", metavar="[ADDRESS]", default="")(function)


def _if_match(function: CallableT) -> CallableT:
    return click.option("--if-match", metavar="VERSION", help="Only if the file has this version.")(function)


# --- what is where ---------------------------------------------------------------------------------------------------


@app.command()
@_addresses
@click.option("-l", "--long", is_flag=True, help="Show sizes and times.")
@_hidden
@_json
def ls(addresses: tuple[str, ...], long: bool, hidden: bool, json: bool) -> None:
    """List directories."""
    from deepfs.cli.listing import list_directories

    _run(lambda on: list_directories(on, addresses or [""], long=long, hidden=hidden), trouble=2, json=json)


@app.command()
@_directory
@click.option("-L", "--depth", type=click.IntRange(1), help="Show so many levels.")
@_hidden
@_json
def tree(address: str, depth: int | None, hidden: bool, json: bool) -> None:
    """Draw a directory with all beneath it."""
    from deepfs.cli.listing import show_tree

    _run(lambda on: show_tree(on, address, depth=depth, hidden=hidden), trouble=2, json=json, pages=True)


@app.command()
@click.argument("pattern")
@_addresses
@_json
def glob(pattern: str, addresses: tuple[str, ...], json: bool) -> None:
    """Find files whose paths match a pattern, such as '*.py' or 'src/**/*.{ts,tsx}'.

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    from deepfs.cli.listing import find_files

    _run(lambda on: find_files(on, pattern, addresses or [""]), trouble=2, json=json)


@app.command()
@_addresses
@click.option("-d", "--depth", type=click.IntRange(0), default=0, help="Tell so many levels of directories, too.")
@click.option("-b", "--bytes", "exact", is_flag=True, help="Write sizes as numbers of bytes.")
@_json
def du(addresses: tuple[str, ...], depth: int, exact: bool, json: bool) -> None:
    """Tell how many bytes the files under a place hold."""
    from deepfs.cli.listing import disk_usage

    _run(lambda on: disk_usage(on, addresses or [""], depth=depth, exact=exact), json=json)


@app.command()
@click.argument("pattern")
@_addresses
@click.option("-F", "--fixed-strings", "literal", is_flag=True, help="The pattern is a text, no regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("-g", "--glob", metavar="GLOB", help="Search the files that match; by default all but dot files.")
@click.option("-C", "--context", "around", type=click.IntRange(0), default=0, help="Show lines around matches.")
@click.option("-m", "--max-count", "most", type=click.IntRange(1), help="End after so many matches.")
@click.option("-l", "--files-with-matches", "files", is_flag=True, help="Write the names of files only.")
@click.option("-c", "--count", "counts", is_flag=True, help="Write the number of matching lines of each file.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status tells.")
@_json
def grep(
    pattern: str,
    addresses: tuple[str, ...],
    literal: bool,
    ignore_case: bool,
    glob: str | None,
    around: int,
    most: int | None,
    files: bool,
    counts: bool,
    quiet: bool,
    json: bool,
) -> None:
    """Find the lines of text files that match a regular expression (RE2).

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    from deepfs.cli.searching import GrepOptions, search_files

    shows = "nothing" if quiet else "files" if files else "counts" if counts else "lines"
    # A text that is its own regular expression is searched as a text, which is faster.
    is_regex = not literal and re.escape(pattern) != pattern
    wanted = GrepOptions(pattern, is_regex, ignore_case, glob, around, most, shows)
    _run(lambda on: search_files(on, wanted, addresses or [""]), trouble=2, json=json, pages=True)


# --- contents --------------------------------------------------------------------------------------------------------


@app.command()
@_files
@click.option("-n", "--number", "numbers", is_flag=True, help="Number the lines.")
def cat(files: tuple[str, ...], numbers: bool) -> None:
    """Write the contents of files; - is the standard input."""
    from deepfs.cli.contents import show_files

    _run(lambda on: show_files(on, files, numbers=numbers), pages=True)


@app.command()
@_files
@click.option("-n", "--lines", type=click.IntRange(0), default=10, show_default=True, help="How many lines.")
@click.option("-c", "--bytes", "size", type=click.IntRange(0), help="How many bytes instead.")
def head(files: tuple[str, ...], lines: int, size: int | None) -> None:
    """Write the first lines of files. No more of a file is fetched than needed."""
    from deepfs.cli.contents import show_beginning

    _run(lambda on: show_beginning(on, files, lines=lines, size=size))


@app.command()
@_address
@click.argument("text", required=False)
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
@_if_match
def write(address: str, text: str | None, force: bool, if_match: str | None) -> None:
    """Make a file of a text, or of the standard input."""
    from deepfs.cli.contents import write_file

    _run(lambda on: write_file(on, address, text, overwrite=force, if_match=if_match))


@app.command()
@_address
@click.argument("old", required=False)
@click.argument("new", required=False)
@click.option("-a", "--all", "everywhere", is_flag=True, help="Replace the text everywhere, not in one place only.")
@_if_match
@_json
def edit(address: str, old: str | None, new: str | None, everywhere: bool, if_match: str | None, json: bool) -> None:
    """Replace the text OLD by NEW in a file; without them, open the file in $EDITOR."""
    from deepfs.cli.contents import edit_file, edit_in_editor

    if old is None:
        _run(lambda on: edit_in_editor(on, address))
    elif new is None:
        raise click.UsageError("Missing argument 'NEW': what takes the place of OLD.")
    else:
        changed = old, new
        _run(lambda on: edit_file(on, address, *changed, everywhere=everywhere, if_match=if_match), json=json)


@app.command()
@click.argument("file", required=False)
@click.option("-d", "--directory", "address", metavar="ADDRESS", default="", help="What paths in the patch start at.")
def patch(file: str | None, address: str) -> None:
    """Apply a unified diff, or a patch as OpenAI's models write it: all of it or nothing.

    FILE is a file of this machine; by default the patch is read from the standard input.
    """
    import deepfs.middleware.apply_patch  # noqa: F401 - Here, since it would block the event loop later.
    from deepfs.cli.contents import apply_patch

    _run(lambda on: apply_patch(on, address, file))


@app.command()
@click.argument("old", metavar="ADDRESS")
@click.argument("new", metavar="ADDRESS")
@click.option("-q", "--brief", is_flag=True, help="Write only which files differ.")
@_json
def diff(old: str, new: str, brief: bool, json: bool) -> None:
    """Compare two files or two trees.

    The exit status is 0 if they are the same, 1 if not, and 2 after an error.
    """
    from deepfs.cli.contents import compare

    _run(lambda on: compare(on, old, new, brief=brief), trouble=2, json=json, pages=True)


# --- versions and changes --------------------------------------------------------------------------------------------


@app.command()
@_address
@click.argument("version", type=int, required=False)
@click.option("--diff", "compares", is_flag=True, help="Write how the present file differs from the version.")
@_json
def history(address: str, version: int | None, compares: bool, json: bool) -> None:
    """List the earlier versions of a file, or write the content of one.

    Needs a tree whose TOML file has a table [history].
    """
    from deepfs.cli.versions import show_history

    _run(lambda on: show_history(on, address, version, compares=compares), json=json, pages=True)


@app.command()
@_address
@click.argument("version", type=int)
def restore(address: str, version: int) -> None:
    """Give a file the content of an earlier version, which `history` lists."""
    from deepfs.cli.versions import restore_version

    _run(lambda on: restore_version(on, address, version))


@app.command()
@_directory
@_json
def watch(address: str, json: bool) -> None:
    """Tell changes of files as they happen, until Ctrl-C."""
    from deepfs.cli.versions import watch_changes

    _run(lambda on: watch_changes(on, address), json=json)


# --- the shell -------------------------------------------------------------------------------------------------------


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
