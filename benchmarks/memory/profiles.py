"""
Peaks of software other than Megatron-LM, by the shipped stacks: ``python -m benchmarks.memory.profiles -o PAGE``.

Constants of these stacks are counted in the software's sources. None is fitted to these peaks. Peaks are compared
before the limit of the device, so that an excess shows.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.backtest.sources import by_operation
from benchmarks.measured import completed, measured_folder
from benchmarks.memory.odds import inside_allocator
from benchmarks.page import run_page
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import counted
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import memory_run
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.read.run_launches import recomputation_word
from pipette_opt.read.runs import MeasuredRun, read_rows
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import SHOWN, MemoryConstants

TABLES: Mapping[str, tuple[str, ...]] = {
    "torchtitan": ("published_tables", "torchao_fp8_h100_mi300x_b200", "torchtitan_trl_threads"),
    "deepspeed": ("stas_h200_b200_deepspeed",),
    "internevo": ("internevo_a100",),
}
"""Tables with peaks of each shipped stack."""

PUBLISHERS: Sequence[tuple[str, str]] = (
    ("llama3_h100_202412", "torchtitan's team, H100"),
    ("trainy-whitefiber", "Trainy and WhiteFiber, H200"),
    ("pytorch/ao.*h100", "torchao, H100"),
    ("pytorch/ao.*mi300x", "torchao, MI300X"),
    ("torchtitan PR", "a pull request of torchtitan, H100"),
    ("stas00", "ml-engineering, H200"),
    ("InternEvo", "InternEvo, A800"),
)
"""Patterns in source, notes and GPU of a row, with its publisher; the first match counts."""

NOT_COMPILED = re.compile(r"llama3_h100_202412|pytorch/ao.* h100|no compile")
"""
Source, notes and GPU of torchtitan's rows without a compiled loss, which came with its pull request 1033 of April 2025.

torchao's rows on H100 are of torchtitan 0.0.2, of March 2025.
"""

EAGER = re.compile(r"\beager\b|no compile")
"""Notes of rows without ``torch.compile``."""

EAGER_LOGIT_BYTES, PARALLEL_LOGIT_BYTES = 8.0, 12.0
"""
Bytes per logit of PyTorch's cross-entropy in several kernels, beyond the 6 that are counted; and with tensor ranks.

By hand, 14: 2 of the logits, 4 each of their fp32 copy, the logarithm of the softmax, and its gradient. The backward
pass of ``loss_parallel`` has four fp32 tensors at once (logarithm, zeros, sum with its exponential, product), which
makes 18.
"""

LIGER_CHUNKS = 32
"""Parts of a fused linear cross-entropy: Liger takes the vocabulary over the hidden size, here 128256 / 4096."""


PREDICTIONS = ("megatron_gib", "profile_gib")
"""Fields of the predictions of a peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """
    Measured peak with two predictions.

    Parameters
    ----------
    measured_gib
        Peak inside the allocator.
    megatron_gib, profile_gib
        Predictions by the constants of Megatron-Core and of the software's own stack.
    """

    run: MeasuredRun
    publisher: str
    measured_gib: float
    megatron_gib: float
    profile_gib: float


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page: public peaks beside those by the shipped stacks."""
    folder = measured_folder()
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder of measured runs: set PIPETTE_OPT_SHARED.")
    yield page({name: peaks_of(name, folder, read_stack(name).memory) for name in TABLES})


def peaks_of(name: str, folder: Path, constants: MemoryConstants) -> list[Peak]:
    """Return the public peaks of a stack's software, predicted with its constants and with Megatron-Core's."""
    paths = [folder / f"{table}.csv" for table in TABLES[name]]
    return peaks_among([run for path in paths if path.is_file() for run in read_rows(path)[0]], constants)


def peaks_among(runs: Iterable[MeasuredRun], constants: MemoryConstants) -> list[Peak]:
    """Return the runs whose peak was measured and can be predicted."""
    return [_peak(case, constants) for case in _cases(described(run) for run in runs if run.peak_mem_bytes is not None)]


def described(run: MeasuredRun) -> MeasuredRun:
    """Return a row with what its notes say: batch, recomputation by operation, loss in chunks, precision."""
    known = by_operation(run)
    if "Liger" in run.notes:
        known["loss_chunks"] = str(LIGER_CHUNKS)
    if EAGER.search(run.notes):
        known["fused_norm"] = "false"
    if run.launch.global_batch_size is None:
        known["gbs"] = str((run.launch.micro_batch_size or 1) * int(float(run.cells.get("dp") or 1)))
    return completed(run, known)


def _cases(runs: Iterable[MeasuredRun]) -> list[Case]:
    """Return the rows that can be predicted, with the optimizer on the host where the notes say so."""
    cases = [case for case in make_cases(list(runs), read_stack()) if isinstance(case, Case)]
    return [_on_host(case) if "states on the CPU" in case.run.notes else case for case in cases]


def _on_host(case: Case) -> Case:
    training = replace(case.instance.training, optimizer_offload_fraction=1.0)
    return replace(case, instance=replace(case.instance, training=training))


def _peak(case: Case, constants: MemoryConstants) -> Peak:
    run = case.run
    memory = inside_allocator(run, memory_run(case))
    text = f"{run.source} {run.notes} {run.gpu_name}"
    assert memory.peak_gib is not None
    return Peak(
        run=run,
        publisher=next((name for pattern, name in PUBLISHERS if re.search(pattern, text)), run.source),
        measured_gib=memory.peak_gib,
        megatron_gib=_shown(memory, MemoryConstants()),
        profile_gib=_shown(memory, replace(constants, logit_bytes=_logit_bytes(case, text, constants))),
    )


def _logit_bytes(case: Case, text: str, constants: MemoryConstants) -> float:
    """Return the bytes per logit beyond the counted ones of the loss that the notes name, else the stack's."""
    if NOT_COMPILED.search(text):
        return PARALLEL_LOGIT_BYTES if case.config.tensor_model_parallel_size > 1 else EAGER_LOGIT_BYTES
    return 0.0 if case.instance.training.loss_chunks > 1 else constants.logit_bytes


