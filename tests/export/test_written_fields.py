"""Each field of a training or a configuration that Megatron-LM's arguments express changes the arguments."""

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from factories import make_cluster, make_config, make_job, plan_of
from tables import table

from pipette_opt.export.megatron import MISSING_TRAINING_FIELDS, megatron_options
from pipette_opt.export.recorded import ASSUMED
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model import read_model
from pipette_opt.read.model_words import Option
from pipette_opt.specs import TrainingSpec

CASES = {kind: table(__file__, kind) for kind in ("training", "configuration")}
"""Value of each field, and fields of the training and of the configuration that it needs."""


def with_default(spec: type, left_out: tuple[str, ...] = ()) -> set[str]:
    """Fields with a default."""
    return {field.name for field in fields(spec) if field.default is not MISSING} - set(left_out)


def test_every_field_is_here() -> None:
    """Each field has a case, so that no new field is left out of the arguments silently."""
    assert CASES["training"].keys() == with_default(TrainingSpec, (*MISSING_TRAINING_FIELDS, *ASSUMED))
    assert CASES["configuration"].keys() == with_default(ParallelConfig)


def words(training: dict[str, Any], config: dict[str, Any]) -> list[Option]:
    """Arguments of a plan for a model with experts on 16 GPUs."""
    chosen = make_config(tp=2, pp=2, dp=4, num_layers=32, use_distributed_optimizer=True)
    plan = plan_of(make_job(make_cluster(4, gpus=4), read_model("mixtral-8x7b")), chosen, (0, 1, 2, 3))
    typed = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    recorded = {**plan.inputs, "training": {**plan.inputs["training"], **training}}
    return megatron_options(replace(plan, inputs=recorded, config=replace(chosen, **typed)))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in CASES.items() for name in cases])
def test_a_field_changes_the_arguments(kind: str, name: str) -> None:
    """Compared with the arguments without it, with all that it needs."""
    value, *needs = CASES[kind][name]
    needed = dict(zip(CASES, [*needs, {}, {}][:2], strict=True))
    changed = {**needed, kind: {**needed[kind], name: value}}
    assert words(*changed.values()) != words(*needed.values())
