"""Terms of predictions."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.parallel import identity_placement
from pipette_opt.simulate.many import estimate_many
from pipette_opt.worlds.terms import CHANGED, SENSITIVITIES, TERMS, describe, stacks_of

HOSTS = np.arange(2)
MIXTURE = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)


def test_sensitivities_are_effects_of_changed_constants() -> None:
    """A sensitivity is the log of the time with the changed constants over the predicted time."""
    job = make_job(make_cluster(2))
    job = replace(job, stack=job.stack.with_constants({"iteration_s": 0.01}))
    placed = [
        (config, identity_placement(config, 8, HOSTS, "tp-cp-ep-dp-pp"))
        for config in (make_config(tp=2, pp=2, dp=4), make_config(tp=8, dp=2))
    ]
    predicted_s, terms = describe(job, placed)
    slower = replace(job, stack=job.stack.with_constants({"inter_node": CHANGED["links between hosts"]["inter_node"]}))
    effect = np.log(estimate_many(slower, placed) / predicted_s)
    assert terms.shape == (2, len(TERMS))
    assert predicted_s == pytest.approx(estimate_many(job, placed))
    assert terms[:, TERMS.index("links between hosts")] == pytest.approx(effect)
    assert np.all(terms[:, : len(SENSITIVITIES)] >= 0)
    assert terms[:, TERMS.index("time of an iteration")] == pytest.approx(np.log1p(0.01 / predicted_s))


def test_features_name_the_layout() -> None:
    """Sizes are logarithms to base 2; 16 GPUs are the usual number."""
    job, config = make_job(make_cluster(2)), make_config(tp=8, dp=2, mbs=4)
    _, terms = describe(job, [(config, identity_placement(config, 8, HOSTS, "tp-cp-ep-dp-pp"))])
    named = dict(zip(TERMS, terms[0].tolist(), strict=True))
    assert (named["tensor parallelism"], named["data parallelism"], named["micro-batch"]) == (3.0, 1.0, 2.0)
    assert (named["constant"], named["GPUs"], named["tensor ranks over hosts"]) == (1.0, 0.0, 0.0)


def test_costs_that_are_shared_change_no_term() -> None:
    """Reused costs give the times that each stack gives alone, with experts and several stages and hosts."""
    job = make_job(make_cluster(2), MIXTURE)
    config = make_config(tp=2, pp=2, dp=4, num_layers=MIXTURE.num_layers, expert_model_parallel_size=4)
    placed = [(config, identity_placement(config, 8, HOSTS, "tp-cp-ep-dp-pp"))]
    predicted_s, terms = describe(job, placed)
    alone_s = [estimate_many(replace(job, stack=stack), placed)[0] for stack in stacks_of(job.stack)]
    assert predicted_s[0] == pytest.approx(alone_s[0])
    assert terms[0, : len(alone_s) - 1] == pytest.approx(np.log(np.array(alone_s[1:]) / alone_s[0]), abs=1e-12)
