"""Stages run on a device: all but CUDA's own calls, with a device that counts instead of having memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from models.memory.allocator import CachingAllocator, DeviceFullError
from models.memory.dataset import MEASURED_COLUMNS, collect_measured, point_of_row, read_rows
from models.memory.live_storages import LiveStorages
from models.memory.measure import CudaDevice, DevicePeaks, can_measure, measure_point
from models.memory.sample import Point, sample_point
from models.memory.trace import trace_stage
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB, MIB

pytestmark = pytest.mark.search


class CountingDevice:
    """Tensors without data, counted, and replayed through the model of the allocator."""

    torch_device = "meta"
    out_of_memory = DeviceFullError

    def __init__(self, capacity_bytes: int, name: str = "counting") -> None:
        self.capacity_bytes, self.name = capacity_bytes, name

    @contextmanager
    def recording(self) -> Iterator[Callable[[], DevicePeaks]]:
        """Count from nothing on."""
        with LiveStorages() as storages:

            def peaks() -> DevicePeaks:
                found = CachingAllocator(self.capacity_bytes).replay(storages.events)
                return DevicePeaks(
                    allocated_bytes=found.allocated_bytes,
                    reserved_bytes=found.reserved_bytes,
                    device_bytes=found.reserved_bytes + 500 * MIB,
                )

            yield peaks


def points(count: int, device: CountingDevice) -> list[Point]:
    """The first points that may fit."""
    found = []
    index = 0
    while len(found) < count:
        point = sample_point(5, index)
        if can_measure(point, device):
            found.append(point)
        index += 1
    return found


def test_a_run_takes_what_the_trace_says() -> None:
    """Allocated to 1.5 %, for blocks that are not split count whole; reserved to 3 %: weights come one by one."""
    device = CountingDevice(80 * GIB)
    for point in points(6, device):
        trace = trace_stage(point.model, point.training, point.config, point.stage, replay=True)
        peaks = measure_point(point, CountingDevice(1000 * GIB))
        assert peaks is not None
        assert peaks.allocated_bytes == pytest.approx(trace.peak_bytes, rel=0.015, abs=4 * MIB)
        assert peaks.reserved_bytes == pytest.approx(trace.reserved_bytes, rel=0.03, abs=64 * MIB)


def test_out_of_memory_is_a_result() -> None:
    """A point that needs more than there is gives no peaks, and the next one is run."""
    point = points(1, CountingDevice(80 * GIB))[0]
    trace = trace_stage(point.model, point.training, point.config, point.stage)
    assert measure_point(point, CountingDevice(trace.peak_bytes // 2)) is None
    assert measure_point(point, CountingDevice(4 * trace.peak_bytes)) is not None


def test_measured_collection_continues(tmp_path: Path) -> None:
    """Runs that fit are added until there are as many as wanted; rows come back as points."""
    path, device = tmp_path / "measured.csv", CountingDevice(24 * GIB)
    calls: list[tuple[int, int]] = []
    assert collect_measured(path, device, num_points=2, progress=lambda *both: calls.append(both)) == 2
    assert collect_measured(path, device, num_points=3) == 1
    rows = read_rows(path, MEASURED_COLUMNS)
    assert calls == [(1, 2), (2, 2)]
    assert [row["device"] for row in rows] == ["counting"] * 3
    assert all(can_measure(point_of_row(row), device) for row in rows)
    for row in rows:
        if row["measured_allocated_bytes"]:
            assert int(row["measured_device_bytes"]) == int(row["measured_reserved_bytes"]) + 500 * MIB
    with pytest.raises(InputError, match="holds runs on counting, not other"):
        collect_measured(path, CountingDevice(24 * GIB, "other"), num_points=4)
    with pytest.raises(InputError, match="is no memory dataset"):
        read_rows(path)


def test_what_one_device_cannot_stand_for_is_left_out() -> None:
    """Too large, too small, or with parameters that are shared out."""
    device, seen = CountingDevice(8 * GIB), set()
    for index in range(60):
        point = sample_point(5, index)
        seen.add(can_measure(point, device))
        if point.config.sharding_stage == 3:
            assert not can_measure(point, CountingDevice(10**15))
    assert seen == {True, False}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_is_said() -> None:
    """Without a GPU the message says what works without one."""
    with pytest.raises(InputError, match="torch sees no CUDA device here"):
        CudaDevice()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_takes_what_the_trace_says() -> None:
    """On a real device: allocated to 2 %, beside what matrix products need for themselves."""
    device = CudaDevice()
    for point in points(2, CountingDevice(device.capacity_bytes // 4)):
        trace = trace_stage(point.model, point.training, point.config, point.stage)
        peaks = measure_point(point, device)
        assert peaks is not None
        assert peaks.allocated_bytes == pytest.approx(trace.peak_bytes, rel=0.02, abs=256 * MIB)
        assert peaks.allocated_bytes <= peaks.reserved_bytes <= peaks.device_bytes
