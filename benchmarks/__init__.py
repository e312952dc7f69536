"""What deepfs costs beside its peers, measured together: `nox -s bench`, or `nox -s bench -- --quick`.

`nox -s bench -- --compare REV` measures what changed since a commit.
"""

__all__: list[str] = []
