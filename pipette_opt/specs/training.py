"""What is trained in one iteration, and in which number formats."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from pipette_opt.base.offload import NOTHING, Offload
from pipette_opt.base.types import Precision
from pipette_opt.specs.expert_loads import RankImbalance
from pipette_opt.specs.precision import FP8_RECIPES, NVFP4, PRECISION_RECIPES, Fp8Recipe, PrecisionRecipe

StateDtype = Literal["fp32", "fp16", "bf16", "fp8"]
"""Formats of Adam's moments."""

STATE_DTYPES = ("fp32", "fp16", "bf16", "fp8")

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element."""

Dispatcher = Literal["alltoall", "allgather", "flex"]
DISPATCHERS = ("alltoall", "allgather", "flex")
"""How tokens get to their experts, by Megatron-Core's names; what each sends is in ``costs/experts.py``."""

Backend = Literal["deepep", "hybridep"]
BACKENDS = ("deepep", "hybridep")
"""Kernels of the ``flex`` dispatcher; what they attain is in ``costs/token_kernels.py``."""

DISPATCHER_WORDS = (*DISPATCHERS, *BACKENDS)
"""What people call a dispatcher: ``flex`` also by its kernels."""

ContextKind = Literal["p2p", "all_gather", "a2a"]
CONTEXT_KINDS = ("p2p", "all_gather", "a2a")
"""How context-parallel ranks exchange, by Megatron-Core's names; what each sends is in ``costs/context.py``."""

_CHOICES: dict[str, tuple[object, ...]] = {
    "precision": ("bf16", "fp16", "fp32"),
    "accumulate_allreduce_grads_in_fp32": (True, False),
    "attention_kernel": ("flash", "unfused"),
    "flash_version": (1, 2, 3),
    "fused_softmax": (True, False),
    "fused_norm": (True, False),
    "fp8": (False, True),
    "fp8_recipe": FP8_RECIPES,
    "fp8_copies": (2, 1),
    "tp_comm_overlap": (False, True),
    "cp_comm_type": CONTEXT_KINDS,
    "fp4": (False, True),
    "fp8_param_gather": (False, True),
    "optimizer": ("adam", "muon"),
    "use_precision_aware_optimizer": (False, True),
    "main_params_dtype": ("fp32", "fp16"),
    "exp_avg_dtype": STATE_DTYPES,
    "exp_avg_sq_dtype": STATE_DTYPES,
    "moe_token_dispatcher_type": DISPATCHERS,
    "moe_flex_dispatcher_backend": BACKENDS,
    "overlap_moe_expert_parallel_comm": (False, True),
    "cuda_graph": (False, True),
    "overlap_cpu_optimizer_d2h_h2d": (False, True),
    "unequal_microbatches": (False, True),
    "expert_placement": ("listed", "balanced"),
}

LARGEST = 10**9
"""No iteration has more sequences, and no sequence more tokens."""


@lru_cache(maxsize=64)
def in_16_bits(training: "TrainingSpec") -> "TrainingSpec":
    """The training without products in fewer bits."""
    return replace(training, fp8=False, fp4=False, fp8_param_gather=False)


