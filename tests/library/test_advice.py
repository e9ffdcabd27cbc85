"""Advice that a screen gives."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.library.advice import lawful
from pipette_opt.simulate.paying import PayingOption

GRAPHS = "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router moe_preprocess"


@pytest.mark.parametrize(
    ("arguments", "option", "is_lawful"),
    [
        ((), GRAPHS, True),
        ((), "--cuda-graph-impl local", False),  # experts without a capacity
        ((("--moe-expert-capacity-factor", "1"),), GRAPHS, False),
        ((), "--grad-reduce-in-bf16", True),
        ((), "--defer-embedding-wgrad-compute", False),  # needs a pipeline
    ],
)
def test_advice_is_what_megatron_accepts(arguments: tuple[tuple[str, ...], ...], option: str, is_lawful: bool) -> None:
    """An option that the user could not add to the launch is not advised."""
    job = make_job(make_cluster(1), replace(LLAMA_8B, num_experts=8), 32, 4096)
    training = replace(job.training, moe_token_dispatcher_type="alltoall", other_arguments=arguments or None)
    config = make_config(tp=1, pp=1, dp=8, num_layers=32, expert_model_parallel_size=8, use_distributed_optimizer=True)
    paying = PayingOption(option=option, saved_s=1.0, saved_share=0.5, condition="")
    assert bool(lawful([paying], replace(job, training=training), config)) is is_lawful
