"""Devices for the boxes of root, who owns those of the host and could take their modes from everybody."""

import atexit
import os
import shutil
import stat
from functools import cache
from tempfile import mkdtemp

__all__ = ["private_devices"]

_NUMBERS = {"full": (1, 7), "null": (1, 3), "random": (1, 8), "tty": (5, 0), "urandom": (1, 9), "zero": (1, 5)}


@cache
def private_devices(sandbox: str) -> dict[str, str]:
    """The devices of one sandbox, by the name in /dev; they last as long as this process.

    The caller is root. Raises OSError where the temporary directory takes no devices.
    """
    directory = mkdtemp(prefix="deepfs-devices-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = {}
    for name, numbers in _NUMBERS.items():
        made[name] = os.path.join(directory, name)
        os.mknod(made[name], stat.S_IFCHR | 0o666, os.makedev(*numbers))
        os.chmod(made[name], 0o666)
    with open(made["null"], "wb"):  # Fails where the filesystem allows no devices.
        return made
