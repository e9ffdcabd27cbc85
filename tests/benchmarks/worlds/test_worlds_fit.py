"""Fit of the worlds' prior."""

import numpy as np
import pytest
from factories import make_run
from scipy.optimize import approx_fprime

from benchmarks.worlds import fit
from benchmarks.worlds.rows import Row
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.terms import TERMS


def make_rows(constants: list[float]) -> list[Row]:
    """Four runs of each of several stacks, which are off by a constant each."""
    random = np.random.default_rng(0)
    (case,) = make_cases([make_run()], read_stack())
    assert isinstance(case, Case)
    rows = []
    for stack, constant in enumerate(constants):
        for number in range(4):
            terms = np.zeros(len(TERMS))
            terms[TERMS.index("constant")], terms[TERMS.index("tensor parallelism")] = 1.0, number
            ratio = constant + 0.01 * random.standard_normal()
            rows.append(
                Row(
                    table=f"table {stack}",
                    case=case,
                    terms=terms,
                    reference=terms,
                    predicted_s=1.0,
                    log_ratio=float(ratio),
                )
            )
    return rows


def test_stacks_that_differ_by_a_constant_widen_the_constant() -> None:
    """The spread of the constant grows with that of the stacks, and slopes that no run needs shrink."""
    alike, apart = (fit.fit_prior(make_rows(constants)) for constants in ([0.0, 0.01, -0.01], [0.5, -0.4, 0.6]))
    constant, tensor = TERMS.index("constant"), TERMS.index("tensor parallelism")
    assert alike.sd[constant] < apart.sd[constant]
    assert apart.sd[tensor] < 0.06


def test_gradient_is_that_of_the_loss() -> None:
    """The analytic gradient agrees with differences; factors of the first kind stay fixed."""
    groups = fit.groups_of(make_rows([0.2, -0.1]))
    place = fit.start_values() + 0.1
    slopes = approx_fprime(place, lambda values: fit.loss_of(values, groups)[0], 1e-6)
    fixed = slice(len(place) - 20, len(place) - 15)
    found = fit.loss_of(place, groups)[1]
    slopes[fixed] = 0.0
    assert found == pytest.approx(slopes, rel=1e-3, abs=1e-3)
