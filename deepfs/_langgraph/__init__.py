"""The files channel of a LangGraph graph: its reducer, its log of changes, and a task's view of it."""

__all__: list[str] = []
