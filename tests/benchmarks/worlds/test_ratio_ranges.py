"""Ranges of the ratio of two runs' times."""

from functools import cache

import numpy as np
import pytest
from factories import make_run

from benchmarks.worlds.page import ratio_lines
from benchmarks.worlds.ratios import Ranges, judge_ratios
from benchmarks.worlds.rows import Row
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.prior import Kind, Prior
from pipette_opt.worlds.terms import TERMS

TENSOR = TERMS.index("tensor parallelism")


def row(job: object, predicted_s: float, log_ratio: float, tensor: float = 0.0) -> Row:
    """A run of a job; runs of different ``tensor`` have different layouts."""
    terms = np.zeros(len(TERMS))
    terms[TENSOR] = tensor
    return Row(
        table="t", case=case_of(str(job)), terms=terms, reference=terms, predicted_s=predicted_s, log_ratio=log_ratio
    )


@cache
def case_of(job: str) -> Case:
    """A run whose source has the job's name."""
    (case,) = make_cases([make_run(source=job)], read_stack())
    assert isinstance(case, Case)
    return case


def make_prior(slope: float, noise: float) -> Prior:
    """A prior that knows all but the slope of tensor parallelism."""
    sd = np.where(np.arange(len(TERMS)) == TENSOR, slope, 0.0)
    shape = {"job": 1e-6, "job_length": 2.0, "layout": 1e-6, "layout_length": 2.0, "both": 1e-6, "noise": noise}
    return Prior(kinds=(Kind(1.0), Kind(0.0), Kind(0.0), Kind(0.0)), mean=np.zeros(len(TERMS)), sd=sd, **shape)


def test_scores() -> None:
    """A ratio 0.05 beyond its range of 0.2 costs 20 times that: 0.2 + 1.0."""
    ranges = np.array([[-0.1, 0.0, 0.1]] * 2)
    found = Ranges.of(ranges, np.array([0.15, -0.1]))
    assert (found.inside, found.width) == (0.5, pytest.approx(0.2))
    assert found.score == pytest.approx((1.2 + 0.2) / 2)
    assert found.error == pytest.approx(0.125)


@pytest.mark.search
def test_pairs_are_of_one_job_and_different_layouts() -> None:
    """Of three runs, two of them alike, two pairs; by a prior that is right nine in ten lie inside."""
    rows = [row("a", 1.0, 0.1), row("a", 1.0, 0.2), row("a", 2.0, 0.5, 1.0), row("b", 1.0, 0.9, 2.0)]
    judged = judge_ratios(rows, make_prior(0.3, 0.1))
    assert judged is not None
    assert judged.pairs == 2
    assert judge_ratios(rows[:2], make_prior(0.3, 0.1)) is None
    rng, many = np.random.default_rng(0), list[Row]()
    for job in range(400):
        slope = 0.3 * rng.normal()
        many += [row(job, 1.0, float(slope * place + 0.1 * rng.normal()), place) for place in (0.0, 1.0)]
    held = judge_ratios(many, make_prior(0.3, 0.1))
    narrow = judge_ratios(many, make_prior(0.05, 0.02))
    assert held is not None
    assert narrow is not None
    assert held.inside == pytest.approx(0.9, abs=0.04)
    assert narrow.inside < 0.5
    assert narrow.score > held.score
    lines = ratio_lines({"t": held, "vtrain_a100": narrow})
    assert lines[2].startswith("Without a known run")
    assert lines[-3].count("|") == lines[-2].count("|") == lines[-4].count("|")
