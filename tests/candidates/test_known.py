"""What runs today beside the configurations that are searched by default, and what pins exclude."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_more, enumerate_with_reasons, space_of, with_known
from pipette_opt.candidates.combinations import combinations
from pipette_opt.candidates.legality import LEGALITY_RULES, OF_MICRO_BATCHES, broken_rules

JOB = make_job(make_cluster(2, gpus=4), TINY, 32, 2048)

SPACE = SearchSpace(num_gpus=8)

ODD = make_config(tp=2, dp=4, micro_batch_size=1, sequence_parallel=False, use_distributed_optimizer=False)
"""Replicas without the distributed optimizer are not searched by default."""


def test_a_known_configuration_is_searched_beside_the_others() -> None:
    """It comes once, last, is recorded with the space, and comes back from the record."""
    usual, wider = enumerate_with_reasons(JOB, SPACE), with_known(SPACE, ODD)
    assert ODD not in usual.candidates
    assert enumerate_with_reasons(JOB, wider).candidates == (*usual.candidates, ODD)
    assert space_of(asdict(wider)) == wider
    again = with_known(wider, usual.candidates[0])
    assert enumerate_with_reasons(JOB, again).num_combinations == usual.num_combinations + 1


def test_its_larger_values_are_searched_everywhere() -> None:
    """What it recomputes, and a micro-batch above the default's; not what is tried anyway."""
    known = replace(ODD, micro_batch_size=8, recompute_granularity="selective", recompute_modules=("mlp",))
    wider = with_known(replace(SPACE, max_micro_batch_size=2), known)
    assert (wider.max_micro_batch_size, wider.more_recompute) == (8, ("mlp",))
    assert with_known(SPACE, replace(ODD, recompute_granularity="selective")).more_recompute == ()
    values = enumerate_with_reasons(JOB, wider).values("recomputation")
    assert "mlp" in values


def test_what_its_replicas_share_is_searched_everywhere() -> None:
    """Fully sharded: beside the distributed optimizer, in other configurations, too, unless that is pinned."""
    known = replace(ODD, use_distributed_optimizer=True, zero_stage=3)
    wider = with_known(SPACE, known)
    assert wider.more_sharding == ("optim_grads_params",)
    assert space_of(asdict(wider)) == wider
    usual, found = (enumerate_with_reasons(JOB, space) for space in (SPACE, wider))
    assert set(usual.candidates) < set(found.candidates)
    sharded = {one for one in found.candidates if one.sharding_stage == 3}
    assert {one.tensor_model_parallel_size for one in sharded} == {1, 2, 4}
    assert with_known(SPACE, ODD).more_sharding == ()
    pinned = replace(SPACE, data_parallel_sharding_strategy=("optim", "optim_grads_params"))
    assert with_known(pinned, known).more_sharding == ()


@pytest.mark.parametrize(
    "pins",
    [
        {"tensor_parallel": (4,)},
        {"use_distributed_optimizer": (True,)},
        {"recompute": ("full",)},
        {"num_gpus": 4},
    ],
)
def test_pins_exclude_it(pins: dict[str, object]) -> None:
    """A pinned field that has another value leaves the space as it is."""
    space = replace(SPACE, **pins)
    assert with_known(space, ODD) is space


def test_an_illegal_one_is_refused_by_name() -> None:
    """Its rule is among those that rule something out."""
    wider = with_known(SPACE, replace(ODD, micro_batch_size=3))
    assert all(one.micro_batch_size != 3 for one in enumerate_with_reasons(JOB, wider).candidates)
    with pytest.raises(InputError, match="more_configs"):
        space_of({"more_configs": [{"tensor_model_parallel_size": 2}]})


@pytest.mark.parametrize(
    ("num_layers", "splits", "layouts"),
    [
        (8, ((6, 2), (3, 3, 1, 1)), ()),
        (5, (), ("Et|t|tt|tL", "Ett|t|t|tL")),
        (5, ((4, 1),), ("Et|t|tt|tL",)),
    ],
)
def test_more_splits_are_added_to_what_is_known(
    num_layers: int, splits: tuple[tuple[int, ...], ...], layouts: tuple[str, ...]
) -> None:
    """
    The same as all of the wider space, counts and reasons included.

    Five layers split into no four equal chunks, until a layout does it: what ruled them out is no reason any more.
    """
    job = replace(JOB, model=replace(JOB.model, num_layers=num_layers))
    wider = replace(SPACE, more_splits=splits, more_layouts=layouts)
    known, whole = enumerate_with_reasons(job, SPACE), enumerate_with_reasons(job, wider)
    found = enumerate_more(job, wider, SPACE, known)
    assert set(found.candidates) == set(whole.candidates) > set(known.candidates)
    for field in ("num_combinations", "rejected", "first_broken", "examples"):
        assert getattr(found, field) == getattr(whole, field)


def test_counting_makes_no_configurations() -> None:
    """As many combinations, with the same rules."""
    made, counted = list(combinations(JOB, SPACE, 8)), list(combinations(JOB, SPACE, 8, only_counted=True))
    assert [(one.number, one.broken) for one in made] == [(one.number, one.broken) for one in counted]
    assert all(len(one.configs) == (0 if one.broken else one.number) for one in made)
    assert not any(one.configs for one in counted)


def test_only_named_rules_look_at_micro_batches() -> None:
    """No other rule changes with the micro-batch, chunks or recomputation of a configuration."""
    rng = np.random.default_rng(0)
    names = [name for name in LEGALITY_RULES if name not in OF_MICRO_BATCHES]
    for model in (TINY, replace(TINY, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=512)):
        for _ in range(40):
            tp, pp, dp = (int(rng.choice([1, 2, 3, 4])) for _ in range(3))
            one = make_config(
                tp=tp, pp=pp, dp=dp, layers_per_stage=(2,) * pp, expert_model_parallel_size=int(rng.choice([1, 2, 3]))
            )
            other = replace(
                one,
                micro_batch_size=int(rng.choice([1, 3, 8])),
                virtual_pipeline_model_parallel_size=2 if pp > 1 else None,
                recompute_granularity=rng.choice([None, "full", "selective"]),
            )
            found = (broken_rules(model, JOB.training, each, names) for each in (one, other))
            assert next(found) == next(found)
