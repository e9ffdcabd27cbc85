"""Links between single GPUs: inside a host, and from the GPUs of one host to those of another."""

from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only

MAX_SLOTS = 12
"""Most GPUs per host for which links of single GPUs are kept: each of up to 4,096 sets of GPUs has a figure. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuLinks:
    """
    Bandwidth of a single flow between any two GPUs; *slots* 0, 1, ... number the GPUs of a host.

    Parameters
    ----------
    inside
        Bytes/s from slot a to slot b of each host, shape ``(num_nodes, slots, slots)``; the diagonal is ignored.
    between
        Bytes/s from slot a of host i to slot b of host j at ``[i, a, j, b]``; NaN if no pair of GPUs of the two hosts
        was measured. ``None`` if links between hosts are only known per host.
    nic_of_slot
        NIC through which each slot sends and receives, numbered from 0, shape ``(slots,)``.
    kind_of_node
        Index into ``kinds`` of each host, shape ``(num_nodes,)``.
    kinds
        Distinct bandwidth matrices of ``inside``, shape ``(num_kinds, slots, slots)``.
    ring_bytes_per_s
        Slowest hop of the best ring through a set of slots, by ``kinds`` index and set (bit a: slot a), shape
        ``(num_kinds, 2 ** slots)``; infinite for fewer than two slots.
    best_ring_bytes_per_s
        Entry n: slowest hop of the best ring through any n slots of any host, shape ``(slots + 1,)``; entry 1 is the
        fastest single flow.
    """

    inside: FloatArray
    between: FloatArray | None = None
    nic_of_slot: IntArray
    kind_of_node: IntArray = field(init=False)
    kinds: FloatArray = field(init=False)
    ring_bytes_per_s: FloatArray = field(init=False)
    best_ring_bytes_per_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        inside = np.array(self.inside, dtype=np.float64)
        if inside.ndim != 3 or inside.shape[1] != inside.shape[2]:
            raise ValueError(f"inside must have shape (hosts, slots, slots), got {inside.shape}.")
        nodes, slots = inside.shape[:2]
        if slots > MAX_SLOTS:
            raise ValueError(f"links of single GPUs are known of hosts of up to {MAX_SLOTS} GPUs, got {slots}.")
        inside[:, np.arange(slots), np.arange(slots)] = 0.0
        if not ((inside > 0) | np.eye(slots, dtype=np.bool_)).all() or not np.isfinite(inside).all():
            raise ValueError("bandwidths between GPUs of a host must be > 0 and finite.")
        if self.between is not None and self.between.shape != (nodes, slots, nodes, slots):
            expected = (nodes, slots, nodes, slots)
            raise ValueError(f"between must have shape {expected}, got {self.between.shape}.")
        if np.shape(self.nic_of_slot) != (slots,) or np.min(self.nic_of_slot) < 0:
            raise ValueError(f"nic_of_slot must be {slots} whole numbers from 0, got {self.nic_of_slot}.")
        kinds, kind_of_node = np.unique(inside, axis=0, return_inverse=True)
        rings = np.stack([_best_rings(kind) for kind in kinds])
        size = np.array([set_of.bit_count() for set_of in range(2**slots)])
        best = np.array([rings[:, size == count].max() if count > 1 else inside.max() for count in range(slots + 1)])
        for name, array, dtype in (
            ("inside", inside, np.float64),
            ("nic_of_slot", self.nic_of_slot, np.int64),
            ("kind_of_node", kind_of_node.ravel(), np.int64),
            ("kinds", kinds, np.float64),
            ("ring_bytes_per_s", rings, np.float64),
            ("best_ring_bytes_per_s", best, np.float64),
        ):
            object.__setattr__(self, name, read_only(array, dtype))
        if self.between is not None:
            object.__setattr__(self, "between", read_only(self.between, np.float64))

    @property
    def num_slots(self) -> int:
        """Number of GPUs in each host."""
        return len(self.nic_of_slot)

    def of_hosts(self, keep: list[int]) -> "GpuLinks":
        """Return the links of the hosts with these indices only."""
        between = None if self.between is None else self.between[keep][:, :, keep]
        return GpuLinks(inside=self.inside[keep], between=between, nic_of_slot=self.nic_of_slot)

    def inside_only(self) -> "GpuLinks":
        """Return a copy without ``between``: links between hosts are then known per host only."""
        return GpuLinks(inside=self.inside, nic_of_slot=self.nic_of_slot)


def best_pairs(between: FloatArray) -> FloatArray:
    """Return the bandwidth of the fastest GPU pair of two hosts, shape ``(num_nodes, num_nodes)``; NaN if unknown."""
    fastest: FloatArray = np.fmax.reduce(np.fmax.reduce(between, axis=3), axis=1)
    return fastest


def _best_rings(bytes_per_s: FloatArray) -> FloatArray:
    """
    Return the slowest hop of the best ring through each set of slots, in bytes/s, shape ``(2 ** slots,)``.

    Dynamic programming over paths that begin at the lowest slot of a set (Held and Karp, 1962), with the slowest hop in
    place of the sum. NCCL also looks for the fastest ring through a host, whatever the order of ranks.
    """
    slots = len(bytes_per_s)
    paths = np.zeros((2**slots, slots))
    rings = np.full(2**slots, np.inf)
    lowest = np.array([(subset & -subset).bit_length() - 1 for subset in range(2**slots)])
    for slot in range(slots):
        paths[1 << slot, slot] = np.inf
    for count in range(2, slots + 1):
        of_size = np.array([subset for subset in range(2**slots) if subset.bit_count() == count])
        for last in range(slots):
            ends = of_size[((of_size >> last) & 1 == 1) & (lowest[of_size] != last)]
            before = paths[ends ^ (1 << last)]
            paths[ends, last] = np.minimum(before, bytes_per_s[:, last]).max(axis=1)
        closing = np.minimum(paths[of_size], bytes_per_s[:, lowest[of_size]].T)
        rings[of_size] = closing.max(axis=1)
    return rings
