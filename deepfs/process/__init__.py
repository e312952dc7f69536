"""Commands on this machine: started off the event loop, limited in time, output and number, killed with their group."""

from deepfs.process.child import Command
from deepfs.process.output import Captured, Chunk, Stream
from deepfs.process.running import MAX_COMMANDS, Running, capture, running

__all__ = ["MAX_COMMANDS", "Captured", "Chunk", "Command", "Running", "Stream", "capture", "running"]
