"""
Buffers that come back late: what the host frees before its GPU has used it.

A collective runs on a stream of its own. A tensor that it reads or writes may be freed by the host at once, and is
there for others when the GPU has come so far (``Tensor.record_stream`` in PyTorch). A host that runs ahead piles such
tensors up, until the queue of launches is full. Before PyTorch fails it waits for all of them
(``release_cached_blocks`` in ``c10/cuda/CUDACachingAllocator.cpp``).
"""

from collections import deque

from pipette_opt.memory_training.allocator import CachingAllocator, DeviceFullError

QUEUE = 1024
"""Launches that wait on a GPU before its host has to."""


class LateAllocator(CachingAllocator):
    """
    The allocator of a device whose host is ahead by a queue of launches.

    Parameters
    ----------
    capacity_bytes
        What its segments may have together; ``None`` for no limit.
    queue
        Launches that the host is ahead; 0 if it is not.

    Attributes
    ----------
    num_waits
        How often the device was full and all that was late was taken back.
    """

    def __init__(self, capacity_bytes: int | None = None, *, queue: int = QUEUE) -> None:
        super().__init__(capacity_bytes)
        self.queue = queue
        self.num_waits = 0
        self._launched = 0
        self._late: deque[tuple[int, int]] = deque()

    def launch(self, count: int = 1) -> None:
        """So many kernels or collectives are launched."""
        self._launched += count

    def allocate(self, key: int, size: int) -> None:
        """Allocate; on a full device after all that is late has been taken back."""
        while self._late and self._late[0][0] + self.queue <= self._launched:
            self.release(self._late.popleft()[1])
        try:
            super().allocate(key, size)
        except DeviceFullError:
            self.num_waits += 1
            self.catch_up()
            super().allocate(key, size)

    def release_late(self, key: int) -> None:
        """Free what a collective still uses: it is there when the GPU has come to this launch."""
        self._late.append((self._launched, key))

    def catch_up(self) -> None:
        """The host waits for its GPU."""
        while self._late:
            self.release(self._late.popleft()[1])
