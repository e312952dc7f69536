"""The contract, sentence by sentence, as tests that a backend's own test class inherits."""

from deepfs.testing.conformance.cancellation import CancellationConformance
from deepfs.testing.conformance.concurrency import ConcurrencyConformance
from deepfs.testing.conformance.deleting import DeletingConformance
from deepfs.testing.conformance.editing import EditingConformance
from deepfs.testing.conformance.globbing import GlobConformance
from deepfs.testing.conformance.grepping import GrepConformance
from deepfs.testing.conformance.lines import LineConformance
from deepfs.testing.conformance.listing import ListingConformance
from deepfs.testing.conformance.moving import MovingConformance
from deepfs.testing.conformance.paths import PathConformance
from deepfs.testing.conformance.read_only import ReadOnlyConformance
from deepfs.testing.conformance.reading import ReadingConformance
from deepfs.testing.conformance.surface import SurfaceConformance
from deepfs.testing.conformance.transfer import TransferConformance
from deepfs.testing.conformance.watching import WatchingConformance
from deepfs.testing.conformance.writing import WritingConformance
from deepfs.testing.parity import SyncParity

__all__ = ["BackendConformance", "ReadOnlyConformance"]


class BackendConformance(
    PathConformance,
    ListingConformance,
    LineConformance,
    ReadingConformance,
    WritingConformance,
    EditingConformance,
    GlobConformance,
    GrepConformance,
    DeletingConformance,
    MovingConformance,
    TransferConformance,
    ConcurrencyConformance,
    CancellationConformance,
    WatchingConformance,
    SurfaceConformance,
    SyncParity,
):
    """Tests of everything that a backend promises, async and sync.

    ```python
    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self):
            self.storage = {}
            return MyBackend(self.storage)

        async def raw_put(self, path, data):
            self.storage[path] = data

        async def raw_peek(self, path):
            return self.storage.get(path)
    ```

    The tests run on the event loops that the fixture `anyio_backend` names. They allow no differences between backends
    except the fields of `Capabilities`.
    """
