"""Sentences of ``explain``: none contradicts another."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_config, make_job, plan_of

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.why import Why, why
from pipette_opt.library.explain import Explanation, Placed

JOB = make_job(make_cluster(2, gpus=4), TINY, 32, 1024)

PLACED = Placed(
    config="tp2",
    iteration_time_s=1.2,
    lower_bound_s=1.0,
    plan_iteration_time_s=1.0,
    fastest_s=1.0,
    factor=1.0,
    causes={},
)


def test_a_placement_replaces_the_hosts_in_listed_order() -> None:
    """Its causes would differ from those of the listed hosts."""
    bound, listed = "no placement takes less than 1 s", "takes 1.3 s on the hosts as listed"
    why = Why(verdict="slower", answer="at least 1 % slower", reasons=(bound,), listed=(listed,))
    alone, placed = Explanation(asked="tp2", why=why), Explanation(asked="tp2", why=why, placed=PLACED)
    assert (alone.answer, alone.reasons) == (why.answer, (bound, listed))
    assert placed.answer == "20.0 % slower than the plan: 1.20 s against 1.00 s"
    assert placed.reasons == ("the fastest found is tp2", bound)


@pytest.mark.parametrize(
    ("fastest_s", "end"), [(1.0, "; solve again with it pinned"), (0.8, ", but less plain; --prefer fastest")]
)
def test_what_to_do_about_a_faster_one(fastest_s: float, end: str) -> None:
    """One that the plan's search found is less plain; another one is news."""
    why, faster = Why(verdict="may win", answer="may win"), replace(PLACED, iteration_time_s=0.8, fastest_s=fastest_s)
    answer = Explanation(asked="tp2", why=why, placed=faster).answer
    assert answer == f"20.0 % faster than the plan: 0.800 s against 1.00 s{end}"


@pytest.mark.search
def test_a_whole_label_is_that_configuration() -> None:
    """A label of a table without chunks has none; of a part of a label the rest is free."""
    plan = plan_of(JOB, make_config(tp=4, pp=1, dp=2, num_layers=8, mbs=4, use_distributed_optimizer=True), (0, 1))
    label = make_config(tp=1, pp=2, dp=4, num_layers=8, mbs=1, use_distributed_optimizer=True).label()
    space = SearchSpace(num_gpus=8)
    whole = why(JOB, space, label, 0.01, plan)
    assert whole.config is not None
    assert whole.config.label() == label
    assert whole.space.virtual_pipeline == (1,)
    part = why(JOB, space, "tp1 pp2 dp4 mbs1", 0.01, plan)
    assert part.space.virtual_pipeline is None
    assert replace(part.space, num_gpus=None).more_configs == ()
