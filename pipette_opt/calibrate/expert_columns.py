"""Columns of ``runs.csv`` about mixtures of experts."""

from typing import Any

from pipette_opt.base.errors import shown
from pipette_opt.base.units import whole_number
from pipette_opt.candidates.expert_rules import expert_ranks, expert_widths, experts
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.training import DISPATCHER_WORDS, dispatcher_fields

MODEL_COLUMNS = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
"""Fields of the same name of ``ModelSpec``; the others only count beside the first."""

DEGREE_COLUMNS = {"ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}
"""And the fields of ``ParallelConfig`` that they are."""

DISPATCHER_COLUMN, OVERLAP_COLUMN = "dispatcher", "overlap_moe_expert_parallel_comm"


def expert_model_fields(run: MeasuredRun) -> dict[str, Any]:
    """
    Fields of a row's model; none of a dense one.

    Raises ``ValueError`` for what is no whole number, and for experts of which nobody says how many a token takes.
    """
    fields = {name: whole_cell(run, name) for name in MODEL_COLUMNS}
    if fields["num_experts"] is None:
        return {}
    if fields["moe_router_topk"] is None:
        raise ValueError(f"num_experts={fields['num_experts']} needs moe_router_topk")
    return {name: value for name, value in fields.items() if value is not None}


def expert_training_fields(run: MeasuredRun) -> dict[str, Any]:
    """
    Fields of a row's job; none of a dense model's.

    Raises ``ValueError`` for a dispatcher that nobody knows.
    """
    if whole_cell(run, "num_experts") is None:
        return {}
    written = run.extra.get(DISPATCHER_COLUMN, "").lower() or "alltoall"
    if written not in DISPATCHER_WORDS:
        raise ValueError(f"{DISPATCHER_COLUMN} must be one of {', '.join(DISPATCHER_WORDS)}, got {written!r}")
    beside = run.extra.get(OVERLAP_COLUMN, "").lower() in ("true", "1", "yes")
    return {**dispatcher_fields(written), OVERLAP_COLUMN: beside}


def expert_degrees(run: MeasuredRun) -> dict[str, Any]:
    """
    Fields of a row's configuration; none of a dense model's.

    Raises ``ValueError`` for what is no whole number, and for expert parallelism of a model without experts.
    """
    degrees = {name: whole_cell(run, name) for name in DEGREE_COLUMNS}
    if whole_cell(run, "num_experts") is None:
        if (degrees["ep"] or 1) > 1:
            raise ValueError(f"ep={degrees['ep']} needs num_experts")
        return {}
    return {DEGREE_COLUMNS[name]: value for name, value in degrees.items() if value is not None}


def check_experts(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> None:
    """Raise ``ValueError`` for experts that do not come out even."""
    for rule in (experts, expert_ranks, expert_widths):
        problem = rule(model, training, config)
        if problem is not None:
            raise ValueError(problem)


def whole_cell(run: MeasuredRun, name: str) -> int | None:
    """A whole number, ``2.0`` counts; ``None`` for an empty cell."""
    text = run.extra.get(name, "")
    if not text:
        return None
    number = whole_number(text.removesuffix(".0"))
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {shown(text)}")
    return number
