"""Launches of the host, and what CUDA graphs leave of them."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.host import bound_by_host, host_time_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, StackSpec

RATES = StackSpec(host_kernel_s=1.0, host_collective_s=1000.0)
MOE = replace(LLAMA_8B, name="moe", num_experts=8, add_bias_linear=False)
TP2 = make_config(tp=2, dp=4, num_layers=32, sequence_parallel=True)


def host_s(model: ModelSpec, *modules: str, graph: bool = True, chosen: ParallelConfig = TP2) -> float:
    """Launches of a pass, a collective as a thousand kernels."""
    job = make_job(make_cluster(1), model)
    training = replace(job.training, cuda_graph=graph, cuda_graph_modules=modules if graph else ())
    return host_time_s(replace(job, training=training), chosen, RATES, model.layers[0])


@pytest.mark.parametrize(
    ("modules", "left"),
    [
        ((), 0),
        (("attn",), 2000 + 6),
        (("mlp",), 2000 + 7 + 8),
        (("attn", "mlp"), 0),
        (("mamba",), 4000 + 21),
        (("moe_router",), 4000 + 21),
    ],
)
def test_graphs_of_a_dense_layer(modules: tuple[str, ...], left: int) -> None:
    """Of 21 kernels and 4 collectives attention has 7, 8 for rotary positions and 2; the gated MLP 6 and 2."""
    assert host_s(LLAMA_8B, graph=False) == 4000 + 21
    assert host_s(LLAMA_8B, *modules) == left


@pytest.mark.parametrize(
    ("modules", "left"),
    [
        (("attn",), 2000 + 6 + 20),
        (("moe_router",), 4000 + 15 + 12),
        (("moe_router", "moe_preprocess"), 4000 + 15 + 8),
        (("attn", "moe_router", "moe_preprocess"), 2000 + 8),
        (("moe",), 2000 + 15),
        (("attn", "moe"), 0),
        (("mlp",), 4000 + 41),
    ],
)
def test_graphs_of_a_layer_with_experts(modules: tuple[str, ...], left: int) -> None:
    """
    20 kernels more: 8 of the router, 4 that say where tokens go, 8 that sort and multiply.

    The two collectives are those of tensor ranks that share each expert, outside the router's graph.
    """
    assert host_s(MOE, graph=False) == 4000 + 41
    assert host_s(MOE, *modules) == left


def test_a_ring_is_launched_with_its_attention() -> None:
    """Each step of context parallelism is a message more, which a graph of attention has, too."""
    ring = make_config(dp=4, num_layers=32, context_parallel_size=2)
    outside, inside = host_s(LLAMA_8B, "mlp", chosen=ring), host_s(LLAMA_8B, "attn", chosen=ring)
    assert outside > 1000.0 + 15
    assert inside == 6


def test_the_larger_decides() -> None:
    """And both a little where they are equal."""
    assert bound_by_host(2.0, 0.0) == 2.0
    assert bound_by_host(1.0, 100.0) == pytest.approx(100.0)
    assert 1.0 < bound_by_host(1.0, 1.0) < 1.1
