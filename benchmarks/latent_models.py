"""
Comparison with published times of DeepSeek-V3 and Kimi-K2: ``python -m benchmarks.latent_models``.

Rows of Megatron-Bridge's performance tables (``shared/measured/nvidia_perf_tables.csv``) give degrees and precision.
All other options are those of NVIDIA's recipe for the model family and GPU (``shared/recipes``), or for the nearest GPU
with a recipe. No constant is fitted to these rows. Rows without a precision or with dropped tokens are left out.
"""

import csv
import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.backtest.table import ComparedRun, write_backtests
from benchmarks.measured import shared_folder
from pipette_opt.base.errors import InputError
from pipette_opt.job.read import read_job
from pipette_opt.library.current import current_of
from pipette_opt.options.description import JobOptions
from pipette_opt.read.gpus import read_gpu_entry

SHARED = shared_folder()

FAMILIES = {"DeepSeekV3": "deepseek_v3", "DeepSeekV3 (w/o MTP)": "deepseek_v3", "Kimi_K2": "kimi_k2"}
"""Recipe family of each model name in the performance tables."""

NEAREST = {"gb300": "gb200", "b300": "b200", "b200": "b300", "gb200": "gb300"}
"""GPU whose recipe replaces a missing recipe of another GPU."""

NARROW = "--fp8-format e4m3\n--fp8-recipe mxfp8\n--fp8-param-gather\n--reuse-grad-buf-for-mxfp8-param-ag\n"
"""Options of NVIDIA's recipes for MXFP8."""

PARTS = {16: "Et*4|(t*4|)*14t{m}L", 8: "Et*8|(t*8|)*6t*5{m}L"}
"""Pipeline layouts of 61 layers by number of chunks: those of the recipes, and one with equal stages."""


SAID_ELSEWHERE = {
    ("DeepSeekV3", "B200", "32"): {
        "overlap-moe-expert-parallel-comm": "",
        "moe-flex-dispatcher-backend": "deepep",
        "recompute-modules": "mla_up_proj mlp",
    }
}
"""
Options from Megatron-Bridge's own script for rows (model, GPU, expert ranks) whose layout no recipe here has.

Source: ``DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_MX_V2`` in ``deepseek_workload_base_configs.py`` at 0426418.
"""


def recipe_text(family: str, gpu: str) -> str:
    """Return the arguments of the first legal pretraining recipe of a family and GPU, preferably in MXFP8."""
    found = [json.loads(line) for line in (SHARED / "recipes" / "recipes.jsonl").read_text().splitlines()]
    for kind in (gpu, *([NEAREST[gpu]] if gpu in NEAREST else [])):
        recipes = [
            recipe for recipe in found if recipe["family"] == family and recipe["gpu"] == kind and not recipe["illegal"]
        ]
        recipes = [
            recipe
            for recipe in recipes
            if recipe["task"] == "pretrain" and "fsdp" not in recipe["name"] and "hsdp" not in recipe["name"]
        ]
        if recipes:
            best = min(
                recipes,
                key=lambda recipe: ("nvfp4" in recipe["name"], recipe["precision"] != "fp8_mx", len(recipe["name"])),
            )
            return (SHARED / "recipes" / "megatron_args" / f"{best['name']}.args").read_text()
    raise SystemExit(f"no recipe of {family} on {gpu}")


