"""What ZeRO stages 2 and 3 add to a micro-batch: by hand, and against a walk through the layers."""

from dataclasses import replace

import numpy as np
import pytest
from specs_for_tests import LLAMA_8B, cluster, config, instance

from pipette_opt.base.errors import InputError
from pipette_opt.costs.collectives import parameter_traffic
from pipette_opt.costs.compute import stage_parameters
from pipette_opt.costs.overlap import shown_gather_s
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.sharded import once_traffic, sharded_costs
from pipette_opt.judge.breakdown import causes_of
from pipette_opt.judge.estimate import estimate, judge_times
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.specs import ClusterSpec, Instance

PARAMETERS = float(stage_parameters(LLAMA_8B, config(num_layers=32))[0])


def sharded(stage: int, dp: int = 16, **options: object) -> ParallelConfig:
    """Data-parallel ranks that share what the stage says."""
    return config(dp=dp, num_layers=32, use_distributed_optimizer=stage > 0, zero_stage=stage, **options)


def hosts(gb_per_s: float = 20.0) -> ClusterSpec:
    """Two hosts whose collectives start in no time."""
    return cluster(2, gb_per_s, intra_node_latency_s=0.0, inter_node_latency_s=0.0)


def job(gb_per_s: float = 20.0, **stack: float) -> Instance:
    """Llama 8B on them."""
    made = instance(hosts(gb_per_s), LLAMA_8B, seq_length=4096)
    return replace(made, stack=replace(made.stack, **stack))


def on_hosts(chosen: ParallelConfig) -> Placement:
    """Ranks in order."""
    return identity_placement(chosen, 8, np.arange(2), "tp-cp-ep-dp-pp")


def times(given: Instance, chosen: ParallelConfig):  # type: ignore[no-untyped-def]
    """On the hosts in order."""
    return placed_times(given, chosen, on_hosts(chosen))


def walked_s(work_s: float, before_s: float, after_s: float, units: int) -> float:
    """
    A pass through equal layers: each is gathered before its work and scattered after it, one message at a time.

    Messages are sent in the order in which FSDP asks for them: the next layer's gather while a layer works, then the
    scatter of the layer before.
    """
    network = compute = 0.0
    gathered, waiting = [0.0] * (units + 1), None
    for unit in range(units):
        if unit == 0:
            network = gathered[0] = before_s / units
        begin = max(compute, gathered[unit])
        if unit + 1 < units:
            network = max(network, begin) + before_s / units
            gathered[unit + 1] = network
        if waiting is not None:
            network = max(network, waiting) + after_s / units
        compute = begin + work_s / units
        waiting = compute
    return max(network, compute) + after_s / units if after_s else compute


@pytest.mark.parametrize("units", [1, 2, 8, 32])
def test_the_form_is_a_walk_through_the_layers(units: int) -> None:
    """Forward exactly; backward, where gathers and scatters take turns, within one layer's work and messages."""
    rng = np.random.default_rng(units)
    for work, gather, scatter in rng.uniform(0.1, 2.0, (200, 3)).tolist():
        forward = work + float(shown_gather_s(np.array(gather), units, np.array(work), 0.0))
        assert forward == pytest.approx(walked_s(work, gather, 0.0, units))
        both = gather + scatter
        backward = work + float(shown_gather_s(np.array(both), units, np.array(work), 0.0))
        assert backward == pytest.approx(walked_s(work, gather, scatter, units), abs=(work + both) / units)


