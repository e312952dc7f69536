"""One search for every backend: what is looked for, in which files, and the engines that look."""

__all__: list[str] = []