def arguments_of(row: dict[str, str]) -> str:
    """Return the recipe's arguments with the degrees and the precision of a row."""
    text = recipe_text(FAMILIES[row["model"]], row["gpu"].lower())
    chunks, degree = int(float(row["vpp"] or 1)), re.search(r"EP (\d+)", row["notes"])
    options = {
        "tensor-model-parallel-size": row["tp"],
        "pipeline-model-parallel-size": row["pp"],
        "expert-model-parallel-size": degree[1] if degree else "1",
        "micro-batch-size": row["mbs"],
        "global-batch-size": row["gbs"],
    }
    elsewhere = SAID_ELSEWHERE.get((row["model"], row["gpu"], degree[1] if degree else ""), {})
    options |= elsewhere
    dropped = [
        *options,
        *(["moe-hybridep-num-sms"] if elsewhere else []),
        "pipeline-model-parallel-layout",
        "fp8-format",
        "fp8-recipe",
        "fp8-param-gather",
        "ckpt-format",
    ]
    dropped += ["reuse-grad-buf-for-mxfp8-param-ag", "fp8-output-proj", "overlap-param-gather-with-optimizer-step"]
    if chunks == 1:  # Megatron-Core overlaps experts with a pipeline in an interleaved schedule only
        dropped += ["overlap-moe-expert-parallel-comm", "delay-wgrad-compute"]
    dropped += ["mtp-num-layers"] if "w/o MTP" in row["model"] else []
    kept = [line for line in text.splitlines() if line[2:].split(" ")[0] not in dropped]
    depths = "m" if any(line.startswith("--mtp-num-layers") for line in kept) else ""
    layout = PARTS[int(row["pp"]) * chunks].format(m=depths)
    lines = [
        *kept,
        *(f"--{name} {value}".strip() for name, value in options.items()),
        f"--pipeline-model-parallel-layout '{layout}'",
    ]
    return "\n".join(lines) + "\n" + (NARROW if row["precision"] == "MXFP8" else "")


def compared_with(row: dict[str, str], text: str) -> ComparedRun:
    """Return the measured over our predicted time of a row, on usual hosts of its GPU; memory limits are ignored."""
    usual = read_gpu_entry(row["gpu"].lower()).usual_host
    per_node = usual.gpus_per_node if usual else 8
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.args"
        path.write_text(text)
        options = JobOptions(
            nodes=str(int(row["num_gpus"]) // per_node),
            gpu=row["gpu"].lower(),
            gpus_per_node=per_node,
            launch=str(path),
        )
        found = current_of(read_job(options), None)
    return ComparedRun(
        name=row["model"],
        model=found.instance.model,
        training=found.instance.training,
        gpu=found.instance.cluster.nodes[0].gpu.name,
        num_gpus=int(row["num_gpus"]),
        ratio=float(row["iter_time_s"]) / found.estimate.iteration_time_s,
    )


def table_rows(families: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of the performance tables whose model is among the given ones."""
    with (SHARED / "measured" / "nvidia_perf_tables.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["model"] in families]


def compare(program: str, rows: Iterable[dict[str, Any]], arguments: Callable[[dict[str, Any]], str]) -> None:
    """
    Print the published and predicted time of each row and the mean error of each model, and note them as back-tests.

    Parameters
    ----------
    program
        Path of the benchmark, as the notes name it.
    arguments
        Function that returns the arguments of Megatron-LM of a row.
    """
    errors: dict[str, list[float]] = {}
    compared = []
    for row in rows:
        try:
            compared.append(compared_with(row, arguments(row)))
        except InputError as error:
            print(f"{row['model']:22} {row['gpu']:6} refused: {error}")
            continue
        published = float(row["iter_time_s"])
        seconds = published / compared[-1].ratio
        off = seconds / published - 1
        errors.setdefault(row["model"], []).append(off)
        chunks = f" vpp{float(row['vpp']):.0f}" if row["vpp"] else ""
        kept = row["notes"].split("; ")[-3]
        degrees = f"tp{row['tp']} pp{row['pp']}{chunks} mbs{row['mbs']} {kept} seq {row['seq_len']}"
        release = row["source"].removeprefix("MegatronBridge-")
        print(
            f"{row['model']:22} {row['gpu']:6} {release:9} {row['precision']:6} {degrees:32} "
            f"published {published:6.2f} s, ours {seconds:6.2f} s, {100 * off:+5.1f} %"
        )
    write_backtests(program, compared)
    for model, of_model in errors.items():
        sizes = 100 * np.abs(of_model)
        print(f"{model}: {len(of_model)} rows, mean |error| {sizes.mean():.1f} %, median {np.median(sizes):.1f} %")


if __name__ == "__main__":
    precise = [row for row in table_rows(FAMILIES) if row["precision"]]
    compare("benchmarks/latent_models.py", precise, arguments_of)
