"""Rules of the layouts study: each with and without, on the smallest job that shows the point."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates import SearchSpace
from pipette_opt.library import layout_rules
from pipette_opt.library.layout_rules import RULES, RuleRow, check_rules
from pipette_opt.optimize import OptimizeParams
from pipette_opt.plans.plan import Plan

pytestmark = pytest.mark.search

PARAMS = OptimizeParams(time_limit_s=20.0, workers=1)
JOB = make_job(make_cluster(1, gpus=2), replace(TINY, num_layers=2), 4)


@pytest.fixture(scope="module")
def rows() -> list[RuleRow]:
    """Two GPUs, two layers, four samples."""
    return check_rules(JOB, SearchSpace(), PARAMS)


def test_every_rule_has_a_verdict(rows: list[RuleRow]) -> None:
    """In the order of the study; what is proven and what is found agree."""
    assert [row.rule for row in rows] == [rule.name for rule in RULES]
    for row in rows:
        assert row.kept_s is not None
        assert row.broken_s is not None
        assert row.gain is not None
        assert row.verdict == ("holds" if row.gain > -1e-6 else "does not hold")


def test_kernels_of_the_study_hold(rows: list[RuleRow]) -> None:
    """Unfused attention and norms move more memory, so that nothing is faster with them; bounds say so, too."""
    for row in rows:
        if row.rule in ("FlashAttention-2", "fused norms"):
            assert row.verdict == "holds"
            assert row.is_proven
            assert "slower" in row.why


def test_sequence_parallelism_needs_tensor_parallelism(rows: list[RuleRow]) -> None:
    """Both sides of that rule have it, whatever the best plan has."""
    (row,) = (row for row in rows if row.rule.startswith("sequence parallelism"))
    assert "tp2" in row.kept.replace("=", "").replace(" ", "")
    assert "tp2" in row.broken.replace("=", "").replace(" ", "")


def test_pins_leave_no_other_side(monkeypatch: pytest.MonkeyPatch, rows: list[RuleRow]) -> None:
    """With a pinned micro-batch of one the rule holds, and says why; what fits nowhere is the reason, too."""
    best = layout_rules.optimize(JOB, SearchSpace(), PARAMS)

    def solve(job: object, space: SearchSpace, *_: object) -> Plan:
        if None in space.recompute:
            return best
        raise InfeasibleError("no memory")

    monkeypatch.setattr(layout_rules, "optimize", solve)
    found = check_rules(JOB, SearchSpace(micro_batch_size=(1,)), PARAMS)
    if best.config.micro_batch_size == 1:
        assert (found[0].verdict, found[0].broken_s) == ("holds", None)
        assert "pinned" in found[0].why
    if best.config.recompute_granularity is None:
        assert (found[1].verdict, found[1].why) == ("holds", "without it: no memory")
