"""
Writer of stacks in ``data/stacks`` with memory constants, fitted to measured runs where they exist.

Run ``python -m benchmarks.memory.frameworks``. Constants without a measurement are marked "assumed". Constants of times
are those of ``megatron-core``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.memory.evaluation import SWEEP, start_of
from benchmarks.memory.profiles import by_publisher, mean_error, peaks_of
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import memory_runs
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.calibrate.memory_spread import fit_with_errors
from pipette_opt.cli.program import run_command
from pipette_opt.memory.twins import without_twins
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.stack import Family

FOLDER = Path(__file__).resolve().parents[2] / "data" / "stacks"
HEAD = "What the constants mean: data/schemas/stack.schema.json."

BUCKET_ELEMENTS = 5e8
"""Elements of DeepSpeed's default ``reduce_bucket_size`` and ``allgather_bucket_size``."""

RESERVED = replace(MemoryConstants(), counted=1.04, placeholders=0.0, spread=0.15)
"""Assumed constants of stacks whose peaks are reserved memory: allocator gaps of 4 %, the median of replayed traces."""

BUCKETS = replace(RESERVED, base_gib=RESERVED.base_gib + 2 * 2 * BUCKET_ELEMENTS / GIB)
"""Constants of stacks with one bucket each of reduced gradients and gathered parameters, in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Stack whose constants are counted in its sources, without a fit: title, family, constants, what was counted."""

    title: str
    family: Family
    constants: MemoryConstants
    source: str


ASSUMED: Mapping[str, Assumed] = {
    "torchtitan": Assumed(
        title="torchtitan with FSDP2",
        family="fsdp",
        constants=replace(RESERVED, fp32_shards=1.0),
        source="Counted in torch.distributed.fsdp and torchtitan: sharded fp32 parameters are the master copy, and "
        "gathered gradients are in 16 bits (fp32_shards); the loss is compiled (otherwise logit_bytes is 8, or 12 "
        "with tensor ranks); norms are one kernel each; AdamW is fused. Gaps of the allocator are assumed.",
    ),
    "deepspeed": Assumed(
        title="DeepSpeed with ZeRO",
        family="fsdp",
        constants=replace(BUCKETS, step_copy_bytes=2.0, logit_bytes=8.0),
        source="Counted in deepspeed/runtime/zero: gradients are flattened in the step (step_copy_bytes: 2 in 16 bits, "
        "and 4 to 8 more with an Adam of several kernels instead of FusedAdam), and copied to fp32; one bucket each of "
        "reduced gradients and gathered parameters at the default of 5e8 elements; PyTorch's cross-entropy in several "
        "kernels (logit_bytes). Gaps of the allocator are assumed. The peaks have a fused loss, and their optimizer "
        "steps on the host.",
    ),
    "internevo": Assumed(
        title="InternEvo",
        family="own",
        constants=replace(BUCKETS, step_copy_bytes=10.0),
        source="Counted in InternEvo's hybrid_zero_optim.py and fsdp_optimizer.py: 16-bit gradients are flattened in "
        "the step and copied to fp32; AdamW is PyTorch 1.13's, whose root of the second moment and quotient are "
        "tensors of their own (step_copy_bytes: 2 + 4 + 4); buckets of 512 Mi elements. Gaps of the allocator are "
        "assumed.",
    ),
}
"""Stacks without a fit, by name."""


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
        start.family,
        start.proxy_threads,
    )
    for name in ASSUMED:
        write_assumed(out, name, folder)


def write_assumed(out: Path, name: str, folder: Path) -> None:
    """Write a stack of ``ASSUMED``, with its errors on public peaks."""
    stack = ASSUMED[name]
    peaks = peaks_of(name, folder, stack.constants)
    each = "; ".join(f"{publisher} {mean_error(rows):.0%}" for publisher, rows in by_publisher(peaks).items())
    error = f"mean {mean_error(peaks):.0%} of {len(peaks)} public peaks in sight, none fitted ({each})"
    write(
        out, name, f"Memory of {stack.title}: counted.", stack.source, "reserved", error, stack.constants, stack.family
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
    family: Family,
    proxy_threads: float = 0.0,
) -> None:
    """Write the stack of a software into a folder, with constants of times of ``megatron-core``."""
    times = read_stack()
    origins = times.origins if memory.largest_job else {**times.origins, "memory": "assumed"}
    text = f"Memory: {source[0].lower()}{source[1:]} Times: those of megatron-core."
    stack = replace(
        times,
        name=name,
        source=text,
        family=family,
        memory=memory,
        origins=origins,
        proxy_threads=proxy_threads,
    )
    write_stack(stack, folder / f"{name}.yaml", f"{title} {HEAD}\nPeaks: {peak}. Error: {error}.")


if __name__ == "__main__":
    run_command(frameworks)
