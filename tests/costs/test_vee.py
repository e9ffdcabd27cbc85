"""Costs of a V: the output head and the final norm are on the first stage."""

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job

from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import identity_placement
from pipette_opt.specs import ModelSpec


@pytest.mark.parametrize("model", [TINY, LLAMA_8B])
def test_the_head_moves_to_the_first_stage(model: ModelSpec) -> None:
    """No work is lost, only the last chunk's ends change, and the middle stages reduce what they did."""
    job = make_job(make_cluster(8), model, seq_length=2048)
    one = make_config(tp=2, pp=4, dp=8, num_layers=model.num_layers, virtual_pipeline_model_parallel_size=2)
    placement = identity_placement(one, 8, np.arange(8), "tp-cp-ep-dp-pp")
    loop, vee = (placed_times(job, one, placement, layout) for layout in ("loop", "vee"))
    for name in ("forward_s", "backward_s"):
        before, after = getattr(loop, name), getattr(vee, name)
        assert after.sum() == pytest.approx(before.sum())
        np.testing.assert_allclose(after[1, -1], before[1, 1])
        np.testing.assert_allclose(after[1, 0] - before[1, 0], before[1, -1] - before[1, 1])
        np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(vee.reduction_s[1:3], loop.reduction_s[1:3])
    assert vee.reduction_s[3] < loop.reduction_s[3]
    tied = not model.untie_embeddings_and_output_weights
    assert (vee.reduction_s[0] - loop.reduction_s[0]) / loop.reduction_s[0] == pytest.approx(
        0.0 if tied else 0.4, abs=0.4
    )
    assert vee.embedding_s == 0.0
    assert (loop.embedding_s > 0.0) == tied
