"""Hosts of a cluster, their GPUs, and the links between them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.specs.efficiency import ASSUMED_EFFICIENCY, GpuEfficiency
from pipette_opt.specs.gpu_links import GpuLinks
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.levels import Level, check_levels, overlaid
from pipette_opt.specs.link_matrix import LinkMatrix as LinkMatrix
from pipette_opt.specs.link_matrix import summed

MIN_SPEED, MAX_SPEED = 0.01, 1.2
"""Range of a host's ``speed``, as share of its GPU type's peak; faster is another type, slower is broken. Chosen."""

SLOWEST_NVLINK = 100e9
"""
Bandwidth between the GPUs of a host above which their link must be NVLink, bytes/s. Chosen.

PCIe 5.0 attains 64 GB/s, NVLink 2 attains 150 GB/s.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """
    One GPU type, at full or reduced speed.

    Parameters
    ----------
    memory_bytes
        Device memory as the driver reports it.
    peak_flops
        Dense peak per precision, FLOP/s, keys as in :data:`~pipette_opt.base.types.Precision`.
    memory_bytes_per_s
        Bandwidth of device memory.
    host_bytes_per_s
        Bandwidth between the GPU and host memory in one direction, while all GPUs of the host copy at once.
    source
        Origin of the figures, for people.
    speed
        Share of the GPU type's peak at which this GPU runs; ``peak_flops`` and ``memory_bytes_per_s`` include it.
    efficiency
        Rates that kernels attain on this GPU type, as shares of its peaks.
    generation
        Architecture, a word of the catalogue such as ``hopper``; empty if not given.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    host_bytes_per_s: float = 25e9
    source: str = ""
    speed: float = 1.0
    efficiency: GpuEfficiency = ASSUMED_EFFICIENCY
    generation: str = ""

    def __post_init__(self) -> None:
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise ValueError(f"speed must be in [{MIN_SPEED:g}, {MAX_SPEED:g}], got {self.speed:g}.")
        if self.memory_bytes <= 0:
            raise ValueError(f"memory_bytes must be > 0, got {self.memory_bytes}.")
        if self.memory_bytes_per_s <= 0:
            raise ValueError(f"memory_bytes_per_s must be > 0, got {self.memory_bytes_per_s}.")
        for precision, flops in self.peak_flops.items():
            if flops <= 0:
                raise ValueError(f"peak_flops[{precision}] must be > 0, got {flops}.")

    @property
    def kind(self) -> str:
        """Name of the GPU type without the speed; measurements of the type hold at full speed."""
        return self.name if self.speed == 1.0 else self.name.rpartition("@")[0]

    def at_speed(self, speed: float) -> "GpuSpec":
        """Return this GPU type at a share of its peak, named like ``h100-80gb@0.8``; itself at its own speed."""
        if speed == self.speed:
            return self
        scale = speed / self.speed
        return replace(
            self,
            name=self.kind if speed == 1.0 else f"{self.kind}@{speed:g}",
            peak_flops={precision: flops * scale for precision, flops in self.peak_flops.items()},
            memory_bytes_per_s=self.memory_bytes_per_s * scale,
            speed=speed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """
    One host: its name, its GPU type and its number of GPUs.

    Parameters
    ----------
    price_per_gpu_hour
        Price of one GPU for one hour, > 0, in the user's currency; ``None`` if not given.
    """

    host: str
    gpu: GpuSpec
    num_gpus: int
    price_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        price = self.price_per_gpu_hour
        if price is not None and not 0 < price < float("inf"):
            raise ValueError(f"price_per_gpu_hour of host {self.host} must be > 0, got {price}.")
        if self.num_gpus < 1:
            raise ValueError(f"num_gpus of host {self.host} must be >= 1, got {self.num_gpus}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterSpec:
    """
    Hosts, and the links inside and between them.

    Parameters
    ----------
    nodes
        Hosts in the user's order; the identity placement of the baselines follows it. All have equally many GPUs.
    intra_node_bytes_per_s
        Bandwidth from one GPU to another GPU of the same host.
    intra_node_latency_s, inter_node_latency_s
        Fixed cost of one message inside a host, and between two hosts.
    known_latency_s
        Fixed cost of a message from host i to host j, where known for that pair; NaN elsewhere. Shape
        ``(num_nodes, num_nodes)``. Not allowed inside NVLink domains. Overrides the latency of levels.
    nics_per_node
        Flows of one host pair that do not share a NIC; used where fewer flows than needed were measured.
    link_matrices
        Measured bandwidths, one matrix for each number of flows, sorted by ``concurrent_flows``, which are distinct. At
        least one is needed for several hosts.
    node_bytes_per_s
        Cap on all traffic into one host, and on all traffic out of it; ``None`` for no cap.
    links_measured
        Whether the link matrices were measured, not made from a single figure or from nominal rates.
    assumed
        Sentences for people: each names a figure that was assumed, not measured or given.
    gpu_links
        Links between single GPUs, if known; ``link_matrices`` then hold the fastest pair of GPUs of each two hosts.
    ring_bytes_per_s
        Set by :meth:`relaxed`. Entry n is the slowest hop of the best ring through n GPUs of a host; entry 1 is the
        fastest single flow. Shape ``(gpus_per_node + 1,)``; ``None`` if every ring has ``intra_node_bytes_per_s``.
    levels
        Network levels (NVLink domain, leaf, pod), from inside out; measured host pairs override them.
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    intra_node_bytes_per_s: float
    intra_node_latency_s: float = 0.0
    inter_node_latency_s: float = 0.0
    known_latency_s: FloatArray | None = None
    nics_per_node: int = 1
    link_matrices: tuple[LinkMatrix, ...] = ()
    node_bytes_per_s: float | None = None
    links_measured: bool = True
    assumed: tuple[str, ...] = ()
    gpu_links: GpuLinks | None = None
    ring_bytes_per_s: FloatArray | None = None
    levels: tuple[Level, ...] = ()
    _kinds_cache: list[GpuSpec] = field(default_factory=list, init=False, repr=False)
    _pair_cache: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False)
    _fastest_cache: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _of_kinds_cache: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False)
    _relaxed_cache: "list[ClusterSpec]" = field(default_factory=list, init=False, repr=False)
    _latency_cache: list[FloatArray] = field(default_factory=list, init=False, repr=False)
    _equal_cache: "dict[tuple[int, ...], ClusterSpec | None]" = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("nodes must not be empty.")
        hosts = [node.host for node in self.nodes]
        duplicates = sorted(host for host, times in Counter(hosts).items() if times > 1)
        if duplicates:
            raise ValueError(f"hosts must be distinct, got {compress_hosts(tuple(duplicates))} more than once.")
        counts = {node.num_gpus for node in self.nodes}
        if len(counts) > 1:
            raise ValueError(f"all hosts must have equally many GPUs, got {sorted(counts)}.")
        if not self.intra_node_bytes_per_s > 0:
            raise ValueError(f"intra_node bandwidth must be > 0, got {self.intra_node_bytes_per_s}.")
        for name in ("intra_node_latency_s", "inter_node_latency_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")
        if self.nics_per_node < 1:
            raise ValueError(f"nics_per_node must be >= 1, got {self.nics_per_node}.")
        if self.node_bytes_per_s is not None and not self.node_bytes_per_s > 0:
            raise ValueError(f"node bandwidth must be > 0, got {self.node_bytes_per_s}.")
        if len(self.nodes) > 1 and not self.link_matrices:
            raise ValueError(f"a cluster of {len(self.nodes)} hosts needs a link matrix.")
        for matrix in self.link_matrices:
            if matrix.bytes_per_s.shape[0] != len(self.nodes):
                raise ValueError(
                    f"the link matrix of {matrix.concurrent_flows} flows has {matrix.bytes_per_s.shape[0]} hosts, "
                    f"the cluster has {len(self.nodes)}."
                )
        if self.gpu_links is not None and self.gpu_links.inside.shape[:2] != (len(self.nodes), self.gpus_per_node):
            raise ValueError(
                f"links of GPUs are given for hosts x GPUs = {self.gpu_links.inside.shape[:2]}, the cluster has "
                f"{(len(self.nodes), self.gpus_per_node)}."
            )
        if self.levels and self.gpu_links is not None:
            raise ValueError("levels and gpu_links are both given; remove one of the two.")
        check_levels(self.levels, len(self.nodes))
        if self.known_latency_s is not None:
            self._check_latencies(self.known_latency_s)
        flows = [matrix.concurrent_flows for matrix in self.link_matrices]
        if len(set(flows)) < len(flows):
            raise ValueError(f"link matrices must have distinct concurrent_flows, got {flows}.")
        ordered = tuple(sorted(self.link_matrices, key=lambda matrix: matrix.concurrent_flows))
        object.__setattr__(self, "link_matrices", ordered)

    def _check_latencies(self, latency_s: FloatArray) -> None:
        known = read_only(latency_s, np.float64)
        if known.shape != (len(self.nodes),) * 2:
            raise ValueError(f"latencies are of {known.shape} hosts, the cluster has {len(self.nodes)}.")
        if (known < 0).any() or np.isinf(known).any():
            raise ValueError(f"latencies must be >= 0 and finite, got {np.nanmin(known):g} to {np.nanmax(known):g} s.")
        domain = self.domain_of_node
        inside = np.argwhere((domain[:, None] == domain) & ~np.isnan(known) & ~np.eye(len(known), dtype=np.bool_))
        for host, other in inside[:1].tolist():
            pair = f"{self.nodes[host].host} and {self.nodes[other].host}"
            raise ValueError(f"{pair} are in one NVLink domain: their latency is that of level {self.levels[0].name}.")
        object.__setattr__(self, "known_latency_s", known)

    @property
    def num_nodes(self) -> int:
        """Number of hosts."""
        return len(self.nodes)

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs in each host."""
        return self.nodes[0].num_gpus

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in the user's order."""
        return tuple(node.host for node in self.nodes)

    @property
    def gpu_kinds(self) -> tuple[GpuSpec, ...]:
        """Distinct GPU types (with speed), in order of first appearance."""
        if not self._kinds_cache:
            kinds: dict[str, GpuSpec] = {}
            for node in self.nodes:
                kinds.setdefault(node.gpu.name, node.gpu)
            self._kinds_cache.extend(kinds.values())
        return tuple(self._kinds_cache)

    @property
    def kind_of_node(self) -> IntArray:
        """Index into ``gpu_kinds`` for each host, shape ``(num_nodes,)``."""
        names = [gpu.name for gpu in self.gpu_kinds]
        return np.array([names.index(node.gpu.name) for node in self.nodes], dtype=np.int64)

    @property
    def domain_of_node(self) -> IntArray:
        """NVLink domain of each host, numbered from 0, shape ``(num_nodes,)``; without domains each has its own."""
        if self.levels and self.levels[0].scale_up:
            return self.levels[0].group_of_node
        return np.arange(self.num_nodes, dtype=np.int64)

    @property
    def most_in_domain(self) -> int:
        """Number of hosts in the largest NVLink domain; 1 without NVLink domains."""
        return int(np.bincount(self.domain_of_node).max())

    @property
    def scale_up_gpus(self) -> int:
        """Number of GPUs in the largest NVLink domain; in a host if no domain spans hosts."""
        return self.gpus_per_node * self.most_in_domain

    @property
    def has_nvlink(self) -> bool:
        """Return whether NVLink connects the GPUs of a host: ``intra_node_bytes_per_s`` is beyond what PCIe attains."""
        return self.intra_node_bytes_per_s >= SLOWEST_NVLINK

    @property
    def pair_latency_s(self) -> FloatArray:
        """Fixed cost of a message from host i to host j, shape ``(num_nodes, num_nodes)``."""
        if not self._latency_cache:
            found = np.full((self.num_nodes, self.num_nodes), self.inter_node_latency_s)
            for level in reversed(self.levels):
                found[level.group_of_node[:, None] == level.group_of_node[None, :]] = level.latency_s
            if self.known_latency_s is not None:
                found = np.where(np.isnan(self.known_latency_s), found, self.known_latency_s)
            apart = ~np.eye(self.num_nodes, dtype=np.bool_)
            np.fill_diagonal(found, found[apart].min() if self.num_nodes > 1 else self.inter_node_latency_s)
            self._latency_cache.append(read_only(found))
        return self._latency_cache[0]

    @property
    def least_latency_s(self) -> float:
        """Fixed cost of a message between the two nearest hosts."""
        return float(self.pair_latency_s.min())

    @property
    def equally_far(self) -> bool:
        """Return whether a message has the same fixed cost between any two hosts."""
        return bool((self.pair_latency_s == self.least_latency_s).all())

    def relaxed(self) -> "ClusterSpec":
        """
        Return a copy of the cluster in which every group of n GPUs of a host has the best ring through any n of its
        GPUs.

        No choice of GPUs within hosts is faster than on this copy, so its lower bounds on times hold for the cluster,
        too. Return the cluster itself if links of single GPUs are not known.
        """
        if self.gpu_links is None:
            return self
        if not self._relaxed_cache:
            rings = self.gpu_links.best_ring_bytes_per_s
            self._relaxed_cache.append(replace(self, gpu_links=None, ring_bytes_per_s=rings))
        return self._relaxed_cache[0]

    def with_best_links(self, link_matrices: tuple[LinkMatrix, ...]) -> "ClusterSpec":
        """
        Return the same hosts with these link matrices, the least latency, no cap per host, and no levels.

        If the matrices have the fastest pair's bandwidth everywhere, lower bounds on times of the copy hold for this
        cluster, unless it has NVLink domains (``costs/least_links.py``).
        """
        return replace(
            self,
            link_matrices=link_matrices,
            node_bytes_per_s=None,
            inter_node_latency_s=self.least_latency_s,
            known_latency_s=None,
            levels=(),
        )

    def with_equal_links(self, flows: Iterable[int]) -> "ClusterSpec | None":
        """
        Return the same hosts with the bandwidth of the fastest host pair on every pair, for each of these numbers of
        flows.

        ``None`` if no pair was measured for one of the numbers in ``flows``.
        """
        counts = tuple(sorted(flows))
        if counts not in self._equal_cache:
            fastest = [self.fastest_pair_bytes_per_s(count) for count in counts]
            matrices = [
                LinkMatrix(concurrent_flows=count, bytes_per_s=np.full((self.num_nodes, self.num_nodes), rate))
                for count, rate in zip(counts, fastest, strict=True)
                if rate > 0
            ]
            known = len(matrices) == len(counts)
            equal = self.with_best_links(tuple(matrices)) if known else None
            self._equal_cache[counts] = equal
        return self._equal_cache[counts]

    def inside_bytes_per_s(self, members: IntArray | int) -> FloatArray | float:
        """
        Return the bandwidth to the next GPU in the best ring through ``members`` GPUs of one host, in bytes/s.

        ``members`` = 1 gives the fastest single flow. An array of sizes gives an array of its shape, unless all rings
        have the same bandwidth.
        """
        rings = self.ring_bytes_per_s if self.gpu_links is None else self.gpu_links.best_ring_bytes_per_s
        if rings is None:
            return self.intra_node_bytes_per_s
        found: FloatArray = rings[np.minimum(members, self.gpus_per_node)]
        return found

    def pair_bytes_per_s(self, num_flows: int) -> FloatArray:
        """
        Return the total bandwidth of ``num_flows`` concurrent flows from host i to host j, bytes/s.

        Shape ``(num_nodes, num_nodes)``.

        Measured numbers of flows are used directly, numbers between two measured ones are interpolated linearly, and
        larger numbers get the total of the largest. With a single measured number ``k`` the total grows in proportion,
        up to
        ``max(k, nics_per_node)`` flows. A pair is NaN if no matrix has it; otherwise only the matrices that have it
        count. The cap per host applies next, except within NVLink domains, and levels fill the pairs without a
        measurement.
        """
        cached = self._pair_cache.get(num_flows)
        if cached is None:
            cached = self._pair_cache[num_flows] = read_only(self._pair_bytes_per_s(num_flows))
        return cached

    def fastest_bytes_per_s_of_kinds(self, num_flows: int) -> FloatArray:
        """
        Return the total bandwidth of ``num_flows`` flows between the fastest hosts of each two GPU types, in bytes/s.

        Shape ``(num_kinds, num_kinds)``, the faster direction of each pair; 0 where no pair was measured.
        """
        if num_flows not in self._of_kinds_cache:
            kinds = range(len(self.gpu_kinds))
            found = np.zeros((len(kinds), len(kinds)))
            if len(kinds) == 1:
                found[:] = np.nan_to_num(self.fastest_pair_bytes_per_s(num_flows))
            else:
                bytes_per_s, kind_of_node = np.nan_to_num(self.pair_bytes_per_s(num_flows)), self.kind_of_node
                for kind in kinds:
                    for other in kinds:
                        between = bytes_per_s[np.ix_(kind_of_node == kind, kind_of_node == other)]
                        found[kind, other] = between.max(initial=0.0)
            self._of_kinds_cache[num_flows] = read_only(np.maximum(found, found.T))
        return self._of_kinds_cache[num_flows]

    def fastest_pair_bytes_per_s(self, num_flows: int) -> float:
        """Return the largest entry of :meth:`pair_bytes_per_s`; NaN if no pair was measured."""
        cached = self._fastest_cache.get(num_flows)
        if cached is None:
            known = self.pair_bytes_per_s(num_flows)
            known = known[~np.isnan(known)]
            cached = self._fastest_cache[num_flows] = float(known.max()) if known.size else float("nan")
        return cached

    def _pair_bytes_per_s(self, num_flows: int) -> FloatArray:
        total = summed(self.link_matrices, num_flows, self.num_nodes, self.nics_per_node)
        capped = total
        if self.node_bytes_per_s is not None:
            domain = self.domain_of_node
            capped = np.where(domain[:, None] == domain, total, np.minimum(total, self.node_bytes_per_s))
        ports = self.nics_per_node, self.gpus_per_node
        return overlaid(capped, self.levels, num_flows, ports, self.node_bytes_per_s, self.links_measured)

    @property
    def usable_links(self) -> BoolArray:
        """Directed host pairs with a measurement or level, shape ``(num_nodes, num_nodes)``; False on the diagonal."""
        known = [~np.isnan(matrix.bytes_per_s) for matrix in self.link_matrices]
        known += [level.group_of_node[:, None] == level.group_of_node for level in self.levels]
        usable: BoolArray = np.logical_or.reduce(known) & ~np.eye(self.num_nodes, dtype=np.bool_)
        return usable
