"""
Multi-head latent attention: queries, keys and values are projected from narrow latents (arXiv 2405.04434, section 2.1).

Each token is projected down to a latent of ``q_lora_rank`` channels and to one of ``kv_lora_rank`` channels. A rotary
key of ``qk_pos_emb_head_dim`` channels, shared by all heads, comes on top. Both latents are normalised and projected up
to the heads. Megatron-Core (``multi_latent_attention.py``) holds the down projections whole on every tensor rank, each
for its own tokens, and splits the up projections by heads.
"""

from dataclasses import dataclass, fields

from pipette_opt.specs.yarn import YarnScaling

LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
"""Fields of :class:`LatentAttention` that hold sizes; Megatron-LM's options have the same names."""


PLAIN_YARN = YarnScaling()
"""YaRN parameters with megatron-core's defaults; they leave rotary positions unscaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """
    Sizes of latent attention, with megatron-core's names and defaults (``MLATransformerConfig``).

    Parameters
    ----------
    q_lora_rank
        Channels of the queries' latent; ``None`` if queries are projected from the layer's input directly.
    kv_lora_rank
        Channels of the latent of keys and values.
    qk_head_dim
        Channels per head of a query or key, without the rotary channels.
    qk_pos_emb_head_dim
        Rotary channels per head, in addition to ``qk_head_dim``.
    v_head_dim
        Channels per head of a value.
    yarn
        YaRN scaling of the rotary positions, ``rope_type: yarn``; ``None`` for unscaled positions.
    """

    q_lora_rank: int | None = None
    kv_lora_rank: int = 32
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    yarn: YarnScaling | None = PLAIN_YARN

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "yarn" or (field.name == "q_lora_rank" and value is None):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                raise ValueError(f"{field.name} of latent attention must be a whole number >= 1, got {value!r}.")
        if (self.key_head_size + self.v_head_dim) % 2 or self.qk_pos_emb_head_dim % 2:
            raise ValueError(
                "latent attention needs an even qk_pos_emb_head_dim and an even sum of key and value channels, got "
                f"qk_head_dim {self.qk_head_dim}, qk_pos_emb_head_dim {self.qk_pos_emb_head_dim}, v_head_dim "
                f"{self.v_head_dim}."
            )

    @property
    def key_head_size(self) -> int:
        """Channels per head of a query or key, including the rotary channels."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim

    @property
    def latent_size(self) -> int:
        """Channels of both normalised latents together."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank

    @property
    def down_size(self) -> int:
        """Output channels of all down projections together, including the rotary key."""
        return self.latent_size + self.qk_pos_emb_head_dim

    @property
    def up_head_size(self) -> int:
        """Channels per head that are projected up from the latent of keys and values: non-rotary key plus value."""
        return self.qk_head_dim + self.v_head_dim

    def up_shapes(self, hidden_size: int, heads: int) -> tuple[tuple[int, int], ...]:
        """
        Return (outputs, inputs) of the matrix products that tensor ranks split: queries, keys with values, output
        projection.
        """
        return (
            (heads * self.key_head_size, self.q_lora_rank or hidden_size),
            (heads * self.up_head_size, self.kv_lora_rank),
            (hidden_size, heads * self.v_head_dim),
        )

    def down_shapes(self, hidden_size: int) -> tuple[tuple[int, int], ...]:
        """Return (outputs, inputs) of the down projections, which every tensor rank holds whole."""
        of_keys = (self.kv_lora_rank + self.qk_pos_emb_head_dim, hidden_size)
        return (of_keys,) if self.q_lora_rank is None else ((self.q_lora_rank, hidden_size), of_keys)
