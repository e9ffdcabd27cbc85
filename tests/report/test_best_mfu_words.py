"""Best public MFU beside that of a plan, on its screens and its page."""

from dataclasses import replace

import pytest
from consoles import shown
from factories import LLAMA_8B, llama_plan, make_cluster, make_job

from pipette_opt.library.current import Current
from pipette_opt.plans.plan import Plan
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.report.best_mfu import above_best_words, best_of_job, best_of_plan, mfu_words
from pipette_opt.report.first_screen import first_screen
from pipette_opt.report.page import page_of
from pipette_opt.report.tables import plan_tables
from pipette_opt.worlds.best_mfu import BestRun, shipped_best_runs

HOPPER = BestRun(
    kind="dense, 16 bit, hopper",
    mfu=0.5377,
    runs=1472,
    model="Nemotron-4-15B",
    num_gpus=1024,
    gpu="h100-80gb",
    publisher="NVIDIA DGX Cloud Benchmarking",
    source="page",
)


def plan_at(mfu: float, *gpus: str) -> Plan:
    """Return a plan for Llama 3 8B with this MFU on GPUs of these types."""
    plan = llama_plan()
    return replace(
        plan, estimate=replace(plan.estimate, mfu=mfu), inputs={**plan.inputs, "gpus": dict.fromkeys(gpus, 90)}
    )


@pytest.mark.parametrize(("mfu", "is_above"), [(0.53, False), (0.5377, False), (0.5378, True)])
def test_both_sides_of_the_best(mfu: float, is_above: bool) -> None:
    """An MFU that a public run attained has the best in brackets; one above it has a sentence in their place."""
    estimate = plan_at(mfu).estimate
    bracket = "" if is_above else " (best of 1,472 public runs of this kind 53.8 %)"
    assert mfu_words(estimate, HOPPER) == f"MFU {100 * mfu:.1f} %{bracket}"
    assert bool(above_best_words(estimate, HOPPER)) == is_above


def test_the_sentence_names_the_run() -> None:
    """With its model, GPUs and publisher."""
    assert above_best_words(plan_at(0.576).estimate, HOPPER) == (
        "MFU 57.6 % is above the best of 1,472 public runs of this kind: 53.8 %, Nemotron-4-15B on 1,024 h100-80gb, "
        "from NVIDIA DGX Cloud Benchmarking"
    )


def test_without_a_public_run() -> None:
    """Only the MFU."""
    estimate = plan_at(0.576).estimate
    assert (mfu_words(estimate, None), above_best_words(estimate, None)) == ("MFU 57.6 %", "")


def test_the_kind_of_a_plan() -> None:
    """By its recorded GPUs, also slowed ones; none for several generations, unknown GPUs, or GPUs not recorded."""
    hopper = shipped_best_runs()["dense, 16 bit, hopper"]
    assert best_of_plan(plan_at(0.5, "h100-80gb")) == hopper
    assert best_of_plan(plan_at(0.5, "h100-80gb@0.8", "h200-141gb")) == hopper
    assert best_of_plan(plan_at(0.5, "h100-80gb", "a100-80gb")) is None
    assert best_of_plan(plan_at(0.5, "mine")) is None
    assert best_of_plan(llama_plan()) is None
    h100, a100 = (read_gpu_catalogue()[name].gpu for name in ("h100-80gb", "a100-80gb"))
    assert best_of_job(make_job(make_cluster(2, kinds=(h100,)), LLAMA_8B)) == hopper
    assert best_of_job(make_job(make_cluster(2, kinds=(h100, a100)), LLAMA_8B)) is None


@pytest.mark.parametrize(("mfu", "is_above"), [(0.5, False), (0.6, True)])
def test_screens_and_page(mfu: float, is_above: bool) -> None:
    """The first screen, all tables and the page show the best in brackets, and above it the sentence."""
    plan = plan_at(mfu, "h100-80gb")
    best = shipped_best_runs()["dense, 16 bit, hopper"]
    bracket = f"(best of {best.runs} public runs of this kind 53.8 %)"
    for text in (shown(*first_screen(plan), width=80), shown(*plan_tables(plan)), page_of(plan)):
        assert (bracket in " ".join(text.split())) != is_above
        assert ("is above the best of" in " ".join(text.split())) == is_above


def test_a_launch_of_today() -> None:
    """Its screen and its tables say that it is above the best of its kind."""
    given = make_job(make_cluster(4, gpus=4, kinds=(read_gpu_catalogue()["h100-80gb"].gpu,)), LLAMA_8B)
    plan = plan_at(0.6)
    current = Current(
        instance=given,
        config=plan.config,
        placement=plan.placement,
        hosts=plan.hosts,
        estimate=plan.estimate,
        memory=plan.memory,
    )
    for parts in (current.screen(), current.tables()):
        text = " ".join(shown(*parts).split())
        assert "MFU 60.0 % is above the best of " in text
