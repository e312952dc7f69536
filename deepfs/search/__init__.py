"""Search for every backend: queries, globs, file filters, and the engines that run them."""

__all__: list[str] = []
