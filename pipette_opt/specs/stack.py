"""What a software stack attains of the hardware: a handful of named constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from pipette_opt.base.typed import Positive, check_limits
from pipette_opt.specs.layers import LearnedLayers

MIN_SPEED, MAX_COST = 1e-9, 1e15
"""Smallest speed, share and latency of a stack, below which times are no numbers any more; largest constant. Chosen."""

Speed = Annotated[float, Meta(ge=MIN_SPEED, le=MAX_COST)]
"""A rate over that of kernels measured alone, or another constant that must not be zero."""

Attained = Annotated[float, Meta(ge=MIN_SPEED, le=1)]
"""A share of what the hardware data promises."""

Cost = Annotated[float, Meta(ge=0, le=MAX_COST)]
"""Seconds, or another constant that may be zero."""

Origin = Literal["measured", "interpolated", "assumed"]
"""Where a constant is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """
    Constants of one software stack on one kind of cluster; shares are of what the hardware data promises.

    Parameters
    ----------
    matmul_speed
        Rate of matrix products over that of the GPU's kernels measured alone (``specs/efficiency.py``).
    attention_speed, attention_backward_speed
        The same of fused attention of the second version, which also does the softmax.
    flash1
        Speed of the first version of fused attention, as a share of the second's.
    streaming
        Share of the memory bandwidth that streaming kernels attain.
    elementwise
        Bytes that element-wise kernels move, over those of Megatron-Core's fused ones.
    kernel_s
        Start-up of one kernel on the device, beside products and fused attention, which have their own.
    host_kernel_s
        Time of the host to launch one kernel; a layer takes no less than its launches.
    host_collective_s
        The same for one collective.
    pipelined_wait_s
        What each rank of a tensor-parallel group adds to the launch of a collective while the pipeline's messages
        cross hosts, as do the two threads at each step of its ring to another host: the group waits for all of them.
    group_wait_s
        What a collective of a tensor-parallel group adds to its launch for each pair of its ranks (their number
        squared): every rank waits for the slowest of the hosts' threads, each time anew.
    flush_s
        What a job at the edge of its memory loses in each micro-batch, in a deep pipeline: the allocator gives its
        blocks back and asks again.
    refill_s
        What a job near the end of its memory loses once in an iteration, in the mean.
    refill_s_per_billion
        The same for each billion parameters that a rank of its largest stage holds, where the framework frees its
        gradients after each step and they are larger than the blocks that activations leave.
    refill_half_gpus
        GPUs of a job that loses the latter with a chance of a half: a job waits for its slowest rank, so it loses if
        any rank does. 0: every job does.
    micro_batch_s
        What one stage adds to each micro-batch: bookkeeping, and the wait for the host around its messages.
    iteration_s
        What is added to each iteration: the launches of the optimizer, norms of gradients, logging.
    collective_s
        Start-up of one collective.
    intra_node, inter_node
        Share of the measured bandwidth that collectives attain inside a host and between hosts.
    overlap_slowdown
        Extra time of compute beside collectives, a share. The hardware profile that Hetu-Galvatron ships
        (``overlap_coefficient.json``) measures 0.126.
    straggling
        Extra time for each doubling of the hosts: the slowest of many decides.
    assumed_links
        Share of the nominal rate of its network cards that a host attains, for runs whose links nobody measured; the
        cards are those of the host in which the GPU is usually sold (``data/gpus.yaml``). Reduce-scatters and
        all-gathers over all ranks of 2 and 4 hosts of Hugging Face's Ultra-Scale sweep attain 210 to 228 of 400 GB/s
        where nothing else slowed them (``bandwidth/hf_ultrascale_job_collectives.csv``).
    assumed_latency_s
        Fixed cost of one message between hosts, for the same runs.
    name, source
        Where the constants come from, for people.
    fitted
        How they were found: number of runs, ranges, errors of cross-validation. Free form; ``None`` by hand.
    memory
        Constants of the same stack for the prediction of memory; their names belong to ``memory/``.
    layers
        What layers of the shapes that runs had took beyond the formula.
    origins
        Where constants are from, ``measured`` or ``interpolated``, by name; those that are not named are assumed.
    versions
        Iteration times of runs of other versions of the software, over those of the stack's; for back-tests.
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
    flush_s: Cost = 0.0
    refill_s: Cost = 0.0
    refill_s_per_billion: Cost = 0.0
    refill_half_gpus: Cost = 0.0
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
    fitted: Mapping[str, Any] | None = None
    memory: Mapping[str, float] | None = None
    layers: LearnedLayers | None = None
    versions: Mapping[str, Positive] | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_limits(self)
        for name, origin in self.origins.items():
            if name not in CONSTANTS or origin not in get_args(Origin):
                raise ValueError(
                    f"origins: {name} must be a constant, measured, interpolated or assumed, got {origin}."
                )
        for version, factor in (self.versions or {}).items():
            if not 0 < factor < float("inf"):
                raise ValueError(f"versions: {version} must be > 0, got {factor}.")

    @property
    def loses_near_full_memory(self) -> bool:
        """Whether its jobs are known to lose time where memory is nearly full."""
        return self.memory is not None and bool(self.flush_s or self.refill_s or self.refill_s_per_billion)

    def with_constants(self, values: Mapping[str, float]) -> "StackSpec":
        """A copy with some constants changed."""
        return replace(self, **values)  # type: ignore[arg-type]


OTHERS = ("name", "source", "fitted", "memory", "layers", "versions", "origins")
CONSTANTS = tuple(field.name for field in fields(StackSpec) if field.name not in OTHERS)
"""The numbers of a stack that belong to the clock, in the order of the class."""

DEFAULT_STACK = StackSpec()
