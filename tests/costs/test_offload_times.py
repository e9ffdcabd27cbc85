"""Times of layers whose activations wait in the host's memory."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.compute import layer_times_s
from pipette_opt.specs.activations import moved_bytes

SLOW = 1e8
"""A link to the host so slow that it alone decides, bytes/s."""


@pytest.mark.parametrize("recomputes", [False, True])
def test_recomputed_layers_send_their_input_only(recomputes: bool) -> None:
    """By hand, 2 bytes for each of 64 tokens and 4,096 channels; other layers send all that they keep."""
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=64)
    job = replace(job, training=replace(job.training, cpu_offloading_num_layers=32))
    again = {"recompute_granularity": "full", "recompute_method": "uniform"} if recomputes else {}
    config = make_config(tp=1, pp=1, dp=1, num_layers=32, **again)
    gpu = replace(job.cluster.gpu_kinds[0], host_bytes_per_s=SLOW)
    whole = moved_bytes(LLAMA_8B, job.training, config, LLAMA_8B.layers[0])
    assert whole > 2 * 64 * 4096
    assert layer_times_s(job, config, gpu)[0] == pytest.approx((2 * 64 * 4096 if recomputes else whole) / SLOW)
