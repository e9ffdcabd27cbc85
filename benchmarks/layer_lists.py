"""
Comparison with published times of GPT-OSS and hybrid models: ``python -m benchmarks.layer_lists``.

Rows of Megatron-Bridge's performance tables (``shared/measured/nvidia_perf_tables.csv``) give degrees, sequence length
and precision. All other options are those of NVIDIA's recipe for the model family and GPU (``shared/recipes``). No
constant is fitted to these rows. Rows in NVFP4 are left out.
"""

import re

from benchmarks.latent_models import NARROW, compare, recipe_text, table_rows

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


if __name__ == "__main__":
    known = [row for row in table_rows(FAMILIES) if row["precision"] in FORMATS]
    compare("benchmarks/layer_lists.py", known, arguments_of)
