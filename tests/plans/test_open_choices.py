"""Choices that leave a gap open."""

from dataclasses import replace

import pytest
from factories import make_plan

from pipette_opt.plans.certificate import Certificate, JointModel, Proof, RuledOut

WITHIN = 0.01
"""Share of the time that counts as closed."""


def certificate(listed_s: float, layers_s: float, bound_s: float) -> Certificate:
    """A certificate of a plan of 10 s with these bounds."""
    named = (RuledOut(name="best links", configurations=3, example="tp2 pp1"),)
    proof = Proof(by="best links", configurations=3, bound_s=listed_s, named=named)
    memory = Proof(by="memory", configurations=1, bound_s=None, named=())
    model = JointModel(
        families=1, variables=1, constraints=1, solves=1, seconds=0.1, splits=0, status="FEASIBLE", bound_s=layers_s
    )
    return replace(
        make_plan().certificate,
        objective_s=10.0,
        fastest_s=None,
        lower_bound_s=bound_s,
        proof=(memory, proof),
        joint_model=model,
    )


@pytest.mark.parametrize(
    ("listed_s", "layers_s", "bound_s", "expected"),
    [
        (10.0, 9.95, 9.95, []),
        (9.8, 10.0, 9.8, ["configurations such as tp2 pp1"]),
        (9.8, 9.0, 9.0, ["other layers per stage", "configurations such as tp2 pp1"]),
        (10.0, 9.8, 8.0, ["other numbers of GPUs", "other layers per stage"]),
    ],
    ids=["closed", "configurations", "layers and configurations", "numbers of GPUs"],
)
def test_open_choices(listed_s: float, layers_s: float, bound_s: float, expected: list[str]) -> None:
    """Those with a bound more than 1 % below the fastest plan, the least bound first; each says what it may save."""
    found = certificate(listed_s, layers_s, bound_s).open_choices(WITHIN)
    assert [choice for choice, _ in found] == expected
    if expected:
        assert found[0][1] == pytest.approx(1 - bound_s / 10.0)
