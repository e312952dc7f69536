"""The contract, sentence by sentence, as tests that a backend's own test class inherits."""

from deepfs.testing.conformance.at_once import CancellationConformance, ConcurrencyConformance, WatchingConformance
from deepfs.testing.conformance.changing import (
    DeletingConformance,
    EditingConformance,
    MovingConformance,
    WritingConformance,
)
from deepfs.testing.conformance.paths import ListingConformance, PathConformance
from deepfs.testing.conformance.read_only import ReadOnlyConformance
from deepfs.testing.conformance.reading import LineConformance, ReadingConformance
from deepfs.testing.conformance.searching import GlobConformance, GrepConformance
from deepfs.testing.conformance.surface import SurfaceConformance, SyncParity, TransferConformance

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
