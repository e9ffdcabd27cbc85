"""Odds that configurations fit in memory, after trials."""

import numpy as np
import pytest

from pipette_opt.tune.memory_odds import OTHER_CAUSES, MemoryOdds, Outcome


def odds(*needed_gib: float, usable_gib: float = 75.0) -> MemoryOdds:
    """Configurations with these predicted needs, on GPUs of equal memory."""
    needed = np.array(needed_gib)
    return MemoryOdds(
        usable_bytes=np.full(len(needed), usable_gib),
        needed_bytes=needed,
        shown_bytes=needed,
        spread=np.full(len(needed), 0.05),
    )


def test_more_need_fits_less_likely() -> None:
    """Odds fall with the predicted need, and are even where it equals the usable memory."""
    fits = odds(30.0, 60.0, 75.0, 90.0, 200.0).fit()
    assert (np.diff(fits) < 0).all()
    assert fits[0] > 0.95
    assert fits[2] == pytest.approx(0.5, abs=0.03)
    assert fits[4] < 0.05


def test_a_failure_teaches_all_configurations() -> None:
    """A run that ran out makes every other less likely, those with as much predicted need most."""
    before = odds(40.0, 60.0, 62.0)
    after = before.given({1: Outcome(ran_out=True)})
    lost = before.fit() - after.fit()
    assert (lost > 0).all()
    assert lost[2] > 3 * lost[0]


def test_a_success_teaches_all_configurations() -> None:
    """A run that fits although more than the GPU was predicted makes its likes likely."""
    before = odds(80.0, 82.0)
    assert before.fit()[1] < 0.45
    assert before.given({0: Outcome(ran_out=False)}).fit()[1] > before.fit()[1] + 0.15


def test_a_measured_peak_tells_the_factor() -> None:
    """A small run that takes half of its predicted memory says that a large one fits; a full GPU says nothing more."""
    before = odds(40.0, 85.0)
    halved = before.given({0: Outcome(ran_out=False, peak_bytes=28.0)}).fit()[1]
    assert halved > before.fit()[1] + 0.3
    full = before.given({0: Outcome(ran_out=False, peak_bytes=74.0)}).fit()
    assert full == pytest.approx(before.given({0: Outcome(ran_out=False)}).fit())


def test_unknown_memory_fits_but_for_other_causes() -> None:
    """A configuration whose memory cannot be predicted has the odds of a run that fails for other causes."""
    assert odds(float("nan")).fit()[0] == pytest.approx(1 - OTHER_CAUSES)


def test_draws_have_the_odds() -> None:
    """The share of worlds in which a configuration fits is its probability."""
    found = odds(60.0, 75.0, 90.0)
    assert found.draw(20000, 0).mean(axis=1) == pytest.approx(found.fit(), abs=0.02)
