"""Workspaces: copies of a tree that cost nothing, in which changes are tried, looked at, and merged or discarded."""
