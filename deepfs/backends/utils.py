"""`deepfs.compat.utils` by the path that it has in deepagents."""

from deepfs.compat.utils import *  # noqa: F403
from deepfs.compat.utils import __all__ as __all__
