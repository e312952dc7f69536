"""Pure functions on paths and content: nothing here waits, and nothing knows where files are kept."""

__all__: list[str] = []
