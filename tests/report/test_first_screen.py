"""The first screen of an answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from consoles import shown
from factories import llama_plan, make_plan, scrambled_plan, sharded_plan, small_config, whole_plan

from pipette_opt.plans.certificate import Regret
from pipette_opt.plans.plan import Alternative, Plan, RiskChoice, Target, Usual
from pipette_opt.plans.tables import usual_words
from pipette_opt.report.beside_tables import order_words, overlap_words
from pipette_opt.report.first_screen import (
    MAX_ALTERNATIVES,
    export_command,
    first_screen,
    job_words,
    launcher_flags,
    next_steps,
    regret_words,
)
from pipette_opt.report.tables import configuration_words
from pipette_opt.simulate.paying import PayingOption
from pipette_opt.specs import NotModelled


def unattained_plan() -> Plan:
    """A plan whose MFU no public run of its kind attained."""
    plan = llama_plan()
    return replace(plan, estimate=replace(plan.estimate, mfu=0.9), inputs={**plan.inputs, "gpus": {"h100-80gb": 90}})


PLANS: dict[str, Callable[[], Plan]] = {
    "small": make_plan,
    "beside": lambda: replace(make_plan(), fastest=whole_plan().fastest, risks=whole_plan().risks),
    "scrambled": scrambled_plan,
    "llama": llama_plan,
    "unattained": unattained_plan,
}

PAYING = (
    PayingOption(option="--tp-comm-overlap", saved_s=1.0, saved_share=0.08, condition="inside an NVLink domain"),
    PayingOption(option="--fp8-format hybrid", saved_s=0.9, saved_share=0.07, condition="in 8 bits"),
    PayingOption(option="--grad-reduce-in-bf16", saved_s=0.8, saved_share=0.06, condition="in 16 bits"),
)

ALTERNATIVE = Alternative(
    config=llama_plan().config, hosts=("n0",), iteration_time_s=1.0, oom_probability=0.001, reason=""
)

COST = Target(objective="cost", value=2.0, unit="EUR", bound=1.0, gap=0.5, sizes=())

FLAGS = [("--tensor-model-parallel-size", "8"), ("--sequence-parallel",)]


def full(plan: Plan, width: int = 80) -> str:
    """The screen with everything that may be on it."""
    gaps = tuple(
        NotModelled(option=f"--option-{n}", value="x", effect="time", direction="more", why="w") for n in range(9)
    )
    plan = replace(plan, not_modelled=gaps)
    today = ["tp8 pp2 dp1 mbs1: about 72.1 s per iteration (60 to 90 s in nine of ten jobs)", "The plan has 12 % more."]
    screen = first_screen(plan, flags=FLAGS * 6, paying=PAYING, today=today, next_steps=next_steps(plan, "plan.json"))
    return shown(*screen, width=width)


@pytest.mark.parametrize("name", PLANS)
def test_at_most_forty_lines_of_80_columns(name: str) -> None:
    """Also with flags, options that pay, a launch of today, nine options that no number counts, and a high MFU."""
    lines = full(PLANS[name]()).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_what_the_order_of_the_hosts_saves() -> None:
    """Against the same plan with hosts as listed, or why that cannot run; nothing if the plan has them as listed."""
    plan = llama_plan()
    listed = replace(ALTERNATIVE, config=plan.config, iteration_time_s=1.25 * plan.estimate.iteration_time_s)
    assert order_words(plan) == ""
    assert "this order takes 20.0 % less time" in order_words(replace(plan, listed=listed))
    unfit = replace(listed, iteration_time_s=None, reason="does not fit")
    assert "in the listed order the plan does not fit" in order_words(replace(plan, listed=unfit))


def test_why_gradients_do_not_overlap() -> None:
    """With overlap the plan is slower and the reason says by what, or as fast, or faster where it was pinned off."""
    plan = llama_plan()
    words = []
    for factor in (1.02, 1.0, 0.98):
        seconds = factor * plan.estimate.iteration_time_s
        other = replace(ALTERNATIVE, iteration_time_s=seconds, reason="2.00 % slower, most of it compute (+1.90 %)")
        words.append(overlap_words(replace(plan, overlapped=other)).rpartition("the plan is ")[2])
    assert words == ["2.00 % slower, most of it compute (+1.90 %)", "as fast", "2.00 % faster"]
    assert overlap_words(plan) == ""
    pinned = replace(plan, overlapped=ALTERNATIVE, inputs={"search": {"overlap_grad_reduce": False}})
    assert overlap_words(pinned).startswith("gradient reduction does not overlap with compute, as pinned: ")


def test_data_parallelism_alone_is_always_a_row() -> None:
    """With its price, or the reason why it cannot run; the plan itself may be that."""
    plan, sharded = llama_plan(), sharded_plan()
    slower = replace(ALTERNATIVE, config=sharded.config, iteration_time_s=1.06 * plan.estimate.iteration_time_s)
    named = usual_words(replace(plan, usual=Usual(plan=slower)))
    assert named == (f"as most run it: {sharded.config.label()}", "6.00 % slower")
    assert "6.00 % slower" in shown(*first_screen(replace(plan, alternatives=(), usual=Usual(plan=slower))))
    listed = replace(plan, alternatives=(slower,), usual=Usual(plan=slower))
    assert shown(*first_screen(listed)).count("zero3") == 1
    problem = "does not fit: needs 99.0 GiB of 79.0"
    assert usual_words(replace(plan, usual=Usual(plan=None, problem=problem)))[1] == problem  # type: ignore[index]
    assert usual_words(sharded) == ("as most run it", "this plan")
    assert usual_words(plan) is None


def test_the_job_and_the_plan_are_said_in_words() -> None:
    """Model, batch, precision, machines; degrees, micro-batches, layers."""
    plan = llama_plan()
    assert job_words(plan).endswith(f"hosts of {plan.gpus_per_node} GPUs")
    recorded = replace(
        plan,
        inputs={
            "model": {"name": "llama-3-8b"},
            "training": {"seq_length": 8192, "precision": "bf16", "fp8": True},
            "gpus": {"h100-80gb": 90},
        },
    )
    words = job_words(recorded)
    assert words.startswith(f"llama-3-8b, batch {plan.global_batch_size:,} of 8,192 tokens, fp8 with bf16, ")
    assert words.endswith("h100-80gb")
    small = make_plan()
    assert configuration_words(small.config, small.global_batch_size) == (
        "tensor 2 x pipeline 2 x data 4; micro-batch 2 (8 rounds); layers 2 x 4 a stage; no recomputation"
    )


def test_recomputation_and_chunks_are_named() -> None:
    """What saves memory, and how many chunks a stage has."""
    config = small_config(virtual_pipeline_model_parallel_size=2, recompute_granularity="selective")
    words = configuration_words(config, make_plan().global_batch_size)
    assert "2 chunks; recomputation selective" in words


def test_lists_are_cut_and_say_how_much_is_missing() -> None:
    """Three options that no number counts, two that pay, three alternatives."""
    plan = make_plan()
    text = " ".join(full(plan).split())
    assert "--option-0, --option-1, --option-2 and 6 more" in text
    assert "--tp-comm-overlap: 8.70 % more tokens per second" in text
    assert "; 1 more" in text
    assert sum(one.config.label() in text for one in plan.alternatives) <= MAX_ALTERNATIVES


def test_flags_are_a_shell_s_and_megatron_s() -> None:
    """A layout is quoted; torchtitan has other options, which its launch files set."""
    plan = make_plan()
    flags = [("--pipeline-model-parallel-layout", "Et|t*3L"), ("--sequence-parallel",)]
    assert "--pipeline-model-parallel-layout 'Et|t*3L' --sequence-parallel" in shown(*first_screen(plan, flags=flags))
    titan = replace(plan, inputs={**plan.inputs, "stack": {"name": "torchtitan"}})
    assert launcher_flags(titan, flags) == []
    assert "--format torchtitan" in export_command(titan, "plan.json")
    for framework, target in (("accelerate", "accelerate"), ("nemo", "nemo"), ("megatron", "slurm")):
        named = replace(make_plan(), inputs={**make_plan().inputs, "framework": framework})
        assert f"--format {target} " in export_command(named, "plan.json")


def test_next_steps_name_the_file_and_a_launcher_that_can() -> None:
    """Slurm and mpi start any map."""
    assert "pipette-opt export mine.json --format slurm -o launch/" in next_steps(make_plan(), "mine.json")[0]
    assert "--format torchrun" in next_steps(replace(make_plan(), launcher="torchrun"), "mine.json")[0]


@pytest.mark.parametrize(
    ("ratio", "changes", "said"),
    [
        (1.0123, {}, "1.23 % slower"),
        (1.0004, {}, "as fast"),
        (0.9996, {}, "as fast"),
        (0.999, {}, "within 1 %, less plain"),
        (
            0.9,
            {"target": Target(objective="cost", value=2.0, unit="EUR", bound=1.0, gap=0.5, sizes=())},
            "no better by cost",
        ),
    ],
)
def test_no_other_plan_is_called_faster(ratio: float, changes: dict[str, Any], said: str) -> None:
    """The next best and those with less risk are slower, as fast, or said why they were not taken."""
    plan = replace(make_plan(), **changes)
    other = replace(plan.alternatives[0], iteration_time_s=ratio * plan.estimate.iteration_time_s, oom_probability=1e-6)
    safe = RiskChoice(max_oom_risk=1e-5, plan=other)
    for shown_plan in (replace(plan, alternatives=(other,)), replace(plan, alternatives=(), risks=(safe,))):
        text = " ".join(shown(*first_screen(shown_plan), width=100).split())
        assert said in text
        assert "faster" not in text


def test_each_fact_stands_once() -> None:
    """Of a plan with all that a plan may have: no row twice, the band of the time once, risks of the next best once."""
    plan = whole_plan()
    text = full(plan)
    names = [line.split("  ")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert len(names) == len(set(names))
    assert " ".join(text.split()).count("in nine of ten jobs like this") == 1
    assert "Less risk" in text
    assert "Less risk" not in full(replace(plan, fastest=None, usual=None))


def test_the_next_best_is_another_than_the_fastest() -> None:
    """The fastest has a row of its own."""
    plan = make_plan()
    fast = plan.alternatives[0]
    table = full(replace(plan, fastest=fast)).split("next best")[1]
    assert fast.config.label() not in " ".join(table.split())
    assert fast.config.label() in " ".join(full(plan).split("next best")[1].split())


def test_causes_that_round_to_nothing_are_not_named() -> None:
    """No "data parallel 0 %"."""
    plan = make_plan()
    parts = {"compute": plan.estimate.iteration_time_s, "bubble": 0.0, "optimizer": 1e-9}
    text = " ".join(full(replace(plan, estimate=replace(plan.estimate, breakdown=parts))).split())
    assert "compute 100 %" in text
    assert " 0 %" not in text


def test_regret_needs_no_word_of_our_own() -> None:
    """A reader who knows nothing of worlds understands the sentence."""
    regret = Regret(
        mean=0.02,
        high=0.04,
        quantile=0.9,
        over_found_mean=0.01,
        over_found_high=0.03,
        worlds=1,
        measured_runs=1,
        groups=1,
        lower_bounds_s=(1.0,),
        unmeasured_high=0.19,
    )
    assert regret_words(regret) == (
        "with 90 % confidence at most 4.00 % slower than the fastest plan can be; 19.0 % in the same worlds without a "
        "measurement; 2.00 % in the mean; at most 3.00 % slower than the best plan found"
    )
    assert "unlike public runs" not in regret_words(regret)
    assert "19.0 % in the same worlds without a measurement (more with it: it is unlike public runs" in regret_words(
        replace(regret, high=0.3)
    )
