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
    answer = Why(verdict="slower", reasons=("at least 1 s",), listed=("bubble: +0.4 s on the listed hosts",))
    assert Explanation(asked="tp2", why=answer).reasons == (*answer.reasons, *answer.listed)
    assert Explanation(asked="tp2", why=answer, placed=PLACED).reasons == answer.reasons
    assert "listed" not in repr(Explanation(asked="tp2", why=answer, placed=PLACED))


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
