"""Replays of measured jobs: what is late, and on which device."""

from dataclasses import replace

import pytest
from measured_runs import measured_run

from pipette_opt.backtest.memory_endings import endings
from pipette_opt.memory.framework import Framework
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack

FRAMEWORK = Framework(activations=0.3, run_ahead_buffers=50.0)


def job(**changes: object) -> MeasuredRun:
    """Eight tensor ranks, one replica: a gathered micro-batch of 16 is 256 MiB, 50 of them late are 12.5 GiB."""
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
    ("gpu", "died", "full"), [("a100-40gb", False, False), ("l4", False, True), ("v100-16gb", True, False)]
)
def test_a_job_lives_as_long_as_what_waits_is_enough(gpu: str, died: bool, full: bool) -> None:
    """On a large device nothing is taken back, on a middle one all that waits, on a small one it is not enough."""
    [ending] = endings([replace(job(), gpu=read_gpu_entry(gpu))], read_stack(), FRAMEWORK)
    assert not ending.ran_out
    assert ending.replay_ran_out == died
    assert (ending.num_waits > 0) == full


def test_only_labelled_jobs_of_one_replica_are_replayed() -> None:
    """Replicas, pipelines and rows without a label are left out; a label is passed on."""
    others = [job(dp=2, num_gpus=16), job(pp=2, num_gpus=16), job(oom=None)]
    assert endings(others, read_stack(), FRAMEWORK) == []
    [ending] = endings([*others, job(oom=True, mbs=1)], read_stack(), FRAMEWORK)
    assert ending.ran_out
    assert not ending.replay_ran_out
