"""Which environment variables a launch sets, and that it sets no other."""

import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from factories import llama_plan, make_plan

from pipette_opt.export.environment import connections, nccl_settings, reduces_between_hosts, setting_lines
from pipette_opt.export.targets import export
from pipette_opt.plans.plan import Plan


def on_gpus(plan: Plan, gpus: dict[str, int | None] | None) -> Plan:
    """The plan with recorded kinds of GPU."""
    return replace(plan, inputs={**plan.inputs, "gpus": gpus})


def degrees(plan: Plan, **changes: Any) -> Plan:
    """Another configuration on the same map."""
    return replace(plan, config=replace(plan.config, **changes))


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (None, ["1"]),
        ({"h100-80gb": 90}, ["1"]),
        ({"our-own": None}, ["1"]),
        ({"b200": 100}, ["32"]),
        ({"b300": 103}, ["32"]),
        ({"h100-80gb": 90, "b200": 100}, ["1"]),
    ],
)
def test_one_connection_before_blackwell(gpus: dict[str, int | None] | None, expected: list[str]) -> None:
    """Tensor size 2: Megatron-LM stops without the 1, and from Blackwell on nobody wants it."""
    assert [one.value for one in connections(on_gpus(make_plan(), gpus))] == expected


def test_no_connection_is_set_where_nobody_asks() -> None:
    """Neither tensor nor context parallelism; or, on Blackwell, one kind of communication only."""
    plan = degrees(make_plan(), tensor_model_parallel_size=1, data_parallel_size=8, sequence_parallel=False)
    assert connections(plan) == []
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in export(plan, "slurm")["job.sbatch"]
    context = degrees(plan, data_parallel_size=4, context_parallel_size=2)
    assert [one.value for one in connections(context)] == ["1"]
    one_stage = {"pipeline_model_parallel_size": 1, "layers_per_stage": (8,)}
    alone = degrees(make_plan(), tensor_model_parallel_size=16, data_parallel_size=1, **one_stage)
    assert connections(on_gpus(alone, {"b200": 100})) == []


def test_sharded_parameters_are_not_put_in_a_line() -> None:
    """Of torchtitan, which gathers beside compute: Megatron-LM stops if FSDP meets a single connection."""
    files = export(llama_plan(), "torchtitan")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in files["launch.sh"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in files["launch.sh"]


@pytest.mark.parametrize(
    ("algorithm", "distributed", "expected"),
    [
        ("ring", True, ["allgather:ring,nvls;reducescatter:ring,nvls"]),
        ("ring", False, ["allreduce:ring,nvls"]),
        ("tree", False, ["allreduce:tree,nvlstree"]),
        ("tree", True, []),
        ("hierarchical", True, []),
    ],
)
def test_assumed_algorithm(algorithm: str, distributed: bool, expected: list[str]) -> None:
    """By collective, for those that reduce gradients; nothing where NCCL has no such algorithm."""
    plan = degrees(replace(make_plan(), nccl_algorithm=algorithm), use_distributed_optimizer=distributed)
    assert [one.value for one in nccl_settings(plan)] == expected
    for target, file in (("torchrun", "launch.sh"), ("slurm", "job.sbatch")):
        text = export(plan, target)[file]
        assert ("NCCL_ALGO" in text) == bool(expected)
        assert all(value in text for value in expected)


def test_deepspeed_reduces_whole_buckets() -> None:
    """ZeRO's first stages use no reduce-scatter of NCCL; the launcher's file has one variable in a line."""
    lines = export(make_plan(), "deepspeed")["deepspeed_env"].splitlines()
    assert lines == [
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "NCCL_ALGO=allgather:ring,nvls;allreduce:ring,nvls",
    ]


def test_no_algorithm_inside_a_host() -> None:
    """Two replicas of a stage on each host, and then all sixteen ranks on one host."""
    plan = make_plan()
    assert reduces_between_hosts(plan)
    inside = replace(plan, placement=replace(plan.placement, node=plan.placement.node * 0))
    assert not reduces_between_hosts(inside)
    assert nccl_settings(inside) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_an_algorithm_of_the_environment_counts() -> None:
    """A user who sets ``NCCL_ALGO`` keeps it; the value's semicolons are quoted."""
    script = "\n".join([*setting_lines(nccl_settings(make_plan())), 'echo "$NCCL_ALGO"'])
    for given, expected in ({}, "allgather:ring,nvls;reducescatter:ring,nvls"), ({"NCCL_ALGO": "Tree"}, "Tree"):
        done = subprocess.run(["bash", "-euc", script], env=given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
