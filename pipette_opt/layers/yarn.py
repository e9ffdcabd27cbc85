"""YaRN: rotary positions scaled to longer sequences."""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """
    Parameters of YaRN (Peng et al., arXiv 2309.00071), with megatron-core's names and defaults.

    Parameters
    ----------
    rotary_scaling_factor
        Factor by which sequences may be longer than originally.
    original_max_position_embeddings
        Original maximum sequence length, tokens.
    beta_fast, beta_slow
        Rotations over the original length: a faster frequency stays, a slower one is divided by the factor.
    mscale, mscale_all_dim
        Weights of the attention scale in its numerator and its denominator.
    correction_range_round_to_int
        Whether the channels that correspond to ``beta_fast`` and ``beta_slow`` are rounded to whole numbers.
    """

    rotary_scaling_factor: float = 1.0
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    correction_range_round_to_int: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "correction_range_round_to_int":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and "mscale" not in field.name):
                raise ValueError(f"{field.name} of yarn must be a number > 0, got {value!r}.")
        length = self.original_max_position_embeddings
        if not isinstance(length, int):
            raise ValueError(f"original_max_position_embeddings of yarn must be a whole number, got {length!r}.")
