"""
Writer of ``data/frameworks``: memory constants of software stacks, fitted to measured runs where they exist.

Run ``python -m benchmarks.memory.frameworks``. Constants without a measurement are marked "assumed".
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.memory.evaluation import SPLITS, split_cases
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import memory_runs
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.calibrate.memory_spread import fit_framework
from pipette_opt.cli.program import run_command
from pipette_opt.memory.framework import Framework, numbers_of
from pipette_opt.memory.twins import without_twins
from pipette_opt.read.stack import read_stack

FOLDER = Path(__file__).resolve().parents[2] / "data" / "frameworks"
HEAD = "What the constants mean: class Framework in pipette_opt/memory/framework.py."

NO_PLACEHOLDERS = replace(Framework(), placeholders=0.0)
"""Memory constants of stacks without Transformer Engine."""

BUCKET_ELEMENTS = 5e8
"""Elements of DeepSpeed's default ``reduce_bucket_size`` and ``allgather_bucket_size``."""

RESERVED = replace(Framework(), counted=1.04, placeholders=0.0)
"""Assumed constants of stacks whose peaks are reserved memory: allocator gaps of 4 %, the median of replayed traces."""


def frameworks(
    folder: Annotated[
        Path | None, typer.Option(help="Folder of measured runs; measured/ in $PIPETTE_OPT_SHARED by default.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the profiles.")] = FOLDER,
) -> None:
    """
    Write a memory profile of each software stack, fitted to measured runs where they exist.

    Example: [bold]python -m benchmarks.memory.frameworks -o profiles[/]
    """
    folder = folder or measured_folder()
    if not folder.is_dir():
        raise InputError("--folder", f"is no folder of measured runs: {folder}.")
    out.mkdir(parents=True, exist_ok=True)
    fitted = fit_framework(memory_runs(measured_runs(folder / "hf_ultrascale_h100.csv"), read_stack()), NO_PLACEHOLDERS)
    nanotron = without_twins(fitted)  # constants of a stack, not single runs of others
    tested = memory_runs(measured_runs(folder / "hf_ultrascale_h100.csv"), read_stack())
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
    )
    tests = next(split for split in SPLITS if split.file == "megatron_ci_golden.csv")
    own = [run for _, run in split_cases(tests, folder)[1]]
    write(
        out,
        "megatron-core",
        "Memory of Megatron-Core.",
        "Counted tensors and allowances, nothing fitted. Checked against the peaks that Megatron-LM's own functional "
        "tests record (NVIDIA/Megatron-LM @ d98e8a6; allocated on the last rank).",
        "allocated",
        f"{errors(Framework(), own)}; more where tests of an older image fell back to unfused attention",
        Framework(),
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


def errors(framework: Framework, runs: list[MemoryRun]) -> str:
    """Return mean and median of absolute errors as text."""
    off = np.abs(np.expm1(-peak_errors(framework, runs)))
    return f"mean {off.mean():.1%}, median {np.median(off):.1%} of {len(off)} peaks"


def write(folder: Path, name: str, title: str, source: str, peak: str, error: str, framework: Framework) -> None:
    """Write the memory profile of a stack into a folder."""
    data = {"name": name, "source": source, "peak": peak, "error": error, "memory": numbers_of(framework)}
    text = yaml.safe_dump(data, sort_keys=False, width=118)
    write_atomically(folder / f"{name}.yaml", f"# {title} {HEAD}\n{text}")


if __name__ == "__main__":
    run_command(frameworks)
