"""Constants of a software stack: kernel rates, latencies and overheads on given hardware, and memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from pipette_opt.base.typed import Positive, check_limits
from pipette_opt.specs.memory_constants import MEGATRON_CORE, MemoryConstants

MIN_SPEED, MAX_COST = 1e-9, 1e15
"""Smallest speed, share or latency, so that times stay finite, and largest constant of a stack. Chosen."""

Speed = Annotated[float, Meta(ge=MIN_SPEED, le=MAX_COST)]
"""Kernel rate relative to the kernels measured alone, or another constant that must be positive."""

Attained = Annotated[float, Meta(ge=MIN_SPEED, le=1)]
"""Share of a hardware rate, in (0, 1]."""

Cost = Annotated[float, Meta(ge=0, le=MAX_COST)]
"""Time in seconds, or another constant that may be zero."""

FITTED, KEPT = "fitted", "kept"
"""Values of ``constants`` in the record of a calibration: whether it fitted them, or only has anchors."""

Origin = Literal["measured", "interpolated", "assumed"]
"""Origin of a constant."""

Family = Literal["megatron", "recipes", "fsdp", "own"]
"""
Family of stacks written alike: public runs say how far its times are off, and it decides what overlaps and is copied.

- ``megatron``: Megatron-Core and its forks, as most people launch them.
- ``recipes``: Megatron-Core as NVIDIA's performance recipes tune it (NeMo, Megatron-Bridge, MLPerf submissions).
- ``fsdp``: sharded data parallelism outside Megatron (FSDP2 of torchtitan and NeMo AutoModel, DeepSpeed ZeRO 2 and 3).
- ``own``: frameworks of their own (nanotron, Megatron-DeepSpeed, InternEvo).
"""

ON_MEGATRON_CORE: tuple[Family, ...] = ("megatron", "recipes")
"""Families that run Megatron-Core's layers, whose backward pass sends messages of tensor ranks beside products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """
    Measured run of the user that shown times start from, as the stack saw it before the runs moved its constants.

    Parameters
    ----------
    run
        Name of the run and its figure, for people: ``train.sh: 98.2 s``.
    terms
        Terms of the run's prediction, see :mod:`pipette_opt.worlds.terms`.
    log_ratio
        Logarithm of measured over predicted time.
    reference
        Terms of the reference layout of the run's job, see :mod:`pipette_opt.worlds.reference`.
    """

    run: str
    terms: tuple[float, ...]
    log_ratio: float
    reference: tuple[float, ...] = ()


FITS = "fits"
"""Figure of a run that fitted in memory, but whose peak is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """
    Measured memory of a run of the user, which moved the constants of memory.

    Parameters
    ----------
    run
        Name of the run and its figure, for people: ``train.sh: 61.3 GiB``.
    key
        Digest of the run's stages and its figure, by which a run that is given again is known.
    """

    run: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRates:
    """
    Rates of the kernels of sparse attention; shares are of the dense peak, so that other GPUs have a time, too.

    The defaults are those of TileLang's kernels of Megatron-Core. They were measured on one H200 with DeepSeek-V3.2's
    sizes, 4,096 to 32,768 tokens, 16 to 128 heads (``benchmarks/results/sparse-attention.md``).

    Parameters
    ----------
    query_passes
        Number of times that elementwise kernels read or write queries and outputs, forward and backward. Measured
        beside the attention kernels: 2 forward and 10.5 backward with 128 heads.
    backward_share
        Share that the backward kernel attains beside one reading of the latents of all chosen tokens. Measured between
        16, 64 and 128 heads: 87 TFLOP/s of 989.
    score_flops
        FLOPs at the peak that last as long as the part of an indexer's score that does not grow with its heads.
        Measured: .17 ns a score. Threads write the scores one by one.
    score_share
        Share of the products of the indexer's scores, measured between 32 and 64 heads.
    choice_passes
        Number of times that the choice reads or writes the fp32 scores of all tokens, masked ones too. Measured: 14
        with 8,192 tokens, 11 with 32,768 (``torch.topk`` and the cleaning of the scores).
    input_passes
        Number of times that elementwise kernels read or write the indexer's queries, each way. Measured: 20 to 22, with
        positions that no kernel fuses. Without the loss the indexer has no backward pass.
    target_share
        Share of the kernel that sums attention's probabilities for the loss. Measured: 1.8 to 2.0 ns for a chosen token
        and block of 32 heads, which has two products.
    gradient_share
        Share of the indexer's backward kernel. Measured: .065 with 64 heads, .053 with 32.
    """

    query_passes: tuple[Cost, Cost] = (2.0, 10.0)
    backward_share: Attained = 0.088
    score_flops: Cost = 165e3
    score_share: Attained = 0.264
    choice_passes: Cost = 12.0
    input_passes: Cost = 20.0
    target_share: Attained = 0.039
    gradient_share: Attained = 0.062

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """
    Constants of one software stack on one type of cluster; shares are of the hardware's given rates.

    Parameters
    ----------
    matmul_speed
        Rate of matrix products over that of the GPU's kernels measured alone (``specs/efficiency.py``).
    attention_speed, attention_backward_speed
        Rate of FlashAttention 2 kernels, softmax included, over that of the kernels measured alone, in each pass.
    flash1
        Rate of FlashAttention 1 over that of FlashAttention 2.
    streaming
        Share of the memory bandwidth that streaming kernels attain.
    elementwise
        Bytes that element-wise kernels move, over those of Megatron-Core's fused kernels.
    kernel_s
        Start-up time of one kernel on the GPU; matrix products and fused attention have their own.
    host_kernel_s
        Host time to launch one kernel; a layer takes at least its launches.
    host_collective_s
        Host time to launch one collective.
    pipelined_wait_s
        Time that each rank of a tensor-parallel group adds to the launch of a collective while pipeline messages cross
        hosts: the group waits for all of them. If the group spans hosts, so do the ``proxy_threads`` of each host.
    group_wait_s
        Time that a collective of a tensor-parallel group adds to its launch, per pair of its ranks (number squared):
        every rank waits for the slowest host thread.
    micro_batch_s
        Time that one stage adds to each micro-batch: bookkeeping, and host waits around messages.
    iteration_s
        Time added to each iteration: launches of the optimizer, gradient norms, logging.
    collective_s
        Start-up time of one collective.
    intra_node, inter_node
        Share of the measured bandwidth that collectives attain inside a host, and between hosts.
    overlap_slowdown
        Extra time of compute that runs beside collectives, as a share. The hardware profile that Hetu-Galvatron ships
        (``overlap_coefficient.json``) measures 0.126.
    straggling
        Extra time, as a share, for each doubling of the number of hosts: the slowest host decides.
    assumed_links
        Share of the nominal NIC rate that a host attains, for runs without measured links. The NICs are those of the
        host in which the GPU is usually sold (``data/gpus.yaml``). Unhindered reduce-scatters and all-gathers over all
        ranks of 2 and 4 hosts of Hugging Face's Ultra-Scale sweep attain 210 to 228 of 400 GB/s
        (``bandwidth/hf_ultrascale_job_collectives.csv``).
    assumed_latency_s
        Fixed cost of one message between hosts, for runs without measured links.
    name, source
        Name of the stack, and where its constants come from; for people.
    family
        Family of stacks that it belongs to.
    fitted
        Record of the fit: number of runs, ranges, cross-validation errors. Free form; ``None`` if set by hand.
    memory
        Constants of the memory prediction for the same stack; Megatron-Core's by default.
    origins
        ``measured`` or ``interpolated`` by constant name; unnamed constants are assumed. ``memory`` names all memory
        constants, which count as measured unless they are named.
    anchors
        Measured runs of the user, from which shown times and their bands start.
    moved_from
        Constants by name, as they were before the anchors moved them; empty if they moved none.
    memory_runs
        Measured runs of the user that moved the constants in ``memory``.
    versions
        Iteration time with other versions of the software over that with the stack's version; for back-tests.
    proxy_threads
        Threads of NCCL's proxies on a host that send and receive for a ring of tensor ranks over several hosts. With
        nanotron on H100, a pass of a layer takes 4.2, 6.3, 10.4 ms with 2, 4, 8 tensor ranks on one host, 1.04 ms for
        each rank, and 22.9 ms with 16 ranks on two hosts: as much as 20 ranks, so 2 threads on each host.
    sparse_attention
        Rates of the kernels of sparse attention.
    """

    matmul_speed: Speed = 1.0
    attention_speed: Speed = 1.0
    attention_backward_speed: Speed = 1.0
    flash1: Attained = 0.6
    streaming: Attained = 0.80
    elementwise: Speed = 1.0
    kernel_s: Cost = 4e-6
    host_kernel_s: Cost = 0.0
    host_collective_s: Cost = 0.0
    pipelined_wait_s: Cost = 0.0
    group_wait_s: Cost = 0.0
    micro_batch_s: Cost = 0.0
    iteration_s: Cost = 0.0
    collective_s: Cost = 0.0
    intra_node: Attained = 1.0
    inter_node: Attained = 1.0
    overlap_slowdown: Cost = 0.125
    straggling: Cost = 0.0
    assumed_links: Attained = 0.55
    assumed_latency_s: Speed = 12e-6
    name: str = "default"
    source: str = ""
    family: Family = "megatron"
    fitted: Mapping[str, Any] | None = None
    memory: MemoryConstants = MEGATRON_CORE
    versions: Mapping[str, Positive] | None = None
    anchors: tuple[Anchor, ...] = ()
    moved_from: Mapping[str, float] = field(default_factory=dict)
    memory_runs: tuple[MeasuredMemory, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    proxy_threads: Cost = 0.0
    sparse_attention: SparseRates = SparseRates()

    def __post_init__(self) -> None:
        check_limits(self)
        for name, origin in self.origins.items():
            if name not in (*CONSTANTS, "memory") or origin not in get_args(Origin):
                raise ValueError(
                    f"origins: {name} must be a constant, measured, interpolated or assumed, got {origin}."
                )
        if self.fitted is not None and self.fitted.get("constants") not in (FITTED, KEPT):
            raise ValueError(f"fitted: constants must be {FITTED} or {KEPT}; calibrate again.")
        unknown = [name for name in self.moved_from if name not in CONSTANTS]
        if unknown:
            raise ValueError(f"moved_from: {unknown[0]} is no constant of a stack.")
        for version, factor in (self.versions or {}).items():
            if not 0 < factor < float("inf"):
                raise ValueError(f"versions: {version} must be > 0, got {factor}.")

    def names_of(self, origin: Origin) -> list[str]:
        """Return the names of the time constants of an origin."""
        return [name for name in CONSTANTS if self.origins.get(name, "assumed") == origin]

    @property
    def is_fitted(self) -> bool:
        """True if a calibration fitted the constants."""
        return self.fitted is not None and self.fitted["constants"] == FITTED

    @property
    def unmoved(self) -> "StackSpec":
        """Stack with the constants that it had before its anchors moved them."""
        return replace(self, **self.moved_from, moved_from={}) if self.moved_from else self  # type: ignore[arg-type]

    def with_constants(self, values: Mapping[str, float]) -> "StackSpec":
        """Return a copy with these constants changed."""
        return replace(self, **values)  # type: ignore[arg-type]


_NAMES = tuple(field.name for field in fields(StackSpec))

CONSTANTS = _NAMES[: _NAMES.index("name")]
"""Names of a stack's time constants, which runs fit or move, in the order of the class."""

OTHERS = _NAMES[len(CONSTANTS) :]
"""Fields of a stack that are not such constants."""

DEFAULT_STACK = StackSpec()
"""Stack with the default constants, for jobs without a calibrated stack."""
