"""The joint model against all splits, kinds of GPU and families."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from factories import make_config

from pipette_opt.parallel import HostTile
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.family_bounds import family_bound, load_kernel
from pipette_opt.solver.family_kernel import _search
from pipette_opt.solver.layer_model import LayerModel, LayerSplit
from pipette_opt.solver.likely_paths import likely_path

STOP = threading.Event()


def random_family(
    rng: np.random.Generator,
    pp: int,
    columns: int,
    kinds: int,
    units: int = 9,
    *,
    reduces: bool = False,
    chunks: int = 1,
    recomputes: bool = False,
) -> LayerFamily:
    """A family whose every stage is a row of so many hosts."""
    return LayerFamily(
        config=make_config(
            tensor_model_parallel_size=8,
            pipeline_model_parallel_size=pp,
            data_parallel_size=columns,
            layers_per_stage=(chunks,) * pp,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            overlap_grad_reduce=reduces,
        ),
        tile=HostTile(stages=1, replicas=1, nodes_per_slot=1, order="tp-cp-ep-dp-pp", contiguous=True),
        num_microbatches=int(rng.integers(2, 9)) * (pp if chunks > 1 else 1),
        num_units=units,
        layer_s=rng.uniform(0.5, 2.0, (2, kinds)),
        fixed_s=rng.uniform(0.0, 1.0, (2, kinds, chunks, pp)),
        link_s=np.minimum(links := rng.uniform(0.05, 0.8, (kinds, kinds)), links.T),
        inside_s=0.01,
        reduction_s=float(rng.uniform(0.0, 3.0)) if reduces else 0.0,
        fixed_reduction_s=rng.uniform(0.0, 2.0, pp) if reduces else np.zeros(pp),
        gather_s=0.0,
        fixed_gather_s=np.zeros(pp),
        embedding_s=0.0,
        slowdown=0.0,
        step_s=0.3,
        fixed_step_s=rng.uniform(0.0, 0.5, pp),
        optimizer_s=0.5,
        most_units=rng.integers(3, units, (kinds, pp)),
        recompute_s=rng.uniform(0.1, 0.5, kinds) if recomputes else np.zeros(kinds),
        recomputed=Asked(np.sort(rng.integers(0, units // 2, (kinds, pp, units)))) if recomputes else None,
    )


class Asked:
    """How many units of a stage have to be recomputed, by kind, stage and units."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def fewest(self) -> np.ndarray:
        """The table."""
        return self.table


def splits(family: LayerFamily) -> Iterator[tuple[int, ...]]:
    """Every way to deal its units, at least one to each stage."""
    pp = family.config.pipeline_model_parallel_size
    for cuts in itertools.combinations(range(1, family.num_units), pp - 1):
        yield tuple(np.diff([0, *cuts, family.num_units]).tolist())


def time_of(family: LayerFamily, units: tuple[int, ...], kinds: tuple[int, ...], counts: PathCounts) -> float:
    """The longest path of one column, whose stages are on these kinds, with the reduction after it."""
    fixed, unit = family.path_s(counts)
    again, number = np.zeros(len(units)), 1
    if family.recomputed is not None:
        table = family.recomputed.fewest()
        number = max(1, *(int(table[kind, s, units[s]]) for s, kind in enumerate(kinds)))
        again = np.minimum(np.array(units), number) - 1
    added = family.recompute_path_s(counts)
    best = 0.0
    for path, end in enumerate(counts.stage.tolist()):
        work = sum(fixed[path, kind, s] + unit[path, kind, s] * units[s] for s, kind in enumerate(kinds))
        work += sum(added[path, kind, s] * again[s] for s, kind in enumerate(kinds))
        sent = counts.up[path] + counts.down[path]
        hops = sum(sent[s] * family.link_s[kinds[s], kinds[s + 1]] for s in range(len(kinds) - 1))
        reduction = family.fixed_reduction_s[end] + family.reduction_s * units[end]
        if end == 0:  # of the first stage, beside its last backward
            last = family.fixed_s[1, kinds[0], 0, 0] + family.layer_s[1, kinds[0]] * units[0]
            last += family.recompute_s[kinds[0]] * again[0]
            reduction = max(0.0, reduction - last)
        best = max(best, work + hops + reduction)
    return best + family.optimizer_s + float((family.fixed_step_s + family.step_s * np.array(units)).max())


