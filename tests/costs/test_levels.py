"""Links by levels: collectives over NVLink domains by hand, and domains against hosts as large as they are."""

from dataclasses import fields, replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job
from levels import as_large_hosts, in_domains

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.costs.collectives import OWN_PART, all_reduce_traffic, stacked
from pipette_opt.costs.links import EachLink, RingShape
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.placed_links import PlacedLinks
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.levels import Level

MOE = replace(TINY, name="moe", num_experts=8, add_bias_linear=False, add_qkv_bias=False)

CONFIGS = (
    make_config(dp=16),
    make_config(tp=2, dp=8, use_distributed_optimizer=True),
    make_config(tp=4, pp=2, dp=2, sequence_parallel=True),
    make_config(tp=2, pp=2, dp=2, context_parallel_size=2),
    make_config(pp=4, dp=4, overlap_grad_reduce=True, use_distributed_optimizer=True),
    make_config(tp=8, pp=2),
    make_config(dp=16, expert_model_parallel_size=8),
    make_config(dp=16, expert_model_parallel_size=2),
    make_config(tp=2, dp=8, sequence_parallel=True, expert_model_parallel_size=4, expert_tensor_parallel_size=2),
    make_config(pp=2, dp=8, expert_model_parallel_size=8),
)


def ring_s(spec: ClusterSpec, hosts: list[int]) -> float:
    """An all-reduce of 1 GB over GPUs on these hosts, in order."""
    links = PlacedLinks(make_job(spec))
    rings = links.rings(np.array(hosts)[None, None], "a ring")
    return float(rings.time_s(stacked([all_reduce_traffic(1e9, len(hosts))]))[0, 0])


def test_ring_inside_a_domain_by_hand() -> None:
    """Four GPUs on four hosts of a domain: 1.5 GB at 200 GB/s, in 6 steps of an eighth of a message's 2 us, and own."""
    own = OWN_PART / 6
    assert ring_s(in_domains([0, 0, 0, 0]), [0, 1, 2, 3]) == pytest.approx(1.5 * (1 + own) / 200 + 6 * 2e-6 / 8)


def test_ring_over_two_domains_by_hand() -> None:
    """
    Two members in each domain, on two hosts: the hop has two NICs, 1.5 GB at 40 GB/s; every second step takes 9 us.

    With three members in one domain and one in the other, the hop has one.
    """
    spec = in_domains([0, 0, 0, 1, 1, 1])
    step = (9e-6 + 2e-6 / 8) / 2
    assert ring_s(spec, [0, 1, 3, 4]) == pytest.approx(1.5 / 40 + 6 * step)
    assert ring_s(spec, [0, 1, 2, 3]) == pytest.approx(1.5 / 20 + 6 * 9e-6)


def test_many_nics_are_no_faster_than_the_port() -> None:
    """Twelve members in each domain have 240 GB/s of NICs, and a GPU's port 200."""
    assert ring_s(in_domains([0] * 12 + [1] * 12), list(range(24))) == pytest.approx(
        2 * (23 + OWN_PART / 2) / 24 / 200 + 46 * (9e-6 + 11 * 2e-6 / 8) / 12
    )


def test_ring_of_two_rings_shares_no_port() -> None:
    """Both GPUs of each host have a ring of their own in the domain, and each its whole rate."""
    links = PlacedLinks(make_job(in_domains([0, 0])))
    rings = links.rings(np.array([[[0, 1], [0, 1]]]), "rings")
    times = rings.time_s(stacked([all_reduce_traffic(1e9, 2)]))
    np.testing.assert_allclose(times, (1.0 + OWN_PART / 2) / 200 + 2 * 2e-6 / 8)


@pytest.mark.parametrize("chosen", CONFIGS, ids=lambda one: one.label())
def test_domain_is_as_fast_as_a_host_of_its_size(chosen: ParallelConfig) -> None:
    """Two domains of four hosts with two GPUs, and four of two, cost what hosts of 8 and of 4 GPUs do."""
    model = MOE if chosen.expert_model_parallel_size > 1 else TINY
    for domains, hosts in ((2, 4), (4, 2), (1, 8)):
        small = in_domains(np.repeat(np.arange(domains), hosts).tolist())
        large = as_large_hosts(domains, hosts, 2)
        found, expected = (
            placed_times(
                make_job(spec, model),
                chosen,
                identity_placement(chosen, spec.gpus_per_node, np.arange(spec.num_nodes), "tp-cp-ep-dp-pp"),
            )
            for spec in (small, large)
        )
        for one in fields(found):
            np.testing.assert_allclose(
                np.asarray(getattr(found, one.name), dtype=float),
                np.asarray(getattr(expected, one.name), dtype=float),
                rtol=1e-9,
                err_msg=one.name,
            )


