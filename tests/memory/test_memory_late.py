"""Buffers that come back late, counted by hand."""

import pytest

from pipette_opt.memory.allocator import DeviceFullError
from pipette_opt.memory.late import LateAllocator, replay_late
from pipette_opt.memory.trace import trace_stage
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.units import MIB

BUFFER = 16 * MIB


def ahead(behind: int, capacity_bytes: int | None = None, buffers: int = 10) -> LateAllocator:
    """Buffers one after another, each freed before the next."""
    allocator = LateAllocator(capacity_bytes, buffer_bytes=BUFFER, behind=behind)
    for key in range(buffers):
        allocator.allocate(key, BUFFER)
        allocator.release(key)
    return allocator


@pytest.mark.parametrize("behind", [0, 1, 3, 7])
def test_as_many_pile_up_as_the_host_is_ahead(behind: int) -> None:
    """Each finds the one so many before it; without a lead all are the same block."""
    assert ahead(behind).peaks.reserved_bytes == max(behind, 1) * BUFFER


def test_a_full_device_takes_back_what_waits() -> None:
    """Of a lead of seven the device has room for four: the fifth and the ninth wait for those before."""
    allocator = ahead(7, 4 * BUFFER)
    assert allocator.num_waits == 2
    assert allocator.peaks.reserved_bytes == 4 * BUFFER


def test_what_is_in_use_does_not_come_back() -> None:
    """Four in use fill the device: nothing waits, and the fifth fails."""
    allocator = LateAllocator(4 * BUFFER, buffer_bytes=BUFFER, behind=7)
    for key in range(4):
        allocator.allocate(key, BUFFER)
    with pytest.raises(DeviceFullError):
        allocator.allocate(4, BUFFER)


def test_other_sizes_do_not_wait() -> None:
    """A freed block of another size is there at once."""
    allocator = LateAllocator(None, buffer_bytes=BUFFER, behind=7)
    for key in range(10):
        allocator.allocate(key, 2 * BUFFER)
        allocator.release(key)
    assert allocator.peaks.reserved_bytes == 2 * BUFFER


@pytest.fixture
def job() -> tuple[ModelSpec, TrainingSpec, ParallelConfig]:
    """Four layers on four tensor ranks."""
    model = ModelSpec(
        name="m",
        num_layers=4,
        hidden_size=1024,
        ffn_hidden_size=4096,
        num_attention_heads=16,
        num_query_groups=16,
        kv_channels=64,
        max_position_embeddings=2048,
        vocab_size=32000,
    )
    training = TrainingSpec(global_batch_size=64, seq_length=2048, attention_kernel="flash")
    config = ParallelConfig(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=16,
        layers_per_stage=(4,),
        sequence_parallel=True,
    )
    return model, training, config


def test_a_host_on_time_is_the_replay_of_the_trace(job: tuple[ModelSpec, TrainingSpec, ParallelConfig]) -> None:
    """Without a lead as much is reserved as the tracer's own replay of two micro-batches says."""
    traced = trace_stage(*job, stage=0, num_microbatches=2, replay=True)
    assert replay_late(*job, behind=0).peaks.reserved_bytes == traced.reserved_bytes


def test_a_lead_costs_its_buffers_and_a_smaller_device_takes_them_back(
    job: tuple[ModelSpec, TrainingSpec, ParallelConfig],
) -> None:
    """A lead of twelve takes some of them more, as other blocks serve too; half of that room is enough."""
    buffer_bytes = 2 * 16 * 2048 * 1024
    on_time = replay_late(*job, behind=0).peaks.reserved_bytes
    ahead = replay_late(*job, behind=12)
    more = ahead.peaks.reserved_bytes - on_time
    assert 4 * buffer_bytes <= more <= 12 * buffer_bytes
    assert ahead.num_waits == 0
    tight = replay_late(*job, behind=12, capacity_bytes=on_time + more // 2)
    assert tight.num_waits > 0
    assert replay_late(*job, behind=0, growth=1.5).peaks.reserved_bytes > on_time
    with pytest.raises(DeviceFullError):
        replay_late(*job, behind=12, capacity_bytes=on_time // 2)


def test_pipelines_are_refused(job: tuple[ModelSpec, TrainingSpec, ParallelConfig]) -> None:
    """Their hosts wait for each other."""
    model, training, _ = job
    config = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=1,
        micro_batch_size=16,
        layers_per_stage=(2, 2),
    )
    with pytest.raises(ValueError, match="must be 1, got 2"):
        replay_late(model, training, config, behind=0)
