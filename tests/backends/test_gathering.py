"""Several async calls at once, and batches of items."""

import anyio
import anyio.lowlevel
import pytest

from deepfs.errors import BackendError
from deepfs.storage.gathering import gather_each, in_batches

pytestmark = pytest.mark.both_loops


@pytest.mark.anyio
async def test_results_come_in_order_and_no_more_calls_run_than_allowed() -> None:
    running, most = 0, 0

    async def double(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001 * (10 - number))
        running -= 1
        return 2 * number

    assert await gather_each(double, range(10), most=3) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert most == 3
    assert await gather_each(double, []) == []


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


def test_batches_keep_the_order_and_both_limits() -> None:
    sizes = [3, 3, 9, 1, 1, 1, 4]
    assert list(in_batches(sizes, int, most_bytes=6)) == [[3, 3], [9], [1, 1, 1], [4]]
    assert list(in_batches(sizes, int, most_bytes=6, most_items=2)) == [[3, 3], [9], [1, 1], [1, 4]]
    assert list(in_batches([], int, most_bytes=6)) == []
