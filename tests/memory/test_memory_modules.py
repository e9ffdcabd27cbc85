"""What recomputed modules free, by hand: two bytes an element, per token on a rank."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_config

from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec

TOKENS, HIDDEN = 4096, 4096
MOE = replace(
    LLAMA_8B,
    name="moe",
    num_experts=8,
    moe_router_topk=2,
    moe_ffn_hidden_size=1024,
    moe_shared_expert_intermediate_size=512,
)
LATENT = replace(
    LLAMA_8B,
    name="latent",
    num_query_groups=32,
    kv_channels=128,
    multi_latent_attention=LatentAttention(q_lora_rank=1024, kv_lora_rank=512),
)
BF16 = TrainingSpec(global_batch_size=32, seq_length=TOKENS, precision="bf16")
CURRENT = replace(BF16, fp8=True, fp8_recipe="tensorwise")


def saved(model: ModelSpec, training: TrainingSpec, *modules: str) -> np.ndarray:
    """Activations that each of two stages keeps, in layers and micro-batches: 16 layers in flight twice, and once."""
    again = {"recompute_granularity": "selective", "recompute_modules": modules} if modules else {}
    one = make_config(pp=2, dp=1, num_layers=32, micro_batch_size=1, **again)
    table = stage_table(model, training, [one], num_microbatches=8)
    return formula_bytes(table).saved


ROUTED = 2 * TOKENS  # copies of tokens: two experts each
FREED = {
    ("dense", "bf16", "mlp"): TOKENS * (2 * HIDDEN + 2 * 2 * 14336 + 2 * 14336),
    ("dense", "fp8", "mlp"): TOKENS * (HIDDEN + 2 * 2 * 14336 + 14336),
    ("dense", "bf16", "layernorm"): 0,
    ("moe", "bf16", "moe_act"): ROUTED * 2 * 1024,
    ("moe", "fp8", "moe_act"): ROUTED * 1024,
    ("moe", "bf16", "layernorm"): TOKENS * 2 * HIDDEN,
    ("moe", "fp8", "layernorm"): TOKENS * (2 * HIDDEN + HIDDEN),
    ("moe", "bf16", "shared_experts"): TOKENS * (2 * 2 * 512 + 2 * 512),
    ("moe", "bf16", "moe_act+layernorm"): ROUTED * 2 * 1024 + TOKENS * 2 * HIDDEN,
    ("moe", "bf16", "mlp"): 0,
    ("latent", "bf16", "mla_up_proj"): TOKENS * 2 * (32 * (192 + 192 + 128) + 1024 + 512),
    ("latent", "fp8", "mla_up_proj"): TOKENS * (2 * 32 * (192 + 192 + 128) + 1024 + 512),
    ("latent", "bf16", "layernorm"): TOKENS * 2 * HIDDEN,
    ("latent", "fp8", "layernorm"): TOKENS * 2 * HIDDEN,
}
"""
Bytes of one layer and micro-batch. The MLP: the norm's output, both halves of its width, the product's input. In fp8
what products read has one byte, and latent attention reads the norm's output in two of them; shared experts have an
fp8 copy of the input that the router keeps as it is.
"""


@pytest.mark.parametrize("case", FREED, ids=" ".join)
def test_freed_by_hand(case: tuple[str, str, str]) -> None:
    """Each layer in flight frees it: 16 layers of two micro-batches on the first stage, of one on the last."""
    kind, precision, modules = case
    model, training = {"moe": MOE, "latent": LATENT, "dense": LLAMA_8B}[kind], BF16 if precision == "bf16" else CURRENT
    freed = saved(model, training) - saved(model, training, *modules.split("+"))
    np.testing.assert_allclose(freed, [32 * FREED[case], 16 * FREED[case]])


def test_the_whole_layer_of_experts_keeps_its_input() -> None:
    """Or nothing, with the norm before it; and one layer at a time is brought back."""
    kept = saved(MOE, BF16) - saved(MOE, BF16, "moe")
    more = saved(MOE, BF16) - saved(MOE, BF16, "moe", "layernorm")
    np.testing.assert_allclose(more - kept, np.array([32, 16]) * TOKENS * 2 * HIDDEN)
    one = make_config(pp=2, dp=1, num_layers=32, recompute_granularity="selective", recompute_modules=("moe",))
    brought_back = formula_bytes(stage_table(MOE, BF16, [one], num_microbatches=8)).recomputed
    np.testing.assert_allclose(brought_back, kept / [32, 16])
