"""``import pipette_opt as po``: what it has, what it accepts, and what it refuses."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factories import TINY, make_cluster, make_plan

import pipette_opt as po
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import GIB
from pipette_opt.library.arguments import described, job_and_space
from pipette_opt.plans.plan import Usual

EXAMPLE = shipped_path("data", "clusters", "lab-2x8.yaml")
SAID = {"global_batch_size": 64, "seq_length": 4096}


def test_import_is_light() -> None:
    """Nothing heavy is loaded before a name is asked for."""
    code = (
        "import sys, pipette_opt as po\n"
        "heavy = {'ortools', 'numba', 'torch', 'pandas', 'numpy', 'yaml', 'plotly', 'typer'} & set(sys.modules)\n"
        "assert 'solve' in dir(po)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_documented() -> None:
    """Each has a docstring of its own; another name is refused as by any module."""
    for name in set(po.__all__) - {"__version__"}:
        assert getattr(po, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        po.nothing  # noqa: B018


def test_files_names_and_objects_are_the_same_job() -> None:
    """A cluster file and a preset, or what they say."""
    named = job_and_space(*described(EXAMPLE, "llama-3-8b", None, dict(SAID)), None)[0]
    training = po.TrainingSpec(**SAID)
    objects = job_and_space(*described(po.read_cluster(EXAMPLE), po.read_model("llama-3-8b"), training, {}), None)[0]
    assert named.instance.model == objects.instance.model
    assert named.instance.training == objects.instance.training
    assert named.instance.cluster.hosts == objects.instance.cluster.hosts
    assert named.inputs["cluster"]["path"] == str(EXAMPLE)
    assert objects.inputs["cluster"] is None


def test_hosts_without_a_file() -> None:
    """As many hosts as said, with the usual links of their kind."""
    found = job_and_space(*described(None, "llama-3-8b", None, {"nodes": 3, "gpu": "h100", **SAID}), None)[0]
    assert found.instance.cluster.num_nodes == 3


@pytest.mark.parametrize(
    ("arguments", "where", "problem"),
    [
        ({"cluster": EXAMPLE, "model": TINY}, "global_batch_size", "is required"),
        ({"cluster": EXAMPLE, "model": "no-such-model", **SAID}, "no-such-model", "model"),
        ({"model": TINY, **SAID}, "cluster", "is required"),
        ({"cluster": EXAMPLE, **SAID}, "model", "is required"),
        ({"cluster": EXAMPLE, "model": TINY, "objective": "fun", **SAID}, "objective", "must be one of"),
        (
            {"cluster": EXAMPLE, "model": TINY, "training": po.TrainingSpec(**SAID), "fp8": True},
            "training",
            "already sets fp8",
        ),
        ({"cluster": make_cluster(2), "model": TINY, "gpu": "h100", **SAID}, "gpu", "has no effect on test"),
        ({"cluster": EXAMPLE, "model": TINY, **SAID, "seq_length": 0}, "seq_length", "must be from 1"),
    ],
)
def test_what_is_wrong_is_named_as_an_argument(arguments: dict[str, Any], where: str, problem: str) -> None:
    """Not as an option of the command line."""
    with pytest.raises(po.InputError, match=problem) as raised:
        po.solve(**arguments)
    assert where in raised.value.where
    assert not raised.value.where.startswith("--")


def test_unknown_arguments_are_refused() -> None:
    """As by any function."""
    with pytest.raises(TypeError, match="colour"):
        po.solve(EXAMPLE, "llama-3-8b", colour="red")
    with pytest.raises(po.InputError, match="tensor_parallel: is given as an argument and in the argument `space`"):
        po.solve(EXAMPLE, "llama-3-8b", space=po.SearchSpace(tensor_parallel=(4,)), tp=8)


@pytest.mark.search
def test_solved_in_memory(tmp_path: Path) -> None:
    """Specs in, a plan out, told meanwhile; its file and its page are written."""
    steps = []
    plan = po.solve(
        make_cluster(2, gpus=2),
        TINY,
        global_batch_size=8,
        seq_length=1024,
        time_limit_s=5.0,
        gap_limit=0.5,
        workers=1,
        on_progress=lambda progress: steps.append(progress.step),
    )
    assert plan.certificate.gap <= 0.5
    assert steps
    po.write_plan(plan, tmp_path / "plan.json")
    assert po.read_plan(tmp_path / "plan.json").verdict == plan.verdict


@pytest.mark.search
def test_page_of_a_plan_without_its_cluster(tmp_path: Path) -> None:
    """It says that it is not whole."""
    plan = make_plan()
    gone = replace(plan, inputs={**plan.inputs, "cluster": {"path": "/nowhere.yaml", "sha256": "0" * 64}})
    assert not po.write_report(gone, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").endswith("</html>\n")
    with pytest.raises(po.InputError, match="cannot be written"):
        po.write_report(gone, tmp_path / "missing" / "page.html")


def test_tables_are_the_plans() -> None:
    """Stages in GiB; causes that add up; ranks with their hosts; the proof by name."""
    plan = make_plan()
    stages = plan.stage_table()
    assert stages.index.tolist() == [0, 1]
    assert stages.loc[1, "at_most_gib"] == plan.memory[1].upper_bytes / GIB
    assert stages["layers"].sum() == TINY.num_layers
    parts = stages.filter(regex="^(weights|activations)_gib$").sum(axis=1)
    assert parts.tolist() == pytest.approx(stages["predicted_gib"].tolist())
    times = plan.time_table()
    assert times["this plan"].sum() == pytest.approx(plan.estimate.iteration_time_s)
    assert times[plan.alternatives[0].config.label()].sum() == pytest.approx(plan.alternatives[0].iteration_time_s)
    ranks = plan.rank_table()
    assert len(ranks) == plan.config.world_size
    assert ranks.loc[0, "host"] == plan.hosts[plan.placement.node[0]]
    others = plan.alternative_table()
    assert others["share"].iloc[0] == 1.0
    assert len(others) == 1 + len(plan.alternatives)
    assert pd.isna(others["iteration_time_s"].iloc[2])
    unfit = replace(plan, usual=Usual(plan=None, problem="does not fit")).alternative_table()
    assert unfit["reason"].iloc[-1] == "does not fit"
    assert [str(unfit[name].dtype) for name in ("share", "oom_probability", "lower_bound_s")] == 3 * ["float64"]
    assert plan.proof_table()["configurations"].sum() == sum(part.configurations for part in plan.certificate.proof)


def test_a_notebook_shows_a_plan() -> None:
    """Its verdict and its stages; a name in it is no markup."""
    plan = make_plan()
    text = plan._repr_html_()
    assert "Fits" in text
    assert "<table" in text
    option = replace(plan.not_modelled[0], option="<img src=x>") if plan.not_modelled else None
    if option is not None:
        assert "<img" not in replace(plan, not_modelled=(option,))._repr_html_()
