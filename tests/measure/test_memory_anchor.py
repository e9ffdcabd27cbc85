"""Anchors: a rank that was run replaces what is counted of its work; what cannot be run says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, kept_in_file, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.measure.anchor import Anchor, anchored, run_fullest
from pipette_opt.measure.megatron_rank import measure_rank
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.memory_constants import MemoryConstants

JOB = TrainingSpec(global_batch_size=64, seq_length=4096)
CHOSEN = make_config(4, 2, 1, 1, 32, sequence_parallel=True)


def run(measured_over_counted: float, predictor: MemoryPredictor) -> Anchor:
    """The fullest rank, as if it had taken so much."""
    job = make_job(make_cluster(1, kinds=(A100_80,)), LLAMA_8B, 64, 4096)
    counted, placeholders = predictor.counted(LLAMA_8B, job.training, [CHOSEN])

    def measure(*asked: object) -> int:
        stage = asked[3]
        assert isinstance(stage, int)
        return round(measured_over_counted * float(counted[stage] - placeholders[stage]))

    return run_fullest(job, CHOSEN, predictor, "cpu", measure)


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.3])
def test_what_was_measured_replaces_what_is_counted(ratio: float, tmp_path: Path) -> None:
    """That stage alone, in proportion; the file keeps it; a second run of the same work replaces the first."""
    predictor = MemoryPredictor.load()
    found = run(ratio, predictor)
    memory_constants = anchored(anchored(MemoryConstants(), replace(found, measured_bytes=1)), found)
    kept = kept_in_file(memory_constants, tmp_path)
    assert kept.anchors == {found.work: pytest.approx(np.log(ratio), abs=1e-5)}
    before, after = (
        MemoryPredictor.load(memory_constants=one).predict(LLAMA_8B, JOB, [CHOSEN], gpus_per_node=8)[0]
        for one in (MemoryConstants(), kept)
    )
    counted = predictor.counted(LLAMA_8B, JOB, [CHOSEN])[0]
    moved = after.predicted_bytes - before.predicted_bytes
    assert moved[found.stage] == pytest.approx((ratio - 1) * counted[found.stage], rel=1e-3, abs=1e6)
    assert moved[1 - found.stage] == 0
    np.testing.assert_array_equal(after.components.sum(axis=1), after.predicted_bytes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero_stage": 2, "use_distributed_optimizer": True}, "ZeRO 2 and 3"),
        ({"virtual_pipeline_model_parallel_size": 2}, "interleaved"),
        ({"recompute_granularity": "full"}, "recomputation.*GPU"),
        ({"context_parallel_size": 2}, "context parallelism.*GPU"),
    ],
)
def test_what_cannot_be_run_is_refused(options: dict[str, object], message: str) -> None:
    """By name, and with the device that could run it."""
    with pytest.raises(InputError, match=message):
        measure_rank(LLAMA_8B, JOB, replace(CHOSEN, **options), 0, "cpu")  # type: ignore[arg-type]
