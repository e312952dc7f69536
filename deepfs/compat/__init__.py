"""What code written for deepagents needs: backends of older protocols taken in, and deepfs's given out."""
