"""
Time of ten thousand memory predictions, with Megatron-Core's constants and with those of a stack.

Run ``python -m benchmarks.memory.speed``; the aim is 0.1 s.
"""

import argparse
import os
import platform
import sys
import time
from itertools import product

import numpy as np

from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model import read_model
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import TrainingSpec

STAGES = 10_000


def main() -> None:
    """Print the best time of several repeats for each set of constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    job, model, configs = TrainingSpec(global_batch_size=1024, seq_length=4096), read_model("llama-3-8b"), grid()
    lines = [f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} cores"]
    for name in (None, "nanotron"):
        predictor = MemoryPredictor.load(memory_constants=None if name is None else read_stack(name).memory)
        seconds, busy = [], []
        for _ in range(repeats):
            start, work = time.perf_counter(), time.process_time()
            found = predictor.predict(model, job, configs, gpus_per_node=8)
            seconds.append(time.perf_counter() - start)
            busy.append(time.process_time() - work)
        stages = sum(len(prediction.predicted_bytes) for prediction in found)
        times = f"{min(seconds):.3f} s, {min(busy):.3f} s of CPU"
        lines.append(f"{name or 'no stack'}: {stages} stages of {len(found)} layouts in {times}")
    sys.stdout.write("\n".join(lines) + "\n")


def grid() -> list[ParallelConfig]:
    """Return configurations of an 8-billion-parameter model with ten thousand stages together."""
    configs: list[ParallelConfig] = []
    stages = 0
    degrees = product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), (None, "selective", "full"))
    for tp, pp, dp, mbs, recompute in sorted(degrees, key=lambda degree: (degree[3], degree[2])):
        for split in (False, True) if tp > 1 else (False,):
            if stages >= STAGES:
                return configs
            configs.append(
                ParallelConfig(
                    tensor_model_parallel_size=tp,
                    pipeline_model_parallel_size=pp,
                    data_parallel_size=dp,
                    micro_batch_size=mbs,
                    layers_per_stage=(32 // pp,) * pp,
                    sequence_parallel=split,
                    recompute_granularity=recompute,  # type: ignore[arg-type]
                )
            )
            stages += pp
    return configs


if __name__ == "__main__":
    main()
