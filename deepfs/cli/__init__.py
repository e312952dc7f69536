"""The command `deepfs`. Needs the extra `cli`."""

__all__: list[str] = []
