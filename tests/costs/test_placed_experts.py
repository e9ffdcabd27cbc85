"""Experts on given hosts: all-to-alls, rings and replicas in step, against loops over single messages."""

from collections import defaultdict
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job, make_links, make_random_cluster

from pipette_opt.base.errors import InputError, MissingLinkError
from pipette_opt.costs.exchange import expert_layer_s
from pipette_opt.costs.experts import distinct_shares, expert_traffic
from pipette_opt.costs.layer_kinds import layers_of_kinds
from pipette_opt.costs.placed import placed_batches, placed_times
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid, host_tiles, tile_placement
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.specs import Instance

MOE = replace(TINY, name="moe", num_experts=8, add_bias_linear=False, add_qkv_bias=False)


def random_placement(rng: np.random.Generator, chosen: ParallelConfig, num_nodes: int, gpus: int) -> Placement:
    """Ranks on GPUs in any order."""
    places = rng.permutation(num_nodes * gpus)[: chosen.world_size]
    return Placement(order="tp-cp-ep-dp-pp", node=places // gpus, local_rank=places % gpus)


def blocks_of(chosen: ParallelConfig) -> list[list[list[int]]]:
    """Ranks of each block, by expert-parallel rank and then expert tensor rank: Megatron's order, counted out."""
    etp, ep = chosen.expert_tensor_size, chosen.expert_model_parallel_size
    ranks = RankGrid.of(chosen).ranks().reshape(chosen.pipeline_model_parallel_size, -1)
    return [
        [stage[first + part * etp : first + (part + 1) * etp].tolist() for part in range(ep)]
        for stage in ranks
        for first in range(0, len(stage), ep * etp)
    ]


def dispatcher_of(given: Instance) -> str:
    """How tokens get to their experts."""
    return given.training.moe_token_dispatcher_type


def exchange_by_hand(given: Instance, chosen: ParallelConfig, placement: Placement) -> dict[int, float]:
    """One all-to-all as each rank sees it: every message looked at on its own."""
    spec, node = given.cluster, placement.node
    ep, etp = chosen.expert_model_parallel_size, chosen.expert_tensor_size
    part = expert_traffic(given.model, given.training, chosen).sent_bytes / ep
    shares, flex = distinct_shares(given.model, given.training, chosen), dispatcher_of(given) == "flex"
    groups = [[block[one][place] for one in range(ep)] for block in blocks_of(chosen) for place in range(etp)]
    senders = defaultdict(set)
    moved: dict[tuple[int, int], float] = defaultdict(float)
    for group in groups:
        for here in group:
            for there in group:
                if node[here] != node[there]:
                    together = sum(node[other] == node[there] for other in group)
                    senders[node[here]].add(here)
                    moved[node[here], node[there]] += part * shares[together]
    out: dict[int, float] = defaultdict(float)
    into: dict[int, float] = defaultdict(float)
    for (here, there), size in moved.items():
        flows = min(len(senders[here]), len(senders[there]))
        seconds = size / spec.pair_bytes_per_s(flows)[here, there]
        out[here] += seconds
        into[there] += seconds
    found = {}
    for group in groups:
        hosts = {node[rank] for rank in group}
        here = [sum(node[one] == node[other] for other in group) for one in group]
        inside = (max(here) - 1) * shares[1] * (len(group) / min(here) if flex else 1.0)
        load = max(max(out[host], into[host]) for host in hosts) if len(hosts) > 1 else 0.0
        latency = spec.inter_node_latency_s if len(hosts) > 1 else spec.intra_node_latency_s
        seconds = latency + max(inside * part / spec.intra_node_bytes_per_s, load)
        found |= dict.fromkeys(group, seconds)
    return found


@pytest.mark.parametrize("dispatcher", ["alltoall", "flex"])
@pytest.mark.parametrize("sizes", [(1, 1, 8, 8, 1), (2, 1, 4, 4, 1), (2, 2, 2, 2, 2), (2, 1, 4, 8, 1), (1, 2, 8, 4, 1)])
def test_exchange_against_single_messages(sizes: tuple[int, ...], dispatcher: str) -> None:
    """On random hosts every slot waits for its slowest rank's all-to-alls, and replicas of a block for each other."""
    tp, pp, dp, ep, etp = sizes
    rng = np.random.default_rng(sum(sizes))
    chosen = make_config(
        tp=tp, pp=pp, dp=dp, sequence_parallel=tp > 1, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp
    )
    for _ in range(5):
        spec = make_random_cluster(rng, 5, gpus=4, intra_node_latency_s=2e-6, inter_node_latency_s=9e-6)
        given = make_job(spec, MOE)
        given = replace(given, training=replace(given.training, moe_token_dispatcher_type=dispatcher))
        placement = random_placement(rng, chosen, 5, 4)
        times = placed_times(given, chosen, placement)
        assert times.expert_forward_s is not None
        by_rank = exchange_by_hand(given, chosen, placement)
        layers = layers_of_kinds(MOE, chosen)[MOE.layers[-1]]
        ranks = RankGrid.of(chosen).ranks()
        for stage in range(pp):
            for replica in range(dp):
                slowest = max(by_rank[rank] for rank in ranks[stage, replica].ravel().tolist())
                found = times.expert_forward_s[0, stage, replica] / layers[0, stage]
                if etp == 1:
                    assert found == pytest.approx(2 * slowest)
                else:
                    assert found > 2 * slowest
        together = max(ep * etp // tp, 1)
        for values in (times.forward_s[0], times.backward_s[0], times.send_forward_s):
            of_block = values.reshape(pp, -1, together)
            assert (of_block == of_block[..., :1]).all()


def test_no_experts_to_send_nothing_sent() -> None:
    """All experts on every rank: no tokens travel, and gradients go as in a dense model, in two rings."""
    given = make_job(make_cluster(2, gpus=4), MOE)
    chosen = make_config(dp=8)
    times = placed_times(
        given, chosen, Placement(order="tp-cp-ep-dp-pp", node=np.arange(8) // 4, local_rank=np.arange(8) % 4)
    )
    assert times.expert_forward_s is not None
    assert not times.expert_forward_s.any()
    assert not times.tensor_forward_s.any()


def test_spread_experts_have_less_to_reduce() -> None:
    """With every expert once, its gradients stay where they are; the fewer copies, the shorter the reduction."""
    given = make_job(make_cluster(2, gpus=4), MOE)
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.arange(8) // 4, local_rank=np.arange(8) % 4)
    reductions = [
        float(placed_times(given, make_config(dp=8, expert_model_parallel_size=ep), placement).reduction_s[0])
        for ep in (1, 2, 4, 8)
    ]
    assert reductions == sorted(reductions, reverse=True)
    assert reductions[-1] < 0.5 * reductions[0]


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_more_imbalance_is_never_faster(dispatcher: str) -> None:
    """Iteration times rise with the load of the busiest rank; the breakdown adds up and names the experts."""
    rng = np.random.default_rng(3)
    given = make_job(make_random_cluster(rng, 4, gpus=4), MOE)
    chosen = make_config(tp=2, pp=2, dp=4, sequence_parallel=True, expert_model_parallel_size=4)
    placement = random_placement(rng, chosen, 4, 4)
    found = []
    for imbalance in (1.0, 1.2, 2.0, 4.0, 9.0):
        training = replace(given.training, expert_imbalance=imbalance, moe_token_dispatcher_type=dispatcher)
        one = estimate(replace(given, training=training), chosen, placement)
        assert sum(one.breakdown.values()) == pytest.approx(one.iteration_time_s)
        assert one.breakdown["expert_parallel"] > 0
        found.append(one.iteration_time_s)
    assert found[:4] == sorted(set(found[:4]))
    assert found[3] == found[4]  # all tokens on one of four ranks


def test_tokens_that_go_once_take_no_longer_between_hosts() -> None:
    """Over two hosts half of the copies are sent twice by the all-to-all; no bound is above what placed ranks take."""
    given = make_job(make_cluster(2, 5.0, gpus=4), replace(MOE, moe_router_topk=4))
    chosen = make_config(dp=8, expert_model_parallel_size=8)
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.arange(8) // 4, local_rank=np.arange(8) % 4)
    found = []
    for dispatcher in ("alltoall", "flex"):
        one = replace(given, training=replace(given.training, moe_token_dispatcher_type=dispatcher))
        times = placed_times(one, chosen, placement)
        assert times.expert_forward_s is not None
        sent = float(times.expert_forward_s[0, 0, 0]) / layers_of_kinds(MOE, chosen)[MOE.layers[-1]][0, 0]
        assert expert_layer_s(one, chosen, MOE.layers[-1], 4, 4)[0] <= sent * (1 + 1e-12)
        found.append(sent)
    # Four of eight experts are elsewhere: two copies of four go there in the mean, one token of 69 in 70 does.
    latency = 2 * given.cluster.inter_node_latency_s
    assert (found[1] - latency) / (found[0] - latency) == pytest.approx(69 / 70 / 2)


def test_inside_hosts_beats_across() -> None:
    """The same groups on one host and over two: slow links between hosts make the all-to-all slower."""
    given = make_job(make_cluster(2, 5.0, gpus=4), MOE)
    chosen = make_config(dp=8, expert_model_parallel_size=4)
    rank = np.arange(8)
    together = Placement(order="tp-cp-ep-dp-pp", node=rank // 4, local_rank=rank % 4)
    apart = Placement(order="tp-cp-ep-dp-pp", node=rank % 2, local_rank=rank // 2)
    times = [placed_times(given, chosen, one).expert_forward_s for one in (together, apart)]
    assert times[0] is not None
    assert times[1] is not None
    assert (times[0] < times[1]).all()


def test_batches_are_single_placements() -> None:
    """Many placements of several degrees at once cost what each costs alone."""
    rng = np.random.default_rng(8)
    given = make_job(make_random_cluster(rng, 5, gpus=4), replace(MOE, num_dense_layers=3))
    chosen = [
        make_config(
            tp=2, pp=2, dp=4, sequence_parallel=True, expert_model_parallel_size=ep, use_distributed_optimizer=True
        )
        for ep in (2, 4, 4)
    ]
    placed = [(one, random_placement(rng, one, 5, 4)) for one in chosen]
    for members, batch in placed_batches(given, placed):
        for row, index in enumerate(members.tolist()):
            alone, together = placed_times(given, *placed[index]), batch.one(row)
            for name in ("forward_s", "backward_s", "reduction_s", "expert_backward_s"):
                np.testing.assert_allclose(getattr(together, name), getattr(alone, name))


def test_unmeasured_link_between_experts() -> None:
    """The message names the group that uses it."""
    links = np.full((2, 2), 10.0)
    links[0, 1] = np.nan
    given = make_job(make_cluster(2, 10.0, gpus=4, link_matrices=(make_links(links, 2),)), MOE)
    rank = np.arange(8)
    placement = Placement(order="tp-cp-ep-dp-pp", node=rank // 4, local_rank=rank % 4)
    with pytest.raises(MissingLinkError, match="an expert-parallel group uses the link from n0 to n1"):
        placed_times(given, make_config(dp=8, expert_model_parallel_size=8), placement)


def test_sizes_that_megatron_cannot_number() -> None:
    """Blocks must divide a stage's ranks; with data parallelism last they must be the slots."""
    given = make_job(make_cluster(2, gpus=4), MOE)
    rank = np.arange(8)
    ours = Placement(order="tp-cp-ep-dp-pp", node=rank // 4, local_rank=rank % 4)
    with pytest.raises(InputError, match="must divide the 4 ranks of a stage"):
        placed_times(given, make_config(pp=2, dp=4, expert_model_parallel_size=8), ours)
    with pytest.raises(InputError, match="here 2, to be tensor \\* context parallel size, here 1"):
        placed_times(
            given, make_config(pp=2, dp=4, expert_model_parallel_size=2), replace(ours, order="tp-cp-ep-pp-dp")
        )


def test_time_is_the_same_wherever_blocks_stay_inside() -> None:
    """Hosts may be exchanged: without slower links between them the time does not change."""
    given = make_job(make_cluster(4, 5.0, gpus=4), MOE)
    chosen = make_config(
        tp=2, pp=2, dp=4, sequence_parallel=True, expert_model_parallel_size=2, use_distributed_optimizer=True
    )
    block = next(one for one in host_tiles(chosen, 4, "slurm") if one.stages == 1)
    found = set()
    for nodes in permutations(range(4)):
        placement = tile_placement(chosen, block, np.array(nodes).reshape(block.node_grid(chosen)))
        found.add(round(simulate_times(placed_times(given, chosen, placement), 8, "blocking").iteration_time_s, 12))
    assert len(found) == 1
