"""What other systems would choose: the generator, each view on small jobs, and their table."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job

from benchmarks.squares.compare import square_row
from benchmarks.systems import methods
from benchmarks.systems.instances import SIZES, cases
from benchmarks.systems.methods import (
    LACKS,
    SystemRow,
    exhaustive,
    galvatron_view,
    primepar_space,
    run_case,
    saved_by_squares_s,
)
from benchmarks.systems.tables import choices_section
from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance

SMALL = replace(LLAMA_8B, num_layers=4)


def job(links: np.ndarray | float = 2.0, hosts: int = 2, gpus: int = 2) -> Instance:
    """Few hosts with few GPUs."""
    return make_job(make_cluster(hosts, links, gpus=gpus), model=SMALL, global_batch_size=8, seq_length=512)


def test_cases_are_those_of_the_seed() -> None:
    """More jobs begin with the same ones; another seed has others; sizes and links are as named."""
    few, many = list(cases(4, 1)), list(cases(12, 1))
    assert [one.name for one in few] == [one.name for one in many][:4]
    assert [one.instance.cluster.num_nodes for one in many] == list(SIZES)
    assert len({one.name for one in many}) == 12
    again, other = next(iter(cases(1, 1))), next(iter(cases(1, 2)))
    rates = [one.instance.cluster.link_matrices[0].bytes_per_s for one in (few[0], again, other)]
    assert np.array_equal(rates[0], rates[1], equal_nan=True)
    assert not np.array_equal(rates[0], rates[2], equal_nan=True)
    assert all(one.instance.cluster.num_nodes <= 4 for one in cases(12, 1, most_hosts=4))


def test_exhaustive_is_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least judged time over every configuration of a space and every order of hosts."""
    space = SearchSpace(
        tensor_parallel=(2,), virtual_pipeline=(1,), context_parallel=(1,), recompute=("full",), micro_batch_size=(1,)
    )
    monkeypatch.setattr(methods, "SearchSpace", lambda: space)
    links = np.array([[0.0, 9.0, 2.0], [8.0, 0.0, 5.0], [1.0, 6.0, 0.0]])
    given = job(links, hosts=3)
    found = exhaustive(given, 60.0)
    assert found is not None
    times = []
    for config in methods.enumerate_with_reasons(given, space).candidates:
        for block in host_tiles(config, 2, given.launcher):
            grid = block.node_grid(config)
            times += [
                estimate(given, config, tile_placement(config, block, np.array(hosts).reshape(grid))).iteration_time_s
                for hosts in permutations(range(3), int(np.prod(grid)))
            ]
    assert found.seconds == pytest.approx(min(times), rel=1e-9)


def test_exhaustive_knows_its_limits() -> None:
    """Too many hosts are refused."""
    with pytest.raises(InputError, match="not run on more than 4 hosts"):
        exhaustive(job(hosts=5), 1.0)


@pytest.mark.search
def test_galvatron_sees_one_speed() -> None:
    """Hosts in the other order: the same choice, as it sees the median link only and places as listed."""
    links = np.array([[0.0, 9.0, 2.0], [9.0, 0.0, 5.0], [2.0, 5.0, 0.0]])
    order = [2, 0, 1]
    one, other = galvatron_view(job(links, hosts=3)), galvatron_view(job(links[np.ix_(order, order)], hosts=3))
    assert one is not None
    assert other is not None
    assert one.label == other.label


def test_squares_save_what_a_layer_saves() -> None:
    """Taken off layers in a third and two thirds; nothing is saved where there is no square."""
    given = job(hosts=1, gpus=4)
    config = ParallelConfig(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=2,
        layers_per_stage=(4,),
        sequence_parallel=True,
    )
    row = square_row(given, 2, 2)
    assert saved_by_squares_s(given, config) == pytest.approx(row.megatron_s - min(row.mixed_s, row.megatron_s))
    assert saved_by_squares_s(given, replace(config, micro_batch_size=1)) == 0.0
    assert saved_by_squares_s(given, replace(config, recompute_granularity="selective")) == 0.0
    assert primepar_space(given) is not None


@pytest.mark.search
def test_a_row_for_each_system() -> None:
    """Rules that search nothing have a time, and it is no faster than the proven bound."""
    rows = {one.system: one for one in run_case("two hosts", job(), 0.5, workers=1)}
    assert list(rows) == list(LACKS)
    bound_s = rows["this project"].lower_bound_s
    assert bound_s is not None
    for system in ("Megatron's rule", "Galvatron"):
        found_s = rows[system].iteration_time_s
        assert found_s is not None
        assert found_s >= bound_s


def test_choices() -> None:
    """Seconds and gap of this project, the others in percent; what has no plan has a dash."""
    ours = SystemRow(
        case="three", system="this project", choice="a", iteration_time_s=2.0, lower_bound_s=1.0, seconds=1.0
    )
    other = replace(ours, system="AMP", choice="b", iteration_time_s=3.0, lower_bound_s=None)
    page = choices_section([ours, other])
    assert "| three | 2 s | 50.00% | - | +50.0% |" in page
    for system in LACKS:
        assert system in page
