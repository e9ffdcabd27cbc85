"""Tables of a plan: what the screens of ``tests/cli/test_screens.py`` do not have."""

from dataclasses import replace

import numpy as np
import pytest
from consoles import texts
from factories import (
    TINY,
    make_cluster,
    make_config,
    make_job,
    make_plan,
    plan_of,
    small_config,
    small_instance,
    whole_plan,
)

from pipette_opt.base.table import BAD, FAIR, GOOD, Cell
from pipette_opt.base.units import GIB
from pipette_opt.plans.plan import Proof, RuledOut
from pipette_opt.plans.predicted import NINE_IN_TEN
from pipette_opt.plans.tables import components, ruled_out, stages, times
from pipette_opt.report.left_out import left_out
from pipette_opt.report.proof_tables import certificate, searched, sizes
from pipette_opt.report.tables import hosts_of_stages, memory_tables, unused_hosts
from pipette_opt.specs import NotModelled


def test_certificate() -> None:
    """The gap of the placement only where the placement matters; a search that is finished."""
    plan = make_plan()
    proof = plan.certificate
    for changed in ({"placement_dependent_s": 1e-9}, {"placement_gap": 1.2}):
        names = [name for name, *_ in texts(certificate(replace(proof, **changed), plan.estimate))]
        assert "placement gap" not in names
    closed = texts(certificate(replace(proof, status="OPTIMAL"), plan.estimate))
    assert closed[0][2] == "the search is finished"
    assert closed[-1][2] == "120 configurations, 100 ruled out by bounds"


def test_a_plain_plan_has_its_own_gap() -> None:
    """Beside its time and bound; the gap of the search, which is of another plan, has a row of its own."""
    proof, estimate = make_plan().certificate, make_plan().estimate
    best_s = proof.lower_bound_s / 0.995
    plainer = replace(proof, objective_s=1.005 * best_s, fastest_s=best_s, gap=0.005)
    assert texts(certificate(plainer, estimate))[3:5] == [
        ["at most", "1.01 %", "above the best of the searched space"],
        ["fastest found", "0.51 %", "above it at most; that plan is less plain"],
    ]


def test_ruled_out() -> None:
    """Steps in words; a bound once for each step, and a step without names, too."""
    plan = make_plan()
    engines = tuple(RuledOut(name=name, configurations=7, example="tp1") for name in ("paths", "states"))
    proof = (
        Proof(by="search", configurations=14, bound_s=plan.estimate.iteration_time_s, named=engines),
        Proof(by="best links", configurations=100, bound_s=None),
    )
    seconds = f"{plan.estimate.iteration_time_s:.4f} s"
    assert texts(ruled_out(replace(plan.certificate, proof=proof), plan.estimate)) == [
        ["placement on the hosts", "7", seconds, "tp1"],
        ["placement on the hosts", "7", "", "tp1"],
        ["least time over the fastest links", "100", "", ""],
    ]


def test_searched() -> None:
    """Values of a dimension in words."""
    proof = replace(make_plan().certificate, searched={"sequence_parallel": (True, None), "tensor_parallel": (1, 2)})
    assert texts(searched(proof)) == [["sequence parallel", "yes, none"], ["tensor parallel", "1, 2"]]


def test_times() -> None:
    """Causes add up to the iteration, on the critical path, too; causes of other plans only have a row."""
    plan = make_plan()
    other = replace(plan.alternatives[0], breakdown={"swap": 0.1})
    table = times(plan.estimate, [other])
    frame = table.as_frame()
    assert frame[["this plan", "critical path"]].sum().tolist() == pytest.approx(2 * [plan.estimate.iteration_time_s])
    assert frame[other.config.label()].sum() == pytest.approx(0.1)
    assert texts(table)[-1] == ["swap", "-", "-", "-", "-"]
    assert table.total is not None
    seconds = f"{plan.estimate.expected_s:.4f} s"
    assert [cell.text for cell in table.shown_cells(table.total)] == ["iteration", *2 * [seconds, "100 %"]]
    poorer = times(replace(plan.estimate, critical_path={}))
    assert {row[3] for row in texts(poorer)} == {"-"}


