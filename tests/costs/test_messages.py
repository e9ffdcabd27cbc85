"""Messages against hand counts."""

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job

from pipette_opt.base.units import GB
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s, p2p_bytes


def test_p2p_bytes() -> None:
    """S b h 2 bytes, split over the tensor ranks only with sequence parallelism."""
    job = make_job(make_cluster(1), TINY, seq_length=1024)
    whole = 1024 * 2 * 1024 * 2
    assert p2p_bytes(TINY, job.training, make_config(tp=4, mbs=2)) == whole
    assert p2p_bytes(TINY, job.training, make_config(tp=4, mbs=2, sequence_parallel=True)) == whole / 4
    assert p2p_bytes(LLAMA_8B, job.training, make_config(mbs=2)) == 4 * whole


def test_flows_share_the_link() -> None:
    """Eight flows over two NICs of 10 GB/s: each gets an eighth of 20 GB/s."""
    spec = make_cluster(2, 10.0, nics_per_node=2, inter_node_latency_s=1e-5)
    assert inter_node_message_s(spec, 1e9, 8)[0, 1] == pytest.approx(1e-5 + 1e9 / (20 * GB / 8))
    assert inter_node_message_s(spec, 1e9, 1)[0, 1] == pytest.approx(1e-5 + 0.1)
    assert np.isnan(inter_node_message_s(spec, 1e9, 1)[0, 0])


def test_inside_a_host() -> None:
    """The fabric of a host is not shared."""
    assert intra_node_message_s(make_cluster(1, intra_node_latency_s=2e-6), 2e9) == pytest.approx(2e-6 + 0.01)
