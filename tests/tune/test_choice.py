"""Choice of the next trial, on small sets of configurations."""

from dataclasses import replace

import numpy as np
import pytest
from plain_worlds import plain_terms, plain_worlds

from pipette_opt.tune.choice import Candidates, Trial, outlook
from pipette_opt.tune.memory_odds import MemoryOdds, Outcome
from pipette_opt.worlds.terms import TERMS
from pipette_opt.worlds.worlds import Worlds

FITS = Outcome(ran_out=False)


def candidates(*predicted_s: float, needed: tuple[float, ...] | None = None) -> Candidates:
    """Configurations with these predicted times; their memory fits surely, unless needs are given (of 1)."""
    number = len(predicted_s)
    return Candidates(
        predicted_s=np.array(predicted_s),
        terms=plain_terms(number),
        memory=MemoryOdds(
            usable_bytes=np.full(number, 100.0),
            needed_bytes=100 * np.array(needed or (0.1,) * number),
            shown_bytes=np.full(number, 10.0),
            spread=np.full(number, 0.05),
        ),
    )


def test_the_fastest_predicted_is_first() -> None:
    """Without trials the expected speed decides, if all fit."""
    found = outlook(candidates(3.0, 1.0, 2.0), plain_worlds(), [])
    assert found.ranking() == [1, 2, 0]
    assert found.best_s == found.regret == np.inf


def test_odds_of_memory_count() -> None:
    """A configuration a little faster that surely runs out is not tried first."""
    assert outlook(candidates(1.0, 1.1, needed=(2.0, 0.5)), plain_worlds(), []).ranking()[0] == 1


def test_tried_configurations_are_not_tried_again() -> None:
    """Each finished, failed or running trial leaves the ranking."""
    trials = [
        Trial(config=1, time_s=1.5, outcome=FITS),
        Trial(config=0),
        Trial(config=2, outcome=Outcome(ran_out=True)),
    ]
    assert outlook(candidates(3.0, 1.0, 2.0, 4.0), plain_worlds(), trials).ranking() == [3]


def test_expected_improvement_by_hand() -> None:
    """With one known factor the score is the price of a put option; a slow configuration still has some value."""
    found = outlook(
        candidates(1.0, 1.0, 1.1), plain_worlds(shared=1e-9, noise=0.1), [Trial(config=0, time_s=1.0, outcome=FITS)]
    )
    # Black-Scholes put, strike 1, forward exp(0.005), volatility 0.1, times the odds of memory.
    assert found.scores[1] == pytest.approx(0.0375 * found.fits[1], rel=0.01)
    assert 0 < found.scores[2] < found.scores[1] / 4


def test_improvement_over_kinds_of_stacks() -> None:
    """With two kinds the score is the mean of their scores, not that of one normal distribution."""
    given, best = candidates(1.0, 1.0, 1.1), [Trial(config=0, time_s=1.0, outcome=FITS)]
    usual, wide = plain_worlds(shared=1e-9, noise=0.1), plain_worlds(shared=1e-9, noise=0.2)
    kinds = (usual.prior.kinds[0]._replace(share=0.5), usual.prior.kinds[0]._replace(share=0.5, noise=2.0))
    both = Worlds(prior=replace(usual.prior, kinds=(*kinds, *usual.prior.kinds[2:])))
    found = outlook(given, both, best)
    scores = [outlook(given, worlds, best).scores[1:] for worlds in (usual, wide)]
    shares = found.worlds.shares(given.terms)[:2, 1:]
    assert shares.sum(axis=0) == pytest.approx(1)
    assert found.scores[1:] == pytest.approx((shares * np.array(scores)).sum(axis=0))


def test_regret_falls_with_trials() -> None:
    """The bound is 0 once all are tried, and larger while a configuration predicted as fast is left."""
    given, worlds = candidates(1.0, 1.02), plain_worlds()
    first = Trial(config=0, time_s=1.3, outcome=FITS)
    one = outlook(given, worlds, [first])
    both = outlook(given, worlds, [first, Trial(config=1, time_s=1.25, outcome=FITS)])
    assert one.best_s == 1.3
    assert 0.02 < one.regret < 0.2
    assert (both.best_s, both.regret) == (1.25, 0.0)


def test_a_failure_lowers_the_odds_of_its_likes() -> None:
    """After the largest ran out, a smaller one comes before one that needs as much."""
    given = candidates(1.0, 1.05, 1.1, needed=(0.95, 0.94, 0.5))
    assert outlook(given, plain_worlds(), []).fits[1] > 0.5
    after = outlook(given, plain_worlds(), [Trial(config=0, outcome=Outcome(ran_out=True))])
    assert after.fits[1] < 0.45
    assert after.ranking()[0] == 2


def test_trials_at_once_are_unlike_each_other() -> None:
    """While a configuration runs, another layout that is predicted a little slower comes before its likes."""
    given = candidates(1.0, 1.0, 1.002)
    terms = given.terms.copy()
    terms[2, TERMS.index("tensor parallelism")] = 3.0
    given, worlds = replace(given, terms=terms), Worlds.load()
    assert outlook(given, worlds, []).ranking() == [0, 1, 2]
    assert outlook(given, worlds, [Trial(config=0, is_running=True)]).ranking() == [2, 1]


def test_a_running_trial_may_still_be_the_fastest() -> None:
    """While it runs it is not tried again, but counts in the regret; once refused it does not."""
    given = candidates(1.0, 1.0)
    timed = Trial(config=0, time_s=1.3, outcome=FITS)
    running = outlook(given, plain_worlds(), [timed, Trial(config=1, is_running=True)])
    assert running.ranking() == []
    assert running.regret > 0
    assert outlook(given, plain_worlds(), [timed, Trial(config=1)]).regret == 0.0
