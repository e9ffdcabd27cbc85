"""Offloading to host memory, as one word: optimizer states, inputs of modules, or activations of whole layers."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipette_opt.base.units import number_of, whole_number

OFFLOAD_MODULES = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
)
"""
Modules whose inputs can be offloaded (``offload_modules`` of ``TransformerConfig``, megatron-core 0.16).

``fused_group_mlp`` is newer: experts as one operation, counted as ``expert_fc1`` plus ``moe_act``.
"""

OFFLOAD_WORDS = (
    f"none, optimizer, optimizer:0.5, parameters, layers:8, or modules ({', '.join(OFFLOAD_MODULES)}), joined by +"
)
"""Allowed offloading choices, as text for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """
    Parts of the training state in host memory. Raises ``ValueError`` for fields that contradict each other.

    Parameters
    ----------
    optimizer_offload_fraction
        Share of the optimizer's states that the host keeps and steps, 0 to 1.
    parameters
        Whether the host keeps the shards of weights, gradients and states under ZeRO 3, and steps them there
        (``CPUOffloadPolicy`` of PyTorch's FSDP2, ``offload_param`` of DeepSpeed): all states, then.
    cpu_offloading_num_layers
        Layers whose activations are in host memory between forward and backward (Transformer Engine's offloading).
    offload_modules
        Modules of every layer whose inputs are in host memory (Megatron-Core's fine-grained offloading).
    """

    optimizer_offload_fraction: float = 0.0
    parameters: bool = False
    cpu_offloading_num_layers: int = 0
    offload_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.optimizer_offload_fraction <= 1.0:
            raise ValueError(f"optimizer_offload_fraction must be in [0, 1], got {self.optimizer_offload_fraction}.")
        if self.parameters and self.optimizer_offload_fraction != 1:
            problem = f"got optimizer_offload_fraction={self.optimizer_offload_fraction:g}"
            raise ValueError(f"offload of parameters keeps all states on the host, {problem}; it must be 1.")
        if self.cpu_offloading_num_layers < 0:
            raise ValueError(f"cpu_offloading_num_layers must be >= 0, got {self.cpu_offloading_num_layers}.")
        if self.offload_modules and self.cpu_offloading_num_layers:
            raise ValueError(
                "offload_modules cannot be combined with cpu_offloading_num_layers; give only one of the two."
            )
        unknown = [name for name in self.offload_modules if name not in OFFLOAD_MODULES]
        if unknown:
            raise ValueError(f"offload_modules must be some of {', '.join(OFFLOAD_MODULES)}; got {', '.join(unknown)}.")
        if "attn_proj" in self.offload_modules and "core_attn" not in self.offload_modules:
            raise ValueError(
                "offload_modules has attn_proj without core_attn; add core_attn, whose output attn_proj reads."
            )

    @property
    def is_nothing(self) -> bool:
        """Return whether nothing is offloaded."""
        return self == NOTHING

    @property
    def word(self) -> str | None:
        """Offloading as text, such as ``optimizer:0.5+core_attn``, in a fixed order; ``None`` for no offloading."""
        share, parts = self.optimizer_offload_fraction, []
        if self.parameters:
            parts.append("parameters")
        elif share:
            parts.append("optimizer" if share == 1 else f"optimizer:{share:g}")
        if self.cpu_offloading_num_layers:
            parts.append(f"layers:{self.cpu_offloading_num_layers}")
        parts += [name for name in OFFLOAD_MODULES if name in self.offload_modules]
        return "+".join(parts) or None

    def has_all_of(self, other: "Offload") -> bool:
        """Return whether all that ``other`` offloads is offloaded here, too: no more GPU memory, no less time."""
        return (
            self.optimizer_offload_fraction >= other.optimizer_offload_fraction
            and self.parameters >= other.parameters
            and self.cpu_offloading_num_layers >= other.cpu_offloading_num_layers
            and set(self.offload_modules) >= set(other.offload_modules)
        )


NOTHING = Offload()
"""Offloading of nothing: all state stays in GPU memory."""


@lru_cache(maxsize=256)
def offload_of(word: str | None) -> Offload:
    """Return the offloading of a text such as ``optimizer:0.5+core_attn``; ``ValueError`` for an unknown text."""
    fields: dict[str, Any] = {}
    modules = []
    for part in () if word in (None, "none") else str(word).split("+"):
        name, _, value = part.strip().partition(":")
        if name in OFFLOAD_MODULES and not value:
            modules.append(name)
            continue
        if name == "parameters" and not value and "optimizer_offload_fraction" not in fields:
            fields |= {"parameters": True, "optimizer_offload_fraction": 1.0}
            continue
        key = {"optimizer": "optimizer_offload_fraction", "layers": "cpu_offloading_num_layers"}.get(name)
        if key is None or key in fields:
            raise ValueError(f"must be some of {OFFLOAD_WORDS}; got {word}.")
        try:
            number = whole_number(value) if name == "layers" else number_of(value or "1")
            if number is None:
                raise ValueError(value)
            fields[key] = number
        except ValueError:
            raise ValueError(f"must be some of {OFFLOAD_WORDS}; got {word}.") from None
        if not fields[key] > 0:
            raise ValueError(f"has {part}, which offloads nothing; write none instead.")
    return Offload(offload_modules=tuple(dict.fromkeys(modules)), **fields)
