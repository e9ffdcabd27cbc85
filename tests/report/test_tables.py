"""Tables: the right numbers, at most 100 columns, plain where there is no terminal."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from consoles import row, shown
from factories import (
    TINY,
    make_cluster,
    make_config,
    make_job,
    make_plan,
    plan_of,
    scrambled_plan,
    small_config,
    small_instance,
)

from pipette_opt.base.units import GIB
from pipette_opt.plans.plan import Alternative, Imbalance, JointModel, Plan, RiskChoice
from pipette_opt.plans.predicted import NINE_IN_TEN
from pipette_opt.plans.verdict import verdict
from pipette_opt.report.bars import Bar, columns
from pipette_opt.report.beside_tables import alternatives_table, fastest_line, imbalance_line, risks_table
from pipette_opt.report.first_screen import not_modelled_words
from pipette_opt.report.left_out import left_out_table
from pipette_opt.report.proof_tables import certificate_table, joint_model_text
from pipette_opt.report.tables import (
    breakdown_table,
    components_table,
    estimate_tables,
    hosts_tables,
    memory_table,
    plan_tables,
)
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import LARGE_EFFECT

PLANS: dict[str, Callable[[], Plan]] = {
    "small": make_plan,
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


def test_plan_numbers() -> None:
    """Figures of the small plan, by hand where they are round."""
    plan = make_plan()
    text = shown(*plan_tables(plan))
    assert "on 4 of 5 hosts, 16 GPUs" in text
    assert "2 of 64, 8 rounds" in text
    assert "at most 3.23 % above the best of the searched space" in " ".join(text.split())
    assert row(text, "placement gap")[:2] == ["12.5", "%"]
    assert row(text, "iteration time")[0] == f"{plan.estimate.iteration_time_s:.4f}"
    assert row(text, "stage 1")[:6] == ["28.0", "GiB", "20.2", "to", "38.9", "GiB"]
    assert "2 directed host pairs were not measured" in text


def test_certificate_says_what_it_covers() -> None:
    """Status, scope and effort."""
    plan = make_plan()
    text = shown(certificate_table(plan.certificate, plan.estimate))
    for said in ("FEASIBLE", plan.certificate.scope, "120 configurations, 100 bounded, not all ruled out, 12.5 s"):
        assert said in text
    closed = replace(plan.certificate, placement_dependent_s=0.0, placement_gap=0.0, status="OPTIMAL")
    text = shown(certificate_table(closed, plan.estimate))
    assert "placement gap" not in text
    for changed in ({"placement_dependent_s": 1e-9}, {"placement_gap": 1.2}):
        assert "placement gap" not in shown(certificate_table(replace(plan.certificate, **changed), plan.estimate))
    assert "the search is finished" in text
    assert "100 ruled out by bounds" in text


def test_breakdown_adds_up() -> None:
    """The shown seconds of the causes add up to the shown total, but for rounding."""
    text = shown(breakdown_table(make_plan().estimate))
    lines = [line.split() for line in text.splitlines() if "%" in line]
    seconds = [float(next(word for word in words if word[0].isdigit())) for words in lines]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=5e-4)


def test_memory_bar() -> None:
    """Half predicted and three quarters in nine of ten stacks, of 24 columns: 12 solid, 6 light, 6 empty."""
    spread = np.log(1.5) / NINE_IN_TEN
    stage = replace(make_plan().memory[0], predicted_bytes=40 * GIB, capacity_bytes=80 * GIB, spread=spread)
    assert "█" * 12 + "▒" * 6 + "·" * 6 in shown(memory_table([stage]))
    assert "#" * 12 + "=" * 6 + "." * 6 in shown(memory_table([stage]), encoding="ascii")


@pytest.mark.parametrize(("risk", "colour"), [(0.04, "32"), (0.08, "33"), (0.2, "31")])
def test_memory_colours(risk: float, colour: str) -> None:
    """Green, yellow above half the usual risk, red above it."""
    stage = replace(make_plan().memory[0], oom_probability=risk)
    assert f"\x1b[{colour}m" in shown(memory_table([stage]), terminal=True)


def test_components_are_shown() -> None:
    """A row for each stage and a column for each part; nothing for plans of before."""
    stages = make_plan().memory
    text = "".join(shown(table) for table in components_table(stages))
    assert [line.split()[-2:] for line in text.splitlines() if "stage" in line] == [
        ["10.0", f"{20 - 2 * stage:.1f}"] for stage in range(len(stages))
    ]
    assert components_table([replace(one, components={}) for one in stages]) == []


def test_extrapolation_is_said() -> None:
    """A star at the stage and what it means; neither where nothing extrapolates."""
    stages = make_plan().memory
    assert "training data" not in shown(memory_table(stages))
    text = shown(memory_table([replace(stages[0], extrapolates=True), *stages[1:]]))
    assert "stage 0 *" in text
    assert "stage 1 *" not in text
    assert "outside of the predictor's training data" in text


def test_only_the_fullest_of_many_stages() -> None:
    """Of forty stages, thirty-two are shown, in order, and the fullest is among them."""
    one = make_plan().memory[0]
    stages = [replace(one, stage=stage, oom_probability=stage / 100) for stage in range(40)]
    text = shown(memory_table(stages))
    assert "fullest 32 of 40 stages" in text
    listed = [int(line.split()[1]) for line in text.splitlines() if line.startswith("stage ")]
    assert listed == list(range(8, 40))


def test_hosts_in_grid_order() -> None:
    """Stage 0 is on hosts 3 and 0, stage 1 on 4 and 1; two stages on one host are one line."""
    text = shown(*hosts_tables(make_plan()))
    assert row(text, "0") == ["n[3,", "0]"]
    assert row(text, "1") == ["n[4,", "1]"]
    assert row(text, "n2")[0] == "in"
    together = shown(*hosts_tables(plan_of(small_instance(), small_config(), stages_per_host=2)))
    assert row(together, "0-1") == ["n[3,", "0,", "4,", "1]"]


def test_many_hosts_are_folded() -> None:
    """Sixty-four hosts in order are one range; shuffled ones stay within the columns, none is lost."""
    given = make_job(make_cluster(64, np.full((64, 64), 20.0), gpus=4), TINY)
    plan = plan_of(given, make_config(tp=4, dp=64, num_layers=8), tuple(range(64)))
    plan = replace(plan, hosts=tuple(f"compute-node-{number:03}" for number in range(64)))
    assert "compute-node-[000-063]" in shown(*hosts_tables(plan))
    shuffled = replace(plan, hosts=tuple(f"compute-node-{7 * number % 64:03}" for number in range(64)))
    text = shown(*hosts_tables(shuffled))
    assert max(map(len, text.splitlines())) <= 100
    assert all(host[-3:] in text for host in plan.hosts)


def test_left_out_hosts_of_one_reason_are_one_row() -> None:
    """Six unused hosts, two reasons."""
    plan = make_plan()
    unused = {f"n{number}": "not needed" for number in (10, 11, 12, 14)} | {"n13": "slow", "n2": "slow"}
    text = shown(*hosts_tables(replace(plan, unused_hosts=unused)))
    assert row(text, "n[10-12,")[:1] == ["14]"]
    assert text.count("slow") == 1


def test_one_of_a_thing_has_no_plural() -> None:
    """One host, one GPU."""
    plan = make_plan()
    text = shown(*estimate_tables(make_config(dp=1, num_layers=8), plan.estimate, plan.memory, hosts=("n0",)))
    assert "on 1 host, 1 GPU\n" in text.replace(" \n", "\n")


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
    """Its title, and nothing of a plan."""
    plan = make_plan()
    text = shown(*estimate_tables(plan.config, plan.estimate, plan.memory, hosts=("n0",), title="today"))
    assert "today" in text
    assert "The plan" not in text


def test_what_is_not_modelled() -> None:
    """One row for each option, with both of its directions."""
    entries = [
        NotModelled(option="--x", value="3", effect="time", direction="less", why="It hides."),
        NotModelled(option="--x", value="3", effect="memory", direction="either", why="It hides."),
        NotModelled(option="--y", effect="both", direction="more", why="It copies."),
    ]
    text = " ".join(shown(*left_out_table(entries)).split())
    assert "--x 3 less time, more or It hides. less memory" in text
    assert "--y more time, memory It copies." in text
    assert left_out_table([]) == []
    plan = make_plan()
    assert verdict(plan.memory, plan.estimate, not_modelled=entries).endswith("; not modelled: --x and 1 more.")
    assert verdict(plan.memory, plan.estimate, not_modelled=entries[2:]).endswith("; not modelled: --y.")
    large = [replace(entries[0], is_large=True), *entries]
    assert "--x 3 much less time" in " ".join(shown(*left_out_table(large[:1])).split())
    said = f"; with --x {LARGE_EFFECT}; not modelled: --y."
    assert verdict(plan.memory, plan.estimate, not_modelled=large).endswith(said)
    assert not_modelled_words(large) == f"--x: {LARGE_EFFECT}\n--y"


@pytest.mark.parametrize(
    ("share", "width", "expected"), [(0.0, 24, 0), (1e-9, 24, 1), (0.5, 24, 12), (1.0, 24, 24), (1.7, 24, 24)]
)
def test_bar_columns(share: float, width: int, expected: int) -> None:
    """Anything above zero is seen, nothing runs over."""
    assert columns(share, width) == expected
    assert shown(Bar(filled=share, width=width)).count("█") == expected


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
    assert "less than 3.5 s" in late


def test_what_the_fastest_would_have_been() -> None:
    """The plainer plan names the fastest, with what it costs; the next best say whether they are proven."""
    plan = make_plan()
    seconds = plan.estimate.iteration_time_s
    fast = Alternative(
        config=replace(plan.config, micro_batch_size=1, virtual_pipeline_model_parallel_size=2),
        hosts=("n0", "n1", "n2", "n3"),
        iteration_time_s=0.992 * seconds,
        oom_probability=0.004,
        reason="0.8 % faster, less plain",
        lower_bound_s=0.992 * seconds,
    )
    open_one = replace(fast, lower_bound_s=0.9 * seconds)
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
    text = shown(alternatives_table(replace(plan, alternatives=(fast, open_one))))
    assert "best searched" in text
    assert "open, at least" in text
    risks = (RiskChoice(max_oom_risk=0.01, plan=fast),)
    assert "at most 1.00 % " in shown(risks_table(replace(plan, risks=risks))[0])
    assert risks_table(plan) == []


def test_a_plain_plan_has_its_own_gap() -> None:
    """Beside its time and bound; the gap of the search, which is of another plan, has a row of its own."""
    proof, estimate = make_plan().certificate, make_plan().estimate
    best_s = proof.lower_bound_s / 0.995
    plainer = replace(proof, objective_s=1.005 * best_s, fastest_s=best_s, gap=0.005)
    text = " ".join(shown(certificate_table(plainer, estimate)).split())
    assert "at most 1.01 % above the best of the searched space" in text
    assert "fastest found 0.51 % above it at most; that plan is less plain" in text
    assert "fastest found" not in shown(certificate_table(proof, estimate))


def test_even_experts_are_assumed() -> None:
    """What 1.3 times the mean tokens on the busiest rank would do, in time and risk."""
    plan = make_plan()
    uneven = Imbalance(
        expert_imbalance=1.3, iteration_time_s=1.11 * plan.estimate.iteration_time_s, oom_probability=0.2
    )
    line = imbalance_line(replace(plan, imbalance=uneven))
    assert line.startswith("Experts are assumed to be evenly loaded.")
    assert "takes 11.0 % more, and the risk of running out of memory is 20 %" in line
    assert imbalance_line(plan) == ""
