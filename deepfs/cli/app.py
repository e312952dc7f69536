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

ADDRESS = "A path or URL."
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one value a line.")]
Hidden = Annotated[bool, typer.Option("-a", "--all", help="Show names that start with a dot, too.")]
File = Annotated[str, typer.Argument(help="The path or URL of a file.")]
Files = Annotated[list[str], typer.Argument(help="Paths or URLs of files; - is the standard input.")]
IfMatch = Annotated[str | None, typer.Option(help="Only if the file has this version.")]
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


def session_of(context: typer.Context, *, as_json: bool = False, pages: bool = False) -> Session:
    """The session of a command.

    Args:
        context: The context of the command.
        as_json: Whether results are written as JSON.
        pages: Whether a person sees the output through a pager.
    """
    session = Session(context.obj, as_json=as_json, name=context.info_name or "")
    if pages and not as_json:
        session.screen.page()
    return session


# --- what is where ---------------------------------------------------------------------------------------------------


@app.command()
def ls(
    context: typer.Context,
    addresses: Addresses = None,
    long: Annotated[bool, typer.Option("-l", "--long", help="Show sizes and times.")] = False,
    hidden: Hidden = False,
    json: Json = False,
) -> None:
    """List directories."""
    from deepfs.cli.listing import list_directories

    session = session_of(context, as_json=json)
    run(session, lambda: list_directories(session, addresses or [""], long=long, hidden=hidden), trouble=2)


@app.command()
def tree(
    context: typer.Context,
    address: Annotated[str, typer.Argument(help=ADDRESS, show_default=False)] = "",
    depth: Annotated[int | None, typer.Option("-L", "--depth", min=1, help="Show so many levels.")] = None,
    hidden: Hidden = False,
    json: Json = False,
) -> None:
    """Draw a directory with all beneath it."""
    from deepfs.cli.listing import show_tree

    session = session_of(context, as_json=json, pages=True)
    run(session, lambda: show_tree(session, address, depth=depth, hidden=hidden), trouble=2)


@app.command()
def glob(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Such as '*.py', 'src/**/*.{ts,tsx}'.")],
    addresses: Addresses = None,
    json: Json = False,
) -> None:
    """Find files by a pattern for their paths. The exit status is 1 if there are none."""
    from deepfs.cli.listing import find_files

    session = session_of(context, as_json=json)
    run(session, lambda: find_files(session, pattern, addresses or [""]), trouble=2)


@app.command()
def du(
    context: typer.Context,
    addresses: Addresses = None,
    depth: Annotated[int, typer.Option("-d", "--depth", min=0, help="Tell so many levels of directories.")] = 0,
    exact: Annotated[bool, typer.Option("-b", "--bytes", help="Write sizes as numbers of bytes.")] = False,
    json: Json = False,
) -> None:
    """Tell how many bytes the files under a place hold."""
    from deepfs.cli.listing import disk_usage

    session = session_of(context, as_json=json)
    run(session, lambda: disk_usage(session, addresses or [""], depth=depth, exact=exact))


@app.command()
def grep(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="A regular expression (RE2); with -F a text.")],
    addresses: Addresses = None,
    literal: Annotated[bool, typer.Option("-F", "--fixed-strings", help="The pattern is a text.")] = False,
    ignore_case: Annotated[bool, typer.Option("-i", "--ignore-case", help="Ignore case.")] = False,
    glob: Annotated[
        str | None, typer.Option("-g", "--glob", help="Search files that match; without it, all but dot files.")
    ] = None,
    lines_around: Annotated[int, typer.Option("-C", "--context", min=0, help="Show lines around matches.")] = 0,
    most: Annotated[int | None, typer.Option("-m", "--max-count", min=1, help="End after so many matches.")] = None,
    files: Annotated[bool, typer.Option("-l", "--files-with-matches", help="Write names of files only.")] = False,
    counts: Annotated[bool, typer.Option("-c", "--count", help="Write the number of lines in each file.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Write nothing; the exit status tells.")] = False,
    json: Json = False,
) -> None:
    """Find lines in text files. The exit status is 0 if there are any, 1 if not, 2 after an error."""
    from deepfs.cli.searching import GrepOptions, search_files

    shows = "nothing" if quiet else "files" if files else "counts" if counts else "lines"
    wanted = GrepOptions(pattern, not literal, ignore_case, glob, lines_around, most, shows)
    session = session_of(context, as_json=json, pages=True)
    run(session, lambda: search_files(session, wanted, addresses or [""]), trouble=2)


# --- contents --------------------------------------------------------------------------------------------------------


