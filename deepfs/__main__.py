"""`python -m deepfs`: the command line, which the extra `cli` installs."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of this process, and exit with the status of the command."""
    _replace_closed_streams()
    try:
        _run()
    except KeyboardInterrupt:  # While modules are imported; commands have an answer of their own.
        sys.exit(130)
    except OSError as error:  # There is no room for the text of --help.
        from deepfs.cli.screen import discard_output

        discard_output()
        sys.exit(f"deepfs: {error.strerror}")


def _run() -> None:
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("deepfs: the command line needs an extra: pip install 'deepfs[cli]'")
    from deepfs.cli.app import app

    app(prog_name="deepfs")


def _replace_closed_streams() -> None:
    """Open something in place of standard streams that are closed, or the next open file takes the number of one.

    What is written there is lost; reading is an error, since nothing was given.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_WRONLY), mode))  # noqa: SIM115


if __name__ == "__main__":
    main()