def test_bytes_by_hand() -> None:
    """Stage 3: all parameters in two bytes each way, gradients in four; stage 2: gradients, then parameters once."""
    training = job().training
    whole = 15 / 16 * PARAMETERS
    three, two = (sharded_costs(LLAMA_8B, training, sharded(stage)) for stage in (3, 2))
    assert three is not None
    assert two is not None
    assert three.forward[0].hop_bytes == pytest.approx(2 * whole)
    assert three.backward[0].hop_bytes == pytest.approx((2 + 4) * whole)
    assert (three.forward[0].num_calls, three.backward[0].num_calls) == (32, 64)
    assert (three.forward[0].num_steps, three.backward[0].num_steps) == (32 * 15, 64 * 15)
    assert two.forward[0].hop_bytes == 0.0
    assert two.backward[0].hop_bytes == pytest.approx(4 * whole)
    assert once_traffic(LLAMA_8B, training, sharded(3))[0].hop_bytes == 0.0
    assert once_traffic(LLAMA_8B, training, sharded(2)) == parameter_traffic(LLAMA_8B, training, sharded(2))
    assert sharded_costs(LLAMA_8B, training, sharded(1)) is None


def test_slow_links_decide() -> None:
    """With links so slow that work hides behind them, a micro-batch takes what is sent, and one layer's work."""
    given = job(0.01, overlap_slowdown=0.0)
    found, plain = times(given, sharded(3)), times(given, sharded(0))
    ring = 15 / 16 * PARAMETERS / (8 * 0.01e9)  # eight flows of a ring between the hosts, each over a NIC of its own
    assert found.forward_s.max() == pytest.approx(2 * ring + plain.forward_s.max() / 32)
    assert found.backward_s.max() == pytest.approx(6 * ring + plain.backward_s.max() / 32)
    assert found.reduction_s.max() == 0.0
    assert found.forward_s - found.sharded_forward_s == pytest.approx(plain.forward_s)


def test_fast_links_show_one_layer() -> None:
    """With links so fast that everything hides, a pass takes its work and one layer's messages."""
    given = job(1e5, overlap_slowdown=0.0)
    given = replace(given, cluster=replace(given.cluster, intra_node_bytes_per_s=1e14))
    found, plain = times(given, sharded(3)), times(given, sharded(0))
    assert found.forward_s.max() == pytest.approx(plain.forward_s.max(), rel=0.01)
    assert found.backward_s.max() == pytest.approx(plain.backward_s.max(), rel=0.01)


def test_compute_beside_collectives_is_slower() -> None:
    """By the stack's share, of what runs beside them."""
    slow, quick = (times(job(20.0, overlap_slowdown=share), sharded(3)) for share in (0.2, 0.0))
    gather, work = 2 * 15 / 16 * PARAMETERS / (8 * 20e9), times(job(), sharded(0)).forward_s.max()
    longer = slow.forward_s.max() - quick.forward_s.max()
    assert longer == pytest.approx(0.2 * 31 / 32 * min(gather, work))


def test_estimates_count_it_as_data_parallel() -> None:
    """The parts sum to the whole; stage 3 sends more than stage 2, and that more than stage 1, on slow links."""
    parts = {}
    for stage in (1, 2, 3):
        chosen = sharded(stage, mbs=1)
        found = estimate(job(1.0), chosen, on_hosts(chosen))
        for causes in (found.breakdown, found.critical_path):
            assert sum(causes.values()) == pytest.approx(found.iteration_time_s)
        parts[stage] = found.breakdown
    assert parts[1]["data_parallel"] < parts[2]["data_parallel"] < parts[3]["data_parallel"]
    assert parts[3]["compute"] == pytest.approx(parts[1]["compute"])


def test_every_micro_batch_pays() -> None:
    """Twice the micro-batches, twice what is added."""
    given, chosen = job(1.0), sharded(3)
    spent = times(given, chosen)
    one, two = (
        causes_of(spent, judge_times(spent, count, "blocking"), count, "blocking").pipeline["data_parallel"]
        for count in (1, 2)
    )
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (sharded(3, dp=8, pp=2), "ZeRO stage 3 are not known with pipelines or experts"),
        (sharded(2, overlap_grad_reduce=True), "ZeRO stage 2 overlaps anyway"),
    ],
)
def test_refused(chosen: ParallelConfig, said: str) -> None:
    """What nobody timed."""
    with pytest.raises(InputError, match=said):
        times(job(), chosen)
