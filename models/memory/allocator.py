"""
Model of PyTorch's CUDA caching allocator that replays a trace of allocations.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.x, defaults of ``PYTORCH_CUDA_ALLOC_CONF``, one
stream) and of the page "CUDA semantics, memory management" of PyTorch's documentation:

- sizes are rounded up to 512 bytes (``kMinBlockSize``);
- blocks up to 1 MiB (``kSmallSize``) come from segments of 2 MiB (``kSmallBuffer``), separate from larger blocks;
- a new segment for less than 10 MiB (``kMinLargeAlloc``) has 20 MiB (``kLargeBuffer``); a larger one has the size
  rounded up to 2 MiB (``kRoundLarge``);
- the smallest free block that is large enough is taken, and among equal blocks the one with the lowest address;
- this block is split if at least 512 bytes (small) or more than 1 MiB (large) remain; otherwise all of it is allocated;
- a freed block is merged with free neighbours in its segment, and the segment is kept;
- if the device has no room for a new segment, all segments without a used block are returned first.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.memory.live_storages import Event
from pipette_opt.base.units import MIB, ceil_div

MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_BUFFER = 2 * MIB
LARGE_BUFFER = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB


class DeviceFullError(RuntimeError):
    """Raised if a new segment does not fit the device, even after all unused segments are returned."""


@dataclass(slots=True, eq=False)
class _Block:
    """Block of a segment, with links to the blocks before and after it in the segment."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeaks:
    """
    Peaks as ``torch.cuda.memory_stats`` counts them.

    Parameters
    ----------
    allocated_bytes
        Maximum of the bytes in used blocks, including remainders too small to split off.
    reserved_bytes
        Maximum of the bytes in all segments.
    """

    allocated_bytes: int
    reserved_bytes: int


class CachingAllocator:
    """
    Simulated caching allocator of one device.

    Parameters
    ----------
    capacity_bytes
        Maximum of the bytes in all segments; ``None`` for no limit.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.num_returns = 0
        self._next_address = 0
        self._used: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._free_at: dict[int, _Block] = {}

    @property
    def peaks(self) -> AllocatorPeaks:
        """Peaks since the allocator was created."""
        return AllocatorPeaks(allocated_bytes=self.peak_allocated_bytes, reserved_bytes=self.peak_reserved_bytes)

    def allocate(self, key: int, size: int) -> None:
        """Allocate a block for ``key``, if ``size`` is not 0. Raises :class:`DeviceFullError` on a full device."""
        if size == 0:
            return
        wanted = max(ceil_div(size, MIN_BLOCK), 1) * MIN_BLOCK
        small = wanted <= SMALL_SIZE
        block = self._take_free(wanted, small) or self._new_segment(wanted, small)
        rest = block.size - wanted
        if rest >= MIN_BLOCK if small else rest > SMALL_SIZE:
            after = _Block(block.address + wanted, rest, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = after
            block.after, block.size = after, wanted
            self._put_free(after)
        block.free = False
        self._used[key] = block
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def release(self, key: int) -> None:
        """Free the block of ``key`` and merge it with its free neighbours; an unknown key does nothing."""
        block = self._used.pop(key, None)
        if block is None:
            return
        self.allocated_bytes -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merge(block.before, block, listed=block.before)
        if block.after is not None and block.after.free:
            block = self._merge(block, block.after, listed=block.after)
        self._put_free(block)

    def replay(self, events: Iterable[Event]) -> AllocatorPeaks:
        """Replay allocations and releases after those so far; return the peaks since the allocator was created."""
        for key, size in events:
            if size < 0:
                self.release(key)
            else:
                self.allocate(key, size)
        return self.peaks

    def return_unused(self) -> None:
        """Return all segments without a used block to the device (``torch.cuda.empty_cache``)."""
        for small, blocks in self._free.items():
            kept = []
            for size, address in blocks:
                block = self._free_at[address]
                if block.before is None and block.after is None:
                    del self._free_at[address]
                    self.reserved_bytes -= size
                else:
                    kept.append((size, address))
            self._free[small] = kept

    def _take_free(self, wanted: int, small: bool) -> _Block | None:
        blocks = self._free[small]
        index = bisect_left(blocks, (wanted, -1))
        if index == len(blocks):
            return None
        _, address = blocks.pop(index)
        return self._free_at.pop(address)

    def _put_free(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._free_at[block.address] = block

    def _merge(self, first: _Block, second: _Block, listed: _Block) -> _Block:
        """Return two neighbouring blocks merged into one; ``listed`` is the one of them in the list of free blocks."""
        blocks = self._free[listed.small]
        del blocks[bisect_left(blocks, (listed.size, listed.address))]
        del self._free_at[listed.address]
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _new_segment(self, wanted: int, small: bool) -> _Block:
        size = SMALL_BUFFER if small else LARGE_BUFFER if wanted < MIN_LARGE else _rounded(wanted, ROUND_LARGE)
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            self.return_unused()
            self.num_returns += 1
            if self.reserved_bytes + size > self.capacity_bytes:
                raise DeviceFullError(
                    f"{self.reserved_bytes} bytes are reserved, {size} more exceed the device's {self.capacity_bytes}."
                )
        block = _Block(self._next_address, size, small)
        self._next_address += size
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block


def smallest_capacity(replay: Callable[[int], object], peaks: AllocatorPeaks) -> int:
    """
    Return a device capacity with which a trace fits, found by bisection to half a percent.

    The capacity lies between the trace's allocated and its reserved peak on a device without limit. It is one that was
    tried, or the reserved peak.

    Parameters
    ----------
    replay
        Function that replays the trace on a device of this capacity in bytes; raises :class:`DeviceFullError` if the
        capacity is too small.
    peaks
        Peaks of the trace on a device without limit.
    """
    enough, too_small = peaks.reserved_bytes, peaks.allocated_bytes - 1
    while enough - too_small > max(0.005 * enough, ROUND_LARGE):
        middle = (enough + too_small) // 2
        try:
            replay(middle)
        except DeviceFullError:
            too_small = middle
        else:
            enough = middle
    return enough


def _rounded(size: int, multiple: int) -> int:
    return ceil_div(size, multiple) * multiple
