"""Measures deepfs and comparable libraries side by side: `nox -s bench`, or `nox -s bench -- --quick`."""
