"""
A training run in an instant: prints what Megatron-LM prints for a plan, with scripted times.

``fake_trainer.py plan.json "time_s * 1.2 * 1.3 ** log2(pp)"``: seconds of an iteration from the plan's simulated time
and its degrees. ``oom``, ``fail``, ``hang``, ``other layout`` and ``silent`` are runs that end otherwise.
"""

import json
import math
import sys
import time
from pathlib import Path

PEAK = 0.95
"""Reported over predicted memory of the fullest stage."""


def arguments(config: dict[str, object], training: dict[str, object], world_size: int) -> dict[str, object]:
    """Arguments as Megatron-LM prints them."""
    names = (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "data_parallel_size", "micro_batch_size", "sequence_parallel"),
        *("use_distributed_optimizer", "recompute_granularity", "virtual_pipeline_model_parallel_size"),
    )
    sizes = {"global_batch_size": training["global_batch_size"], "seq_length": training["seq_length"]}
    return {name: config[name] for name in names} | sizes | {"world_size": world_size, "num_layers": 8}


def main() -> int:
    """Print a log, and return the exit code."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    config = plan["parallel"]
    short = {"tensor": "tp", "pipeline": "pp", "data": "dp", "micro": "mbs", "context": "cp"}
    sizes = {
        key: config[name]
        for name in config
        for word, key in short.items()
        if name.startswith(f"{word}_") and name.endswith("_size")
    }
    values = {**sizes, "time_s": plan["estimate"]["iteration_time_s"], "log2": math.log2, "sleep": time.sleep}
    found = eval(sys.argv[2], {"__builtins__": {}}, values)
    if found == "fail":
        print("Traceback: no such data path", flush=True)
        return 3
    if found == "hang":
        time.sleep(600)
    if found == "other layout":
        config["micro_batch_size"] *= 2
    world_size = sizes["tp"] * sizes["pp"] * sizes["dp"] * sizes.get("cp", 1)
    print("------------------------ arguments ------------------------")
    for name, value in arguments(config, plan["inputs"]["training"], world_size).items():
        print(f"  {name} {'.' * (48 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------", flush=True)
    if found == "silent":
        return 0
    if found == "oom":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 1
    seconds = values["time_s"] if found == "other layout" else found
    for step in range(1, 13):
        shown = 1e3 * seconds * (10 if step == 1 else 1)
        print(f" iteration {step:8d}/      12 | elapsed time per iteration (ms): {shown:.3f} | global batch size: 64 |")
    reserved_mib = PEAK * 1024 * max(stage["predicted_gib"] for stage in plan["memory"])
    print(f"[Rank 0] (after 12 iterations) memory (MB) | allocated: 900.0 | max reserved: {reserved_mib:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
