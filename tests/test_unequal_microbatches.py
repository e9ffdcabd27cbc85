"""Replicas with different numbers of micro-batches: dealt evenly, timed by the longest, bounded and kept so."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from factories import TINY, make_config, make_job, make_random_cluster, plan_of, small_config, small_instance

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.candidates.legality import batch, interleaving
from pipette_opt.costs.work import WorkBounds
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.memory.table import stage_table
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance

SPACE = SearchSpace(
    tensor_parallel=(2,), micro_batch_size=(1, 2), max_virtual_pipeline=2, recompute=(None,), uneven_layers=False
)


def job(batch_size: int, seed: int = 0, *, hosts: int = 3, unequal: bool = True) -> Instance:
    """Hosts of two GPUs with links of random speed."""
    given = make_job(make_random_cluster(np.random.default_rng(seed), hosts, gpus=2), TINY, batch_size, 2048)
    return replace(given, training=replace(given.training, unequal_microbatches=unequal))


@pytest.mark.parametrize(("dp", "mbs", "size"), [(3, 1, 7), (3, 2, 8), (4, 1, 4), (5, 1, 16)])
def test_the_longest_share_is_as_short_as_any_deal_allows(dp: int, mbs: int, size: int) -> None:
    """Against all ways to deal micro-batches to replicas that have at least one."""
    shares = make_config(tp=1, pp=1, dp=dp, mbs=mbs).microbatches_of_replicas(size)
    deals = [deal for deal in product(range(1, size + 1), repeat=dp) if sum(deal) * mbs == size]
    assert shares in deals
    assert max(shares) == min(max(deal) for deal in deals)


def test_shares_by_hand() -> None:
    """512 sequences: 15 replicas run 35 or 34; with 2 chunks on 4 stages whole groups of 4 micro-batches."""
    assert make_config(tp=1, pp=1, dp=15).microbatches_of_replicas(512) == (35,) * 2 + (34,) * 13
    grouped = make_config(tp=1, pp=4, dp=3, virtual_pipeline_model_parallel_size=2)
    assert grouped.microbatches_of_replicas(32) == (12, 12, 8)
    assert grouped.num_microbatches(32, unequal=True) == 12
    for size in (30, 8):
        with pytest.raises(ValueError, match="whole number of groups of 4 micro-batches of 1"):
            grouped.microbatches_of_replicas(size)


def test_equal_shares_are_the_same_either_way() -> None:
    """Where data-parallel size times micro-batch divides the batch nothing changes."""
    chosen = make_config(tp=1, pp=1, dp=4, mbs=2)
    assert chosen.num_microbatches(32, unequal=True) == chosen.num_microbatches(32) == 4


@pytest.mark.parametrize(
    ("dp", "mbs", "chunks", "size", "unequal", "legal"),
    [
        (3, 1, None, 7, False, False),
        (3, 1, None, 7, True, True),
        (3, 1, None, 3, True, True),
        (3, 1, None, 2, True, False),
        (3, 2, None, 7, True, False),
        (3, 1, 2, 8, True, True),
        (3, 1, 2, 7, True, False),
        (3, 1, 2, 4, True, False),
    ],
)
def test_legality(dp: int, mbs: int, chunks: int | None, size: int, unequal: bool, legal: bool) -> None:
    """Both sides of each edge; with 2 chunks on 2 stages micro-batches come in pairs."""
    chosen = make_config(tp=1, pp=2, dp=dp, mbs=mbs, virtual_pipeline_model_parallel_size=chunks)
    training = job(size, unequal=unequal).training
    reasons = [rule(TINY, training, chosen) for rule in (batch, interleaving)]
    assert (reasons == [None, None]) == legal


def test_what_is_legal_with_equal_numbers_stays_legal() -> None:
    """And more is: here replicas that do not divide the batch."""
    equal = enumerate_candidates(job(16, unequal=False, hosts=4), SPACE)
    unequal = enumerate_candidates(job(16, hosts=4), SPACE)
    assert set(equal) <= set(unequal)
    three = replace(SPACE, num_gpus=6)
    assert 3 in {one.data_parallel_size for one in enumerate_candidates(job(16, hosts=4), three)}
    with pytest.raises(InfeasibleError, match="batch rules out"):
        enumerate_candidates(job(16, hosts=4, unequal=False), three)


def test_time_and_memory_are_those_of_the_padded_batch() -> None:
    """Seven sequences on three replicas take as long, and as much memory, as nine."""
    given, padded = job(7), job(9, unequal=False)
    chosen = make_config(tp=2, pp=1, dp=3, recompute_granularity="full")
    place = tile_placement(chosen, next(iter(host_tiles(chosen, 2, given.launcher))), np.arange(3).reshape(1, 3, 1))
    ours, theirs = estimate(given, chosen, place), estimate(padded, chosen, place)
    assert ours.iteration_time_s == theirs.iteration_time_s
    assert ours.tokens_per_s == pytest.approx(theirs.tokens_per_s * 7 / 9)
    for model_pp in (
        make_config(tp=1, pp=2, dp=3),
        make_config(tp=1, pp=2, dp=3, virtual_pipeline_model_parallel_size=2),
    ):
        size = 3 * model_pp.num_microbatches(8, unequal=True)
        mine = stage_table(TINY, job(8).training, [model_pp])
        other = stage_table(TINY, job(size, unequal=False).training, [model_pp])
        np.testing.assert_array_equal(mine.in_flight, other.in_flight)


def all_times(given: Instance) -> dict[ParallelConfig, float]:
    """The simulator's best time of each configuration, of any number of hosts, over all placements by whole hosts."""
    best: dict[ParallelConfig, float] = {}
    for chosen in enumerate_candidates(given, replace(SPACE, world_sizes=(2, 4, 6))):
        for block in host_tiles(chosen, given.cluster.gpus_per_node, given.launcher):
            grid = block.node_grid(chosen)
            for order in np.array(list(_orders(given.cluster.num_nodes, int(np.prod(grid))))):
                seconds = estimate(given, chosen, tile_placement(chosen, block, order.reshape(grid)))
                best[chosen] = min(best.get(chosen, np.inf), seconds.iteration_time_s)
    return best


