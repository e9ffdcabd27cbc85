"""``pipette-opt estimate``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt

OF_ARGS = (
    "hosts",
    "model",
    "global_batch_size",
    "seq_length",
    "example",
    "precision",
    "fp8",
    "attention_kernel",
    "profile",
    "calibration",
    "num_gpus",
    "p2p",
    "allreduce",
    "expert_imbalance",
)
"""Options that say what a plan says itself."""


def estimate(
    context: typer.Context,
    plan: Annotated[Path | None, typer.Argument(help="A plan; or give your current arguments instead.")] = None,
    args: Annotated[
        str | None, typer.Option(help="Megatron arguments of today, or a file that has them.", rich_help_panel=opt.JOB)
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Host order of today; the cluster's by default.", rich_help_panel=opt.JOB)
    ] = None,
    cluster: opt.Cluster = None,
    model: opt.Model = None,
    global_batch_size: opt.GlobalBatchSize = None,
    seq_length: opt.SeqLength = None,
    example: opt.Example = None,
    precision: opt.Precision = None,
    fp8: opt.Fp8 = False,
    attention_kernel: opt.AttentionKernel = "flash",
    profile: opt.Profile = None,
    calibration: opt.Calibration = None,
    num_gpus: opt.NumGpus = None,
    p2p: opt.P2P = "blocking",
    allreduce: opt.AllReduce = "ring",
    expert_imbalance: opt.ExpertImbalance = 1.0,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="1f1b, interleaved, gpipe, zb-h1, zb-v, or a file; the launch's own.", rich_help_panel=opt.RUN
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the predicted schedule there, for Perfetto or Chrome.", rich_help_panel=opt.RUN),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    How long an iteration takes, and whether it fits: of a plan, or of what you run today.

    Where the time goes is shown twice: the mean of all ranks, whose bubble is the time that they idle, and the critical
    path, the chain of work and messages that ends with the iteration. MFU is the model's FLOPs over the peak of the
    GPUs used: a token counts 6 FLOPs for each weight that multiplies it, and 6 x layers x query width x sequence length
    for causal attention; recomputation does not count. In the JSON hfu has it, and attention without the mask (12 for
    6).

    Example: [bold]pipette-opt estimate --example lab-16x8 --args "--tensor-model-parallel-size 8
    --pipeline-model-parallel-size 4 --micro-batch-size 1" --hosts "gpu[01-16]"[/]
    """
    from pipette_opt.cli.current import current_of
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.errors import InputError

    if (plan is None) == (args is None):
        raise InputError("estimate", "give either a plan file or --args with your current Megatron arguments.")
    if plan is not None:
        given = [name for name in OF_ARGS if opt.is_given(context, name)]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise InputError(option, "has no effect on a plan, which says it itself; give it with --args.")
        from pipette_opt.cli.plans import judged_plan

        current = judged_plan(plan, cluster, max_oom_risk)
    else:
        from pipette_opt.read.megatron_args import read_megatron_args

        today = read_megatron_args(args or "", "the current arguments")
        if example is None:
            global_batch_size = today.global_batch_size if global_batch_size is None else global_batch_size
            seq_length = today.seq_length if seq_length is None else seq_length
            precision, fp8 = precision or today.precision, fp8 or today.fp8
        job = opt.read_job(
            cluster=cluster,
            model=model if model is not None or example is not None else args,
            global_batch_size=global_batch_size,
            seq_length=seq_length,
            example=example,
            precision=precision,
            fp8=fp8,
            attention_kernel=attention_kernel,
            profile=profile,
            calibration=calibration,
            num_gpus=num_gpus,
            p2p=p2p,
            allreduce=allreduce,
            expert_imbalance=expert_imbalance,
        )
        current = current_of(job, today, hosts, max_oom_risk)
    if schedule is not None:
        from pipette_opt.cli.schedules import with_schedule

        current = with_schedule(current, schedule, max_oom_risk)
    if trace is not None:
        from pipette_opt.estimator.trace import write_trace

        write_trace(trace, current.instance, current.config, current.placement, current.schedule)
    if json:
        show_json(current.as_dict())
    else:
        show(*current.tables())
