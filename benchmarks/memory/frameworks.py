"""
Writer of stacks in ``data/stacks`` with memory constants, fitted to measured runs where they exist.

Run ``python -m benchmarks.memory.frameworks``. Constants without a measurement are marked "assumed". Constants of times
are those of ``megatron-core``.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.memory.evaluation import SWEEP, start_of
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import memory_runs
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.calibrate.memory_spread import fit_with_errors
from pipette_opt.cli.program import run_command
from pipette_opt.memory.twins import without_twins
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.specs.memory_constants import MemoryConstants

FOLDER = Path(__file__).resolve().parents[2] / "data" / "stacks"
HEAD = "What the constants mean: data/schemas/stack.schema.json."

BUCKET_ELEMENTS = 5e8
"""Elements of DeepSpeed's default ``reduce_bucket_size`` and ``allgather_bucket_size``."""

RESERVED = replace(MemoryConstants(), counted=1.04, placeholders=0.0)
"""Assumed constants of stacks whose peaks are reserved memory: allocator gaps of 4 %, the median of replayed traces."""


def frameworks(
    folder: Annotated[
        Path | None, typer.Option(help="Folder of measured runs; measured/ in $PIPETTE_OPT_SHARED by default.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the stacks.")] = FOLDER,
) -> None:
    """
    Write a stack with the memory constants of each software, fitted to measured runs where they exist.

    Example: [bold]python -m benchmarks.memory.frameworks -o stacks[/]
    """
    folder = folder or measured_folder()
    if not folder.is_dir():
        raise InputError("--folder", f"is no folder of measured runs: {folder}.")
    out.mkdir(parents=True, exist_ok=True)
    start = start_of(SWEEP)  # with thresholds that were chosen, not fitted
    tested = memory_runs(measured_runs(folder / SWEEP), start)
    fitted = fit_with_errors(tested, replace(start.memory, placeholders=0.0))
    nanotron = without_twins(fitted)  # constants of a stack, not single runs of others
    write(
        out,
        "nanotron",
        "Memory of nanotron on H100 80 GB.",
        "Fitted to the Ultra-Scale Playbook sweep of Hugging Face (nanotron, H100, 8 to 32 GPUs; peaks reserved by the "
        "allocator on the first pipeline stage, and which jobs ran out of memory), as copied in eyao600/Rapid-LLM @ "
        "9a8d0a1.",
        "reserved",
        f"{errors(nanotron, tested)}, fitted; what is predicted for larger jobs: benchmarks/results/memory.md",
        nanotron,
        start.proxy_threads,
    )
    published = memory_runs(measured_runs(folder / "published_tables.csv"), read_stack())
    off = np.expm1(-peak_errors(RESERVED, published))
    write(
        out,
        "torchtitan",
        "Memory of torchtitan: assumed.",
        "Assumed: Megatron-Core's constants, and norms that are one kernel each. Public peaks (pytorch/torchtitan @ "
        "b5bcd76, benchmarks/) are of one model in variants of one layout, which is too few to fit anything; calibrate "
        "on your own runs.",
        "reserved",
        f"of {len(off)} published peaks in bf16 (Llama 3.1 8B, FSDP over 8 GPUs) the prediction is "
        f"{off.min():+.0%} to {off.max():+.0%} off, as its recomputation of single operators is not modelled",
        replace(RESERVED, spread=0.15),
    )
    write(
        out,
        "deepspeed",
        "Memory of DeepSpeed with ZeRO: assumed.",
        "Assumed: Megatron-Core's constants, and one bucket each of reduced gradients and gathered parameters in 16 "
        "bits at DeepSpeed's default size of 5e8 elements. No public peaks were found; calibrate on your own runs.",
        "reserved",
        "not measured",
        replace(RESERVED, base_gib=RESERVED.base_gib + 2 * 2 * BUCKET_ELEMENTS / GIB, spread=0.15),
    )


def errors(memory_constants: MemoryConstants, runs: list[MemoryRun]) -> str:
    """Return mean and median of absolute errors as text."""
    off = np.abs(np.expm1(-peak_errors(memory_constants, runs)))
    return f"mean {off.mean():.1%}, median {np.median(off):.1%} of {len(off)} peaks"


def write(
    folder: Path,
    name: str,
    title: str,
    source: str,
    peak: str,
    error: str,
    memory: MemoryConstants,
    proxy_threads: float = 0.0,
) -> None:
    """Write the stack of a software into a folder, with constants of times of ``megatron-core``."""
    times = read_stack()
    origins = times.origins if memory.largest_job else {**times.origins, "memory": "assumed"}
    text = f"Memory: {source[0].lower()}{source[1:]} Times: those of megatron-core."
    stack = replace(times, name=name, source=text, memory=memory, origins=origins, proxy_threads=proxy_threads)
    write_stack(stack, folder / f"{name}.yaml", f"{title} {HEAD}\nPeaks: {peak}. Error: {error}.")


if __name__ == "__main__":
    run_command(frameworks)
