"""
Runs that vendors published: MLPerf Training logs and performance tables, with what the rows leave out.

Nothing here is fitted. Architectures are the project's presets; hosts have one link of 400 Gbit/s for each GPU (DGX and
HGX datasheets); GB200 and GB300 are in hosts of four on the NVLink domains that are usual for them (NVL72).
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from pipette_opt.calibrate.expert_columns import OVERLAP_COLUMN
from pipette_opt.calibrate.memory import VERSION_COLUMN
from pipette_opt.read.model import read_model
from pipette_opt.read.runs import BANDWIDTH_COLUMN, MeasuredRun
from pipette_opt.specs import ModelSpec

Runs = list[MeasuredRun]

LINK_GB_PER_S = 50.0

FABRIC = ("GB200", "GB300")

FEW_GPUS = 64
"""Mixtures on so many are told from those on more."""

DENSE = {
    "GPT3-175B": "gpt-3-175b",
    "LLAMA2-13B": "llama-2-13b",
    "LLAMA3-8B": "llama-3-8b",
    "Llama-3-8B": "llama-3-8b",
    "Llama-3-70B": "llama-3-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
}
"""Presets of dense models, by the names of the tables."""

QWEN3_235B = {
    "num_layers": 94,
    "hidden_size": 4096,
    "ffn_hidden_size": 12288,
    "num_attention_heads": 64,
    "num_query_groups": 4,
    "moe_ffn_hidden_size": 1536,
}
"""Where it differs from the 30B: config.json of huggingface.co/Qwen/Qwen3-235B-A22B."""


def mlperf(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """GPT-3 175B, whose rounds are versions of the software, and Llama 3.1 405B."""
    described_runs = [
        replace(on_hosts(run, run.extra | {VERSION_COLUMN: run.source}), attention_kernel="flash")
        for run in runs
        if run.iter_time_s is not None
    ]
    return _parted(described_runs, "Llama-3.1-405B")


def dense(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """
    Dense models of up to 175 billion parameters, and Llama 3.1 405B; pre-training only.

    Seven rows of release 25.09 name no precision. They are left out: their rates are more than 16-bit products attain.
    """
    described_runs = []
    for run in runs:
        preset = DENSE.get(run.model)
        if preset is not None and run.precision and "LoRA" not in run.notes and "SFT" not in run.notes:
            described_runs.append(described(run, read_model(preset)))
    return _parted(described_runs, "Llama-3.1-405B")


def experts(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """Mixtures on up to 64 GPUs, GPT-OSS 120B and Qwen3 30B; and Qwen3 235B on 256."""
    small = read_model("qwen3-30b-a3b")
    large = replace(small, name="qwen3-235b-a22b", **QWEN3_235B)  # type: ignore[arg-type]
    models = {"Qwen3_30B_a3B": small, "Qwen3_235B_a22B": large}
    described_runs = [described(run, models[run.model]) for run in runs if run.model in models]
    return gpt_oss(runs)[1] + [run for run in described_runs if run.num_gpus <= FEW_GPUS], [
        run for run in described_runs if run.num_gpus > FEW_GPUS
    ]


GPT_OSS_120B = {
    "num_layers": 36,
    "hidden": 2880,
    "ffn_hidden": 2880,
    "heads": 64,
    "kv_heads": 8,
    "vocab": 201088,
    "zero_stage": 1,
    "attention_kernel": "flash",
}
"""What the rows leave out: config.json of huggingface.co/openai/gpt-oss-120b, and Megatron-Bridge's optimizer."""

GPT_OSS_COLUMNS = {
    "num_experts": "128",
    "moe_router_topk": "4",
    "moe_ffn_hidden_size": "2880",
    "kv_channels": "64",
    "add_bias_linear": "true",
    "add_qkv_bias": "true",
}


