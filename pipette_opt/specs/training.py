"""What is trained in one iteration, and in which number formats."""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.types import Precision

_CHOICES: dict[str, tuple[object, ...]] = {
    "precision": ("bf16", "fp16", "fp32"),
    "accumulate_allreduce_grads_in_fp32": (True, False),
    "attention_kernel": ("flash", "unfused"),
    "flash_version": (1, 2),
    "fused_softmax": (True, False),
    "fused_norm": (True, False),
}


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
    """

    global_batch_size: int
    seq_length: int
    precision: Precision = "bf16"
    accumulate_allreduce_grads_in_fp32: bool = True
    attention_kernel: Literal["flash", "unfused"] = "flash"
    flash_version: Literal[1, 2] = 2
    fused_softmax: bool = True
    fused_norm: bool = True

    def __post_init__(self) -> None:
        for field in ("global_batch_size", "seq_length"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if isinstance(value, bool) != isinstance(allowed[0], bool) or value not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(map(str, allowed))}, got {value!r}.")

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
        """Bytes of Adam's state per parameter: two fp32 moments, and an fp32 master copy unless training in fp32."""
        return 8 if self.precision == "fp32" else 12

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch_size * self.seq_length
