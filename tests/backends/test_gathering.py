"""Several async calls at once, and batches of items."""

import anyio
import anyio.lowlevel
import pytest

from deepfs.errors import BackendError
from deepfs.storage.gathering import gather_each

pytestmark = pytest.mark.both_loops


@pytest.mark.anyio
@pytest.mark.parametrize("cancels", [True, False])
async def test_after_an_error_none_begins_and_others_are_cancelled_only_on_request(cancels: bool) -> None:
    begun: list[int] = []
    ended: list[int] = []
    failing = anyio.Event()

    async def call(number: int) -> None:
        begun.append(number)
        if number != 1:
            await failing.wait()
            await anyio.lowlevel.checkpoint()  # A cancelled call would not pass.
            ended.append(number)
            return
        while len(begun) < 3:
            await anyio.lowlevel.checkpoint()
        if not cancels:
            failing.set()
        raise BackendError(None, "first")

    with anyio.fail_after(10), pytest.raises(BackendError, match="first"):
        await gather_each(call, range(9), most=3, cancels=cancels)
    assert sorted(begun) == [0, 1, 2]
    assert sorted(ended) == ([] if cancels else [0, 2])
