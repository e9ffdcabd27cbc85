"""
Comparison with published times of GPT-OSS and hybrid models: ``python -m benchmarks.layer_lists``.

Rows of Megatron-Bridge's performance tables (``shared/measured/nvidia_perf_tables.csv``) give degrees, sequence length
and precision. All other options are those of NVIDIA's recipe for the model family and GPU (``shared/recipes``). No
constant is fitted to these rows. Rows in NVFP4 are left out.
"""

import csv
import re
from typing import Any

import numpy as np

from benchmarks.backtest.table import write_backtests
from benchmarks.latent_models import NARROW, SHARED, compared_with, recipe_text
from pipette_opt.base.errors import InputError

FAMILIES = {
    "GPT OSS 120B": "gpt_oss_120b",
    "Nemotron_3_Nano": "nemotron_3_nano",
    "Nemotron_3_Super": "nemotron_3_super",
}
"""Recipe family of each model name in the performance tables."""

FORMATS = {"MXFP8": NARROW, "BF16": ""}
"""Options of Megatron-LM for each precision."""


def arguments_of(row: dict[str, str]) -> str:
    """Return the recipe's arguments with the degrees, sequence length and precision of a row."""
    text, degree = recipe_text(FAMILIES[row["model"]], row["gpu"].lower()), re.search(r"EP (\d+)", row["notes"])
    options = {
        "tensor-model-parallel-size": row["tp"],
        "pipeline-model-parallel-size": row["pp"],
        "expert-model-parallel-size": degree[1] if degree else "1",
        "micro-batch-size": row["mbs"],
        "global-batch-size": row["gbs"],
        "seq-length": row["seq_len"],
        "max-position-embeddings": row["seq_len"],
    }
    dropped = [
        *options,
        "fp8-format",
        "fp8-recipe",
        "fp8-param-gather",
        "reuse-grad-buf-for-mxfp8-param-ag",
        "fp4-format",
    ]
    dropped += ["fp4-recipe", "fp4-param-gather", "sequence-parallel", "moe-router-padding-for-fp8", "fp8-output-proj"]
    kept = [line for line in text.splitlines() if line[2:].split(" ")[0] not in dropped]
    kept += [f"--{name} {value}" for name, value in options.items()]
    kept += ["--sequence-parallel"] if int(row["tp"]) > 1 else []
    return "\n".join(kept) + "\n" + FORMATS[row["precision"]]


def main() -> None:
    """Print the published and predicted time of each row, and the mean error of each model."""
    errors: dict[str, list[float]] = {}
    compared = []
    with (SHARED / "measured" / "nvidia_perf_tables.csv").open(newline="") as file:
        rows: list[dict[str, Any]] = [row for row in csv.DictReader(file) if row["model"] in FAMILIES]
    for row in rows:
        if row["precision"] not in FORMATS:
            continue
        try:
            compared.append(compared_with(row, arguments_of(row)))
        except InputError as error:
            print(f"{row['model']:16} {row['gpu']:6} refused: {error}")
            continue
        published = float(row["iter_time_s"])
        seconds = published / compared[-1].ratio
        off = seconds / published - 1
        errors.setdefault(row["model"], []).append(off)
        degrees = f"tp{row['tp']} pp{row['pp']} mbs{row['mbs']} {row['notes'].split('; ')[-3]} seq {row['seq_len']}"
        release = row["source"].removeprefix("MegatronBridge-")
        print(
            f"{row['model']:16} {row['gpu']:6} {release:9} {row['precision']:6} {degrees:32} "
            f"published {published:6.2f} s, ours {seconds:6.2f} s, {100 * off:+5.1f} %"
        )
    write_backtests("benchmarks/layer_lists.py", compared)
    for model, of_model in errors.items():
        sizes = 100 * np.abs(of_model)
        print(f"{model}: {len(of_model)} rows, mean |error| {sizes.mean():.1f} %, median {np.median(sizes):.1f} %")


if __name__ == "__main__":
    main()