def _orders(hosts: int, cells: int) -> list[tuple[int, ...]]:
    """All ways to put distinct hosts into cells."""
    return [one for one in product(range(hosts), repeat=cells) if len(set(one)) == cells]


@pytest.mark.search
@pytest.mark.parametrize(("size", "seed"), [(8, 1), (10, 2)])
def test_the_optimum_and_its_bounds_against_all_placements(size: int, seed: int) -> None:
    """Three hosts do not divide the batch; work bounds and the proven bound stay below the best, which is found."""
    given = job(size, seed)
    times = all_times(given)
    bound = WorkBounds(given)
    assert any(size % (one.data_parallel_size * one.micro_batch_size) for one in times)
    assert all(bound(chosen) <= seconds * (1 + 1e-9) for chosen, seconds in times.items())
    plan = optimize(given, SPACE, OptimizeParams(time_limit_s=4.0, max_oom_risk=1.0))
    assert plan.estimate.iteration_time_s == pytest.approx(min(times.values()), rel=1e-6)
    assert plan.certificate.lower_bound_s <= min(times.values()) * (1 + 1e-9)


@pytest.fixture(scope="module")
def planned() -> Plan:
    """Four replicas that share eighteen sequences in micro-batches of two: 3, 2, 2, 2."""
    given = small_instance()
    given = replace(given, training=replace(given.training, global_batch_size=18, unequal_microbatches=True))
    plan = plan_of(given, small_config())
    return replace(plan, inputs={**plan.inputs, "training": asdict(given.training)})


@pytest.mark.parametrize("target", [name for name, entry in TARGETS.items() if not entry.is_map])
def test_launchers_refuse_it_and_say_what_would_run(planned: Plan, target: str) -> None:
    """Planned only: the padded batch is named. The map of ranks can be written."""
    from pipette_opt.export.launch_options import ExportOptions

    options = ExportOptions(image="x") if TARGETS[target].needs_image else ExportOptions()
    with pytest.raises(InputError, match=r"a global batch of 24, which takes the same time; if 6 of its sequences"):
        export(planned, target, options)
    assert export(planned, "rankmap-csv")
