"""Blocking work off the event loop, the way back to the loop, and what bounds and orders that work."""

__all__: list[str] = []
