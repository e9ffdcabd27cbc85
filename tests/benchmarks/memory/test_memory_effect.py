"""The memory network corrects counted tensors by little, and the page says by how much."""

import numpy as np
import pytest
from factories import LLAMA_8B, make_config

from benchmarks.memory.effect import Effect, effect_on, page, without_network
from pipette_opt.base.units import GIB
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.memory_constants import REGRESSORS


def test_without_the_network_the_formula_is_left() -> None:
    """Counted bytes are then the formula's; the network moves them."""
    job = LLAMA_8B, TrainingSpec(global_batch_size=64, seq_length=4096), [make_config(2, 4, 2, 1, 32)]
    formula = formula_bytes(stage_table(*job))
    predictor = MemoryPredictor.load()
    alone, corrected = (
        GIB * one.regressors(*job)[0, :, REGRESSORS.index("counted")] + formula.placeholders
        for one in (without_network(predictor), predictor)
    )
    assert alone == pytest.approx(formula.total, rel=1e-12)
    assert not np.allclose(corrected, formula.total, rtol=1e-6)


@pytest.mark.search
def test_the_network_corrects_less_than_half_a_percent() -> None:
    """Of peaks on one host; `docs/claims.md` says so of larger jobs."""
    effect = effect_on("llama-3-8b", 1)
    assert 1e-5 < np.abs(effect.changes).max() < 0.005
    assert abs(effect.fits - effect.fits_alone) <= effect.flipped <= 0.001 * len(effect.changes)
    assert 0 < effect.fits < len(effect.changes)


def test_the_page_counts_all_jobs() -> None:
    """Means of each job, the largest change in either direction, and the sum of the changed verdicts."""
    small = Effect(name="small", changes=np.array([0.001, -0.003]), fits=1, fits_alone=2, flipped=1)
    large = Effect(name="large", changes=np.array([0.0004, 0.0]), fits=2, fits_alone=2, flipped=0)
    text = page([small, large])
    assert "by 0.020% to 0.200% in the mean of a job, by 0.30% at most" in text
    assert "changes 1 of 4 verdicts" in text
    assert "| small | 2 | 0.200% | 0.30% | 1 | 2 | 1 |" in text
