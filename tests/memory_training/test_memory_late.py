"""Buffers that come back late, counted by hand."""

import pytest

from pipette_opt.base.units import MIB
from pipette_opt.memory_training.allocator import DeviceFullError
from pipette_opt.memory_training.late import LateAllocator

BUFFER = 16 * MIB


def ahead(queue: int, capacity_bytes: int | None = None, buffers: int = 10) -> LateAllocator:
    """Buffers one after another, each freed late before the next; two launches each."""
    allocator = LateAllocator(capacity_bytes, queue=queue)
    for key in range(buffers):
        allocator.allocate(key, BUFFER)
        allocator.launch(2)
        allocator.release_late(key)
    return allocator


@pytest.mark.parametrize(("queue", "blocks"), [(0, 1), (1, 2), (2, 2), (6, 4), (100, 10)])
def test_as_many_pile_up_as_the_queue_holds(queue: int, blocks: int) -> None:
    """Each is there again after so many launches more; without a queue all are the same block."""
    assert ahead(queue).peaks.reserved_bytes == blocks * BUFFER


def test_a_full_device_takes_back_what_is_late() -> None:
    """Of ten the device has room for four: the fifth and the ninth wait for those before."""
    allocator = ahead(100, 4 * BUFFER)
    assert allocator.num_waits == 2
    assert allocator.peaks.reserved_bytes == 4 * BUFFER


def test_what_is_in_use_does_not_come_back() -> None:
    """Four in use fill the device: nothing is late, and the fifth fails."""
    allocator = LateAllocator(4 * BUFFER)
    for key in range(4):
        allocator.allocate(key, BUFFER)
    with pytest.raises(DeviceFullError):
        allocator.allocate(4, BUFFER)


def test_what_no_collective_uses_is_there_at_once() -> None:
    """Freed and asked for again: one block."""
    allocator = LateAllocator()
    for key in range(10):
        allocator.allocate(key, BUFFER)
        allocator.release(key)
    assert allocator.peaks.reserved_bytes == BUFFER


def test_a_host_that_waits_has_all_back() -> None:
    """After it has caught up the next buffer needs no new block."""
    allocator = ahead(100, buffers=3)
    allocator.catch_up()
    allocator.allocate(99, BUFFER)
    assert allocator.peaks.reserved_bytes == 3 * BUFFER
