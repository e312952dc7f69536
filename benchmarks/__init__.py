"""Measures deepfs and comparable libraries side by side: `nox -s bench`, or `nox -s bench -- --quick`.

`nox -s bench -- --compare REV` measures what changed since a commit.
"""

__all__: list[str] = []
