"""Pure functions and small machines on which every backend is built; nothing here knows a backend or LangGraph."""

__all__: list[str] = []
