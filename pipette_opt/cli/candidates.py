"""``pipette-opt candidates``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.errors import InputError


def candidates(
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
    exclude_hosts: opt.ExcludeHosts = None,
    launcher: opt.Launcher = "slurm",
    p2p: opt.P2P = "blocking",
    tensor_parallel: opt.TensorParallel = None,
    pipeline_parallel: opt.PipelineParallel = None,
    data_parallel: opt.DataParallel = None,
    virtual_pipeline: opt.VirtualPipeline = None,
    micro_batch_size: opt.MicroBatchSize = None,
    recompute: opt.Recompute = None,
    context_parallel: opt.ContextParallel = None,
    expert_parallel: opt.ExpertParallel = None,
    expert_tensor_parallel: opt.ExpertTensorParallel = None,
    expert_imbalance: opt.ExpertImbalance = 1.0,
    moe_token_dispatcher: opt.MoeTokenDispatcher = "alltoall",
    overlap_grad_reduce: opt.OverlapGradReduce = None,
    overlap_param_gather: opt.OverlapParamGather = None,
    ddp_bucket_size: opt.DdpBucketSize = None,
    overlap_p2p_communication: opt.OverlapP2P = True,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    top: Annotated[int, typer.Option(help="Rows shown; 0 for all.", min=0, rich_help_panel=opt.RUN)] = 30,
    why: Annotated[
        str | None,
        typer.Option(
            help="Explain instead why these are not the plan, e.g. tp=8,pp=2,recompute=full.", rich_help_panel=opt.RUN
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="With --why: the plan to compare with.", rich_help_panel=opt.RUN)
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    List every legal configuration, whether it fits, and how fast it can be at best.

    Example: [bold]pipette-opt candidates --example lab-16x8 --tensor-parallel 8[/]

    [bold]--why tp=8,pp=2[/] says of some of them: illegal (by which rule), too big (which stage), or slower (where).
    """
    from dataclasses import asdict

    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.prepare import candidate_overview
    from pipette_opt.report.lists import candidates_table
    from pipette_opt.units import counted

    job = opt.read_job(
        cluster=cluster,
        model=model,
        global_batch_size=global_batch_size,
        seq_length=seq_length,
        example=example,
        precision=precision,
        fp8=fp8,
        attention_kernel=attention_kernel,
        profile=profile,
        calibration=calibration,
        num_gpus=num_gpus,
        exclude_hosts=exclude_hosts,
        launcher=launcher,
        p2p=p2p,
        expert_imbalance=expert_imbalance,
        moe_token_dispatcher=moe_token_dispatcher,
    )
    space = opt.search_space(
        job,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        virtual_pipeline=virtual_pipeline,
        micro_batch_size=micro_batch_size,
        recompute=recompute,
        context_parallel=context_parallel,
        expert_parallel=expert_parallel,
        expert_tensor_parallel=expert_tensor_parallel,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
        ddp_bucket_size=ddp_bucket_size,
        overlap_p2p_communication=overlap_p2p_communication,
    )
    if why is not None:
        from pipette_opt.report.plan_file import read_plan
        from pipette_opt.why import why as why_not

        answer = why_not(job.instance, space, why, max_oom_risk, None if plan is None else read_plan(plan).estimate)
        if json:
            show_json(asdict(answer))
        else:
            show(f"{why}: {answer.verdict}", *(f"  {reason}" for reason in answer.reasons))
        return
    if plan is not None:
        raise InputError("--plan", "has no effect without --why.")
    enumeration, rows = candidate_overview(job.instance, space, max_oom_risk)
    shown = rows if top == 0 else rows[:top]
    if json:
        show_json([{**asdict(row), "config": asdict(row.config)} for row in shown])
    else:
        show(candidates_table(shown))
        say(f"{len(shown)} of {counted(len(rows), 'candidate')} shown, the best bound first")
        say(enumeration.explain())
