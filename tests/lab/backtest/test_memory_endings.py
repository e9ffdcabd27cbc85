"""Replays of measured jobs: what is late, and on which device."""

from dataclasses import replace

import pytest
from measured_runs import measured_run

from pipette_opt.lab.backtest.memory_endings import endings, replayed_peaks
from pipette_opt.memory.framework import Framework
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack

FRAMEWORK = Framework()


def job(**changes: object) -> MeasuredRun:
    """Eight tensor ranks, one replica, micro-batches of 16."""
    fields: dict[str, object] = {
        "num_gpus": 8,
        "num_layers": 16,
        "kv_heads": 16,
        "seq_len": 4096,
        "tp": 8,
        "pp": 1,
        "dp": 1,
        "mbs": 16,
        "seq_parallel": True,
    }
    return measured_run(**(fields | changes))


@pytest.mark.parametrize(
    ("unusable_gib", "died", "full"), [(8.0, False, False), (10.0, False, True), (11.0, True, False)]
)
def test_a_job_lives_as_long_as_what_is_late_is_enough(unusable_gib: float, died: bool, full: bool) -> None:
    """With room nothing is taken back, with less all that is late, with little it is not enough."""
    run = replace(job(), gpu=read_gpu_entry("a100-40gb"))
    [ending] = endings([run], read_stack(), replace(FRAMEWORK, unusable_gib=unusable_gib))
    assert not ending.ran_out
    assert ending.replay_ran_out == died
    assert (ending.num_waits > 0) == full


def test_peaks_of_jobs_without_a_pipeline_are_replayed() -> None:
    """What has no peak, or a pipeline, is left out; replicas have a bucket of their gradients more."""
    measured = [job(peak_mem_bytes=1), job(peak_mem_bytes=1, dp=2, num_gpus=16)]
    others = [job(), job(peak_mem_bytes=1, pp=2, num_gpus=16)]
    (first, alone), (_, shared) = replayed_peaks([*others, *measured], read_stack())
    assert first is measured[0]
    assert 10 < alone < shared < 40


def test_only_labelled_jobs_of_one_replica_are_replayed() -> None:
    """Replicas, pipelines and rows without a label are left out; a label is passed on."""
    others = [job(dp=2, num_gpus=16), job(pp=2, num_gpus=16), job(oom=None)]
    assert endings(others, read_stack(), FRAMEWORK) == []
    [ending] = endings([*others, job(oom=True, mbs=1)], read_stack(), FRAMEWORK)
    assert ending.ran_out
    assert not ending.replay_ran_out
