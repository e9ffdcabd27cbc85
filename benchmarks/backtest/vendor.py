"""
Runs that vendors published: MLPerf Training logs and performance tables, completed with values that the rows omit.

No constant is fitted. Architectures are the project's presets. Hosts have one link of 400 Gbit/s for each GPU (DGX and
HGX datasheets). GB200 and GB300 are in hosts of four on their usual NVLink domains (NVL72).
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measured import completed
from pipette_opt.calibrate.memory import VERSION_COLUMN
from pipette_opt.read.run_models import SHAPE
from pipette_opt.read.runs import BANDWIDTH_COLUMN, MeasuredRun

Runs = list[MeasuredRun]

OVERLAP_COLUMN = "overlap_moe_expert_parallel_comm"

LINK_GB_PER_S = 50.0

FABRIC = ("GB200", "GB300")

FEW_GPUS = 64
"""Maximum number of GPUs of runs with experts that a fit may use; larger runs are the test."""

DENSE = {
    "GPT3-175B": "gpt-3-175b",
    "LLAMA2-13B": "llama-2-13b",
    "LLAMA3-8B": "llama-3-8b",
    "Llama-3-8B": "llama-3-8b",
    "Llama-3-70B": "llama-3-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
}
"""Presets of dense models, by the names in the tables."""

QWEN3 = {"Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b"}
"""Presets of mixtures, by the names in the tables."""


def mlperf(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """Return the runs of GPT-3 175B, whose rounds are software versions, and of Llama 3.1 405B."""
    described_runs = [
        on_hosts(run, {VERSION_COLUMN: run.source, "attention_kernel": "flash"})
        for run in runs
        if run.iter_time_s is not None
    ]
    return _parted(described_runs, "Llama-3.1-405B")


def dense(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """
    Return the pre-training runs of dense models up to 175 billion parameters, and of Llama 3.1 405B.

    Seven rows of release 25.09 name no precision. They are left out: their rates exceed those of 16-bit products.
    """
    described_runs = []
    for run in runs:
        preset = DENSE.get(run.model)
        if preset is not None and run.precision and "LoRA" not in run.notes and "SFT" not in run.notes:
            described_runs.append(described(run, preset))
    return _parted(described_runs, "Llama-3.1-405B")


def experts(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """Return the runs with experts on up to 64 GPUs (GPT-OSS 120B, Qwen3 30B), and of Qwen3 235B on 256."""
    described_runs = [described(run, QWEN3[run.model]) for run in runs if run.model in QWEN3]
    return gpt_oss(runs)[1] + [run for run in described_runs if run.num_gpus <= FEW_GPUS], [
        run for run in described_runs if run.num_gpus > FEW_GPUS
    ]


def gpt_oss(runs: Sequence[MeasuredRun]) -> tuple[Runs, Runs]:
    """Return no runs to fit to, and the runs of GPT-OSS 120B in 16 bits on GPUs of the catalogue."""
    tested = []
    for run in runs:
        degree = expert_degree(run)
        if run.model == "GPT OSS 120B" and run.precision == "bf16" and run.gpu is not None and degree:
            cells = {"zero_stage": "1", "attention_kernel": "flash", "ep": degree, **tokens_sent(run)}
            found = on_hosts(run, {**of_preset("gpt-oss-120b"), **cells})
            tested.append(replace(found, model=f"{run.model}, {run.gpu_name}"))
    return [], tested


FUSED_RELEASE = "26.06"
"""First release of Megatron-Bridge whose mxfp8 recipes for Blackwell send tokens during compute."""


def tokens_sent(run: MeasuredRun) -> dict[str, str]:
    """
    Return the token dispatcher of Megatron-Bridge's performance recipe for a row, its overlap, and use of CUDA graphs.

    Source: ``scripts/performance/configs`` (qwen, gpt_oss) and ``perf_recipes`` at 067f987. GPT-OSS has an all-to-all,
    except HybridEP on B300 with 8 expert ranks. Qwen3 has HybridEP's kernels, except for the 235B on H100, B200 and
    B300, which has an all-to-all. On H100 it runs during the compute of another micro-batch. So do HybridEP's kernels
    in mxfp8 on Blackwell from ``FUSED_RELEASE`` on, where the 235B on GB200 and GB300 is also launched as one graph.
    """
    degree, release = expert_degree(run), run.source.rpartition("-")[2]
    if "OSS" in run.model:
        return {"dispatcher": "hybridep" if run.gpu_name == "B300" and degree == "8" else "alltoall"}
    large = run.model == "Qwen3_235B_a22B"
    if large and run.gpu_name in ("H100", "B200", "B300"):
        return {"dispatcher": "alltoall", OVERLAP_COLUMN: str(run.gpu_name == "H100")}
    fused = run.precision == "mxfp8" and release >= FUSED_RELEASE
    return {"dispatcher": "hybridep", OVERLAP_COLUMN: str(fused), "cuda_graph": str(fused and large)}


def of_preset(preset: str) -> dict[str, str]:
    """Return the cells of a row that names a preset and has no shape of its own."""
    return {"model": preset, **dict.fromkeys((*SHAPE, "vocab"), "")}


def described(run: MeasuredRun, preset: str) -> MeasuredRun:
    """
    Return a row of the tables with a preset as its model, and with the options of the vendor's recipes.

    They are fused attention, sequence parallelism, and experts that tensor ranks do not split.
    """
    cells = {
        "zero_stage": run.cells.get("zero_stage") or "1",
        "seq_parallel": str(run.launch.tensor_model_parallel_size > 1),
        "attention_kernel": "flash",
    }
    if preset in QWEN3.values():
        cells |= {"ep": expert_degree(run), "etp": "1", **tokens_sent(run)}
    found = on_hosts(run, of_preset(preset) | cells)
    return replace(found, model=f"{run.model}, {run.gpu_name} {run.precision or 'bf16'}")


def on_hosts(run: MeasuredRun, columns: dict[str, str]) -> MeasuredRun:
    """Return the run with these cells, and with the bandwidth of its hosts."""
    fabric = any(name in run.gpu_name for name in FABRIC)
    links = {BANDWIDTH_COLUMN: str(LINK_GB_PER_S * run.gpus_per_node)} if fabric else {}
    return completed(run, columns | links)


def expert_degree(run: MeasuredRun) -> str:
    """Return the expert-parallel size from the notes of a row; empty if they have none."""
    found = re.search(r"\bEP (\d+)", run.notes)
    return found.group(1) if found else ""


def _parted(runs: Sequence[MeasuredRun], tested: str) -> tuple[Runs, Runs]:
    """Return the runs of other models, and of the model ``tested``."""
    return [run for run in runs if tested not in run.model], [run for run in runs if tested in run.model]
