"""Commands of this machine: started off the loop, bounded in time, output and number, ended with all their children."""

from deepfs.process.running import MAX_COMMANDS, Captured, Chunk, Command, Running, Stream, capture, running

__all__ = ["MAX_COMMANDS", "Captured", "Chunk", "Command", "Running", "Stream", "capture", "running"]