def test_stages() -> None:
    """Half predicted and three quarters in nine of ten stacks, as text and as a bar; a star where a stage is new."""
    spread = np.log(1.5) / NINE_IN_TEN
    stage = replace(
        make_plan().memory[0], predicted_bytes=40 * GIB, capacity_bytes=80 * GIB, spread=spread, extrapolates=True
    )
    table = stages([stage], (4,))
    assert texts(table) == [["stage 0 *", "40.0", "26.7 to 60.0", "80.0", "0.1 %"]]
    assert "outside of the predictor's training data" in table.note
    assert [cell.bar for cell in table.rows[0] if isinstance(cell, Cell) and cell.bar] == [pytest.approx((0.5, 0.75))]
    assert not stages([replace(stage, extrapolates=False)]).note


@pytest.mark.parametrize(("risk", "style"), [(0.04, GOOD), (0.08, FAIR), (0.2, BAD)])
def test_styles_of_risks(risk: float, style: str) -> None:
    """Green, yellow above half the usual risk, red above it."""
    table = stages([replace(make_plan().memory[0], oom_probability=risk)])
    assert table.shown_cells(table.rows[0])[-1].style == style


def test_unknown_components() -> None:
    """No row without parts."""
    memory = make_plan().memory
    assert not components([replace(stage, components={}) for stage in memory]).rows


def test_only_the_fullest_of_many_stages() -> None:
    """Of forty stages, thirty-two are shown, in order, and the fullest is among them."""
    memory = [replace(make_plan().memory[0], stage=stage, oom_probability=stage / 100) for stage in range(40)]
    table, _ = memory_tables(memory)
    assert "fullest 32 of 40 stages" in table.title
    assert [row[0] for row in texts(table)] == [f"stage {number}" for number in range(8, 40)]


def test_sizes() -> None:
    """A price only where prices count; nothing is known of a size that is not feasible."""
    plan = whole_plan()
    assert plan.target is not None
    (size,) = plan.target.sizes
    assert len(texts(sizes(plan))[0]) == 6
    none = {"iteration_time_s": None, "lower_bound_s": None, "value": None, "bound": None}
    unfit = replace(size, num_gpus=8, dearest=2.5, status="infeasible", **none)
    priced = sizes(replace(plan, target=replace(plan.target, sizes=(unfit,))))
    assert texts(priced) == [["8", "2.5", "infeasible", "-", "-", "-", "-"]]


def test_hosts_in_grid_order() -> None:
    """Stages on the same hosts are one row; ranges are folded."""
    together = plan_of(small_instance(), small_config(), stages_per_host=2)
    assert texts(hosts_of_stages(together)) == [["0-1", "n[3, 0, 4, 1]"]]
    given = make_job(make_cluster(64, np.full((64, 64), 20.0), gpus=4), TINY)
    many = plan_of(given, make_config(tp=4, dp=64, num_layers=8), tuple(range(64)))
    many = replace(many, hosts=tuple(f"node-{number:03}" for number in range(64)))
    assert texts(hosts_of_stages(many)) == [["0", "node-[000-063]"]]


def test_left_out_hosts_of_one_reason_are_one_row() -> None:
    """Six unused hosts, two reasons."""
    unused = {f"n{number}": "not needed" for number in (10, 11, 12, 14)} | {"n13": "slow", "n2": "slow"}
    assert texts(unused_hosts(replace(make_plan(), unused_hosts=unused))) == [
        ["n[10-12, 14]", "not needed"],
        ["n[13, 2]", "slow"],
    ]


def test_what_is_not_modelled() -> None:
    """One row for each option, with both of its directions."""
    entries = [
        NotModelled(option="--x", value="3", effect="time", direction="less", why="It hides.", is_large=True),
        NotModelled(option="--x", value="3", effect="memory", direction="either", why="It hides."),
        NotModelled(option="--y", effect="both", direction="more", why="It copies.", in_part=True),
    ]
    assert texts(left_out(entries)) == [
        ["--x 3", "much less time, more or less memory", "It hides."],
        ["--y (counted in part)", "more time, memory", "It copies."],
    ]