def _shown(memory: MemoryRun, constants: MemoryConstants) -> float:
    """Return the memory that a measurement would show on a device with enough memory, GiB."""
    return float((memory.regressors[memory.measured_rows] @ (constants.vector() * SHOWN)).max())


def errors(peaks: Iterable[Peak], name: str) -> FloatArray:
    """Return predicted over measured peaks, less 1; ``name`` is the field of the prediction."""
    return np.array([getattr(peak, name) / peak.measured_gib - 1 for peak in peaks])


def mean_error(peaks: Iterable[Peak], name: str = "profile_gib") -> float:
    """Return the mean of the absolute errors of a prediction."""
    return float(np.abs(errors(peaks, name)).mean())


def by_publisher(peaks: Iterable[Peak]) -> dict[str, list[Peak]]:
    """Return the peaks of each publisher, in order."""
    found: dict[str, list[Peak]] = {}
    for peak in peaks:
        found.setdefault(peak.publisher, []).append(peak)
    return found


def page(peaks: Mapping[str, Sequence[Peak]]) -> str:
    """Return the page: mean errors of each stack, then of each publisher, then every peak."""
    known = {name: rows for name, rows in peaks.items() if rows}
    lines = [
        "# Memory by the stacks of other software",
        "",
        *(f"- {name}: {_summary(rows)}" for name, rows in known.items()),
        "",
        "Constants are counted in the sources of the software, with these peaks in sight; none is fitted: `python -m "
        "benchmarks.memory.profiles -o PAGE`. Peaks are reserved by the allocator; of peaks of whole devices what lies "
        "outside is subtracted. Rows of torchtitan before its loss was compiled (April 2025), or without compilation, "
        f"have {EAGER_LOGIT_BYTES:g} bytes more per logit, {PARALLEL_LOGIT_BYTES:g} with tensor ranks.",
        "",
        "| stack | publisher | peaks | by Megatron-Core's constants | mean error | by the stack | mean error |",
        "|---|---|---|---|---|---|---|",
        *(line for name, rows in known.items() for line in _publishers(name, rows)),
        "",
        "Signed columns are means of predicted over measured peaks, less 1; mean errors are of absolute values.",
        "",
        "| publisher | model | GPUs | seq | micro-batch | tp | pp | cp | ZeRO | recompute | precision | measured | "
        "Megatron-Core's | stack's | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(peak) for rows in known.values() for peak in rows),
    ]
    return "\n".join(lines) + "\n"


def _summary(peaks: Sequence[Peak]) -> str:
    publishers = counted(len(by_publisher(peaks)), "publisher")
    return (
        f"mean error {mean_error(peaks):.0%} of {counted(len(peaks), 'peak')} of {publishers}, "
        f"{mean_error(peaks, 'megatron_gib'):.0%} by Megatron-Core's constants."
    )


def _publishers(name: str, peaks: Sequence[Peak]) -> list[str]:
    lines = []
    for publisher, rows in by_publisher(peaks).items():
        cells = [f"{errors(rows, each).mean():+.0%} | {mean_error(rows, each):.0%}" for each in PREDICTIONS]
        lines.append(f"| {name} | {publisher} | {len(rows)} | {' | '.join(cells)} |")
    return lines


def _row(peak: Peak) -> str:
    run = peak.run
    launch = run.launch
    degrees = (launch.tensor_model_parallel_size, launch.pipeline_model_parallel_size, launch.context_parallel_size)
    job = (run.model, run.num_gpus, launch.seq_length, launch.micro_batch_size, *degrees)
    how = [run.cells.get("zero_stage") or "None", recomputation_word(run.cells.get("recompute") or "none") or "none"]
    cells = [peak.publisher, *map(str, job), *how, run.precision or "bf16"]
    found = (peak.measured_gib, peak.megatron_gib, peak.profile_gib)
    error = peak.profile_gib / peak.measured_gib - 1
    return f"| {' | '.join([*cells, *(f'{size:.1f}' for size in found), f'{error:+.0%}'])} |"


if __name__ == "__main__":
    run_page(make)
