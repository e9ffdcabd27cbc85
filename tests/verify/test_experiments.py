"""Experiments that lower the regret, on groups with terms of our own."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from factories import make_config

from pipette_opt.base.types import FloatArray
from pipette_opt.verify.experiments import experiments, least_regret
from pipette_opt.verify.regret import Groups, group_of, words_of
from pipette_opt.worlds.prior import Kind, Prior
from pipette_opt.worlds.terms import SENSITIVITIES, TERMS
from pipette_opt.worlds.worlds import Worlds


def group(name: str) -> tuple[object, ...]:
    """A group whose first degree is a name."""
    _, *others = group_of(make_config())
    return (name, *others)


class TwoGroups:
    """Two groups of equal bounds; the second depends on one term more than the first."""

    def __init__(self, term: str) -> None:
        self.numbers = {group("first"): 0, group("second"): 1}
        self.bounds_s = np.array([10.0, 10.0])
        self.terms = np.zeros((2, len(TERMS)))
        self.terms[1, TERMS.index(term)] = 1.0

    def log_factors(self, worlds: Worlds) -> FloatArray:
        """Factors without a limit by the GPUs' peak."""
        return worlds.log_factors(self.terms)


def worlds_of(term: str) -> Worlds:
    """Worlds that differ in the slope of one term alone."""
    sd = np.full(len(TERMS), 1e-9)
    sd[TERMS.index(term)] = 0.2
    prior = Prior(
        kinds=(Kind(1.0),),
        mean=np.zeros(len(TERMS)),
        sd=sd,
        job=1e-9,
        job_length=1,
        layout=1e-9,
        layout_length=1,
        both=1e-9,
        noise=0.001,
    )
    return Worlds(prior=prior)


@pytest.mark.parametrize(
    ("term", "command"), [("links between hosts", "profile links"), ("attention", "profile compute")]
)
def test_a_micro_benchmark_of_the_open_constant_settles_the_choice(term: str, command: str) -> None:
    """Only one constant is unknown: measuring it leaves no regret, and the other command changes nothing."""
    assert term in SENSITIVITIES
    groups, worlds = cast(Groups, TwoGroups(term)), worlds_of(term)
    before = least_regret(groups, groups.log_factors(worlds))
    after = {found.command: found.regret for found in experiments(groups, worlds, 64) if found.command}
    assert before > 0.05
    assert after.pop(command) == pytest.approx(0, abs=1e-6)
    assert list(after.values()) == [pytest.approx(before, rel=1e-6)]


def test_a_run_of_the_doubtful_group_settles_the_choice() -> None:
    """A feature that no command measures: a run of the second group tells its slope, a run of the first does not."""
    groups, worlds = cast(Groups, TwoGroups("tensor parallelism")), worlds_of("tensor parallelism")
    first, *others = experiments(groups, worlds, 64)
    assert first.run.startswith("tpsecond")
    assert first.regret < 0.01
    assert all(other.regret > 0.05 for other in others)


def test_costs_are_gpu_minutes() -> None:
    """A run keeps all GPUs busy for its start and 20 iterations of 10 s; timing a layer takes one GPU."""
    groups, worlds = cast(Groups, TwoGroups("attention")), worlds_of("attention")
    cost = {found.command or found.run: found.gpu_minutes for found in experiments(groups, worlds, 64)}
    assert cost["tpfirst pp1 dp1 etp1 mbs1 vpp1"] == pytest.approx(64 * (180 + 200) / 60)
    assert cost["profile compute"] == 5


def test_a_group_is_named_as_people_pin_it() -> None:
    """Context, exchanged and expert ranks stand where they are several, tensor ranks of experts where they differ."""
    assert words_of(group_of(make_config(tp=2, pp=4, dp=2))) == "tp2 pp4 dp2 mbs1 vpp1"
    experts = replace(make_config(tp=2, pp=1, dp=2), expert_model_parallel_size=4, expert_tensor_parallel_size=1)
    assert words_of(group_of(experts)) == "tp2 pp1 dp2 ep4 etp1 mbs1 vpp1"
    exchanged = replace(make_config(tp=1, pp=1, dp=1), context_parallel_size=4, context_a2a_size=2)
    assert words_of(group_of(exchanged)) == "tp1 pp1 dp1 cp4 ulysses2 mbs1 vpp1"
