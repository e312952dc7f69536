"""The parts of the bubblewrap sandbox: its limits, the command line, control groups, and the room on the disk."""

__all__: list[str] = []
