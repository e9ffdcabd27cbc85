"""
Time operations of layers on this GPU, for `benchmarks.silicon.sparse_attention`.

``python -m benchmarks.silicon.on_gpu --out rows.json [--operations sparse,norm] [--seconds 200]`` needs torch on a GPU,
and none of the package's dependencies. Sparse attention is Megatron-Core's own module (0.19 or newer, with ``tilelang``
for its fused kernels), the scan of gated delta nets flash-linear-attention's, that of Mamba-2 ``mamba_ssm``'s. An
operation whose library is missing, or that needs more memory, gives a row with the reason.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch

from benchmarks.silicon.operations import OPERATIONS, Operation

TIMED_S = 0.3
"""Seconds for which one pass is repeated. Chosen."""

REPEATS = (3, 30)
"""Least and most timed runs of a pass. Chosen."""


@dataclass(kw_only=True)
class Row:
    """
    Measured operation.

    Parameters
    ----------
    operation, sizes
        Name in ``OPERATIONS``, and the arguments of its builder.
    forward_s, backward_s
        Medians, seconds; ``None`` if the operation has no backward pass or did not run.
    spread
        Longest over shortest timed forward pass.
    kept_bytes
        Memory that the forward pass leaves allocated for the backward pass, its outputs included.
    peak_bytes
        Largest memory allocated during forward and backward pass, beyond inputs and parameters.
    kernels, kernel_s
        GPU kernels of the forward and of the backward pass, and their seconds together.
    failed
        Reason why there is no time.
    """

    operation: str
    sizes: dict[str, Any]
    forward_s: float | None = None
    backward_s: float | None = None
    spread: float | None = None
    kept_bytes: int | None = None
    peak_bytes: int | None = None
    kernels: list[int] = field(default_factory=list)
    kernel_s: list[float] = field(default_factory=list)
    failed: str = ""


def timed_s(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of repeated runs on the GPU, after two that are not timed."""
    run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - began
    repeats = int(min(max(TIMED_S / first_s, REPEATS[0]), REPEATS[1]))
    event: Any = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def kernels_of(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of the GPU kernels of one run."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    return [event.device_time / 1e6 for event in profiled.events() or () if event.device_type.name == "CUDA"]


def measure(name: str, operation: Operation, sizes: Mapping[str, Any]) -> Row:
    """Return the row of an operation with these sizes."""
    row = Row(operation=name, sizes=dict(sizes))
    torch.cuda.empty_cache()
    try:
        _measure(row, operation, sizes)
    except Exception as problem:  # a row says why it has no time
        row.failed = f"{type(problem).__name__}: {str(problem)[:300]}"
    return row


def _measure(row: Row, operation: Operation, sizes: Mapping[str, Any]) -> None:
    made = operation.build(**sizes)
    seconds = timed_s(made.run)
    row.forward_s, row.spread = statistics.median(seconds), max(seconds) / min(seconds)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = made.run()
    torch.cuda.synchronize()
    row.kept_bytes = torch.cuda.memory_allocated() - before
    passes = [made.run]
    if made.inputs:
        gradients = [torch.randn_like(output) for output in outputs]
        own = sum(gradient.nbytes for gradient in gradients)

        def backward() -> Any:
            return torch.autograd.grad(outputs, made.inputs, gradients, retain_graph=True, allow_unused=True)

        passes.append(backward)
        row.backward_s = statistics.median(timed_s(backward))
        row.peak_bytes = torch.cuda.max_memory_allocated() - before - own
    else:
        row.peak_bytes = torch.cuda.max_memory_allocated() - before
    if operation.is_profiled:
        for each in passes:
            seconds = kernels_of(each)
            row.kernels.append(len(seconds))
            row.kernel_s.append(sum(seconds))


def cases(names: Sequence[str]) -> Iterator[tuple[str, Operation, Mapping[str, Any]]]:
    """Yield the operations with their sizes, those that matter most first."""
    for name, operation in OPERATIONS.items():
        if not names or any(name.startswith(given) for given in names):
            for sizes in operation.sizes:
                yield name, operation, sizes


def main() -> None:
    """Measure, and write a JSON file with the device and the rows after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the rows")
    parser.add_argument("--operations", default="", help="only operations with these beginnings, with commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no operation after these seconds")
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    functorch.donated_buffer = False  # compiled backward passes are repeated
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, operation, sizes in cases([each for each in options.operations.split(",") if each]):
        if time.perf_counter() - began > options.seconds:
            break
        row = measure(name, operation, sizes)
        rows.append(asdict(row))
        backward = f"{row.backward_s:.6f}" if row.backward_s is not None else "-"
        print(
            f"{time.perf_counter() - began:6.1f} s  {name} {sizes}",
            f"{row.forward_s} {backward}",
            row.failed,
            flush=True,
        )
        options.out.write_text(json.dumps({**device, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
