"""What is trained in one iteration, and in which number formats."""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.base.types import Precision
from pipette_opt.specs.expert_loads import RankImbalance

StateDtype = Literal["fp32", "fp16", "bf16", "fp8"]
"""Formats of Adam's moments."""

STATE_DTYPES = ("fp32", "fp16", "bf16", "fp8")

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element."""

Dispatcher = Literal["alltoall", "allgather", "flex"]
DISPATCHERS = ("alltoall", "allgather", "flex")
"""How tokens get to their experts, by Megatron-Core's names; what each sends is in ``costs/experts.py``."""

_CHOICES: dict[str, tuple[object, ...]] = {
    "precision": ("bf16", "fp16", "fp32"),
    "accumulate_allreduce_grads_in_fp32": (True, False),
    "attention_kernel": ("flash", "unfused"),
    "flash_version": (1, 2),
    "fused_softmax": (True, False),
    "fused_norm": (True, False),
    "fp8": (False, True),
    "main_params_dtype": ("fp32", "fp16"),
    "exp_avg_dtype": STATE_DTYPES,
    "exp_avg_sq_dtype": STATE_DTYPES,
    "moe_token_dispatcher_type": DISPATCHERS,
    "overlap_moe_expert_parallel_comm": (False, True),
    "cuda_graph": (False, True),
    "unequal_microbatches": (False, True),
    "expert_placement": ("listed", "balanced"),
}

LARGEST = 10**9
"""No iteration has more sequences, and no sequence more tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """
    One training iteration.

    Parameters
    ----------
    global_batch_size
        Sequences per iteration over all replicas.
    seq_length
        Tokens per sequence.
    precision
        Format of parameters and activations.
    accumulate_allreduce_grads_in_fp32
        Gradients kept and reduced in fp32 (Megatron's rule with bf16).
    attention_kernel
        ``flash`` does not store the score matrix, ``unfused`` does.
    flash_version
        Of FlashAttention; the first is slower.
    fused_softmax
        Unfused attention scales, masks and normalises in one kernel.
    fused_norm
        Normalisation layers are one kernel each.
    fp8
        Matrix products of the layers in fp8, as Transformer Engine does them: parameters stay as ``precision`` says and
        have fp8 copies, inputs are kept in fp8.
    main_params_dtype, exp_avg_dtype, exp_avg_sq_dtype
        Formats of the optimizer's master copy and moments (Megatron-Core's precision-aware optimizer).
    moe_token_dispatcher_type
        How tokens get to their experts, one of ``DISPATCHERS``.
    overlap_moe_expert_parallel_comm
        Whether tokens travel beside the compute of another micro-batch (Megatron-Core's option of that name).
    cuda_graph
        Whether whole layers are launched as CUDA graphs, so that the host's time for single kernels does not count.
    expert_imbalance
        Tokens of the busiest expert-parallel rank over the mean of all, at least 1; on more ranks than it says, all
        go to one of them.
    rank_imbalances
        The same by expert-parallel size, where loads of single experts are known; other sizes have
        ``expert_imbalance``.
    expert_placement
        Which experts a rank holds: the next ones as ``listed``, which launchers do, or ``balanced`` by their loads.
    unequal_microbatches
        Whether replicas may run different numbers of micro-batches, so that any number of replicas can share a batch.
        No launcher does so by itself (Megatron-Core, DeepSpeed and torchtitan want equal numbers).
    """

    global_batch_size: int
    seq_length: int
    precision: Precision = "bf16"
    accumulate_allreduce_grads_in_fp32: bool = True
    attention_kernel: Literal["flash", "unfused"] = "flash"
    flash_version: Literal[1, 2] = 2
    fused_softmax: bool = True
    fused_norm: bool = True
    fp8: bool = False
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    exp_avg_dtype: StateDtype = "fp32"
    exp_avg_sq_dtype: StateDtype = "fp32"
    moe_token_dispatcher_type: Dispatcher = "alltoall"
    overlap_moe_expert_parallel_comm: bool = False
    cuda_graph: bool = False
    expert_imbalance: float = 1.0
    rank_imbalances: tuple[RankImbalance, ...] = ()
    expert_placement: Literal["listed", "balanced"] = "listed"
    unequal_microbatches: bool = False

    def __post_init__(self) -> None:
        for field in ("global_batch_size", "seq_length"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
            if value > LARGEST:
                raise ValueError(f"{field} must be at most {LARGEST:,}, got {value:g}.")
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if isinstance(value, bool) != isinstance(allowed[0], bool) or value not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(map(str, allowed))}, got {value!r}.")
        if not 1.0 <= self.expert_imbalance < float("inf"):
            raise ValueError(f"expert_imbalance must be >= 1, got {self.expert_imbalance}.")
        if self.fp8 and self.precision == "fp32":
            raise ValueError("fp8 goes with precision bf16 or fp16, got fp32.")

    def imbalance(self, ranks: int) -> float:
        """Tokens of the busiest of so many expert-parallel ranks over the mean, from 1 to ``ranks``."""
        known = {one.ranks: one.imbalance for one in self.rank_imbalances}
        return min(known.get(ranks, self.expert_imbalance), float(ranks))

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as used in the forward pass."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient element as accumulated and reduced."""
        return 4 if self.accumulate_allreduce_grads_in_fp32 or self.precision == "fp32" else 2

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of Adam's state per parameter: two moments, and a master copy unless training in fp32."""
        moments = BYTES[self.exp_avg_dtype] + BYTES[self.exp_avg_sq_dtype]
        return moments + (0 if self.precision == "fp32" else BYTES[self.main_params_dtype])

    @property
    def narrow_states(self) -> int:
        """Optimizer states per parameter that are kept in less than fp32."""
        kept = [self.exp_avg_dtype, self.exp_avg_sq_dtype]
        if self.precision != "fp32":
            kept.append(self.main_params_dtype)
        return sum(dtype != "fp32" for dtype in kept)

    @property
    def step_bytes(self) -> int:
        """
        Bytes per owned parameter that the optimizer step needs meanwhile.

        fp32 copies of 16-bit gradients; with states in less than fp32 an fp32 copy of each of them instead
        (Transformer Engine's ``FusedAdam``, which takes gradients as they are).
        """
        if self.narrow_states:
            return 4 * self.narrow_states
        return 4 if self.gradient_bytes < 4 else 0

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch_size * self.seq_length
