"""Columns of ``runs.csv`` for mixtures of experts."""

from typing import Any

from pipette_opt.candidates.expert_rules import expert_ranks, expert_widths, experts
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.run_models import truth_of, whole_cell
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.training import DISPATCHER_WORDS, dispatcher_fields

DEGREE_COLUMNS = {"ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}
"""Columns of parallel degrees, with their fields of ``ParallelConfig``."""

DISPATCHER_COLUMN, OVERLAP_COLUMN = "dispatcher", "overlap_moe_expert_parallel_comm"
"""Columns of ``runs.csv`` for the token dispatcher and for the overlap of its messages."""


def expert_training_fields(run: MeasuredRun) -> dict[str, Any]:
    """
    Return the expert fields of :class:`TrainingSpec` for a run; empty for a dense model.

    Raises ``ValueError`` for an unknown dispatcher.
    """
    if whole_cell(run, "num_experts") is None:
        return {}
    written = run.extra.get(DISPATCHER_COLUMN, "").lower() or "alltoall"
    if written not in DISPATCHER_WORDS:
        raise ValueError(f"{DISPATCHER_COLUMN} must be one of {', '.join(DISPATCHER_WORDS)}, got {written!r}")
    beside = truth_of(run.extra.get(OVERLAP_COLUMN, "")) is True
    return {**dispatcher_fields(written), OVERLAP_COLUMN: beside}


def expert_degrees(run: MeasuredRun) -> dict[str, Any]:
    """
    Return the expert fields of ``ParallelConfig`` for a run; empty for a dense model.

    Raises ``ValueError`` for a value that is not a whole number, and for expert parallelism of a model without experts.
    """
    degrees = {name: whole_cell(run, name) for name in DEGREE_COLUMNS}
    if whole_cell(run, "num_experts") is None:
        if (degrees["ep"] or 1) > 1:
            raise ValueError(f"ep={degrees['ep']} needs num_experts")
        return {}
    return {DEGREE_COLUMNS[name]: value for name, value in degrees.items() if value is not None}


def check_experts(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> None:
    """Raise ``ValueError`` if the parallel degrees do not divide the experts."""
    for rule in (experts, expert_ranks, expert_widths):
        problem = rule(model, training, config)
        if problem is not None:
            raise ValueError(problem)