def test_exchange_in_a_domain_by_hand() -> None:
    """Eight ranks on four hosts of a domain: each sends seven parts through its port, none through a NIC."""
    chosen = make_config(dp=8, expert_model_parallel_size=8)
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.arange(8) // 2, local_rank=np.arange(8) % 2)
    given = make_job(in_domains([0, 0, 0, 0]), MOE)
    part = given.training.seq_length * MOE.hidden_size * given.training.parameter_bytes * MOE.moe_router_topk / 8
    one = 2e-6 + (7 + OWN_PART) * part / (200 * GB)
    times = placed_times(given, chosen, placement)
    assert times.expert_forward_s is not None
    assert times.expert_forward_s[0, 0, 0] == pytest.approx(8 * 2 * one)


def test_hop_matrix_has_a_ring_that_fits_no_domain_leave_it() -> None:
    """A ring of three hosts fits a domain of three; one of four has a hop to another domain wherever it is."""
    spec = in_domains([0, 0, 0, 1, 1, 1])
    fits = EachLink(spec).ring_s(RingShape(1, 3, 2), all_reduce_traffic(1e9, 3))
    leaves = EachLink(spec).ring_s(RingShape(1, 4, 2), all_reduce_traffic(1e9, 4))
    assert fits[0, 1] < fits[0, 3]
    assert leaves[0, 1] == leaves[0, 3] == pytest.approx(1.5 / 40 + 6 * (9e-6 + 2e-6 / 8) / 2)


