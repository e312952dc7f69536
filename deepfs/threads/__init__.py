"""Blocking work off the event loop: thread pools, callbacks to the loop, deadlines and path locks."""

__all__: list[str] = []
