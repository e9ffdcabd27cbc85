"""Tables in a terminal: at most 100 columns, plain where there is no terminal; sentences beside them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from consoles import shown
from factories import make_config, make_plan, plan_of, scrambled_plan, small_config, small_instance, whole_plan

from pipette_opt.base.table import BAD, Cell, Table
from pipette_opt.plans.plan import Alternative, Imbalance, JointModel, Plan
from pipette_opt.report.bars import columns
from pipette_opt.report.beside_tables import fastest_line, imbalance_line
from pipette_opt.report.cells import as_rich, shown_tables
from pipette_opt.report.proof_tables import joint_model_text
from pipette_opt.report.tables import estimate_tables, plan_tables

PLANS: dict[str, Callable[[], Plan]] = {
    "whole": whole_plan,
    "scrambled": scrambled_plan,
    "interleaved": lambda: plan_of(
        small_instance(), small_config(virtual_pipeline_model_parallel_size=2, recompute_granularity="selective")
    ),
    "unequal chunks": lambda: plan_of(
        small_instance(),
        small_config(virtual_pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*3|t|t|t*3L"),
    ),
    "one stage": lambda: plan_of(
        small_instance(),
        replace(small_config(), pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(8,)),
    ),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_at_most_100_columns_and_plain(name: str, encoding: str) -> None:
    """No line is longer, no escape codes where there is no terminal, and ASCII where nothing else can be shown."""
    text = shown(*plan_tables(PLANS[name]()), encoding=encoding)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_colours_on_a_terminal_only() -> None:
    """The same tables with escape codes."""
    assert "\x1b" in shown(*plan_tables(make_plan()), terminal=True)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_consoles(width: int) -> None:
    """Narrower than meant, nothing breaks and nothing runs over."""
    assert max(map(len, shown(*plan_tables(make_plan()), width=width).splitlines())) <= width


def test_a_table_for_a_terminal() -> None:
    """Title, columns that people see, a bar before its cell, a line above the total, and a note."""
    table = Table(
        title="Sizes",
        headers=("part", "", "share >"),
        rows=[("weights", "hidden", Cell("50 %", bar=(0.5, 0.75))), ("[b]rest[/]", "", "-")],
        total=("all", "", "100 %"),
        note="* a note",
    )
    assert [line.rstrip() for line in shown(as_rich(table)).splitlines()] == [
        "",
        "Sizes",
        "part                                  share",
        "───────────────────────────────────────────",
        "weights     ████████████▒▒▒▒▒▒······   50 %",
        "[b]rest[/]                                -",
        "",
        "all                                   100 %",
        "* a note",
    ]
    assert "############======......" in shown(as_rich(table), encoding="ascii")
    assert "\x1b[31m" in shown(as_rich(Table(headers=("a",), rows=[(Cell("x", style=BAD),)])), terminal=True)
    assert len(shown_tables(table, replace(table, rows=()))) == 1


@pytest.mark.parametrize(
    ("share", "width", "expected"), [(0.0, 24, 0), (1e-9, 24, 1), (0.5, 24, 12), (1.0, 24, 24), (1.7, 24, 24)]
)
def test_bar_columns(share: float, width: int, expected: int) -> None:
    """Anything above zero is seen, nothing runs over."""
    assert columns(share, width) == expected


def test_the_verdict_is_the_first_line_and_the_last() -> None:
    """Of a plan, whatever is shown beside it; a launch that nobody searched for begins with its own."""
    plan = make_plan()
    launch = estimate_tables(plan.config, plan.estimate, plan.memory, hosts=("n0",))
    lines = shown(*plan_tables(plan, launch), width=400).rstrip().splitlines()
    assert lines[0].startswith("Fits: 30.0 of 78.0 GiB (risk of running out of memory")
    assert lines[-1].rstrip() == lines[0].rstrip()
    assert "searched space" in lines[0]
    own = shown(*launch, width=400).splitlines()[0]
    assert own.startswith("Fits: ")
    assert "searched space" not in own


def test_nothing_in_a_plan_is_markup() -> None:
    """Brackets in names and reasons are shown as they are."""
    plan = make_plan()
    hosts = ("n0", "n1", "[red]n2[/]", "rack[3]", "n4")
    plan = replace(plan, hosts=hosts, unused_hosts={"[red]n2[/]": "[/bold] broken"}, notes=("[link=x]note",))
    text = shown(*plan_tables(plan))
    for part in ("[red]n2[/]", "rack[3]", "[/bold] broken", "[link=x]note"):
        assert part in text


def test_estimate_of_a_launch() -> None:
    """Its title, no plural for one of a thing, its simulated time, and nothing of a plan."""
    config, plan = make_config(dp=1, num_layers=8), whole_plan(1.3)
    text = shown(*estimate_tables(config, plan.estimate, plan.memory, hosts=("n0",), title="today"))
    assert f"Simulated: {plan.estimate.iteration_time_s:.4f} s." in " ".join(text.split())
    assert f"today  {config.label()} on 1 host, 1 GPU\n" in text.replace(" \n", "\n")
    assert "The plan" not in text


def test_unequal_chunks_are_told_by_chunk() -> None:
    """The layout stands in the place of the layers of the stages."""
    text = shown(*plan_tables(PLANS["unequal chunks"]()))
    assert "Et*3|t|t|t*3L" in text
    assert "layers per stage" not in text


def test_a_joint_model_without_time_proves_nothing() -> None:
    """Nothing to decide and no time to decide it are two things."""
    none = JointModel(
        families=0, variables=0, constraints=0, solves=0, seconds=0.0, splits=0, status="INFEASIBLE", bound_s=3.5
    )
    assert "Bounds alone show" in joint_model_text(none, make_plan().estimate)
    late = joint_model_text(replace(none, status="FEASIBLE"), make_plan().estimate)
    assert "no time" in late
    assert "less than 3.50 s" in late


def test_what_the_fastest_would_have_been() -> None:
    """The plainer plan names the fastest, with what it costs."""
    plan = make_plan()
    seconds = plan.estimate.iteration_time_s
    fast = Alternative(
        config=replace(plan.config, micro_batch_size=1, virtual_pipeline_model_parallel_size=2),
        hosts=("n0", "n1", "n2", "n3"),
        iteration_time_s=0.992 * seconds,
        oom_probability=0.004,
        reason="0.8 % faster, less plain",
    )
    assert fastest_line(plan) == ""
    line = fastest_line(replace(plan, fastest=fast))
    assert (
        f"{fast.config.label()} is 0.806 % faster, with 2 model chunks, a risk of running out of memory of 0.4 %."
        in line
    )
    shuffled = replace(fast, hosts=("n1", "n0", "n2", "n3"), oom_probability=0.0)
    assert "faster, with hosts in another order than listed, 2 model chunks." in fastest_line(
        replace(plan, fastest=shuffled)
    )
    same = replace(shuffled, config=plan.config)
    assert "the plan with its ranks on hosts in another order is 0.806 % faster." in fastest_line(
        replace(plan, fastest=same)
    )
    assert fastest_line(replace(plan, fastest=replace(same, iteration_time_s=0.9999 * seconds))) == ""


def test_even_experts_are_assumed() -> None:
    """What 1.3 times the mean tokens on the busiest rank would do, in time and risk."""
    plan = make_plan()
    uneven = Imbalance(
        expert_imbalance=1.3, iteration_time_s=1.11 * plan.estimate.iteration_time_s, oom_probability=0.2
    )
    assert imbalance_line(replace(plan, imbalance=uneven)) == (
        "Experts are assumed to be evenly loaded; 1.3 times the mean on the busiest rank: 11.0 % slower, risk 20 % "
        "(expert_imbalance: 1.3 in a job file plans for it)."
    )
    assert imbalance_line(plan) == ""
