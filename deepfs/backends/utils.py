"""`deepfs.compat.utils` by the path that it has in deepagents."""

from deepfs.compat import utils
from deepfs.compat.utils import *  # noqa: F403
from deepfs.text.media import MAX_MEDIA_BYTES as MAX_VIDEO_INPUT_BYTES

__all__ = ["MAX_VIDEO_INPUT_BYTES"]
__all__ += utils.__all__
