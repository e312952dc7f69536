"""Compatibility with deepagents and older protocols: adapters in both directions."""

__all__: list[str] = []