def dispatcher_fields(word: str) -> dict[str, Any]:
    """Fields of :class:`TrainingSpec` for one of ``DISPATCHER_WORDS``."""
    if word in BACKENDS:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": word}
    return {"moe_token_dispatcher_type": word}


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
        1 and 2: of FlashAttention, which the GPU may have faster kernels than; 3: the fastest usual kernels of the GPU
        (FlashAttention 3 or cuDNN's on Hopper, the second version on Ampere).
    fused_softmax
        Unfused attention scales, masks and normalises in one kernel.
    fused_norm
        Normalisation layers are one kernel each.
    fp8
        Matrix products of the layers in fp8, as Transformer Engine does them: parameters stay as ``precision`` says and
        have fp8 copies, inputs are kept in fp8.
    fp8_recipe
        Which scales fp8 has (:data:`~pipette_opt.specs.precision.PRECISION_RECIPES`); nothing without ``fp8``.
    fp8_copies
        Directions in which fp8 with one scale a tensor is kept, by the GPUs
        (:func:`~pipette_opt.specs.precision.fp8_copies`).
    fp4
        The same products in nvfp4; in place of ``fp8``.
    fp8_param_gather
        Weights of these products are kept in the recipe's format only, and gathered so (also ``--fp4-param-gather``).
    optimizer
        ``adam``; ``muon`` for the matrices of layers, which then have no second moment, and Adam for the rest.
    use_precision_aware_optimizer
        Transformer Engine's Adam keeps the states (Megatron-Core's option of that name).
    main_params_dtype, exp_avg_dtype, exp_avg_sq_dtype
        Formats of the optimizer's master copy and moments, where it does.
    moe_token_dispatcher_type
        How tokens get to their experts, one of ``DISPATCHERS``.
    moe_flex_dispatcher_backend, moe_flex_dispatcher_num_sms
        Whose kernels ``flex`` calls, one of ``BACKENDS``, and on how many multiprocessors; ``None``: as many as usual.
    overlap_moe_expert_parallel_comm
        Whether tokens travel beside the compute of another micro-batch (Megatron-Core's option of that name).
    cuda_graph, cuda_graph_modules
        Whether layers are launched as CUDA graphs, so that the host's time for single kernels does not count; and which
        parts of them, by Megatron-Core's names (``attn``, ``mlp``, ``moe_router``, ...), none for all.
    expert_imbalance
        Tokens of the busiest expert-parallel rank over the mean of all, at least 1; on more ranks than it says, all
        go to one of them.
    rank_imbalances
        The same by expert-parallel size, where loads of single experts are known; other sizes have
        ``expert_imbalance``.
    expert_placement
        Which experts a rank holds: the next ones as ``listed``, which launchers do, or ``balanced`` by their loads.
        Tokens of the busiest expert-parallel rank over the mean of all, at least 1.
    tp_comm_overlap
        Whether tensor ranks with sequence parallelism send beside the products (Transformer Engine's user buffers).
    cp_comm_type
        How context-parallel ranks exchange, one of ``CONTEXT_KINDS``, in every layer.
    cpu_offloading_num_layers
        Layers whose activations are in the host's memory between the passes (Transformer Engine's offloading).
    offload_modules
        Modules of every layer whose inputs are there (Megatron-Core's fine-grained offloading).
    optimizer_offload_fraction, overlap_cpu_optimizer_d2h_h2d
        Share of the optimizer's states that the host keeps and steps; whether what travels for it does so beside that
        step.
    other_arguments
        Megatron-LM's further arguments of the training, each with its values, as they were given: what no number counts
        (a plan's notes have it) is part of the launch still. ``None`` for none.
    unequal_microbatches
        Whether replicas may run different numbers of micro-batches, so that any number of replicas can share a batch.
        No launcher does so by itself (Megatron-Core, DeepSpeed and torchtitan want equal numbers).
    """

    global_batch_size: int
    seq_length: int
    precision: Precision = "bf16"
    accumulate_allreduce_grads_in_fp32: bool = True
    attention_kernel: Literal["flash", "unfused"] = "flash"
    flash_version: Literal[1, 2, 3] = 3
    fused_softmax: bool = True
    fused_norm: bool = True
    fp8: bool = False
    fp8_recipe: Fp8Recipe = "delayed"
    fp8_copies: int = 2
    fp4: bool = False
    fp8_param_gather: bool = False
    optimizer: Literal["adam", "muon"] = "adam"
    use_precision_aware_optimizer: bool = False
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    exp_avg_dtype: StateDtype = "fp32"
    exp_avg_sq_dtype: StateDtype = "fp32"
    moe_token_dispatcher_type: Dispatcher = "alltoall"
    moe_flex_dispatcher_backend: Backend = "deepep"
    moe_flex_dispatcher_num_sms: int | None = None
    overlap_moe_expert_parallel_comm: bool = False
    cuda_graph: bool = False
    cuda_graph_modules: tuple[str, ...] = ()
    expert_imbalance: float = 1.0
    rank_imbalances: tuple[RankImbalance, ...] = ()
    expert_placement: Literal["listed", "balanced"] = "listed"
    unequal_microbatches: bool = False
    tp_comm_overlap: bool = False
    cp_comm_type: ContextKind = "p2p"
    cpu_offloading_num_layers: int = 0
    offload_modules: tuple[str, ...] = ()
    optimizer_offload_fraction: float = 0.0
    overlap_cpu_optimizer_d2h_h2d: bool = False
    other_arguments: tuple[tuple[str, ...], ...] | None = None

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
        if self.moe_flex_dispatcher_num_sms is not None and self.moe_flex_dispatcher_num_sms < 1:
            raise ValueError(f"moe_flex_dispatcher_num_sms must be >= 1, got {self.moe_flex_dispatcher_num_sms}.")
        if not 1.0 <= self.expert_imbalance < float("inf"):
            raise ValueError(f"expert_imbalance must be >= 1, got {self.expert_imbalance}.")
        if self.other_arguments == () or any(not one or one[0][:2] != "--" for one in self.other_arguments or ()):
            raise ValueError(f"other_arguments must be lists that begin with an option, got {self.other_arguments}.")
        if self.optimizer == "muon" and (self.use_precision_aware_optimizer or self.precision == "fp16"):
            raise ValueError("optimizer=muon goes neither with use_precision_aware_optimizer nor with fp16.")
        _ = self.offload  # raises for what does not go together
        if self.cuda_graph_modules and not self.cuda_graph:
            raise ValueError(f"cuda_graph_modules={self.cuda_graph_modules} needs cuda_graph.")
        if self.fp8 and self.fp4:
            raise ValueError("fp8 does not go with fp4; give one of them.")
        if self.recipe is not None and self.precision == "fp32":
            raise ValueError(f"{'fp8' if self.fp8 else 'fp4'} goes with precision bf16 or fp16, got fp32.")
        if self.fp8_param_gather and self.recipe is None:
            raise ValueError("fp8_param_gather needs fp8 or fp4.")

    @property
    def offload(self) -> Offload:
        """What the host has, by the job's own options."""
        if not (self.optimizer_offload_fraction or self.cpu_offloading_num_layers or self.offload_modules):
            return NOTHING
        return Offload(
            optimizer_offload_fraction=self.optimizer_offload_fraction,
            cpu_offloading_num_layers=self.cpu_offloading_num_layers,
            offload_modules=self.offload_modules,
        )

    @property
    def recipe(self) -> PrecisionRecipe | None:
        """How products of the layers are done in fewer bits; ``None`` where they are not."""
        name = NVFP4 if self.fp4 else self.fp8_recipe if self.fp8 else None
        if name is None:
            return None
        found = PRECISION_RECIPES[name]
        is_one = found.law == "narrow" and self.fp8_copies == 1
        return replace(found, copies=1, cast_bytes=found.cast_bytes - found.element_bytes) if is_one else found

    def imbalance(self, ranks: int) -> float:
        """Tokens of the busiest of so many expert-parallel ranks over the mean, from 1 to ``ranks``."""
        known = {one.ranks: one.imbalance for one in self.rank_imbalances}
        return min(known.get(ranks, self.expert_imbalance), float(ranks))

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as used in the forward pass."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gather_bytes(self) -> float:
        """Bytes of one weight of the layers' products as it is gathered by the distributed optimizer."""
        return self.recipe.gather_bytes if self.recipe is not None and self.fp8_param_gather else self.parameter_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient element as accumulated and reduced."""
        return 4 if self.accumulate_allreduce_grads_in_fp32 or self.precision == "fp32" else 2

    @property
    def optimizer_bytes(self) -> int:
        """
        Bytes of Adam's state per parameter: two moments, and a master copy unless training in fp32.

        Of an fp32 master copy Transformer Engine's Adam keeps the 16 bits that a bf16 parameter lacks
        (``store_param_remainders``).
        """
        moments = BYTES[self.exp_avg_dtype] + BYTES[self.exp_avg_sq_dtype]
        if self.precision == "fp32":
            return moments
        remainders = self._adam_has_masters and self.precision == "bf16" and self.main_params_dtype == "fp32"
        return moments + (2 if remainders else BYTES[self.main_params_dtype])

    @property
    def _adam_has_masters(self) -> bool:
        """
        Whether Transformer Engine's Adam keeps the master copies and takes gradients as they are.

        With scales of the tensor at hand or of blocks Megatron-Core does (``OptimizerConfig.__post_init__``).
        """
        scaled = self.fp8 and self.fp8_recipe != "delayed"
        return self.use_precision_aware_optimizer and not (scaled and self.main_params_dtype == "fp32")

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

        fp32 copies of 16-bit gradients, unless Transformer Engine's ``FusedAdam`` takes them as they are; and of each
        state in less than fp32.
        """
        as_they_are = self._adam_has_masters or self.narrow_states
        copies = 4 if self.gradient_bytes < 4 and not as_they_are else 0
        return copies + 4 * self.narrow_states

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch_size * self.seq_length
