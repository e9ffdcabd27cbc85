"""Slices of sequences: the programme against brute force, hand counts, and what causal attention asks for."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job

from benchmarks.systems.slices import best_equal, best_slices, compare_slices, slice_times_s, total_s
from benchmarks.whole_hosts import whole_host_config
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray


def every_split(units: int) -> list[tuple[int, ...]]:
    """All ordered ways to cut so many units."""
    found = []
    for cuts in product((False, True), repeat=units - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut]
        found.append(tuple(np.diff([0, *ends, units]).tolist()))
    return found


def causal(units: int, fixed: float, products: float, attention: float) -> FloatArray:
    """Times of slices by a law: a constant, so much a unit, and so much a pair of units."""
    times = np.full((units, units), np.inf)
    for before in range(units):
        for count in range(1, units - before + 1):
            times[before, count - 1] = fixed + products * count + attention * count * (before + count / 2)
    return times


@pytest.mark.parametrize(("stages", "sequences"), [(1, 1), (2, 1), (4, 1), (8, 3), (16, 1)])
def test_as_good_as_brute_force(stages: int, sequences: int) -> None:
    """Over every way to cut seven units, for times by the law and for random ones."""
    random = np.random.default_rng(stages)
    for times in (causal(7, 0.3, 1.0, 0.4), causal(7, 0.0, 1.0, 0.0), random.uniform(1, 2, (7, 7))):
        given = np.where(np.isfinite(causal(7, 0, 1, 0)), times, np.inf)
        least = min(total_s(given, split, stages, sequences) for split in every_split(7))
        found_s, lengths = best_slices(given, stages, sequences)
        assert found_s == pytest.approx(least)
        assert sum(lengths) == 7
        assert total_s(given, lengths, stages, sequences) == pytest.approx(found_s)
        assert found_s <= best_equal(given, stages, sequences)[0] + 1e-12


def test_hand_counts() -> None:
    """Nothing but products: as many equal slices as there are units; a stage alone gains nothing from slices."""
    times = causal(4, 0.0, 1.0, 0.0)
    assert total_s(times, (4,), 3, 1) == 4 + 2 * 4
    assert best_slices(times, 3, 1) == (4 + 2 * 1, (1, 1, 1, 1))
    assert best_slices(causal(4, 1.0, 1.0, 0.5), 1, 1)[1] == (4,)
    # With attention that grows, earlier slices are longer.
    lengths = best_slices(causal(16, 0.5, 0.1, 1.0), 16, 1)[1]
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


@pytest.mark.search
def test_slices_of_a_model_add_up() -> None:
    """Slices of a sequence compute its attention once; rows are ordered, and the best is never worse."""
    given = make_job(
        make_cluster(4, gpus=8), model=replace(LLAMA_8B, num_layers=8), global_batch_size=4, seq_length=1024
    )
    times = slice_times_s(given, 2)
    assert (times[0, :-1] < times[0, 1:]).all()
    assert (times[1:, 0] > times[:-1, 0])[1:].all()
    for row in compare_slices(given, (2, 4), (1, 4)):
        assert row.best_s <= row.equal_s <= row.whole_s
        assert sum(row.lengths) == 1024


def test_bad_input_is_refused() -> None:
    """Lengths in units, and depths that divide."""
    odd = make_job(make_cluster(4, gpus=8), model=LLAMA_8B, seq_length=2008)
    with pytest.raises(InputError, match="multiple of 32"):
        list(compare_slices(odd, (2,), (1,)))
    with pytest.raises(InputError, match="must divide the 32 layers"):
        list(compare_slices(replace(odd, training=replace(odd.training, seq_length=2048)), (3,), (1,)))


def test_hosts_that_are_no_tensor_groups() -> None:
    """Heads that do not divide, and hosts that differ in speed."""
    given = make_job(
        make_cluster(2, gpus=8), model=replace(LLAMA_8B, num_attention_heads=12, num_query_groups=4), seq_length=2048
    )
    with pytest.raises(InputError, match="num_attention_heads=12 is no multiple of tensor_model_parallel_size=8"):
        whole_host_config(given)
    gpu = given.cluster.nodes[0].gpu
    slow = replace(given.cluster.nodes[1], gpu=replace(gpu, name="slow", memory_bytes_per_s=gpu.memory_bytes_per_s / 2))
    nodes = (given.cluster.nodes[0], slow)
    with pytest.raises(InputError, match="hosts of one kind and speed"):
        whole_host_config(replace(given, cluster=replace(given.cluster, nodes=nodes)))
