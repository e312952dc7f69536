"""The order in which a fair queue serves groups, checked by counting."""

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from deepfs.threads.pool import FairQueue


class Item(NamedTuple):
    group: str
    number: int
    turn: int = 0


def served(queue: FairQueue[Item], most: float = 100) -> list[Item]:
    """All that the queue serves until nothing may be served, while nothing ends."""
    found = []
    while (item := queue.pop(most)) is not None:
        found.append(item)
    return found


def test_every_other_item_is_of_the_oldest_turn_and_the_others_are_served_in_rotation() -> None:
    queue: FairQueue[Item] = FairQueue(most=8)
    for number, turn in enumerate([1, 1, 1, 1, 2, 2, 3, 3, 4]):
        queue.put(Item("a", number, turn))
    assert [(item.turn, item.number) for item in served(queue)] == [
        *[(1, 0), (2, 4), (1, 1), (3, 6), (1, 2), (4, 8), (1, 3), (2, 5)]
    ]
    queue.end(Item("a", 0, 1))
    assert served(queue) == [Item("a", 7, 3)]


def test_many_later_turns_take_at_most_half_of_the_time_of_the_oldest_one() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(50):
        queue.put(Item("a", number))
    places = []
    for place in range(100):
        queue.put(Item("a", 0, turn=place + 1))  # As callers do that come again as soon as they were served.
        item = queue.pop()
        assert item is not None
        queue.end(item)
        places += [place] * (item.turn == 0)
    assert places == [*range(0, 100, 2)]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "pop", "put back", "end"]))),
    st.sampled_from([1, 2, float("inf")]),
)
def test_no_item_is_lost_or_served_twice_and_no_group_waits_for_more_than_the_others(
    steps: list[tuple[str, str]], most: float
) -> None:
    queue: FairQueue[Item] = FairQueue(most)
    waiting: set[Item] = set()
    active: list[Item] = []
    interrupted: set[Item] = set()
    passed: Counter[str] = Counter()
    for number, (group, step) in enumerate(steps):
        if step == "put":
            queue.put(item := Item(group, number))
            waiting.add(item)
        elif step == "pop":
            may = {
                item.group
                for item in waiting
                if sum(item.group == other.group for other in [*active, *interrupted]) < most
            }
            may |= {item.group for item in interrupted}
            assert bool(queue) == bool(may)
            found = queue.pop()
            assert (found is not None) == bool(may)
            if found is not None:
                assert found.group in may
                (interrupted if found in interrupted else waiting).remove(found)
                active.append(found)
                passed = Counter({each: passed[each] + 1 for each in may - {found.group}})
                assert max(passed.values(), default=0) <= 3
        elif active:
            item = active.pop(0)
            if step == "put back":
                queue.put_back(item)
                interrupted.add(item)
            else:
                queue.end(item)
