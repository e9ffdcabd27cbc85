"""Training job: batch, sequence length, number formats and options of one iteration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from pipette_opt.base.offload import NOTHING, Offload
from pipette_opt.base.types import Precision
from pipette_opt.specs.documents import Documents
from pipette_opt.specs.expert_loads import RankImbalance
from pipette_opt.specs.optimizers import OPTIMIZERS, Optimizer
from pipette_opt.specs.precision import FP8_RECIPES, NVFP4, PRECISION_RECIPES, Fp8Recipe, PrecisionRecipe

StateDtype = Literal["fp32", "fp16", "bf16", "fp8"]
"""Number format of Adam's moments."""

STATE_DTYPES = ("fp32", "fp16", "bf16", "fp8")

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element in each number format."""

Dispatcher = Literal["alltoall", "allgather", "flex"]
DISPATCHERS = ("alltoall", "allgather", "flex")
"""Token dispatchers for experts, by Megatron-Core's names; ``costs/experts.py`` has the traffic of each."""

Backend = Literal["deepep", "hybridep"]
BACKENDS = ("deepep", "hybridep")
"""Kernel libraries of the ``flex`` dispatcher; ``costs/token_kernels.py`` has their rates."""

DISPATCHER_WORDS = (*DISPATCHERS, *BACKENDS)
"""Accepted names of a dispatcher: Megatron-Core's, and the kernel libraries of ``flex``."""

ContextKind = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
CONTEXT_KINDS = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""
Communication types of context parallelism, by Megatron-Core's names;
``costs/context.py`` has the traffic of each.
"""

_CHOICES: dict[str, tuple[object, ...]] = {
    "precision": ("bf16", "fp16", "fp32"),
    "accumulate_allreduce_grads_in_fp32": (True, False),
    "attention_kernel": ("flash", "unfused"),
    "flash_version": (1, 2, 3),
    "fused_softmax": (True, False),
    "fused_norm": (True, False),
    "fused_loss": (True, False),
    "fused_step": (False, True),
    "fp8": (False, True),
    "fp8_recipe": FP8_RECIPES,
    "fp8_copies": (2, 1),
    "tp_comm_overlap": (False, True),
    "cp_comm_type": CONTEXT_KINDS,
    "fp4": (False, True),
    "fp8_param_gather": (False, True),
    "optimizer": tuple(OPTIMIZERS),
    "use_precision_aware_optimizer": (False, True),
    "main_params_dtype": ("fp32", "fp16", "none"),
    "exp_avg_dtype": STATE_DTYPES,
    "exp_avg_sq_dtype": STATE_DTYPES,
    "moe_token_dispatcher_type": DISPATCHERS,
    "moe_flex_dispatcher_backend": BACKENDS,
    "overlap_moe_expert_parallel_comm": (False, True),
    "cuda_graph": (False, True),
    "overlap_cpu_optimizer_d2h_h2d": (False, True),
    "offload_parameters": (False, True),
    "unequal_microbatches": (False, True),
    "packed": (False, True),
}
"""Allowed values of the fields of :class:`TrainingSpec` that have a fixed set of values."""

SHARDS_ON_HOST: Mapping[str, Any] = MappingProxyType({"optimizer_offload_fraction": 1.0, "offload_parameters": True})
"""Fields of a training whose shards of weights, gradients and optimizer states are in the host's memory."""

LARGEST = 10**9
"""Largest accepted sequence length and global batch size; no iteration has more. Chosen."""


@lru_cache(maxsize=64)
def in_16_bits(training: "TrainingSpec") -> "TrainingSpec":
    """Return a copy of the training without fp8 and fp4."""
    return replace(training, fp8=False, fp4=False, fp8_param_gather=False)


def dispatcher_fields(word: str) -> dict[str, Any]:
    """Return the fields of :class:`TrainingSpec` for a name in ``DISPATCHER_WORDS``."""
    if word in BACKENDS:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": word}
    return {"moe_token_dispatcher_type": word}


