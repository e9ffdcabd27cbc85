"""Sources whose runs are no transformers of equal stages; each has its own model and test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.backtest import het_model, mist
from benchmarks.backtest.experiments import halves
from benchmarks.backtest.page import own_predictor
from benchmarks.backtest.sources import measured_runs
from pipette_opt.calibrate.metrics import measure
from pipette_opt.calibrate.predict import Prediction

UNEQUAL = "AMP, het_model (TransGAN on 16 V100): half and half"


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """
    Experiment with a model of its own, one row of the page.

    Parameters
    ----------
    evaluate
        Function of the paths of ``files`` that returns the table row and the section.
    """

    name: str
    files: tuple[str, ...]
    evaluate: Callable[..., tuple[str, str]]


def unequal(path: Path, layers: Path) -> tuple[str, str]:
    """Return row and section of AMP's model of unequal layers, whose stages come from measured layer times."""
    seen, tested = halves([run for run in measured_runs(path) if "het_model" in run.notes])
    constants = het_model.fit(seen, het_model.read_layers(layers))
    predicted = het_model.predict_s(tested, het_model.read_layers(layers), constants)
    errors = measure(predicted, np.array([run.iter_time_s for run in tested], dtype=np.float64))
    own = own_predictor([Prediction(run=run, iter_time_s=1.0) for run in tested])
    summary = (
        f"| {UNEQUAL} | {len(seen)} | {errors.num_runs} | {errors.mean:.1%} | {errors.p90:.1%} | "
        f"{errors.spearman:.3f} | {errors.regret:.1%} | | rank above AMP's own |"
    )
    fitted = ", ".join(f"{name} {getattr(constants, name):.3g}" for name in het_model.PRIORS)
    return summary, (
        f"## {UNEQUAL}\n\nStages from measured forward times of the layers for one sample; how they grow with samples, "
        "the network and a fixed cost are fitted. Pipelines with several tensor ranks take less than layer times and a "
        f"common growth with samples say.\n\n{own}\nConstants: {fitted}.\n"
    )


SPECIAL = (
    Special(name=UNEQUAL, files=("amp_aws16.csv", "amp_layer_forward_times.json"), evaluate=unequal),
    *(Special(name=part.name, files=mist.FILES, evaluate=partial(mist.evaluate, part)) for part in mist.PARTS),
)
