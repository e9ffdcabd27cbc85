"""
PyTorch's CUDA caching allocator, as a model that replays a trace of allocations.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.x, defaults of ``PYTORCH_CUDA_ALLOC_CONF``, one
stream) and of the page "CUDA semantics, memory management" of its documentation:

- sizes are rounded up to 512 bytes (``kMinBlockSize``);
- up to 1 MiB (``kSmallSize``) blocks come from segments of 2 MiB (``kSmallBuffer``), kept apart from the others;
- below 10 MiB (``kMinLargeAlloc``) a new segment has 20 MiB (``kLargeBuffer``), from there on the size rounded up to
  2 MiB (``kRoundLarge``);
- the smallest free block that is large enough is taken, of equal ones that with the lowest address; it is split if at
  least 512 bytes (small) or more than 1 MiB (large) remain, else all of it counts as allocated;
- a freed block is merged with its free neighbours of the same segment, and its segment is kept;
- if the device has no room for a new segment, all segments without a block in use are returned first.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipette_opt.base.units import MIB, ceil_div
from pipette_opt.measure.live_storages import Event

MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_BUFFER = 2 * MIB
LARGE_BUFFER = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB


class DeviceFullError(RuntimeError):
    """The device has no room for a segment, even with all unused segments returned."""


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, with its neighbours."""

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
        Most that blocks in use had together, each with what was not worth splitting off.
    reserved_bytes
        Most that the segments had together.
    """

    allocated_bytes: int
    reserved_bytes: int


class CachingAllocator:
    """
    The allocator of one device.

    Parameters
    ----------
    capacity_bytes
        Limit of its segments together; ``None`` for no limit.
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
        """The most so far."""
        return AllocatorPeaks(allocated_bytes=self.peak_allocated_bytes, reserved_bytes=self.peak_reserved_bytes)

    def allocate(self, key: int, size: int) -> None:
        """Allocate; nothing happens for no bytes. Raises :class:`DeviceFullError` if the device is full."""
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
        """Free what was allocated under that number, merged with its free neighbours."""
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
        """Follow a trace from here on."""
        for key, size in events:
            if size < 0:
                self.release(key)
            else:
                self.allocate(key, size)
        return self.peaks

    def return_unused(self) -> None:
        """Return all segments without a block in use (``torch.cuda.empty_cache``)."""
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
        """One block of two neighbours, of which ``listed`` is among the free ones."""
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
    Find a capacity that is enough for a trace, between its allocated and its reserved peak on a device without limit.

    Found by halving, to half a percent; every answer is one that was tried, or what is reserved.

    Parameters
    ----------
    replay
        Replays the trace on a device of that many bytes; raises :class:`DeviceFullError` if it is too small.
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