def test_network_levels_by_hand() -> None:
    """Hosts of a leaf have 20 GB/s for a flow, hosts of a pod 10, all others the links between hosts, 5."""
    leaf = Level(name="leaf", group_of_node=np.arange(8) // 2, bytes_per_s=20 * GB, latency_s=3e-6)
    pod = Level(name="pod", group_of_node=np.arange(8) // 4, bytes_per_s=10 * GB, latency_s=4e-6)
    spec = make_cluster(8, 5.0, links_measured=False, levels=(leaf, pod), inter_node_latency_s=9e-6, nics_per_node=2)
    rates = spec.pair_bytes_per_s(1) / GB
    assert (rates[0, 1], rates[0, 2], rates[0, 4]) == (20, 10, 5)
    assert spec.pair_bytes_per_s(8)[0, 1] == 40 * GB
    assert np.isnan(rates).sum() == 8
    assert ring_s(spec, [0, 1]) == pytest.approx(1.0 / 20 + 2 * 3e-6)
    assert ring_s(spec, [0, 1, 2, 3]) == pytest.approx(1.5 / 10 + 6 * 4e-6)
    assert ring_s(spec, [0, 1, 4, 5]) == pytest.approx(1.5 / 5 + 6 * 9e-6)


def test_measured_pairs_count_before_levels() -> None:
    """In a measured matrix only pairs without a measurement have their level's link; NICs' cap is none on NVLink."""
    values = np.full((4, 4), 30.0)
    values[0, 1] = np.nan
    spec = replace(in_domains([0, 0, 0, 1]), links_measured=True, node_bytes_per_s=25 * GB)
    spec = replace(spec, link_matrices=make_cluster(4, values).link_matrices)
    rates = spec.pair_bytes_per_s(1) / GB
    assert rates[0, 1] == 200
    assert rates[1, 0] == 30
    assert rates[0, 3] == 25


def test_one_level_of_equal_links_is_no_level() -> None:
    """A level with the links that hosts have anyway changes no time."""
    plain = make_cluster(4, 20.0, gpus=2, nics_per_node=2, inter_node_latency_s=9e-6, links_measured=False)
    everywhere = Level(name="leaf", group_of_node=np.zeros(4, dtype=int), bytes_per_s=20 * GB, latency_s=9e-6)
    for chosen in (make_config(dp=8), make_config(tp=2, pp=2, dp=2), make_config(dp=8, expert_model_parallel_size=8)):
        placement = identity_placement(chosen, 2, np.arange(4), "tp-cp-ep-dp-pp")
        model = MOE if chosen.expert_model_parallel_size > 1 else TINY
        times = [
            placed_times(make_job(replace(plain, levels=levels), model), chosen, placement)
            for levels in ((), (everywhere,))
        ]
        for one in fields(times[0]):
            np.testing.assert_array_equal(getattr(times[0], one.name), getattr(times[1], one.name))


def test_ring_by_latencies_of_its_hops_by_hand() -> None:
    """Of 1.5 GB at 20 GB/s in 6 steps the farthest hop counts: 40 us from n1 to n2, until the ring goes back to n0."""
    known = np.full((4, 4), np.nan)
    known[1, 2], known[3, 0], known[0, 2] = 40e-6, 90e-6, 3.0
    spec = make_cluster(4, 20.0, gpus=1, nics_per_node=1, inter_node_latency_s=9e-6, known_latency_s=known)
    assert ring_s(spec, [0, 1, 2]) == pytest.approx(4 / 3 / 20 + 4 * 40e-6)
    assert ring_s(spec, [0, 1, 2, 3]) == pytest.approx(1.5 / 20 + 6 * 90e-6)
    assert ring_s(spec, [1, 0, 3]) == pytest.approx(4 / 3 / 20 + 4 * 9e-6)


def test_hops_one_by_one_are_hops_by_latency() -> None:
    """Rings are the same, however few latencies differ; all are those of the solver's matrix of hops."""
    rng, hosts, traffic = np.random.default_rng(3), [4, 1, 0, 3, 2], all_reduce_traffic(1e7, 5)
    few, many = rng.choice([1e-5, 1e-4], (5, 5)), rng.uniform(1e-5, 1e-3, (5, 5))
    for known in (few, many):
        spec = make_cluster(5, rng.uniform(1.0, 20.0, (5, 5)), gpus=1, nics_per_node=1, known_latency_s=known)
        table = EachLink(spec).ring_s(RingShape(1, 5), traffic)
        rings = PlacedLinks(make_job(spec)).rings(np.array(hosts)[None, None], "a ring")
        slowest = max(table[one, other] for one, other in zip(hosts, hosts[1:] + hosts[:1], strict=True))
        assert float(rings.time_s(stacked([traffic]))[0, 0]) == pytest.approx(slowest)


def test_exchange_waits_for_the_farthest_host() -> None:
    """Four ranks on four hosts: the all-to-all starts with the largest latency between any two of its own hosts."""
    chosen = make_config(dp=4, expert_model_parallel_size=2)
    known = np.full((4, 4), 1e-5)
    far = known.copy()
    far[0, 1], far[0, 2] = 1e-3, 5.0  # hosts 0 and 1 share experts, 0 and 2 do not
    seconds = []
    for latency_s in (known, far):
        spec = make_cluster(4, 20.0, gpus=1, nics_per_node=1, known_latency_s=latency_s)
        placement = identity_placement(chosen, 1, np.arange(4), "tp-cp-ep-dp-pp")
        seconds.append(placed_times(make_job(spec, MOE), chosen, placement).expert_forward_s)
    assert (seconds[1] - seconds[0]).max() == pytest.approx(8 * 2 * (1e-3 - 1e-5))


def test_latencies_that_cannot_be() -> None:
    """Of other hosts, below zero, and inside an NVLink domain."""
    for known, said in ((np.zeros((3, 3)), "of \\(3, 3\\) hosts"), (np.full((2, 2), -1.0), ">= 0")):
        with pytest.raises(ValueError, match=said):
            make_cluster(2, known_latency_s=known)
    with pytest.raises(ValueError, match="n0 and n1 are in one NVLink domain"):
        in_domains([0, 0], known_latency_s=np.full((2, 2), 1e-6))


def test_other_algorithms_are_refused_over_domains() -> None:
    """Trees over domains of one host are what they were; of several they are not known."""
    make_job(in_domains([0, 1]), allreduce="tree")
    with pytest.raises(InputError, match="only ring is known"):
        make_job(in_domains([0, 0]), allreduce="tree")
