"""The command `deepfs`. Needs the extra `cli`."""
