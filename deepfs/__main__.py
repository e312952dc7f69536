"""`python -m deepfs`: the command line, which the extra `cli` installs."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of this process, and exit with the status of the command."""
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("deepfs: the command line needs an extra: pip install 'deepfs[cli]'")
    from deepfs.cli.app import app

    app(prog_name="deepfs")


if __name__ == "__main__":
    main()
