"""``python -m models.memory.trace_plan``: traced memory of every stage of a plan, beside the predicted memory."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from models.memory.trace import trace_stage
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import gib
from pipette_opt.cli import options as opt
from pipette_opt.cli.output import show, show_json
from pipette_opt.cli.program import run_command
from pipette_opt.library.plans import plan_and_instance
from pipette_opt.memory.predictor import stack_predictor


def trace_plan(
    plan: Annotated[Path, typer.Argument(help="Plan whose stages are traced.")],
    cluster: opt.Cluster = None,
    json: opt.Json = False,
) -> None:
    """
    Trace every stage of a plan: bytes of its tensors, bytes that the allocator reserves, and the least that suffices.

    Example: [bold]python -m models.memory.trace_plan plan.json[/]
    """
    found, instance = plan_and_instance(plan, cluster)
    model, training, config = instance.model, instance.training, found.config
    (prediction,) = stack_predictor(instance.stack).predict(
        model, training, [config], gpus_per_node=instance.cluster.gpus_per_node
    )
    try:
        traces = [
            trace_stage(model, training, config, stage, need=True)
            for stage in range(config.pipeline_model_parallel_size)
        ]
    except ValueError as error:
        raise InputError(str(plan), f"cannot be traced: {error}") from error
    rows = [
        {
            "stage": stage,
            "predicted_gib": gib(predicted),
            "traced_gib": gib(trace.peak_bytes),
            "reserved_gib": gib(trace.reserved_bytes),
            "needed_gib": gib(trace.needed_bytes),
        }
        for stage, (predicted, trace) in enumerate(zip(prediction.predicted_bytes, traces, strict=True))
    ]
    if json:
        show_json(rows)
        return
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=config.label())
    for row in rows:
        table.add_row(*(f"{value:.3g}" for value in row.values()))
    show(table)


if __name__ == "__main__":
    run_command(trace_plan)
