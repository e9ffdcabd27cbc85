"""Count of the bytes of live tensor storages, without a GPU."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipette_opt.base.units import ceil_div


class Event(NamedTuple):
    """Allocation of a storage with ``size`` bytes under a key, or the end of that storage with ``size`` -1."""

    key: int
    size: int


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Torch dispatch mode that sums the bytes of storages created under it and still alive.

    A storage is counted once, however many tensors view it, from its creation until its last reference is dropped.

    Parameters
    ----------
    rounding_bytes
        Size of a storage is rounded up to a multiple of this; PyTorch's CUDA allocator rounds to 512 bytes.
    apart
        Tensors made earlier that operations may return views of. They must outlive the mode and are never counted.

    Attributes
    ----------
    events
        Allocations and their ends in order, with unrounded sizes.
    """

    def __init__(self, rounding_bytes: int = 512, apart: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding_bytes = rounding_bytes
        self.live_bytes = 0
        self.peak_bytes = 0
        self.events: list[Event] = []
        self._sizes: dict[int, tuple[int, int]] = {}
        self._next_key = 0
        self._apart = {tensor.untyped_storage()._cdata for tensor in apart}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes or key in self._apart:
            return
        size = self._rounded(storage)
        self._sizes[key] = self._next_key, size
        self.events.append(Event(self._next_key, storage.nbytes()))
        self._next_key += 1
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        number, size = self._sizes.pop(key)
        self.events.append(Event(number, -1))
        self.live_bytes -= size

    def _rounded(self, storage: torch.UntypedStorage) -> int:
        return ceil_div(storage.nbytes(), self.rounding_bytes) * self.rounding_bytes

    def size_of(self, tensor: torch.Tensor) -> int:
        """Return the bytes of a tensor's storage, rounded up."""
        return self._rounded(tensor.untyped_storage())