@app.command()
def cat(
    context: typer.Context,
    addresses: Files,
    numbers: Annotated[bool, typer.Option("-n", "--number", help="Number the lines.")] = False,
) -> None:
    """Write the contents of files."""
    from deepfs.cli.contents import show_files

    session = session_of(context, pages=True)
    run(session, lambda: show_files(session, addresses, numbers=numbers))


@app.command()
def head(
    context: typer.Context,
    addresses: Files,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines.")] = 10,
    size: Annotated[int | None, typer.Option("-c", "--bytes", min=0, help="How many bytes instead.")] = None,
) -> None:
    """Write the first lines of files."""
    from deepfs.cli.contents import show_beginning

    session = session_of(context)
    run(session, lambda: show_beginning(session, addresses, lines=lines, size=size))


@app.command()
def write(
    context: typer.Context,
    address: File,
    text: Annotated[str | None, typer.Argument(help="The text; by default the standard input.")] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Replace a file that is there.")] = False,
    if_match: IfMatch = None,
) -> None:
    """Make a file of a text or of the standard input."""
    from deepfs.cli.contents import write_file

    session = session_of(context)
    run(session, lambda: write_file(session, address, text, overwrite=force, if_match=if_match))


@app.command()
def edit(
    context: typer.Context,
    address: File,
    old: Annotated[str | None, typer.Argument(help="The text to replace; without it, $EDITOR opens.")] = None,
    new: Annotated[str | None, typer.Argument(help="What takes its place.")] = None,
    everywhere: Annotated[bool, typer.Option("-a", "--all", help="Replace it everywhere, not in one place.")] = False,
    if_match: IfMatch = None,
    json: Json = False,
) -> None:
    """Replace a text in a file, or open the file in $EDITOR."""
    from deepfs.cli.contents import edit_file, edit_in_editor

    session = session_of(context, as_json=json)
    if old is None:
        run(session, lambda: edit_in_editor(session, address))
    if new is None:
        raise typer.BadParameter("give the text that takes its place as well")
    run(session, lambda: edit_file(session, address, old, new, everywhere=everywhere, if_match=if_match))


@app.command()
def patch(
    context: typer.Context,
    file: Annotated[str | None, typer.Argument(help="The patch; by default the standard input.")] = None,
    address: Annotated[str, typer.Option("-d", "--directory", help="What the paths of the patch start at.")] = "",
) -> None:
    """Apply a unified diff, or a patch as OpenAI's models write it: all of it or nothing."""
    from deepfs.cli.contents import apply_patch

    session = session_of(context)
    run(session, lambda: apply_patch(session, address, file))


@app.command()
def diff(
    context: typer.Context,
    first: Annotated[str, typer.Argument(help="The old file or directory.")],
    second: Annotated[str, typer.Argument(help="The new one.")],
    brief: Annotated[bool, typer.Option("-q", "--brief", help="Write only which files differ.")] = False,
    json: Json = False,
) -> None:
    """Compare two files or two trees. The exit status is 0 if they are the same, 1 if not, 2 after an error."""
    from deepfs.cli.contents import compare

    session = session_of(context, as_json=json, pages=True)
    run(session, lambda: compare(session, first, second, brief=brief), trouble=2)


# --- versions and changes --------------------------------------------------------------------------------------------


@app.command()
def history(
    context: typer.Context,
    address: File,
    version: Annotated[int | None, typer.Argument(help="Write this version.", show_default=False)] = None,
    difference: Annotated[bool, typer.Option("--diff", help="Write how the present file differs from it.")] = False,
    json: Json = False,
) -> None:
    """List the earlier versions of a file, or show one. Needs a tree with [history]."""
    from deepfs.cli.versions import show_history

    session = session_of(context, as_json=json, pages=True)
    run(session, lambda: show_history(session, address, version, compares=difference))


@app.command()
def restore(context: typer.Context, address: File, version: Annotated[int, typer.Argument(help="Its number.")]) -> None:
    """Give a file the content of an earlier version. Needs a tree with [history]."""
    from deepfs.cli.versions import restore_version

    session = session_of(context)
    run(session, lambda: restore_version(session, address, version))


@app.command()
def watch(
    context: typer.Context,
    address: Annotated[str, typer.Argument(help=ADDRESS, show_default=False)] = "",
    json: Json = False,
) -> None:
    """Tell changes as they happen, until Ctrl-C."""
    from deepfs.cli.versions import watch_changes

    session = session_of(context, as_json=json)
    run(session, lambda: watch_changes(session, address))
