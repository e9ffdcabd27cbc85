"""Micro-batches of a replica, by hand."""

from dataclasses import replace

import pytest
from factories import make_config

from pipette_opt.base.errors import InputError
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.specs import TrainingSpec


def batch(size: int, *, unequal: bool = False) -> TrainingSpec:
    """A job with that global batch."""
    return TrainingSpec(global_batch_size=size, seq_length=2048, unequal_microbatches=unequal)


def interleaved() -> ParallelConfig:
    """Three replicas of a pipeline of two stages that takes micro-batches in pairs."""
    return replace(make_config(tp=1, pp=2, dp=3), virtual_pipeline_model_parallel_size=2)


@pytest.mark.parametrize(
    ("size", "dp", "mbs", "unequal", "expected"),
    [
        (12, 3, 2, False, 2),
        (12, 3, 2, True, 2),  # nothing is left over
        (14, 3, 2, True, 3),  # seven micro-batches: 3 + 2 + 2
        (6, 3, 2, True, 1),  # the fewest there can be
        (512, 15, 1, True, 35),
    ],
)
def test_micro_batches_are_counted(size: int, dp: int, mbs: int, unequal: bool, expected: int) -> None:
    """The replica that has most counts where they differ."""
    assert microbatches_of(batch(size, unequal=unequal), make_config(tp=1, pp=1, dp=dp, mbs=mbs)) == expected


def test_interleaving_deals_whole_groups() -> None:
    """16 micro-batches in pairs, three replicas: 6 + 6 + 4."""
    assert microbatches_of(batch(16, unequal=True), interleaved()) == 6
    assert microbatches_of(batch(12, unequal=True), interleaved()) == microbatches_of(batch(12), interleaved()) == 4


@pytest.mark.parametrize(
    ("size", "unequal", "message"),
    [
        (14, False, "no multiple of data_parallel_size"),  # 14 / 3 replicas
        (15, True, "groups of 2 micro-batches"),  # half a group
        (4, True, "each of 3 replicas"),  # two groups
    ],
)
def test_what_does_not_come_out_whole_is_refused(size: int, unequal: bool, message: str) -> None:
    """The batch is named, and why it does not fit."""
    with pytest.raises(InputError, match=message):
        microbatches_of(batch(size, unequal=unequal), interleaved())