def gpt_oss(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """Nothing to fit to, and GPT-OSS 120B in 16 bits where the catalogue has the GPU."""
    judged = []
    for run in runs:
        degree = _expert_degree(run)
        if run.model == "GPT OSS 120B" and run.precision == "bf16" and run.gpu is not None and degree:
            named = on_hosts(run, run.extra | GPT_OSS_COLUMNS | tokens_sent(run) | {"ep": degree})
            judged.append(replace(named, model=f"{run.model}, {run.gpu_name}", **GPT_OSS_120B))  # type: ignore[arg-type]
    return [], judged


FUSED_RELEASE = "26.06"
"""Of Megatron-Bridge: the first whose recipes in mxfp8 for Blackwell send tokens beside compute."""


def tokens_sent(run: MeasuredRun) -> dict[str, str]:
    """
    How tokens get to experts by Megatron-Bridge's performance recipes, and whether graphs launch an iteration.

    ``scripts/performance/configs`` (qwen, gpt_oss) and ``perf_recipes`` at 067f987. GPT-OSS has an all-to-all, but
    HybridEP on B300 with 8 expert ranks. Qwen3 has HybridEP's kernels, except for the 235B on H100, B200 and B300,
    which has an all-to-all; on H100 it goes beside the compute of another micro-batch. So do HybridEP's kernels in
    mxfp8 on Blackwell from ``FUSED_RELEASE`` on, where the 235B on GB200 and GB300 is launched as one graph as well.
    """
    degree, release = _expert_degree(run), run.source.rpartition("-")[2]
    if "OSS" in run.model:
        return {"dispatcher": "hybridep" if run.gpu_name == "B300" and degree == "8" else "alltoall"}
    large = run.model == "Qwen3_235B_a22B"
    if large and run.gpu_name in ("H100", "B200", "B300"):
        return {"dispatcher": "alltoall", OVERLAP_COLUMN: str(run.gpu_name == "H100")}
    fused = run.precision == "mxfp8" and release >= FUSED_RELEASE
    return {"dispatcher": "hybridep", OVERLAP_COLUMN: str(fused), "cuda_graph": str(fused and large)}


def described(run: MeasuredRun, model: ModelSpec) -> MeasuredRun:
    """
    A row of the tables with the model's sizes, and what the vendor's recipes have: fused attention, sequence
    parallelism, experts that tensor ranks do not split.
    """
    assert run.tp is not None
    columns = {
        "gated_linear_unit": str(model.gated_linear_unit),
        "tied_embeddings": str(not model.untie_embeddings_and_output_weights),
        "add_bias_linear": str(model.add_bias_linear),
        "add_qkv_bias": str(model.add_qkv_bias),
        "kv_channels": str(model.kv_channels),
    }
    if model.num_experts is not None:
        names = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size")
        columns |= {name: str(getattr(model, name)) for name in names} | {"ep": _expert_degree(run), "etp": "1"}
        columns |= tokens_sent(run)
    return replace(
        on_hosts(run, run.extra | columns),
        model=f"{run.model}, {run.gpu_name} {run.precision or 'bf16'}",
        num_layers=model.num_layers,
        hidden=model.hidden_size,
        ffn_hidden=model.ffn_hidden_size,
        heads=model.num_attention_heads,
        kv_heads=model.num_query_groups,
        vocab=model.vocab_size,
        zero_stage=1 if run.zero_stage is None else run.zero_stage,
        seq_parallel=run.tp > 1,
        attention_kernel="flash",
    )


def on_hosts(run: MeasuredRun, columns: dict[str, str]) -> MeasuredRun:
    """The run with its hosts and their links, and such columns."""
    fabric = any(name in run.gpu_name for name in FABRIC)
    links = {BANDWIDTH_COLUMN: str(LINK_GB_PER_S * run.gpus_per_node)} if fabric else {}
    return replace(run, extra=columns | links)


def _expert_degree(run: MeasuredRun) -> str:
    """The tables have it in their notes."""
    found = re.search(r"\bEP (\d+)", run.notes)
    return found.group(1) if found else ""


def _parted(runs: Sequence[MeasuredRun], judged: str) -> tuple[Runs, Runs]:
    """Runs of other models, and of this one."""
    return [run for run in runs if judged not in run.model], [run for run in runs if judged in run.model]
