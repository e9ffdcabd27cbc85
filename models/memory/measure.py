"""
Run of a stage on a real device: same modules, passes and optimizer steps as in a trace.

Only ``CudaDevice`` calls CUDA, so the rest is tested without a GPU. Matrix products are computed; other kernels are
outputs of the right size, as in the trace. The run checks the allocated and reserved memory of the trace and of the
allocator model, and measures the memory that the process takes beyond them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.memory.live_storages import LiveStorages
from models.memory.sample import Point
from models.memory.shapes import LocalShapes
from models.memory.stage_passes import passes_of
from models.memory.statics import static_sizes
from models.memory.trace import StageRun, build_stage, score_workspace
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeaks:
    """
    Peak memory of one run, in bytes.

    Parameters
    ----------
    allocated_bytes, reserved_bytes
        ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``.
    device_bytes
        Memory in use on the device at the end, by any process, cached segments included (``mem_get_info``).
    """

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class Device(Protocol):
    """Device that runs tensors and reports the memory they took."""

    name: str
    torch_device: str
    capacity_bytes: int
    out_of_memory: type[BaseException]

    def recording(self) -> AbstractContextManager[Callable[[], DevicePeaks]]:
        """Start recording with an empty cache; yield a function that returns the peaks so far."""
        ...


class CudaDevice:
    """First CUDA device that torch sees; raises ``InputError`` if no device is visible."""

    torch_device = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            problem = "torch sees no CUDA device here; traces need none (leave --device out)."
            raise InputError("--device cuda", problem)
        properties = torch.cuda.get_device_properties(0)
        self.name = str(properties.name)
        self.capacity_bytes = int(properties.total_memory)
        self.out_of_memory: type[BaseException] = torch.cuda.OutOfMemoryError

    @contextmanager
    def recording(self) -> Iterator[Callable[[], DevicePeaks]]:
        """Start recording with an empty cache; yield a function that returns the peaks so far."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        yield self._peaks
        torch.cuda.empty_cache()

    def _peaks(self) -> DevicePeaks:
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        return DevicePeaks(
            allocated_bytes=int(stats["allocated_bytes.all.peak"]),
            reserved_bytes=int(stats["reserved_bytes.all.peak"]),
            device_bytes=int(total - free),
        )


def measure_point(point: Point, device: Device) -> DevicePeaks | None:
    """Run two iterations of the point's stage on the device; return its peaks, or ``None`` if it ran out of memory."""
    with device.recording() as peaks:
        try:
            _iterate(point, device)
            return peaks()
        except device.out_of_memory:
            return None


def can_measure(point: Point, device: Device) -> bool:
    """
    Return whether a run is worth its time: by the formula, at least 0.5 GiB and at most 1.05 times the device's memory.

    ZeRO 3 is excluded: a rank never holds its modules whole, so a single device cannot stand for it.
    """
    if point.config.sharding_stage == 3:
        return False
    table = stage_table(point.model, point.training, [point.config], stage=point.stage)
    expected = float(formula_bytes(table).total[0])
    return GIB / 2 <= expected <= 1.05 * device.capacity_bytes


def _iterate(point: Point, device: Device) -> None:
    """Allocate weights, gradients and master copies; run an iteration; allocate Adam's moments; run another."""
    model, training, config = point.model, point.training, point.config
    passes = passes_of(training, config, point.stage)
    shapes = LocalShapes.of(model, training, config)
    with torch.device(device.torch_device):
        chunks = build_stage(model, training, config, shapes, point.stage)
        statics = static_sizes(chunks, training, config)
        kept = _buffers((*statics.copies, *statics.gradients, *statics.placeholders, *statics.master))
        workspace = score_workspace(training, shapes)
        for iteration in range(2):
            run = StageRun(chunks, training, shapes, LiveStorages())
            run.go(passes)
            del run
            if iteration == 0:
                kept += _buffers(statics.moments)
            step = _buffers(statics.step)
            del step
    del kept, workspace, chunks


def _buffers(sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(size, dtype=torch.uint8) for size in sizes]
