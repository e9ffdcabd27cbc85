"""``pipette-opt estimate``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt
from pipette_opt.options.description import Measured

NOT_OF_LAUNCHES = ("launcher", "moe_token_dispatcher", "framework")
"""Job options that only a search has."""


@opt.spread
def estimate(
    context: typer.Context,
    job_options: Annotated[
        opt.JobOptions, opt.Without(NOT_OF_LAUNCHES), opt.OnlyInJobFile(("gpu_price",)), opt.WholeLaunch()
    ],
    measured: Measured,
    plan: Annotated[
        Path | None,
        typer.Argument(help="A plan file, or a job file that describes a launch. Without either, give --launch."),
        opt.OrJobFile(),
    ] = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="1f1b, interleaved (interleaved:8: in groups of 8 micro-batches), gpipe, zb-h1, zb-v, or a file; "
            "by default the launch's schedule.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="File to write the predicted schedule to, for Perfetto or Chrome.", rich_help_panel=opt.RUN),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Predict the iteration time and memory of a plan, or of the launch that you run today.

    The answer fits one screen; -v shows all tables. They show the time twice: averaged over ranks, with the bubble as
    idle time, and along the critical path, the longest chain of compute and messages. MFU is the model's FLOPs over the
    peak of the GPUs used. A token counts 6 FLOPs per weight that multiplies it, plus 6 x layers x query width x
    sequence length for causal attention; recomputation does not count. In the JSON, hfu counts recomputation, and
    attention as its kernels compute it.

    The model comes from --model, or else from the launch, or else from the example; the answer names the source.
    A launch that contradicts the model is refused.

    With --cluster, a plan is timed on that cluster, which must have all hosts of the plan; changes since the plan was
    made are listed.

    Example: [bold]pipette-opt estimate --example lab-16x8 --launch "--tensor-model-parallel-size 8
    --pipeline-model-parallel-size 4 --micro-batch-size 1" --host-order "gpu[01-16]"[/]
    """
    from pipette_opt.cli.output import is_verbose, say, show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.estimate import compared_with
    from pipette_opt.library.estimate import estimate as library_estimate

    current = for_commands(library_estimate)(
        plan,
        max_oom_risk=max_oom_risk,
        schedule=schedule,
        trace=trace,
        **opt.typed_of(context, job_options),
    )
    for remark in current.remarks:
        say(remark)
    compared = compared_with(measured, current.estimate, current.memory, max_oom_risk)
    if json:
        show_json(current.as_dict() | ({"measured": compared.as_dict()} if compared else {}))
    else:
        show(*(current.tables() if is_verbose() else current.screen()), *(compared.lines() if compared else ()))
