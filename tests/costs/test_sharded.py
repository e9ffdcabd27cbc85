"""What ZeRO stages 2 and 3 add to a micro-batch: by hand, and against a walk through the layers."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_random_cluster

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.costs.collectives import NO_TRAFFIC, parameter_traffic
from pipette_opt.costs.compute import owned_parameters
from pipette_opt.costs.overlap import shown_gather_s
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.sharded import once_traffic, outer_traffic, sharded_costs
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.formula import _static_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data, links_decide
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.breakdown import causes_of
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.specs import ClusterSpec, Instance

PARAMETERS = float(stage_parameters(LLAMA_8B, make_config(num_layers=32)).own[0])


def sharded(stage: int, dp: int = 16, **options: object) -> ParallelConfig:
    """Data-parallel ranks that share what the stage says."""
    return make_config(dp=dp, num_layers=32, use_distributed_optimizer=stage > 0, zero_stage=stage, **options)


def hosts(gb_per_s: float = 20.0) -> ClusterSpec:
    """Two hosts whose collectives start in no time."""
    return make_cluster(2, gb_per_s, intra_node_latency_s=0.0, inter_node_latency_s=0.0)


def job(gb_per_s: float = 20.0, **stack: float) -> Instance:
    """Llama 8B on them."""
    made = make_job(hosts(gb_per_s), LLAMA_8B, seq_length=4096)
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
    three, two = three.layers, two.layers
    assert three.forward[0].hop_bytes == pytest.approx(2 * whole)
    assert three.backward[0].hop_bytes == pytest.approx((2 + 4) * whole)
    assert (three.forward[0].num_calls, three.backward[0].num_calls) == (32, 64)
    assert (three.forward[0].num_steps, three.backward[0].num_steps) == (32 * 15, 64 * 15)
    assert two.forward[0].hop_bytes == 0.0
    assert two.backward[0].hop_bytes == pytest.approx(4 * whole)
    assert all(outer_traffic(LLAMA_8B, job().training, sharded(stage)) == [NO_TRAFFIC] for stage in (1, 2, 3))
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
        causes_of(spent, simulate_times(spent, count, "blocking"), count, "blocking").pipeline["data_parallel"]
        for count in (1, 2)
    )
    assert two == pytest.approx(2 * one)


def test_experts_by_hand() -> None:
    """Eight experts over eight ranks are held by two ranks each: their ring has two, that of all else sixteen."""
    model = replace(LLAMA_8B, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=14336)
    chosen = sharded(3, expert_model_parallel_size=8)
    costs = sharded_costs(model, job().training, chosen)
    assert costs is not None
    assert costs.experts is not None
    of_rank = 32 * 3 * 4096 * 14336  # one expert a layer
    rest = float(stage_parameters(model, chosen).own[0])
    assert costs.experts.forward[0].hop_bytes == pytest.approx(1 / 2 * 2 * of_rank)
    assert costs.experts.backward[0].hop_bytes == pytest.approx(1 / 2 * (2 + 4) * of_rank)
    assert costs.layers.forward[0].hop_bytes == pytest.approx(15 / 16 * 2 * rest)
    given = replace(job(0.01, overlap_slowdown=0.0), model=model)
    found = times(given, chosen)
    own, experts = 15 / 16 * 2 * rest / (8 * 0.01e9), of_rank / 0.01e9
    shown = own + experts - found.sharded_forward_s.max()
    assert shown == pytest.approx(31 / 32 * (found.forward_s - found.sharded_forward_s).max(), rel=1e-6)


def test_stages_of_a_pipeline_share_their_own() -> None:
    """Two stages of half of the layers, eight replicas: each its own parameters, in rings of eight."""
    chosen = sharded(3, dp=8, pp=2)
    costs = sharded_costs(LLAMA_8B, job().training, chosen)
    assert costs is not None
    counts = stage_parameters(LLAMA_8B, chosen).own
    assert [one.hop_bytes for one in costs.layers.forward] == pytest.approx((7 / 8 * 2 * counts).tolist())
    assert costs.units == (16, 16)
    found = times(job(), chosen)
    assert (found.sharded_forward_s > 0).all()


@pytest.mark.parametrize("outer", ["no_shard", "optim"])
def test_groups_of_replicas_by_hand(outer: str) -> None:
    """
    Two groups, each on a host: gathers stay inside, and shards of an eighth cross between the hosts once.

    An all-reduce of two moves the gradients of a shard whole; a scatter and a gather half of them and of parameters.
    """
    given = job(0.01, overlap_slowdown=0.0)
    chosen = sharded(3, num_distributed_optimizer_instances=2, outer_dp_sharding_strategy=outer)
    found = times(given, chosen)
    costs = sharded_costs(LLAMA_8B, given.training, chosen)
    assert costs is not None
    assert costs.layers.forward[0].hop_bytes == pytest.approx(7 / 8 * 2 * PARAMETERS)
    sent = 4 if outer == "no_shard" else (4 + 2) / 2
    assert outer_traffic(LLAMA_8B, given.training, chosen)[0].hop_bytes == pytest.approx(sent * PARAMETERS / 8)
    assert found.reduction_s.max() == pytest.approx(sent * PARAMETERS / 8 / 0.01e9, rel=1e-3)
    whole = times(given, sharded(3))
    assert found.sharded_forward_s.max() < whole.sharded_forward_s.max() / 10


def test_instances_of_the_optimizer_by_hand() -> None:
    """
    Two instances of the distributed optimizer, each on a host: gradients are scattered and parameters gathered inside.

    Then an all-reduce of two moves a shard of 4 / 8 bytes a parameter whole over a slow link; without instances, a
    ring over both hosts moves 15/16 of 4 + 2 bytes over the eight links. A rank owns an eighth, no sixteenth.
    """
    given = job(0.01)
    one, two = (sharded(1, num_distributed_optimizer_instances=groups) for groups in (1, 2))
    inside = (7 + 0.42) / 8 * (4 + 2) * PARAMETERS / (200 * GB)
    assert times(given, two).reduction_s.max() == pytest.approx(inside + 4 / 8 * PARAMETERS / 0.01e9, rel=1e-6)
    assert times(given, one).reduction_s.max() == pytest.approx(15 / 16 * 6 * PARAMETERS / (8 * 0.01e9), rel=1e-6)
    beside = replace(two, overlap_grad_reduce=True, overlap_param_gather=True)
    assert times(given, beside).gather_s.max() == pytest.approx((7 + 0.42) / 8 * 2 * PARAMETERS / (200 * GB))
    assert owned_parameters(LLAMA_8B, two)[0] == PARAMETERS / 8 == 2 * owned_parameters(LLAMA_8B, one)[0]
    tables = (stage_table(LLAMA_8B, given.training, [each]) for each in (one, two))
    states = [float(_static_bytes(table)[2][0]) for table in tables]
    assert states == pytest.approx([12 * PARAMETERS / 16, 12 * PARAMETERS / 8])


@pytest.mark.parametrize("seed", range(15))
def test_no_bound_is_above_instances_on_random_hosts(seed: int) -> None:
    """Random links, degrees and overlap, dense and with experts: work and ticks stay below the simulator."""
    rng = np.random.default_rng(seed)
    tp, pp, dp, groups = (int(2 ** rng.integers(*limits)) for limits in ((0, 2), (0, 2), (2, 4), (1, 3)))
    model = replace(LLAMA_8B, num_layers=8)
    if seed % 3 == 0:
        model = replace(model, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=2048)
    given = make_job(make_random_cluster(rng, 16, gpus=2), model, seq_length=2048)
    chosen = make_config(
        tp=tp,
        pp=pp,
        dp=dp,
        use_distributed_optimizer=True,
        num_distributed_optimizer_instances=groups,
        overlap_grad_reduce=bool(rng.random() < 0.5),
    )
    problem = build_problem_data(
        given, [FittingCandidate(config=chosen, need_bytes=np.full(pp, 1 << 30))], np.full(16, 1 << 36)
    )
    assert problem.candidates
    for candidate in problem.candidates:
        assert not links_decide(given, chosen, candidate.tile)
        nodes = rng.permutation(16)[: candidate.num_cells].reshape(candidate.grid)
        seconds = estimate(given, chosen, tile_placement(chosen, candidate.tile, nodes)).iteration_time_s
        assert objective_ticks(problem, candidate, nodes) * problem.tick_s <= seconds
        assert WorkBounds(given)(chosen) <= seconds


def test_memory_of_groups_is_a_share_of_a_group() -> None:
    """Parameters and gradients of an eighth on each rank, optimizer states of an eighth or of a sixteenth."""
    training = job().training
    held = {}
    for groups, outer in ((1, "no_shard"), (2, "no_shard"), (2, "optim")):
        options = {"num_distributed_optimizer_instances": groups, "outer_dp_sharding_strategy": outer}
        table = stage_table(LLAMA_8B, training, [sharded(3, **options)])
        held[groups, outer] = [float(one[0]) for one in _static_bytes(table)]
    gathered = [one - two for one, two in zip(held[2, "no_shard"], held[1, "no_shard"], strict=True)]
    assert gathered == pytest.approx([2 * PARAMETERS / 16, 4 * PARAMETERS / 16, 12 * PARAMETERS / 16])
    assert held[2, "optim"][:2] == held[2, "no_shard"][:2]
    assert held[2, "optim"][2] == pytest.approx(held[1, "no_shard"][2])


def test_the_lower_form_is_below_the_simulator() -> None:
    """Of random links: what the search minimises is at most what the simulator says, and nearly that on equal links."""
    for stage in (2, 3):
        chosen = sharded(stage)
        given = job()
        need = np.full(1, 1 << 30)
        problem = build_problem_data(given, [FittingCandidate(config=chosen, need_bytes=need)], np.full(2, 1 << 36))
        (candidate,) = problem.candidates
        least = (candidate.forward_ticks + candidate.backward_ticks).sum() * problem.tick_s
        found = times(given, chosen)
        assert least <= (found.forward_s + found.backward_s).max() * (1 + 1e-9)
        assert least == pytest.approx((found.forward_s + found.backward_s).max(), rel=0.02)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            sharded(3, dp=8, pp=2, virtual_pipeline_model_parallel_size=2),
            "ZeRO stage 3 cannot be timed with an interleaved pipeline",
        ),
        (sharded(2, overlap_grad_reduce=True), "ZeRO stage 2 always overlaps"),
    ],
)
def test_refused(chosen: ParallelConfig, said: str) -> None:
    """What nobody timed."""
    with pytest.raises(InputError, match=said):
        times(job(), chosen)
