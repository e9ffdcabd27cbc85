"""``pipette-opt gpus`` and ``pipette-opt models``."""

from typing import Annotated, Any

import typer

from pipette_opt.cli import options as opt


def gpus(
    name: Annotated[
        str | None, typer.Argument(help="Show only this GPU type; any usual name works, e.g. H100.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    List the known GPU types: memory, peak FLOP/s, links, usual hosts and sources.

    Example: [bold]pipette-opt gpus[/], or [bold]pipette-opt gpus h100-sxm --json[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.units import GB, GIB, TFLOP, US
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.read.backtests import runs_by_gpu
    from pipette_opt.read.gpus import CatalogueEntry, read_gpu_catalogue, read_gpu_entry
    from pipette_opt.report.catalogue import gpus_table

    compared = runs_by_gpu()

    def row(entry: CatalogueEntry) -> dict[str, Any]:
        gpu, host = entry.gpu, entry.usual_host
        return {
            "name": gpu.name,
            "memory_gib": gpu.memory_bytes / GIB,
            "memory_bandwidth_gb_per_s": gpu.memory_bytes_per_s / GB,
            "peak_tflops": {precision: flops / TFLOP for precision, flops in gpu.peak_flops.items()},
            "intra_node": {
                "bandwidth_gb_per_s": entry.intra_node_bytes_per_s / GB,
                "latency_us": round(entry.intra_node_latency_s / US, 6),
            },
            "usual_host": None if host is None else {**asdict(host), "nics": str(host.nics)},
            "usual_domain": None if entry.usual_domain is None else asdict(entry.usual_domain),
            "aliases": entry.aliases,
            "note": entry.note,
            "public_runs": compared.get(gpu.name, 0),
            "source": gpu.source,
        }

    entries = read_gpu_catalogue().values() if name is None else [read_gpu_entry(name, "gpus")]
    rows = [row(entry) for entry in entries]
    if json:
        show_json(rows)
    else:
        show(gpus_table(rows))


def models(
    name: Annotated[
        str | None, typer.Argument(help="Show only this model; any usual name works, e.g. its Hugging Face id.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    List the model presets that are shipped: parameters, shape, experts and source.

    Example: [bold]pipette-opt models[/], or [bold]pipette-opt models llama-3-8b --json[/]
    """
    from pipette_opt.base.errors import InputError
    from pipette_opt.base.shipped import shipped_path
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.read.files import read_yaml
    from pipette_opt.read.model import read_model
    from pipette_opt.read.model_names import hub_ids, list_models, preset_called, presets_like
    from pipette_opt.report.catalogue import models_table

    def row(preset: str) -> dict[str, Any]:
        model = read_model(preset)
        content = read_yaml(shipped_path("data", "architectures", f"{preset}.yaml"))
        return {
            "name": preset,
            "num_parameters": model.num_parameters,
            "num_mtp_parameters": model.num_mtp_parameters,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_query_groups": model.num_query_groups,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_position_embeddings,
            "num_experts": model.num_experts,
            "moe_router_topk": None if model.num_experts is None else model.moe_router_topk,
            "hub_ids": hub_ids()[preset],
            "source": content["source"],
        }

    preset = None if name is None else preset_called(name)
    if name is not None and preset is None:
        near = presets_like(name)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise InputError(
            "models", f"no model {name!r} is shipped.{hint} `pipette-opt models` lists the shipped models."
        )
    rows = [row(known) for known in (list_models() if preset is None else [preset])]
    if json:
        show_json(rows)
    else:
        show(models_table(rows))