def optimizer_fields(name: str | None, main_weights: str | None) -> dict[str, Any]:
    """
    Return the fields of :class:`TrainingSpec` for an optimizer and its copies of the weights; none for ``None``.

    Without copies, moments and gradients have the format of the weights.
    """
    fields: dict[str, Any] = {} if name is None else {"optimizer": name}
    if main_weights is None:
        return fields
    if main_weights == "none":
        return fields | {"main_params_dtype": "none", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    return fields | {"main_params_dtype": main_weights}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """
    Options of one training iteration.

    Parameters
    ----------
    global_batch_size
        Sequences per iteration over all replicas.
    seq_length
        Tokens per sequence; of the longest with ``documents`` that are not ``packed``.
    packed
        Sequences hold several documents each, and a token attends to its own document only.
    documents
        Lengths of the documents; ``None`` for sequences that are all whole. Without ``packed``, a sequence is a
        document, padded to the longest of its micro-batch. Memory is always that of whole sequences.
    precision
        Format of parameters and activations.
    accumulate_allreduce_grads_in_fp32
        Gradients are kept and reduced in fp32 (Megatron's rule with bf16).
    attention_kernel
        ``unfused`` stores the attention score matrix, ``flash`` does not.
    flash_version
        1 or 2: FlashAttention of that version. 3: the fastest usual kernels of the GPU (FlashAttention 3 or cuDNN's on
        Hopper, FlashAttention 2 on Ampere).
    fused_softmax
        Unfused attention scales, masks and normalises in one kernel.
    fused_norm
        Each normalisation layer is a single kernel.
    fused_loss
        Logits go through the loss in few buffers, as in Megatron-Core and compiled code. Eager PyTorch keeps them in 16
        bits and, in fp32, their log-softmax and two gradients.
    fused_step
        An optimizer that changes the 16-bit parameters themselves has one kernel, without lists of temporaries
        (``fused=True`` of PyTorch's optimizers).
    loss_chunks
        Parts of a micro-batch whose logits exist one after the other: 1 for all at once, more with a loss in chunks
        (torchtitan's ``ChunkedLossWrapper``, Liger's fused linear cross-entropy).
    fp8
        Matrix products of the layers run in fp8, as in Transformer Engine: parameters keep ``precision`` and have fp8
        copies, and inputs are kept in fp8.
    fp8_recipe
        Scaling recipe of fp8 (:data:`~pipette_opt.specs.precision.PRECISION_RECIPES`); no effect without ``fp8``.
    fp8_copies
        Directions in which an fp8 matrix with one scale per tensor is stored; depends on the GPUs
        (:func:`~pipette_opt.specs.precision.fp8_copies`).
    fp4
        Matrix products of the layers run in nvfp4; excludes ``fp8``.
    fp8_param_gather
        Weights of fp8 or fp4 products are kept and gathered in that format only (also ``--fp4-param-gather``).
    optimizer
        A name of :data:`~pipette_opt.specs.optimizers.OPTIMIZERS`. ``muon``: Muon for the matrices of layers, without a
        second moment, and Adam for the rest.
    use_precision_aware_optimizer
        Transformer Engine's Adam keeps the states (Megatron-Core's option of that name).
    main_params_dtype, exp_avg_dtype, exp_avg_sq_dtype
        Formats of the master copy and of both moments, with ``use_precision_aware_optimizer``. ``none``: the optimizer
        changes the 16-bit parameters themselves.
    moe_token_dispatcher_type
        Token dispatcher for experts, one of ``DISPATCHERS``.
    moe_flex_dispatcher_backend, moe_flex_dispatcher_num_sms
        Kernel library of ``flex``, one of ``BACKENDS``, and its number of multiprocessors; ``None`` for the default.
    overlap_moe_expert_parallel_comm
        Tokens are sent during the compute of another micro-batch (Megatron-Core's option of that name).
    cuda_graph, cuda_graph_modules
        Whether layers are launched as CUDA graphs, so that host time per kernel does not count; and their parts in
        graphs, by Megatron-Core's names (``attn``, ``mlp``, ``moe_router``, ...), empty for all.
    expert_imbalance
        Tokens of the busiest expert-parallel rank over the mean, at least 1. Capped at the expert-parallel size: all
        tokens then go to one rank.
    rank_imbalances
        Imbalance by expert-parallel size, where loads of single experts are known; other sizes use
        ``expert_imbalance``.
    tp_comm_overlap
        Tensor ranks with sequence parallelism send during matrix products (Transformer Engine's user buffers).
    cp_comm_type
        Communication type of context parallelism in every layer, one of ``CONTEXT_KINDS``.
    cpu_offloading_num_layers
        Layers whose activations are in host memory between the passes (Transformer Engine's offloading).
    offload_modules
        Modules of every layer whose inputs are offloaded (Megatron-Core's fine-grained offloading).
    optimizer_offload_fraction, overlap_cpu_optimizer_d2h_h2d
        Share of the optimizer's states that the host keeps and steps; whether their copies overlap that step.
    offload_parameters
        Whether the host also keeps the shards of weights and gradients under ZeRO 3
        (:class:`~pipette_opt.base.offload.Offload`).
    whole_gradients
        Whether ranks that share gradients (ZeRO 2 and 3) keep them whole between micro-batches, in the format of the
        parameters, and reduce them once: PyTorch's fully sharded data parallelism under ``no_sync``.
    other_arguments
        Further training arguments of Megatron-LM with their values, as the user gave them; ``None`` if there are none.
        The launch has them. Prices read those with status ``priced`` in ``data/megatron_options.csv`` by ``argument``;
        no estimate counts the others (a plan's notes list them).
    unequal_microbatches
        Whether replicas may run different numbers of micro-batches, so that any number of replicas can share a batch.
        No launcher does so by itself (Megatron-Core, DeepSpeed and torchtitan want equal numbers).
    """

    global_batch_size: int
    seq_length: int
    packed: bool = False
    documents: Documents | None = None
    precision: Precision = "bf16"
    accumulate_allreduce_grads_in_fp32: bool = True
    attention_kernel: Literal["flash", "unfused"] = "flash"
    flash_version: Literal[1, 2, 3] = 3
    fused_softmax: bool = True
    fused_norm: bool = True
    fused_loss: bool = True
    fused_step: bool = False
    loss_chunks: int = 1
    fp8: bool = False
    fp8_recipe: Fp8Recipe = "delayed"
    fp8_copies: int = 2
    fp4: bool = False
    fp8_param_gather: bool = False
    optimizer: Optimizer = "adam"
    use_precision_aware_optimizer: bool = False
    main_params_dtype: Literal["fp32", "fp16", "none"] = "fp32"
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
    unequal_microbatches: bool = False
    tp_comm_overlap: bool = False
    cp_comm_type: ContextKind = "p2p"
    cpu_offloading_num_layers: int = 0
    offload_modules: tuple[str, ...] = ()
    optimizer_offload_fraction: float = 0.0
    offload_parameters: bool = False
    overlap_cpu_optimizer_d2h_h2d: bool = False
    whole_gradients: bool = False
    other_arguments: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        for field in ("global_batch_size", "seq_length", "loss_chunks"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
            if value > LARGEST:
                raise ValueError(f"{field} must be at most {LARGEST:,}, got {value:g}.")
        if self.documents is not None and self.documents.longest > self.seq_length:
            longest = self.documents.longest
            raise ValueError(f"documents must not be longer than seq_length={self.seq_length}, got {longest} tokens.")
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if isinstance(value, bool) != isinstance(allowed[0], bool) or value not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(map(str, allowed))}, got {value!r}.")
        if self.moe_flex_dispatcher_num_sms is not None and self.moe_flex_dispatcher_num_sms < 1:
            raise ValueError(f"moe_flex_dispatcher_num_sms must be >= 1, got {self.moe_flex_dispatcher_num_sms}.")
        if not 1.0 <= self.expert_imbalance < float("inf"):
            raise ValueError(f"expert_imbalance must be >= 1, got {self.expert_imbalance}.")
        if self.other_arguments == () or any(not words or words[0][:2] != "--" for words in self.other_arguments or ()):
            raise ValueError(f"other_arguments must be lists that begin with an option, got {self.other_arguments}.")
        if self.optimizer == "muon" and (self.use_precision_aware_optimizer or self.precision == "fp16"):
            raise ValueError("optimizer=muon cannot be combined with use_precision_aware_optimizer or fp16.")
        _ = self.offload  # raises for what does not go together
        if self.cuda_graph_modules and not self.cuda_graph:
            raise ValueError(f"cuda_graph_modules={self.cuda_graph_modules} needs cuda_graph.")
        if self.fp8 and self.fp4:
            raise ValueError("fp8 and fp4 are both set; set only one of the two.")
        if self.recipe is not None and self.precision == "fp32":
            raise ValueError(f"{'fp8' if self.fp8 else 'fp4'} goes with precision bf16 or fp16, got fp32.")
        if self.fp8_param_gather and self.recipe is None:
            raise ValueError("fp8_param_gather=True needs fp8=True or fp4=True.")

    @property
    def offload(self) -> Offload:
        """Offloading to host memory that the job's own options set."""
        if not (self.optimizer_offload_fraction or self.cpu_offloading_num_layers or self.offload_modules):
            return NOTHING
        return Offload(
            optimizer_offload_fraction=self.optimizer_offload_fraction,
            parameters=self.offload_parameters,
            cpu_offloading_num_layers=self.cpu_offloading_num_layers,
            offload_modules=self.offload_modules,
        )

    @property
    def recipe(self) -> PrecisionRecipe | None:
        """Recipe of the layers' fp8 or fp4 products; ``None`` if the training uses neither."""
        name = NVFP4 if self.fp4 else self.fp8_recipe if self.fp8 else None
        if name is None:
            return None
        found = PRECISION_RECIPES[name]
        is_one = found.law == "narrow" and self.fp8_copies == 1
        return replace(found, copies=1, cast_bytes=found.cast_bytes - found.element_bytes) if is_one else found

    def imbalance(self, ranks: int) -> float:
        """Return the tokens of the busiest of ``ranks`` expert-parallel ranks over the mean, from 1 to ``ranks``."""
        known = {of_size.ranks: of_size.imbalance for of_size in self.rank_imbalances}
        return min(known.get(ranks, self.expert_imbalance), float(ranks))

    def argument(self, option: str) -> tuple[str, ...] | None:
        """Return the values of an option among the other arguments, empty for a flag; ``None`` if it is not given."""
        return next((tuple(words[1:]) for words in self.other_arguments or () if words[0] == option), None)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as used in the forward pass."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gather_bytes(self) -> float:
        """Bytes per weight of the layers' products in the all-gather of the distributed optimizer."""
        return self.recipe.gather_bytes if self.recipe is not None and self.fp8_param_gather else self.parameter_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient element as accumulated and reduced."""
        if self.main_params_dtype == "none":
            return self.parameter_bytes
        return 4 if self.accumulate_allreduce_grads_in_fp32 or self.precision == "fp32" else 2

    @property
    def optimizer_bytes(self) -> float:
        """
        Bytes of the optimizer's state per parameter: its moments, and a master copy unless training in fp32.

        Transformer Engine's Adam stores only the 16 bits of an fp32 master copy that a bf16 parameter lacks
        (``store_param_remainders``).
        """
        row = OPTIMIZERS[self.optimizer]
        moments = sum((BYTES[self.exp_avg_dtype], BYTES[self.exp_avg_sq_dtype])[: row.moments]) + row.state_bytes
        if self.precision == "fp32" or self.main_params_dtype == "none":
            return moments
        remainders = self._adam_has_masters and self.precision == "bf16" and self.main_params_dtype == "fp32"
        return moments + (2 if remainders else BYTES[self.main_params_dtype])

    @property
    def _adam_has_masters(self) -> bool:
        """
        Return whether Transformer Engine's Adam keeps the master copies and reads gradients in their own format.

        Megatron-Core keeps fp32 master copies itself with fp8 recipes other than ``delayed``
        (``OptimizerConfig.__post_init__``).
        """
        scaled = self.fp8 and self.fp8_recipe != "delayed"
        return self.use_precision_aware_optimizer and not (scaled and self.main_params_dtype == "fp32")

    @property
    def narrow_states(self) -> int:
        """Number of optimizer states per parameter that are kept in a format narrower than fp32."""
        moments = (self.exp_avg_dtype, self.exp_avg_sq_dtype)[: OPTIMIZERS[self.optimizer].moments]
        kept = (*moments, *((self.main_params_dtype,) if self.precision != "fp32" else ()))
        return sum(dtype != "fp32" for dtype in kept)

    @property
    def step_bytes(self) -> int:
        """
        Bytes of temporary copies per owned parameter during the optimizer step.

        fp32 copies of 16-bit gradients, unless Transformer Engine's ``FusedAdam`` reads them directly, and fp32 copies
        of each state in a narrower format. PyTorch's step in the parameters' own format has one list of temporaries
        (``_multi_tensor_adam``), unless it is fused.
        """
        if self.main_params_dtype == "none":
            return 0 if self.fused_step else self.parameter_bytes
        as_they_are = self._adam_has_masters or self.narrow_states
        copies = 4 if self.gradient_bytes < 4 and not as_they_are else 0
        return copies + 4 * self.narrow_states

    @property
    def tokens(self) -> float:
        """Tokens of one iteration without padding; the mean over iterations where documents differ."""
        padded = None if self.packed else self.documents
        return self.global_batch_size * (self.seq_length if padded is None else padded.mean_length)

    def changed(self, **changes: Any) -> "TrainingSpec":
        """Return the training with other fields; a shorter ``seq_length`` cuts longer documents."""
        length = changes.get("seq_length", self.seq_length)
        if self.documents is not None and self.documents.longest > length:
            changes = {"documents": self.documents.cut(length)} | changes
        return replace(self, **changes)

    @property
    def attended_length(self) -> float:
        """Length of equal sequences with as much causal attention per token, tokens."""
        return self.seq_length if self.documents is None else self.documents.attended_length

    def sequence_tokens(self, micro_batch_size: Any) -> Any:
        """Return the mean tokens of a sequence in a micro-batch, with padding; sizes are a number or an array."""
        if self.documents is None or self.packed:
            return self.seq_length
        return self.documents.padded_length(micro_batch_size)
