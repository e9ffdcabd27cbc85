"""Contracts between answers about tiny jobs: the checks of ``benchmarks/hardening/contracts.py``, searches proven."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_modules import loaded
from factories import TINY, make_cluster, make_plan, make_random_cluster

import pipette_opt as po
from pipette_opt.replan.whatif import Answer

pytestmark = pytest.mark.search

LINKS = make_random_cluster(np.random.default_rng(3), 3, gpus=2)
"""Three hosts with measured links."""

EXPERTS = replace(TINY, name="experts", num_layers=4, num_experts=4, moe_router_topk=2)
"""Four experts in each of four layers."""

SPACE = {"context_parallel": 1, "virtual_pipeline": 1, "micro_batch_size": (1, 2), "recompute": "none"}
"""Search spaces that are proven within a second."""

JOBS: dict[str, tuple[po.ClusterSpec, po.ModelSpec, dict[str, Any]]] = {
    "dense": (make_cluster(2, gpus=2), TINY, {"launcher": "torchrun", "prefer": "simple"}),
    "experts": (make_cluster(2, gpus=2), EXPERTS, {"launcher": "torchrun", "prefer": "fastest"}),
    "links": (
        make_random_cluster(np.random.default_rng(3), 3, gpus=2),
        TINY,
        {"launcher": "slurm", "prefer": "fastest"},
    ),
}
"""Machines, model and options of each job."""


class Solved:
    """A job and its plan, solved once for all tests."""

    def __init__(self, name: str, folder: Path) -> None:
        self.checks = loaded("hardening.contract_checks", ".")
        spec, model, options = JOBS[name]
        po.write_cluster(spec, folder / "cluster.yaml")
        training = po.TrainingSpec(global_batch_size=12, seq_length=1024)
        job = {"cluster": folder / "cluster.yaml", "model": model, "training": training, **SPACE, **options}
        limits = {"time_limit_s": 20.0, "workers": 1, "seed": 0}
        self.case = self.checks.Case(folder=folder, job=job, limits=limits)
        self.plan = self.case.solve("plan")

    def broken(self, check: str, *arguments: Any) -> list[str]:
        """Sentences of a check about the plan."""
        return list(getattr(self.checks, check)(self.case, self.plan, *arguments))


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Solved]:
    """Every job, solved."""
    return {name: Solved(name, tmp_path_factory.mktemp(name)) for name in JOBS}


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("dense", {"tensor_parallel": (1,)}),
        ("dense", {"tensor_parallel": (2,), "pipeline_parallel": (2,)}),
        ("experts", {"expert_parallel": (1,)}),
        ("links", {"pipeline_parallel": (3,), "micro_batch_size": (1,)}),
        ("links", {"data_parallel": (6,)}),
    ],
)
def test_pins_never_beat_the_free_plan(solved: dict[str, Solved], name: str, pins: dict[str, Any]) -> None:
    """On both clocks, by more than the gap that the free plan states; and its own values give it back."""
    job = solved[name]
    assert not job.broken("pins_never_beat", pins)
    assert job.checks.is_searched(job.plan, po.read_plan(job.case.path("pinned")).config)


@pytest.mark.parametrize("name", JOBS)
def test_a_plan_has_one_time(solved: dict[str, Solved], name: str) -> None:
    """In its file, in ``estimate``, as today's in ``whatif``, before ``replan`` and in ``explain``."""
    assert not solved[name].broken("one_time")


@pytest.mark.parametrize(("name", "factor"), [("dense", 1.0), ("experts", 1.0), ("links", 1.27)])
def test_a_run_of_the_plan_changes_its_factor_only(solved: dict[str, Solved], name: str, factor: float) -> None:
    """A run as long as predicted changes nothing, a longer one all times alike."""
    assert not solved[name].broken("measured_as_predicted", factor)


@pytest.mark.parametrize("name", ["dense", "links"])
def test_better_machines_are_not_worse(solved: dict[str, Solved], name: str) -> None:
    """Another host, faster links, a repaired host: asked alone, together, and solved."""
    assert not solved[name].broken("more_is_not_worse")


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_an_exported_launch_read_back_is_the_plan(solved: dict[str, Solved], name: str) -> None:
    """Its configuration, memory and times."""
    assert not solved[name].broken("exported_is_the_plan")


@pytest.mark.parametrize(("name", "ratios"), [("dense", (1.0, 1.27)), ("links", (0.83, 1.27, 1.0))])
def test_unlike_runs_leave_one_factor(solved: dict[str, Solved], name: str, ratios: tuple[float, ...]) -> None:
    """After runs that no single factor explains, all plans have one; pins do not beat, and ``verify`` passes."""
    assert not solved[name].broken("runs_keep_one_ratio", ratios)


def test_contradictions_are_found() -> None:
    """Each comparison names the clock, or the answer, that is off."""
    checks, plan = loaded("hardening.contract_checks", "."), make_plan()
    expected_s = plan.estimate.expected_s
    least_s = plan.certificate.lower_bound_s
    assert not list(checks.beaten(plan, (least_s, expected_s), "pinned"))
    assert ["simulated" in line for line in checks.beaten(plan, (0.99 * least_s, expected_s), "pinned")] == [True]
    assert ["expected" in line for line in checks.unlike((1.0, 1.2), (1.0, 1.3), "estimate")] == [True]
    assert list(checks.unlike_ratio((1.0, 1.2), (2.0, 2.5), "another layout"))
    first = Answer(name="one more host", group="more hosts", simulated_s=2.0, expected_s=2.4, simulated_bound_s=1.9)
    second = replace(first, simulated_s=1.8, expected_s=2.16, simulated_bound_s=None)
    assert ["1.8 s found, but 1.9 s at best" in line for line in checks.agreed(first, second, "hosts")] == [True]
    assert not list(checks.agreed(replace(first, simulated_bound_s=1.7), second, "hosts"))


def test_a_broken_contract_is_printed_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends with 1, says which contract of which job is broken, and how to check it again."""
    program = loaded("hardening.contracts", ".")
    monkeypatch.setattr(program, "CONTRACTS", {"pins": lambda *_: iter(["1 s is below 2 s"]), "more": lambda *_: []})
    monkeypatch.setattr("sys.argv", ["contracts", "--jobs", "1", "--seed", "3", "--time-limit", "2"])
    with pytest.raises(SystemExit, match="1"):
        program.main()
    out = capsys.readouterr().out
    assert "seed 3, pins: 1 s is below 2 s" in out
    assert "--jobs 1 --seed 3 --time-limit 2 --only pins" in out
    assert "1 of 1 jobs break a contract (pins 1)" in out
