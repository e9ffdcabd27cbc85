"""Accelerate gets plans of fully sharded data parallelism; any other plan is refused by the field."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from factories import llama_plan, sharded_plan

from pipette_opt.base.errors import InputError
from pipette_opt.export.targets import export
from pipette_opt.plans.plan import Plan


def trained(plan: Plan, **changes: Any) -> Plan:
    """Another recorded training."""
    return replace(plan, inputs={**plan.inputs, "training": {**plan.inputs["training"], **changes}})


def test_other_degrees_name_the_options_of_solve() -> None:
    """Tensor and pipeline parallelism would need another trainer."""
    with pytest.raises(InputError, match=r"tensor_model_parallel_size: is 2, .*solve with --tp 1 --pp 1"):
        export(llama_plan(), "accelerate")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (sharded_plan(zero_stage=None, use_distributed_optimizer=False), "use_distributed_optimizer: is off"),
        (sharded_plan(recompute_granularity="selective"), "recompute_granularity: is selective"),
        (trained(sharded_plan(), fp8=True), "fp8: is True, but accelerate has no option"),
        (trained(sharded_plan(), accumulate_allreduce_grads_in_fp32=False), "keeps gradients in fp32"),
        (trained(sharded_plan(), precision="fp16", accumulate_allreduce_grads_in_fp32=False), "in fp32"),
    ],
)
def test_what_it_cannot_do_is_refused(plan: Plan, said: str) -> None:
    """Each by its field."""
    with pytest.raises(InputError, match=said):
        export(plan, "accelerate")


def test_precision_and_sharding() -> None:
    """fp32 is no mixed precision; parameters that ZeRO 1 keeps are not resharded."""
    keys = yaml.safe_load(
        export(trained(sharded_plan(zero_stage=None), precision="fp32"), "accelerate")["accelerate.yaml"]
    )
    assert (keys["mixed_precision"], keys["fsdp_config"]["fsdp_reshard_after_forward"]) == ("no", False)
    assert "parallelism_config" not in keys
