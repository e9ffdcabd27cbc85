"""Layers that stages of unequal chunks hold activations of: against the schedule, operation by operation."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_config

from pipette_opt.memory.table import stage_table
from pipette_opt.parallel.layout import layout_of
from pipette_opt.parallel.schedule import FORWARD, build_schedule
from pipette_opt.specs import TrainingSpec


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize(("pp", "chunks"), [(2, 2), (3, 2), (4, 3), (8, 4)])
def test_held_layers_are_the_most_of_the_schedule(pp: int, chunks: int, rounds: int) -> None:
    """Random layouts, several in one table: the largest sum of layers after any operation, on every stage."""
    rng = np.random.default_rng([pp, chunks, rounds])
    model = replace(LLAMA_8B, num_layers=2 * pp * chunks)
    training = TrainingSpec(global_batch_size=rounds * pp, seq_length=1024)
    of_chunks = [rng.multinomial(model.num_layers, np.full(pp * chunks, 1 / (pp * chunks))) for _ in range(6)]
    of_chunks = [one.reshape(chunks, pp) for one in of_chunks] + [np.full((chunks, pp), 2)]
    plain = make_config(tp=1, pp=pp, dp=1, mbs=1, layers_per_stage=(2,) * pp, num_layers=2 * pp)
    configs = [
        replace(
            plain,
            layers_per_stage=tuple(held.sum(axis=0).tolist()),
            virtual_pipeline_model_parallel_size=chunks,
            pipeline_model_parallel_layout=layout_of(held.tolist()),
        )
        for held in of_chunks
    ]
    table = stage_table(model, training, [*configs, plain])
    found = (table.in_flight * table.chunk_layers + table.later_layers)[: len(configs) * pp].reshape(len(configs), pp)
    order = build_schedule(pp, rounds * pp, chunks)
    for held, layers in zip(of_chunks, found, strict=True):
        moved = np.where(order.kind == FORWARD, 1, -1) * held[order.chunk, np.arange(pp)[:, None]]
        np.testing.assert_allclose(layers, moved.cumsum(axis=1).max(axis=1))
