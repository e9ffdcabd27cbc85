"""megatron-core reads our layouts of uneven stages as the plan means them."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from clients_here import require_at_collection
from factories import make_plan

from pipette_opt.export.megatron import layout_options
from pipette_opt.parallel.layout import layout_layers, layout_of
from pipette_opt.plans.plan import Plan

require_at_collection("megatron.core")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.core.transformer.transformer_config import TransformerConfig

pytestmark = pytest.mark.client("megatron.core")


@cache
def base() -> Plan:
    """Simulated once."""
    return make_plan()


def plan_with(layers: tuple[int, ...], chunks: int | None) -> Plan:
    """A plan of these stages; only its layout is asked for."""
    chosen = replace(
        base().config,
        pipeline_model_parallel_size=len(layers),
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=chunks,
    )
    return replace(base(), config=chosen)


@pytest.mark.parametrize("seed", range(20))
def test_layout_string(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers and first layer of every chunk of random uneven stages, empty ones among them."""
    rng = np.random.default_rng(seed)
    pp, chunks = int(rng.integers(4, 9)), int(rng.integers(1, 5))
    parts = rng.integers(0, 4, pp)
    parts[2] = parts[1] + 1  # differ in the middle
    layers = tuple(int(n) * chunks for n in parts)
    options = layout_options(plan_with(layers, chunks if chunks > 1 else None))
    monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: chunks)
    layout = PipelineParallelLayerLayout(str(options["pipeline_model_parallel_layout"]), pp)
    assert layout.virtual_pipeline_model_parallel_size == chunks
    layout.validate_layer_layout(num_layers=sum(layers), mtp_num_layers=None)
    first = 0
    for chunk in range(chunks):
        for stage in range(pp):
            assert layout.get_num_layers_to_build(vp_stage=chunk, pp_rank=stage) == layers[stage] // chunks
            assert layout.get_layer_offset(vp_stage=chunk, pp_rank=stage) == first
            first += layers[stage] // chunks


@pytest.mark.parametrize("seed", range(20))
def test_layouts_read_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random unequal chunks of a configuration; and a random text that repeats, as the reader here takes it."""
    rng = np.random.default_rng(seed)
    pp, chunks = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    held = rng.integers(0, 4, (chunks, pp))
    chosen = replace(
        base().config,
        pipeline_model_parallel_size=pp,
        layers_per_stage=tuple(held.sum(axis=0).tolist()),
        virtual_pipeline_model_parallel_size=chunks,
        pipeline_model_parallel_layout=layout_of(held.tolist()),
    )
    middle = "".join(rng.choice(["t|", "t*2|", "(t|)*3", "(t*2|t|)*2", "|,", "tt,"], size=8))
    texts = [layout_options(replace(base(), config=chosen)).get("pipeline_model_parallel_layout"), f"Et|{middle}tL"]
    monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: 2)
    for text, stages in zip(texts, (pp, 1), strict=True):
        if text is None:  # equal chunks, by chance
            continue
        ours, theirs = layout_layers(str(text), stages), PipelineParallelLayerLayout(str(text), stages)
        theirs.validate_layer_layout(num_layers=sum(map(sum, ours)), mtp_num_layers=None)
        for chunk, of_stages in enumerate(ours):
            for stage, layers in enumerate(of_stages):
                assert theirs.get_num_layers_to_build(vp_stage=chunk, pp_rank=stage) == layers
    assert texts[0] is None or layout_layers(str(texts[0]), pp) == tuple(map(tuple, held.tolist()))


@pytest.mark.parametrize(
    ("layers", "chunks"),
    [
        ((8, 8, 8, 8), None),
        ((7, 9, 9, 7), None),
        ((8, 8, 8, 6), None),
        ((6, 8, 10, 8), None),
        ((4, 8, 12, 8), 2),
        ((15, 16, 16, 15), 8),
    ],
)
def test_configuration_accepts_the_options(layers: tuple[int, ...], chunks: int | None) -> None:
    """The same names, given to ``TransformerConfig``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = TransformerConfig(
            num_layers=sum(layers),
            hidden_size=64,
            num_attention_heads=4,
            pipeline_model_parallel_size=len(layers),
            pipeline_dtype="bf16",
            **layout_options(plan_with(layers, chunks)),
        )
    assert made.virtual_pipeline_model_parallel_size == chunks
