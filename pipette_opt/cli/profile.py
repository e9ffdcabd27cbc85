"""``pipette-opt profile``: measurements on the machines at hand."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt

app = typer.Typer(help="Measure links, layer times and memory on your machines.", no_args_is_help=True)


@app.command("links")
def links(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Cluster file to write; the link matrices go next to it.")
    ] = Path("cluster.yaml"),
    log: Annotated[
        Path | None, typer.Option(help="File to append each measurement to; by default next to the cluster file.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="Communication backend: auto (nccl if GPUs are present), nccl or gloo.", rich_help_panel=opt.RUN
        ),
    ] = "auto",
    sizes: Annotated[
        str, typer.Option(help="Message sizes in MiB, separated by commas.", rich_help_panel=opt.RUN)
    ] = "4,32",
    seconds: Annotated[
        float, typer.Option(help="Seconds of measurement for each size and direction.", rich_help_panel=opt.RUN)
    ] = 0.3,
    flows: Annotated[
        str | None,
        typer.Option(
            help="Numbers of concurrent flows between two hosts, e.g. 1,4,8; by default 1 and all processes of a host.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Measure a single pair of hosts at a time.", rich_help_panel=opt.RUN),
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Name of this host; by default the machine's host name.", rich_help_panel=opt.RUN)
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU type, if the driver's name is not in the catalogue.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per host, if fewer processes run on a host.")] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="Address of the host of rank 0, if the launcher does not set MASTER_ADDR.")
    ] = None,
    master_port: Annotated[int | None, typer.Option(help="A free port on the host of rank 0.")] = None,
    timeout: Annotated[
        float, typer.Option(help="End the run if a host does not answer for this many seconds.")
    ] = 300.0,
) -> None:
    """
    Measure every link between hosts, in both directions; each round measures disjoint pairs of hosts.

    Start the command on every host, with one process per host or per GPU. A second run continues an unfinished one.

    Example: [bold]srun --ntasks-per-node=8 pipette-opt profile links -o cluster.yaml[/], or [bold]torchrun --nnodes=16
    --nproc-per-node=8 ... -m pipette_opt profile links -o cluster.yaml[/]
    """
    from pipette_opt.base.units import MIB, counted
    from pipette_opt.cli.output import check_file, say, say_progress
    from pipette_opt.measure.links import LinkParams, profile_links
    from pipette_opt.measure.world import find_world, process_environment
    from pipette_opt.read.cluster import write_cluster
    from pipette_opt.read.links import import_links

    check_file(out, "link matrices are written beside it")
    opt.one_of("--backend", backend, ("auto", "nccl", "gloo"))
    world = find_world(process_environment(), master_addr, master_port, host)
    numbers = opt.sizes("--flows", flows) or tuple(sorted({1, world.local_size}))
    params = opt.checked(
        LinkParams,
        sizes=tuple(MIB * size for size in opt.sizes("--sizes", sizes) or ()),
        seconds=seconds,
        flows=numbers,
        together=not alone,
        timeout_s=timeout,
    )
    log = log or out.with_suffix(".links.jsonl")
    found = profile_links(
        world,
        log,
        params,
        backend=backend,  # type: ignore[arg-type]
        on_round=lambda done, total: say_progress(f"round {done} of {total}"),
    )
    if found is None:
        return
    imported = import_links(log, gpu=gpu, gpus_per_node=gpus_per_node, name=out.stem)
    write_cluster(imported.cluster, out, comment="\n".join(imported.notes))
    for note in imported.notes:
        say(f"- {note}")
    say(f"{counted(imported.cluster.num_nodes, 'host')} written to {out}, measurements in {log}")


@app.command("compute")
def compute(
    model: Annotated[str, typer.Option(help="Preset name, Hugging Face config.json, or Megatron arguments.")],
    seq_length: Annotated[int, typer.Option(help="Tokens per sequence.", min=1)],
    env: opt.Env = None,
    tensor_parallel: Annotated[
        str, typer.Option(help="Tensor-parallel sizes to time, separated by commas.")
    ] = "1,2,4,8",
    micro_batch_size: Annotated[str, typer.Option(help="Micro-batch sizes to time, separated by commas.")] = "1,2,4",
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp16 or fp32.")] = "bf16",
    device: Annotated[str, typer.Option(help="Device to time on: cuda, cuda:N or cpu.")] = "cuda",
    gpu: Annotated[str | None, typer.Option(help="GPU type, if the driver's name is not in the catalogue.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each combination; the median is kept.", min=1)] = 10,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write the layer times to.")] = Path(
        "layers.csv"
    ),
) -> None:
    """
    Time a transformer layer of the model on this device, for solve --profile.

    A second run times only the rows that the file lacks.

    Example: [bold]pipette-opt profile compute --model llama-3-70b --seq-length 4096 -o layers.csv[/]
    """
    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import check_file, check_place, say, say_progress
    from pipette_opt.measure.compute import ComputeParams, profile_compute
    from pipette_opt.read.model import read_model
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.specs import TrainingSpec

    opt.one_of("--precision", precision, ("bf16", "fp16", "fp32"))
    check_file(out, "an unfinished one is continued")
    check_place(out)
    params = opt.checked(
        ComputeParams,
        tensor_parallel=opt.sizes("--tensor-parallel", tensor_parallel),
        micro_batch_size=opt.sizes("--micro-batch-size", micro_batch_size),
        repeats=repeats,
    )
    training = TrainingSpec(
        global_batch_size=1,
        seq_length=seq_length,
        precision=precision,  # type: ignore[arg-type]
        accumulate_allreduce_grads_in_fp32=precision != "fp16",
    )
    found = profile_compute(
        read_model(model, environment=script_environment(env)),
        training,
        out,
        params,
        device=device,
        gpu=gpu,
        on_row=lambda done, total, row: say_progress(f"{done} of {total}: {row}"),
    )
    say(f"{counted(len(found.layers), 'row')} in {out}")


@app.command("memory")
def memory(
    plan: Annotated[Path, typer.Option(help="Plan file; a rank of its fullest stage is run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Stack file to write, with the measured memory.")] = Path(
        "stack.yaml"
    ),
    cluster: Annotated[
        Path | None, typer.Option(help="Path of the plan's cluster file, if the file was moved.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cpu (counts tensors without a GPU), or auto.")] = "auto",
) -> None:
    """
    Run one rank of a plan's fullest stage in megatron-core without its peers, and write its tensor memory to a stack
    file.

    The measured size of the tensors replaces the computed size of that stage; constants of the stack add the rest.
    solve and estimate read the stack with --calibration. Tested without a GPU only; never run on a GPU by the authors.

    Example: [bold]pipette-opt profile memory --plan plan.json -o stack.yaml[/]
    """
    from dataclasses import replace

    from pipette_opt.base.units import gib, percent, three_digits
    from pipette_opt.cli.output import check_file, check_place, say
    from pipette_opt.library.plans import plan_and_instance
    from pipette_opt.measure.anchor import anchored, run_fullest, usual_device
    from pipette_opt.memory.predictor import stack_predictor
    from pipette_opt.read.stack import write_stack

    opt.one_of("--device", device, ("auto", "cuda", "cpu"))
    check_file(out, "the stack is written there")
    check_place(out)
    if device == "auto":
        device = usual_device()
    planned, instance = plan_and_instance(plan, cluster)
    predictor = stack_predictor(instance.stack)
    found = run_fullest(instance, planned.config, predictor, device)
    memory_constants = anchored(predictor.memory_constants, found)
    write_stack(replace(instance.stack, memory=memory_constants), out)
    how = "allocated on the GPU" if device == "cuda" else "counted without a GPU, kernels standing as their outputs"
    off = percent(found.measured_bytes / found.counted_bytes - 1, "+")
    say(
        f"stage {found.stage}: megatron-core's tensors take {three_digits(gib(found.measured_bytes))} GiB ({how}), "
        f"{off} of the predicted {three_digits(gib(found.counted_bytes))} GiB"
    )
    say(f"the stack with this anchor is in {out}: solve --calibration {out}")
