"""Runs as a file would have them, for tests."""

from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.runs import MeasuredRun


def measured_run(**changes: object) -> MeasuredRun:
    """A GPT of 24 layers on 16 A100, tp 2, pp 2, dp 4."""
    fields: dict[str, object] = {
        "row": 0,
        "source": "own",
        "gpu": read_gpu_entry("a100-80gb"),
        "gpu_name": "A100-80GB",
        "gpus_per_node": 8,
        "num_gpus": 16,
        "model": "gpt",
        "num_layers": 24,
        "hidden": 2048,
        "ffn_hidden": 8192,
        "heads": 16,
        "kv_heads": 16,
        "vocab": 50257,
        "seq_len": 2048,
        "gbs": 64,
        "mbs": 2,
        "tp": 2,
        "pp": 2,
        "dp": 4,
        "vpp": 1,
        "cp": 1,
        "seq_parallel": None,
        "zero_stage": None,
        "recompute": None,
        "recompute_text": "none",
        "attention_kernel": "flash",
        "precision": "bf16",
        "layers_per_stage": None,
        "iter_time_s": 1.0,
        "peak_mem_bytes": None,
        "oom": False,
        "mfu": None,
        "notes": "",
        "extra": {},
    }
    return MeasuredRun(**(fields | changes))  # type: ignore[arg-type]
