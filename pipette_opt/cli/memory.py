"""``pipette-opt memory``: the predicted memory of one configuration."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli.options import Env

if TYPE_CHECKING:
    from pipette_opt.parallel import ParallelConfig
    from pipette_opt.specs import ModelSpec

app = typer.Typer(help="Predict the peak memory of a configuration.", no_args_is_help=True)


@app.command()
def predict(
    model: Annotated[str, typer.Option(help="Preset name, Hugging Face config.json, or Megatron arguments.")],
    global_batch_size: Annotated[int, typer.Option(help="Sequences per iteration.", min=1)],
    seq_length: Annotated[int, typer.Option(help="Tokens per sequence.", min=1)],
    env: Env = None,
    tensor_parallel: Annotated[int, typer.Option(help="Tensor-parallel size.", min=1)] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Pipeline-parallel size.", min=1)] = 1,
    data_parallel: Annotated[int, typer.Option(help="Data-parallel size.", min=1)] = 1,
    virtual_pipeline: Annotated[int, typer.Option(help="Model chunks per stage; 1 for no interleaving.", min=1)] = 1,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences per micro-batch.", min=1)] = 1,
    sequence_parallel: Annotated[
        bool, typer.Option(help="Divide norms and dropout among tensor ranks (sequence parallelism).")
    ] = True,
    distributed_optimizer: Annotated[
        bool, typer.Option(help="Divide optimizer states among data-parallel ranks.")
    ] = True,
    context_parallel: Annotated[int, typer.Option(help="Context-parallel size.", min=1)] = 1,
    expert_parallel: Annotated[int, typer.Option(help="Number of ranks that share the experts of a layer.", min=1)] = 1,
    expert_tensor_parallel: Annotated[
        int | None, typer.Option(help="Number of ranks that share each expert; by default --tensor-parallel.", min=1)
    ] = None,
    zero_stage: Annotated[
        int | None,
        typer.Option(help="ZeRO stage, 0 to 3; by default 1 with a distributed optimizer, else 0.", min=0, max=3),
    ] = None,
    recompute: Annotated[str, typer.Option(help="Recomputation: none, selective or full.")] = "none",
    recompute_method: Annotated[str, typer.Option(help="Method of full recomputation: uniform or block.")] = "uniform",
    recompute_num_layers: Annotated[
        int, typer.Option(help="Layers recomputed at a time (uniform), or per model chunk (block).", min=1)
    ] = 1,
    fp8: Annotated[bool, typer.Option("--fp8", help="Matrix products of the layers in fp8.")] = False,
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp16 or fp32.")] = "bf16",
    attention_kernel: Annotated[str, typer.Option(help="Attention kernel: flash or unfused.")] = "flash",
    gpu_memory_gib: Annotated[float, typer.Option(help="Memory of a GPU in GiB.", min=1)] = 80.0,
    max_oom_risk: Annotated[float, typer.Option(help="Accepted probability of running out of memory.")] = USUAL_RISK,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs per host; by default all GPUs of the job.", min=1)
    ] = None,
    intra_node_gb_per_s: Annotated[
        float | None,
        typer.Option(
            help="Bandwidth between GPUs of a host in GB/s, which sets the size of NCCL's buffers; by default "
            "A100's NVLink.",
            min=1,
        ),
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Stack with the memory constants: name of a shipped stack, or a file.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights file of the predictor; by default the shipped file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """
    Predict the peak memory of every stage of one configuration.

    Example: [bold]pipette-opt memory predict --model llama-3-8b --global-batch-size 512 --seq-length 4096[/]
    --tensor-parallel 4 --pipeline-parallel 2 --data-parallel 4
    """
    from pipette_opt.base.units import GB, GIB
    from pipette_opt.candidates.legality import check_legal
    from pipette_opt.cli.options import one_of
    from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
    from pipette_opt.parallel import ParallelConfig
    from pipette_opt.read.model import read_model
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.read.stack import read_stack
    from pipette_opt.specs import TrainingSpec

    one_of("--recompute", recompute, ("none", "selective", "full"))
    one_of("--recompute-method", recompute_method, ("uniform", "block"))
    one_of("--precision", precision, ("bf16", "fp16", "fp32"))
    one_of("--attention-kernel", attention_kernel, ("flash", "unfused"))
    spec = read_model(model, environment=script_environment(env))
    if recompute != "full" and (recompute_method, recompute_num_layers) != ("uniform", 1):
        option = "--recompute-method" if recompute_method != "uniform" else "--recompute-num-layers"
        raise InputError(option, f"has no effect with --recompute {recompute}; it needs --recompute full.")
    if spec.num_experts is None and (expert_parallel > 1 or expert_tensor_parallel is not None):
        option = "--expert-parallel" if expert_parallel > 1 else "--expert-tensor-parallel"
        raise InputError(option, f"has no effect, because model {spec.name} has no experts.")
    try:
        training = TrainingSpec(
            global_batch_size=global_batch_size,
            seq_length=seq_length,
            precision=precision,  # type: ignore[arg-type]
            attention_kernel=attention_kernel,  # type: ignore[arg-type]
            fp8=fp8,
        )
        config = ParallelConfig(
            tensor_model_parallel_size=tensor_parallel,
            pipeline_model_parallel_size=pipeline_parallel,
            data_parallel_size=data_parallel,
            micro_batch_size=micro_batch_size,
            layers_per_stage=_equal_stages(spec, pipeline_parallel, virtual_pipeline),
            virtual_pipeline_model_parallel_size=virtual_pipeline if virtual_pipeline > 1 else None,
            sequence_parallel=sequence_parallel and tensor_parallel > 1,
            recompute_granularity=None if recompute == "none" else recompute,  # type: ignore[arg-type]
            use_distributed_optimizer=distributed_optimizer if zero_stage is None else zero_stage > 0,
            context_parallel_size=context_parallel,
            expert_model_parallel_size=expert_parallel,
            expert_tensor_parallel_size=expert_tensor_parallel,
            recompute_method=recompute_method,  # type: ignore[arg-type]
            recompute_num_layers=recompute_num_layers,
            zero_stage=zero_stage,
        )
        config.num_microbatches(global_batch_size)
        reasons = check_legal(spec, training, config)
        if reasons:
            raise InputError("memory predict", f"{reasons[0]}.")
        constants = None if framework is None else read_stack(framework).memory
        predictor = MemoryPredictor.load(weights, memory_constants=constants)
        prediction = predictor.predict(
            spec,
            training,
            [config],
            gpus_per_node=gpus_per_node,
            intra_node_bytes_per_s=None if intra_node_gb_per_s is None else intra_node_gb_per_s * GB,
            max_oom_risk=max_oom_risk,
        )[0]
    except InputError:
        raise
    except ValueError as error:
        raise InputError("memory predict", str(error)) from error
    capacity = predictor.room_bytes(int(gpu_memory_gib * GIB))
    risks = oom_probability(prediction, capacity)
    rows: list[dict[str, Any]] = [
        {
            "stage": stage,
            "predicted_gib": predicted / GIB,
            "upper_gib": upper / GIB,
            "capacity_gib": capacity / GIB,
            "oom_probability": float(risks[stage]),
            "extrapolates": bool(outside),
            "components_gib": {name: size / GIB for name, size in prediction.components_of(stage).items()},
        }
        for stage, (predicted, upper, outside) in enumerate(
            zip(prediction.predicted_bytes, prediction.upper_bytes, prediction.extrapolates, strict=True)
        )
    ]
    _show(rows, config, as_json)


def _equal_stages(model: "ModelSpec", pipeline_parallel: int, virtual_pipeline: int) -> tuple[int, ...]:
    """Return the layers of equal stages; if chunks need it, embedding, head or both count as layers."""
    from pipette_opt.candidates.splits import counted_splits

    splits = counted_splits(model.num_layers, pipeline_parallel, virtual_pipeline) if virtual_pipeline > 1 else []
    if splits:
        return splits[0]
    if model.num_layers % pipeline_parallel:
        raise InputError(
            "--pipeline-parallel",
            f"must divide the {model.num_layers} layers of {model.name} (with --virtual-pipeline also with embedding, "
            f"head or both counted as layers), got {pipeline_parallel}.",
        )
    return (model.num_layers // pipeline_parallel,) * pipeline_parallel


def _show(rows: list[dict[str, Any]], config: "ParallelConfig", as_json: bool) -> None:
    """Print a table of stages and a table of memory components, or JSON."""
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    parts = [{"stage": row["stage"], **row.pop("components_gib")} for row in rows]
    for title, shown in ((config.label(), rows), ("of the predicted peak, GiB", parts)):
        table = Table(*(name.replace("_", " ") for name in shown[0]), title=title)
        for row in shown:
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
        Console().print(table)
