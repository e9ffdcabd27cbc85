"""What a target cannot say is refused, field by field; what it can say is there."""

import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import pytest
import yaml
from factories import llama_plan, make_plan, sharded_plan
from tables import table, tuples
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.export.checks import expert_tensor_size
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.recorded import SOLVE_OPTIONS, refuse_unwritten
from pipette_opt.export.targets import export
from pipette_opt.frameworks.nemo import hydra_words
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.plans.plan import Plan


def second_order(plan: Plan) -> Plan:
    """The same GPUs for the same coordinates, ranks numbered stage before replica."""
    first, second = (RankGrid.of(plan.config, order).ranks() for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"))
    was = np.empty(plan.config.world_size, dtype=np.int64)
    was[second.ravel()] = first.ravel()
    placement = plan.placement
    return replace(
        plan,
        placement=replace(
            placement, order="tp-cp-ep-pp-dp", node=placement.node[was], local_rank=placement.local_rank[was]
        ),
    )


def exchanged(plan: Plan) -> Plan:
    """The first host's ranks count its GPUs backwards."""
    local_rank = plan.placement.local_rank.copy()
    local_rank[:4] = [3, 2, 1, 0]
    return replace(plan, placement=replace(plan.placement, local_rank=local_rank))


PLACEMENTS: dict[str, Callable[[Plan], Plan]] = {"second order": second_order, "exchanged": exchanged}
PLANS: dict[str, Callable[[], Plan]] = {"llama": llama_plan, "sharded": sharded_plan, "small": make_plan}


def changed(plan: Plan, row: dict[str, Any]) -> Plan:
    """Return the plan with the fields of a row: of its configuration, its recorded training or model, and others."""
    inputs = {**plan.inputs, **{part: {**plan.inputs[part], **row.get(part, {})} for part in ("training", "model")}}
    plan = replace(plan, config=replace(plan.config, **tuples(row.get("config", {}))), inputs=inputs)
    plan = replace(plan, **tuples(row.get("plan", {})))
    return PLACEMENTS[row["placement"]](plan) if "placement" in row else plan


def configured(plan: Plan, **config: Any) -> Plan:
    """Return the plan with another configuration on the same map."""
    return changed(plan, {"config": config})


@pytest.mark.search
@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: f"{row['target']}: {row['error']}")
def test_refused(row: dict[str, Any]) -> None:
    """The plan goes through, the changed one does not, and the message names the field."""
    target = row["target"]
    options = ExportOptions(image="image:1" if target == "kubernetes" else None)
    plan = sharded_plan() if target == "accelerate" else llama_plan()
    assert export(plan, target, options)
    with pytest.raises(InputError, match=row["error"]):
        export(changed(PLANS[row["of"]]() if "of" in row else plan, row), target, options)


SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nemo": ("overrides.yaml", yaml.safe_load),
    "deepspeed": ("ds_config.json", json.loads),
    "torchtitan": ("torchtitan.toml", tomllib.loads),
    "accelerate": ("accelerate.yaml", yaml.safe_load),
}
"""File of settings that a target writes, and its reader."""


@pytest.mark.parametrize("row", table(__file__, "WRITTEN"), ids=lambda row: row["shows"])
def test_written_settings(row: dict[str, Any]) -> None:
    """A changed plan has these settings, by path, or lacks them; its files have these texts, its script these words."""
    files = export(changed(PLANS[row["of"]](), row), row["target"])
    if "has" in row or "lacks" in row:
        name, reader = SETTINGS[row["target"]]
        found = reader(files[name])
        for path, expected in row.get("has", {}).items():
            assert reduce(getitem, path.split("/"), found) == expected, path
        for path in row.get("lacks", ()):
            *parts, last = path.split("/")
            assert last not in reduce(getitem, parts, found)
    for name, texts in row.get("texts", {}).items():
        assert [text for text in texts if text not in files[name]] == []
    if "words" in row:
        assert set(row["words"]) <= set(shlex.split(files["nemo_args.sh"], comments=True))


def test_options_of_refusals_are_options_of_solve() -> None:
    """Each belongs to a field of a configuration, and the command line takes it."""
    assert {field.name for field in fields(ParallelConfig)} >= set(SOLVE_OPTIONS)
    words = [word for option in SOLVE_OPTIONS.values() for word in option.split()]
    found = CliRunner().invoke(app, ["explain", "tp=8", "--example", "lab-2x8", "--tensor-parallel", "8", *words])
    assert found.exit_code == 0


def test_unknown_fields_are_refused() -> None:
    """A field that an export has never heard of may not get lost; with its default value it says nothing."""
    plan = llama_plan()
    refuse_unwritten("anything", replace(plan.config, use_distributed_optimizer=False, sequence_parallel=False), ())
    with pytest.raises(InputError, match="sequence_parallel: is True"):
        refuse_unwritten("anything", plan.config, ("use_distributed_optimizer",))


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed"])
def test_orders_that_come_out_alike_are_no_loss(target: str) -> None:
    """With one stage both orders number the ranks alike."""
    plan = llama_plan()
    flat = configured(plan, pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(32,))
    files = export(flat, target)
    other = replace(flat, placement=replace(flat.placement, order="tp-cp-ep-pp-dp"))
    assert export(other, target) == files


@pytest.mark.parametrize(
    ("order", "degrees", "num_experts", "said"),
    [
        ("tp-cp-ep-dp-pp", {"context_parallel_size": 2}, None, None),
        ("tp-cp-ep-pp-dp", {}, None, None),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2}, None, 4),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2, "expert_model_parallel_size": 2}, 8, None),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2, "expert_model_parallel_size": 4}, 8, "rank_order"),
        (
            "tp-cp-ep-pp-dp",
            {"context_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
            8,
            1,
        ),
        ("tp-cp-ep-dp-pp", {"expert_model_parallel_size": 4}, 8, None),
        ("tp-cp-ep-dp-pp", {"expert_model_parallel_size": 4}, None, "no experts"),
    ],
)
def test_expert_tensor_size(order: Any, degrees: dict[str, int], num_experts: int | None, said: object) -> None:
    """Two tensor and two pipeline ranks; with replicas numbered last, ``etp * ep`` must be ``tp * cp``."""
    plan = configured(llama_plan(), **degrees)
    plan = replace(plan, placement=replace(plan.placement, order=order))
    if isinstance(said, str):
        with pytest.raises(InputError, match=said):
            expert_tensor_size(plan, num_experts)
    else:
        assert expert_tensor_size(plan, num_experts) == said


def test_nemo_files_agree() -> None:
    """The YAML file has what the words say."""
    files = export(llama_plan(), "nemo")
    written = yaml.safe_load(files["overrides.yaml"])
    assert written["model"]["tensor_model_parallel_size"] == 2
    assert written["dist"] == {"use_tp_pp_dp_mapping": False}
    for word in hydra_words(written):
        assert f"  {word}\n" in files["nemo_args.sh"]
