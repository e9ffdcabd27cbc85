"""Measured peaks beside predicted components: Megatron-Core's tensors, nothing fitted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.backtest.sources import measured_runs
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import measured_stages, shipped_predictor
from pipette_opt.memory.components import COMPONENTS
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack

SOURCES: Sequence[tuple[str, str, Callable[[MeasuredRun], bool]]] = (
    (
        "SimuMax",
        "simumax.csv",
        lambda run: "llama" in run.model and run.extra.get("peak_from_same_run") == "True",
    ),
    (
        "Megatron-Bridge",
        "megatron_bridge_cards.csv",
        lambda run: run.extra.get("peak_kind") == "allocated" and not run.model.startswith("Nemotron"),
    ),
)
"""
Name, file and row filter of each source: peaks of tensors, each of its own run, of models whose layers are counted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakParts:
    """Measured peak of a run in GiB, and the predicted components of its fullest measured stage in GiB."""

    source: str
    run: str
    measured_gib: float
    parts_gib: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over measured peak, minus 1."""
        return sum(self.parts_gib) / self.measured_gib - 1


def measured_parts(folder: Path) -> list[PeakParts]:
    """Return every row of ``SOURCES`` that can be predicted, from the files that exist."""
    predictor = shipped_predictor()
    tensors = replace(
        predictor, memory_constants=replace(predictor.memory_constants, group_gib=0.0)
    )  # NCCL's buffers are no tensors
    found = []
    for source, file, choose in SOURCES:
        runs = [run for run in measured_runs(folder / file) if choose(run)] if (folder / file).is_file() else []
        cases = make_cases([run for run in runs if run.peak_mem_bytes is not None], read_stack())
        for case in cases:
            if isinstance(case, Case):
                found.append(_parts(source, case, tensors.predict(*_asked(case))[0].components / GIB))
    return found


def _asked(case: Case) -> tuple:  # type: ignore[type-arg]
    return case.instance.model, case.instance.training, [case.config]


def _parts(source: str, case: Case, by_stage: np.ndarray) -> PeakParts:
    rows = by_stage[measured_stages(case.run, case.config.pipeline_model_parallel_size)]
    return PeakParts(
        source=source,
        run=f"{case.run.model}, {case.config.label()}",
        measured_gib=(case.run.peak_mem_bytes or 0) / GIB,
        parts_gib=tuple(rows[int(rows.sum(axis=1).argmax())].tolist()),
    )


def parts_rows(parts: Sequence[PeakParts]) -> list[dict[str, str]]:
    """Return the table as rows of text."""
    return [
        {"source": run.source, "run": run.run, "measured": f"{run.measured_gib:.2f}"}
        | {"predicted": f"{sum(run.parts_gib):.2f}", "off": f"{run.error:+.1%}"}
        | {name: f"{size:.1f}" for name, size in zip(COMPONENTS, run.parts_gib, strict=True)}
        for run in parts
    ]
