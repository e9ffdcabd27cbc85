"""Hosts with unequal numbers of GPUs: blocks, the links between them, the plan on them, and its ranks on the hosts."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job, plan_of

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.export.targets import export
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.read.blocks_of_gpus import split_hosts, usual_block
from pipette_opt.read.cluster import exclude_hosts, read_cluster
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.host_names import host_and_first_gpu, with_blocks

FILE = """\
nodes:
  - {hosts: "gpu[01-02]", gpu: a100-80gb, gpus_per_node: COUNT}
  - {hosts: [big], gpu: a100-80gb, gpus_per_node: 8}
intra_node: {bandwidth_gb_per_s: 200}
inter_node: {latency_us: 12, nics_per_node: 4, bandwidth_gb_per_s: 20}
"""


def read(tmp_path: Path, count: int, more: str = "") -> ClusterSpec:
    """Two hosts of so many GPUs and one of 8; 4 NICs, one flow fills one."""
    (tmp_path / "c.yaml").write_text(more + FILE.replace("COUNT", str(count)))
    return read_cluster(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("counts", "block"), [((4, 8), 4), ((8, 7), 4), ((6, 4), 2), ((8, 1), 1), ((8, 3), 2), ((8, 8), 8)]
)
def test_usual_block(counts: tuple[int, ...], block: int) -> None:
    """What divides all; with odd hosts among even ones the largest power of two that all have."""
    assert usual_block(counts) == block


def test_blocks_and_their_links_by_hand(tmp_path: Path) -> None:
    """A block has 2 of 4 NICs, which two flows fill; inside a host four flows have 4 x 200 GB/s."""
    found = read(tmp_path, 4)
    assert found.hosts == ("gpu01:0", "gpu02:0", "big:0", "big:4")
    assert (found.gpus_per_node, found.nics_per_node) == (4, 2)
    one, two, four = (found.pair_bytes_per_s(flows) / GB for flows in (1, 2, 4))
    assert (one[0, 1], one[0, 2], one[2, 3]) == (20, 20, 200)
    assert (two[0, 2], four[0, 2]) == (40, 40)
    assert (two[2, 3], four[3, 2]) == (400, 800)
    assert any("planned as 4 blocks of 4 GPUs" in line for line in found.assumed)


def test_what_fills_no_block_is_said(tmp_path: Path) -> None:
    """Hosts of 7 beside one of 8: blocks of 4, three GPUs of each idle; blocks of one GPU use all."""
    found = read(tmp_path, 7)
    assert found.num_nodes == 4
    assert any(line == "Not used, as they fill no block: 6 GPUs of gpu[01-02]." for line in found.assumed)
    every = read(tmp_path, 7, "gpus_per_block: 1\n")
    assert every.num_nodes == 22
    assert not any("Not used" in line for line in every.assumed)


def test_equal_hosts_may_be_cut_too(tmp_path: Path) -> None:
    """Only if the file says so."""
    assert read(tmp_path, 8).hosts == ("gpu01", "gpu02", "big")
    assert read(tmp_path, 8, "gpus_per_block: 4\n").num_nodes == 6
    with pytest.raises(InputError, match="gpus_per_block must be at most the 8 GPUs of the largest host, got 9"):
        read(tmp_path, 8, "gpus_per_block: 9\n")


def test_a_host_is_all_its_blocks(tmp_path: Path) -> None:
    """Where hosts are named."""
    found = read(tmp_path, 4)
    assert exclude_hosts(found, ["big"]).hosts == ("gpu01:0", "gpu02:0")
    assert exclude_hosts(found, ["big:4"]).hosts == ("gpu01:0", "gpu02:0", "big:0")
    assert with_blocks(["big", "none"], found.hosts) == ["big:0", "big:4", "none"]
    assert [host_and_first_gpu(name) for name in ("a:4", "a", "a:b")] == [("a", 4), ("a", 0), ("a:b", 0)]


@pytest.mark.search
def test_the_plan_is_the_best_of_all_placements_and_exported_to_the_hosts() -> None:
    """Hosts of 4 and 2 GPUs and slow links between: a pipeline's replicas keep to the host with two blocks."""
    links = np.array([[np.nan, 2.0, 1.0], [2.0, np.nan, 1.5], [1.0, 1.5, np.nan]])
    blocks = split_hosts(make_cluster(3, links, gpus=4), (4, 2, 2), 2, "c")
    given = make_job(blocks, TINY, 16, 2048)
    space = SearchSpace(tensor_parallel=(2,), micro_batch_size=(1,), recompute=(None,), virtual_pipeline=(1,))
    space = replace(space, num_gpus=8, uneven_layers=False)
    times = [
        estimate(given, chosen, tile_placement(chosen, block, np.array(order).reshape(block.node_grid(chosen))))
        for chosen in enumerate_candidates(given, space)
        for block in host_tiles(chosen, 2, given.launcher)
        for order in permutations(range(4))
    ]
    plan = optimize(given, space, OptimizeParams(time_limit_s=20.0, max_oom_risk=1.0))
    best = min(one.iteration_time_s for one in times)
    assert plan.estimate.iteration_time_s <= best * (1 + 1e-6)
    assert plan.certificate.lower_bound_s <= plan.estimate.iteration_time_s
    rows = [line.split(",") for line in export(plan, "rankmap-csv")["rankmap.csv"].splitlines()]
    host, slot = rows[0].index("host"), rows[0].index("local_rank")
    used = sorted((row[host], int(row[slot])) for row in rows[1:])
    assert used == [("n0", 0), ("n0", 1), ("n0", 2), ("n0", 3), ("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]
    with pytest.raises(InputError, match="torchrun needs the same number of GPUs on all hosts"):
        export(plan, "torchrun")


def test_mpi_has_the_slots_of_each_host() -> None:
    """Four ranks on n0, two on each other host."""
    blocks = split_hosts(make_cluster(3, 20.0, gpus=4), (4, 2, 2), 2, "c")
    given = make_job(blocks, TINY, 16, 2048)
    chosen = make_config(tp=2, pp=2, dp=2, sequence_parallel=True, use_distributed_optimizer=True)
    plan = plan_of(given, chosen, (0, 2, 1, 3))
    files = export(plan, "mpi")
    assert sorted(files["hostfile.txt"].splitlines()) == ["n0 slots=4", "n1 slots=2", "n2 slots=2"]
