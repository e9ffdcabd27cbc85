"""The model of PyTorch's caching allocator against hand-made traces; the sizes are those of its source."""

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from models.memory import allocator as model
from models.memory.allocator import (
    AllocatorPeaks,
    CachingAllocator,
    DeviceFullError,
    Event,
    smallest_capacity,
)
from pipette_opt.base.units import MIB


def allocate(allocator: CachingAllocator, *sizes: int) -> None:
    """Allocate blocks under the numbers 0, 1, ..."""
    for key, size in enumerate(sizes):
        allocator.allocate(key, size)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # at least 512 bytes, out of a segment of 2 MiB
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest that counts as small
        (MIB + 1, MIB + 512, 20 * MIB),  # the smallest that does not: a segment of 20 MiB, split
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on a segment of its own, in steps of 2 MiB
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB remains, too little to split off: it counts as allocated
        (21 * MIB - 512, 21 * MIB - 512, 22 * MIB),  # more than 1 MiB remains
        (0, 0, 0),
    ],
)
def test_one_allocation(size: int, allocated: int, reserved: int) -> None:
    """What one block costs on both sides of each edge."""
    allocator = CachingAllocator()
    allocator.allocate(0, size)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_small_blocks_share_a_segment() -> None:
    """Four blocks of half a MiB fill one segment of 2 MiB; a fifth needs another."""
    allocator = CachingAllocator()
    allocate(allocator, *[MIB // 2] * 4)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(4, MIB // 2)
    assert allocator.reserved_bytes == 4 * MIB


def test_small_and_large_do_not_share() -> None:
    """A free large block does not serve a small request, nor the other way round."""
    allocator = CachingAllocator()
    allocate(allocator, 20 * MIB)
    allocator.release(0)
    allocator.allocate(1, 512)
    assert allocator.reserved_bytes == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    """Of free blocks of 40 and 30 MiB a request of 25 MiB takes the second; one of 35 MiB then the first."""
    allocator = CachingAllocator()
    allocate(allocator, 40 * MIB, 30 * MIB)
    allocator.release(0)
    allocator.release(1)
    allocator.allocate(2, 25 * MIB)
    allocator.allocate(3, 35 * MIB)
    assert allocator.reserved_bytes == 70 * MIB
    allocator.allocate(4, 5 * MIB)  # what remained of either: 5 MiB each
    allocator.allocate(5, 5 * MIB)
    assert allocator.reserved_bytes == 70 * MIB
    allocator.allocate(6, 2 * MIB)
    assert allocator.reserved_bytes == 90 * MIB


def test_freed_neighbours_merge() -> None:
    """Three blocks of one segment, freed in any order, are one free block again; two of them are not enough."""
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        allocate(allocator, *[6 * MIB] * 3)
        assert allocator.reserved_bytes == 20 * MIB
        for key in order[:2]:
            allocator.release(key)
        adjacent = abs(order[0] - order[1]) == 1
        allocator.allocate(3, 12 * MIB)
        assert (allocator.reserved_bytes == 20 * MIB) == adjacent
        allocator.release(3)
        allocator.release(order[2])
        allocator.allocate(4, 20 * MIB)
        assert allocator.reserved_bytes == (20 if adjacent else 32) * MIB


def test_fragmentation_costs_a_segment() -> None:
    """Moments that come after the first pass take its free blocks, so that the second pass needs new segments."""
    events = [Event(0, 100 * MIB), Event(0, -1), Event(1, 10 * MIB), Event(2, 100 * MIB)]
    assert CachingAllocator().replay(events) == AllocatorPeaks(allocated_bytes=110 * MIB, reserved_bytes=200 * MIB)


def test_a_full_device_gets_unused_segments_back_first() -> None:
    """With 110 MiB the same sequence fails, for the old segment is in use; without the moments it is returned."""
    blocked = [Event(0, 100 * MIB), Event(0, -1), Event(1, 10 * MIB), Event(2, 100 * MIB)]
    with pytest.raises(DeviceFullError, match="exceed"):
        CachingAllocator(110 * MIB).replay(blocked)
    allocator = CachingAllocator(110 * MIB)
    allocator.replay([Event(0, 100 * MIB), Event(0, -1), Event(1, 110 * MIB)])
    assert allocator.reserved_bytes == 110 * MIB
    assert allocator.num_returns == 1


def test_random_traces_keep_the_books() -> None:
    """
    Over random traces: blocks never overlap, reserved covers allocated, and all is one piece when all is freed.

    The slow way: every segment as a list of used ranges.
    """
    generator = random.Random(0)
    for _ in range(30):
        allocator, live = CachingAllocator(), dict[int, int]()
        for key in range(200):
            if live and generator.random() < 0.45:
                gone = generator.choice(sorted(live))
                allocator.release(gone)
                del live[gone]
            else:
                live[key] = int(2 ** generator.uniform(0, 26))
                allocator.allocate(key, live[key])
            ranges = sorted((block.address, block.address + block.size) for block in allocator._used.values())
            assert all(before[1] <= after[0] for before, after in pairwise(ranges))
            free = sum(size for blocks in allocator._free.values() for size, _ in blocks)
            assert allocator.reserved_bytes == allocator.allocated_bytes + free
            assert allocator.allocated_bytes >= sum(live.values())
        for key in list(live):
            allocator.release(key)
        assert allocator.allocated_bytes == 0
        allocator.return_unused()
        assert allocator.reserved_bytes == 0
        assert not allocator._free_at


def test_sizes_are_those_of_the_installed_torch() -> None:
    """The constants stand in a header that PyTorch ships, at least since they have one of their own."""
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    if not header.is_file():
        pytest.skip("this torch keeps the constants in its sources")
    found = {name: int(size) for name, size in re.findall(r"constexpr size_t (k\w+) = (\d+);", header.read_text())}
    assert found["kMinBlockSize"] == model.MIN_BLOCK
    assert found["kSmallSize"] == model.SMALL_SIZE
    assert found["kSmallBuffer"] == model.SMALL_BUFFER
    assert found["kMinLargeAlloc"] == model.MIN_LARGE
    assert found["kRoundLarge"] == model.ROUND_LARGE


@pytest.mark.parametrize(("moment", "needed"), [(0, 100), (10, 200)])
def test_what_a_full_device_can_do_with(moment: int, needed: int) -> None:
    """
    Two passes of 100 MiB, the second block a little larger: 202 MiB are reserved, 102 are enough.

    A block of 10 MiB that stays between them holds the first segment, so that nothing can be returned.
    """
    first = [Event(0, 100 * MIB), Event(0, -1)]
    events = [*first, *([Event(1, moment * MIB)] if moment else []), Event(2, 102 * MIB)]
    peaks = CachingAllocator().replay(events)
    assert peaks.reserved_bytes == 202 * MIB

    def replay(capacity: int) -> AllocatorPeaks:
        return CachingAllocator(capacity).replay(events)

    found = smallest_capacity(replay, peaks)
    assert replay(found).reserved_bytes <= found
    assert found == pytest.approx((needed + 2) * MIB, abs=2 * MIB)
    with pytest.raises(DeviceFullError):
        replay(found - 3 * MIB)
