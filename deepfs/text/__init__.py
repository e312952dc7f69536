"""Pure functions on paths and content: they do no I/O, and do not depend on where files are stored."""

__all__: list[str] = []