def by_enumeration(
    families: list[LayerFamily], hosts: tuple[int, ...], excluded: set[tuple[int, tuple[int, ...]]] = frozenset()
) -> float:
    """The least time of any family, split and choice of kinds with one host in each row."""
    best = np.inf
    for index, family in enumerate(families):
        counts = plain_counts(*family.schedule)
        for units in splits(family):
            if (index, units) in excluded:
                continue
            for kinds in itertools.product(range(len(hosts)), repeat=len(units)):
                if any(kinds.count(kind) > count for kind, count in enumerate(hosts)):
                    continue
                if any(units[s] > family.most_units[kind, s] for s, kind in enumerate(kinds)):
                    continue
                best = min(best, time_of(family, units, kinds, counts))
    return best


@pytest.mark.search
@pytest.mark.parametrize("hosts", [(4,), (2, 2), (3, 1), (2, 1, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_that_of_all_splits_and_kinds(hosts: tuple[int, ...], seed: int) -> None:
    """With memory that binds, links between kinds, and several families."""
    rng = np.random.default_rng(seed)
    families = [random_family(rng, pp, 1, len(hosts), reduces=seed % 2 == 1, recomputes=seed > 1) for pp in (2, 3, 4)]
    best = by_enumeration(families, hosts)
    model = LayerModel(families, np.array(hosts), 2 * best if np.isfinite(best) else 1000.0)
    split, bound_s = model.solve(20, 1, 0, STOP)
    if split is None:
        assert np.isinf(best)
        return
    assert bound_s <= best * (1 + 1e-9)
    assert bound_s >= best * (1 - 1e-4)
    family = families[split.family]
    kinds = tuple(int(row.argmax()) for row in split.kinds)
    assert all(split.units[s] <= family.most_units[kind, s] for s, kind in enumerate(kinds))
    assert time_of(family, split.units, kinds, plain_counts(*family.schedule)) <= best * (1 + 1e-4)


def test_excluded_splits_are_left_out_one_by_one() -> None:
    """Until nothing below the time to beat is left, which the model says."""
    rng = np.random.default_rng(3)
    families = [random_family(rng, pp, 1, 1) for pp in (2, 3)]
    best = by_enumeration(families, (3,))
    model, seen = LayerModel(families, np.array([3]), 1.2 * best), set()
    while True:
        split, bound_s = model.solve(20, 1, 0, STOP)
        left = by_enumeration(families, (3,), seen)
        assert bound_s <= left * (1 + 1e-9)
        if split is None:
            assert left >= 1.2 * best * (1 - 1e-4)
            break
        assert split.bound_s >= left * (1 - 1e-4)
        seen.add((split.family, split.units))
        model.exclude(split.family, split.units)
    assert len(seen) > 1


def test_only_better_than_the_time_to_beat() -> None:
    """A lower one can be set later; then the bound is that time."""
    rng = np.random.default_rng(1)
    families = [random_family(rng, 3, 1, 1)]
    best = by_enumeration(families, (3,))
    model = LayerModel(families, np.array([3]), 2 * best)
    model.below(0.9 * best)
    split, bound_s = model.solve(20, 1, 0, STOP)
    assert split is None
    assert bound_s == pytest.approx(0.9 * best, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_several_hosts_are_bounded_from_below(seed: int) -> None:
    """Columns of a mixed row differ, so the model is below the slowest column, and never above it."""
    rng = np.random.default_rng(seed)
    family = random_family(rng, 2, 2, 2, units=6)
    counts = plain_counts(*family.schedule).ending_at(np.array([True, False]))
    best = np.inf
    for units in splits(family):
        for placed in set(itertools.permutations((0, 0, 1, 1))):
            rows = np.array(placed).reshape(2, 2)
            if any(units[s] > family.most_units[kind, s] for s in range(2) for kind in rows[s]):
                continue
            best = min(best, max(time_of(family, units, tuple(rows[:, d]), counts) for d in range(2)))
    for nodes in (0, 5, 100):
        assert family_bound(family, np.array([2, 2]), counts=counts, nodes=nodes).seconds <= best
    model = LayerModel([family], np.array([2, 2]), 2 * best if np.isfinite(best) else 1000.0)
    split, bound_s = model.solve(20, 1, 0, STOP)
    assert (split is None) == np.isinf(best)
    if split is not None:
        assert bound_s <= best * (1 + 1e-9)
        assert (split.kinds.sum(axis=0) <= 2).all()
        assert (split.kinds.sum(axis=1) == 2).all()


def test_further_paths_raise_the_time_of_all_families_with_the_schedule() -> None:
    """A path is added once."""
    rng = np.random.default_rng(2)
    first = random_family(rng, 2, 1, 1)
    other = replace(random_family(rng, 2, 1, 1), num_microbatches=first.num_microbatches)
    longer = plain_counts(*first.schedule).ending_at(np.array([True, False]))
    longer = replace(longer, forward=longer.forward + 1)
    model = LayerModel([first, other], np.array([2]), 1000.0)
    _, before_s = model.solve(20, 1, 0, STOP)
    assert model.add_paths(first.schedule, longer) == len(longer.stage)
    assert model.add_paths(first.schedule, longer) == 0
    split, after_s = model.solve(20, 1, 0, STOP)
    assert isinstance(split, LayerSplit)
    assert after_s > before_s


def test_the_kernel_that_is_loaded_first_is_the_one_that_bounds_call() -> None:
    """Arrays in another order would be compiled for again, in the time of the search."""
    load_kernel()
    before = len(_search.signatures)
    for rows in (1, 3):
        family = random_family(np.random.default_rng(rows), 3, rows, 2, units=6)
        family_bound(family, np.array([3, 3]), nodes=10)
    assert len(_search.signatures) == before == 1


@pytest.mark.search
@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("hosts", [(5,), (3, 2), (2, 2, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_bound_of_a_family_is_below_its_model(hosts: tuple[int, ...], chunks: int, seed: int) -> None:
    """Interleaved or not: first micro-batches go through first chunks only."""
    rng = np.random.default_rng(seed)
    for pp, recomputes in ((2, True), (5, False), (5, True)):
        reduces = bool(rng.integers(2))
        family = random_family(rng, pp, 1, len(hosts), units=15, chunks=chunks, reduces=reduces, recomputes=recomputes)
        likely = likely_path(family, np.array(hosts), "async")
        model = LayerModel([family], np.array(hosts), 4000.0)
        for counts in (None, PathCounts.joined([plain_counts(*family.schedule), likely])):
            if counts is not None:
                model.add_paths(family.schedule, counts)
            split, least_s = model.solve(20, 1, 0, STOP)
            if split is None:
                continue
            found = family_bound(family, np.array(hosts), counts=counts)
            assert 0.5 * least_s < found.seconds <= least_s * (1 + 1e-4)
            assert found.split is None or sum(found.split.units) == family.num_units
            by_kinds = family_bound(family, np.array(hosts), counts=counts, nodes=1000).seconds
            assert found.seconds * (1 - 1e-4) <= by_kinds <= least_s * (1 + 1e-4)
            if len(hosts) > 1:  # all kinds and links are decided
                assert by_kinds > 0.8 * least_s
            few = family_bound(family, np.array(hosts), counts=counts, nodes=3).seconds
            assert few <= least_s * (1 + 1e-4)
            assert family_bound(family, np.array(hosts), 1.05 * least_s, counts).seconds <= least_s * (1 + 1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_equal_costs_of_all_units_leave_room(seed: int) -> None:
    """With one micro-batch and one kind a unit costs the longest path the same on every stage: all splits are alike."""
    family = random_family(np.random.default_rng(seed), 4, 1, 1)
    alike = replace(family, num_microbatches=1, most_units=np.full_like(family.most_units, family.num_units))
    least_s = min(time_of(alike, units, (0,) * 4, plain_counts(*alike.schedule)) for units in splits(alike))
    found = family_bound(alike, np.array([4]))
    assert found.split is not None
    assert 0.9 * least_s < found.seconds <= least_s


@pytest.mark.parametrize(
    ("columns", "hosts", "units", "fits"),
    [
        (2, (3, 5), 22, True),  # 2 units on two rows, 8 and 10 on those that are slow throughout
        (2, (3, 5), 30, False),  # a row of a fast and a slow host has room for 2 units only
        (1, (3, 1), 16, True),  # 2 + 2 + 2 + 10
        (1, (3, 1), 17, False),
    ],
)
def test_the_nearest_split_has_room_on_its_kinds(columns: int, hosts: tuple[int, int], units: int, fits: bool) -> None:
    """The faster kind has memory for 2 units of a stage and the slower for 10; hosts are dealt to rows by speed."""
    family = random_family(np.random.default_rng(0), 4, columns, 2, units=units)
    few = np.repeat([[2], [10]], 4, axis=1)
    family = replace(family, layer_s=np.array([[1.0, 2.0], [1.0, 2.0]]), most_units=few)
    split = family_bound(family, np.array(hosts)).split
    assert (split is not None) == fits
    if split is not None:
        assert sum(split.units) == units
        assert split.kinds.sum(axis=0).tolist() == list(hosts)
        for row, count in enumerate(split.units):
            assert count <= few[split.kinds[row] > 0, row].min()


@pytest.mark.search
@pytest.mark.parametrize("seed", range(6))
def test_bound_of_rows_of_three_kinds_is_below_every_placement(seed: int) -> None:
    """Rows of two hosts of two or three kinds, whose slow hosts may be in different columns."""
    rng = np.random.default_rng(seed)
    family = random_family(rng, 3, 2, 3, units=7)
    counts, hosts, best = plain_counts(*family.schedule), (2, 2, 2), np.inf
    for placed in set(itertools.permutations((0, 0, 1, 1, 2, 2))):
        rows = np.array(placed).reshape(3, 2)
        for units in splits(family):
            if not any(units[s] > family.most_units[kind, s] for s in range(3) for kind in rows[s]):
                best = min(best, max(time_of(family, units, tuple(rows[:, d]), counts) for d in range(2)))
    assert family_bound(family, np.array(hosts)).seconds <= best
    assert family_bound(family, np.array(hosts), nodes=1000).seconds <= best


def test_the_last_row_needs_no_link_to_the_first_without_interleaving() -> None:
    """Three kinds in a row, of which the first and the last were never connected."""
    rng = np.random.default_rng(0)
    family = random_family(rng, 3, 1, 3)
    links = family.link_s.copy()
    links[0, 2] = links[2, 0] = np.inf
    apart = replace(family, link_s=links, most_units=np.full((3, 3), 9))
    model = LayerModel([apart], np.array([1, 1, 1]), 4000.0)
    split, _ = model.solve(20, 1, 0, STOP)
    assert isinstance(split, LayerSplit)
    assert split.kinds[1].argmax() == 1


def test_hosts_without_links_hold_no_pipeline() -> None:
    """Of one kind, none of whose hosts are connected."""
    family = replace(random_family(np.random.default_rng(0), 3, 1, 1), link_s=np.full((1, 1), np.inf))
    split, bound_s = LayerModel([family], np.array([3]), 4000.0).solve(20, 1, 0, STOP)
    assert split is None
    assert bound_s >= 4000.0 * (1 - 1e-6)
