"""What deepfs costs beside its peers, measured together: `nox -s bench`, or `nox -s bench -- --quick`."""

__all__: list[str] = []
