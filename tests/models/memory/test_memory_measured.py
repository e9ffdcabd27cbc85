"""
Traces against peaks that Megatron-LM's own tests recorded (exact allocated bytes of the last rank).

Nothing here was trained or adjusted on; where the folder of measurements is absent, this is skipped.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from models.memory.trace import trace_stage
from pipette_opt.base.units import GIB
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

pytestmark = pytest.mark.search

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "measured"


def small_runs() -> list[dict[str, str]]:
    """12 layers of 512, Transformer Engine, unfused attention, no interleaving, nothing exotic."""
    with (FOLDER / "megatron_ci_golden.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    exotic = (
        "mla",
        "vp",
        "qk_layernorm",
        "cp",
        "fusion",
        "account_for",
        "rope",
        "swiglu",
        "bias_linear",
        "frozen",
        "defer",
    )
    return [
        row
        for row in rows
        if row["hidden"] in ("512", "512.0")
        and row["n_experts"] in ("", "nan")
        and "_te_" in row["model"]
        and "attention-backend=unfused" in row["notes"]
        and "overlap" not in row["notes"]
        and row["peak_mem_gib"]
        and not any(word in row["model"] for word in exotic)
    ]


@pytest.mark.skipif(not (FOLDER / "megatron_ci_golden.csv").exists(), reason=f"no measurements in {FOLDER.name}")
def test_traces_are_near_recorded_peaks() -> None:
    """Within 5 % each and 3 % in the median, on jobs of 2 to 5 GiB, with and without recomputation."""
    ratios = []
    for row in small_runs():
        number = {name: int(float(row[name])) for name in ("num_layers", "seq_len", "mbs", "tp", "pp", "dp", "heads")}
        model = ModelSpec(
            name=row["model"],
            num_layers=number["num_layers"],
            hidden_size=512,
            ffn_hidden_size=2048,
            num_attention_heads=number["heads"],
            num_query_groups=number["heads"],
            kv_channels=512 // number["heads"],
            vocab_size=50257,
            max_position_embeddings=number["seq_len"],
            untie_embeddings_and_output_weights="untie" in row["notes"],
            hidden_dropout=0.1,
            attention_dropout=0.1,
        )
        config = ParallelConfig(
            tensor_model_parallel_size=number["tp"],
            pipeline_model_parallel_size=number["pp"],
            data_parallel_size=number["dp"],
            micro_batch_size=number["mbs"],
            layers_per_stage=(number["num_layers"] // number["pp"],) * number["pp"],
            sequence_parallel=row["seq_parallel"] == "True",
            recompute_granularity=None if row["recompute"] in ("none", "", "nan") else "full",
            use_distributed_optimizer=row["zero_stage"] in ("1", "1.0"),
        )
        training = TrainingSpec(
            global_batch_size=8 * number["dp"] * number["mbs"],
            seq_length=number["seq_len"],
            precision=row["precision"],  # type: ignore[arg-type]
            attention_kernel="unfused",
        )
        trace = trace_stage(model, training, config, number["pp"] - 1)
        ratios.append(trace.peak_bytes / GIB / float(row["peak_mem_gib"]))
    assert len(ratios) >= 5
    assert 0.97 < np.median(ratios) < 1.01
    assert min(ratios) > 0.95
    assert max(ratios) < 1.02
