"""What code written for deepagents needs: backends of older protocols taken in, and deepfs's given out."""

__all__: list[str] = []
