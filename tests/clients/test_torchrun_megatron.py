"""
The real torchrun and megatron-core: processes, started from our files, that train nothing but know who they are.

Each process makes megatron-core's process groups (on gloo) from the arguments that it was given, says its coordinates
and the members of its groups, and adds up the ranks of each group over it.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job, plan_of, plan_on

from pipette_opt.export.targets import export
from pipette_opt.parallel import Placement, RankGrid
from pipette_opt.plans.plan import Plan, rank_rows

TORCHRUN = Path(sys.executable).parent / "torchrun"
pytestmark = [
    pytest.mark.client("megatron.core"),
    pytest.mark.skipif(not TORCHRUN.exists(), reason="torchrun is not installed beside this Python"),
]

WORKER = """
import argparse, json, os, sys, types, warnings
warnings.simplefilter("ignore")
import megatron
import torch
import torch.distributed as dist

# The process groups alone: the package itself would import all models, which takes each process longer than its work.
core = types.ModuleType("megatron.core")
core.__path__ = [os.path.join(folder, "core") for folder in megatron.__path__]
sys.modules["megatron.core"] = core
from megatron.core import parallel_state

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--tensor-model-parallel-size", type=int)
parser.add_argument("--pipeline-model-parallel-size", type=int)
parser.add_argument("--context-parallel-size", type=int)
parser.add_argument("--expert-tensor-parallel-size", type=int)
parser.add_argument("--use-tp-pp-dp-mapping", action="store_true")
given, _ = parser.parse_known_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(
    given.tensor_model_parallel_size,
    given.pipeline_model_parallel_size,
    context_parallel_size=given.context_parallel_size,
    expert_tensor_parallel_size=given.expert_tensor_parallel_size,
    order="tp-cp-ep-pp-dp" if given.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
)
groups = {
    "tp": parallel_state.get_tensor_model_parallel_group(),
    "cp": parallel_state.get_context_parallel_group(),
    "dp": parallel_state.get_data_parallel_group(),
    "pp": parallel_state.get_pipeline_model_parallel_group(),
}
devices = os.environ.get("CUDA_VISIBLE_DEVICES")
local_rank = int(os.environ["LOCAL_RANK"])
found = {
    "rank": dist.get_rank(),
    "gpu": int(devices.split(",")[local_rank]) if devices else local_rank,
    "agent": os.getppid(),
    "coordinates": {name: group.rank() for name, group in groups.items()},
    "members": {name: dist.get_process_group_ranks(group) for name, group in groups.items()},
    "sums": {},
}
for name, group in groups.items():
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total, group=group)
    found["sums"][name] = int(total)
with open(f"report.{dist.get_rank()}", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


def replicas_first() -> Plan:
    """Tensor 2, pipeline 2 on two hosts: a host is a stage; one host counts its GPUs otherwise."""
    given = make_job(make_cluster(2, gpus=2), TINY, launcher="torchrun")
    plan = plan_of(given, make_config(tp=2, pp=2, dp=1), (1, 0))
    gpus = np.array([1, 0, 0, 1])
    return replace(plan, placement=replace(plan.placement, local_rank=gpus))


def stages_first() -> Plan:
    """Context 2, pipeline 2, data 2 in the other rank order: a host is a replica."""
    given = make_job(make_cluster(2, gpus=4), TINY, launcher="torchrun")
    order = Placement(order="tp-cp-ep-pp-dp", node=np.repeat([1, 0], 4), local_rank=np.tile(np.arange(4), 2))
    return plan_on(given, make_config(pp=2, dp=2, context_parallel_size=2), order)


def expected_members(plan: Plan, rank: int) -> dict[str, list[int]]:
    """Ranks with the same coordinates but one, in order of that one."""
    axes = ("pp", "dp", "cp", "tp")
    grid = RankGrid.of(plan.config, plan.placement.order)
    ranks, mine = grid.ranks(), grid.coordinates()[rank]
    members = {}
    for axis, name in enumerate(axes):
        index: list[Any] = list(mine)
        index[axis] = slice(None)
        members[name] = ranks[tuple(index)].tolist()
    return members


def stop(agents: list[subprocess.Popen[bytes]]) -> None:
    """Asked to, an agent ends its processes, which are in sessions of their own; only then is it killed."""
    for agent in agents:
        agent.terminate()
    for agent in agents:
        try:
            agent.wait(timeout=30)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


@pytest.mark.parametrize("make", [replicas_first, stages_first])
def test_processes_are_who_the_plan_says(make: Any, tmp_path: Path) -> None:
    """Ranks, GPUs, coordinates, group members, and sums over the groups; agents come up in the wrong order."""
    plan: Plan = make()
    files = export(plan, "torchrun")
    for name, text in {**files, "worker.py": WORKER}.items():
        (tmp_path / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PATH": f"{TORCHRUN.parent}{os.pathsep}{os.environ['PATH']}",
        "PRETRAIN": "worker.py",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    agents = [
        subprocess.Popen(["bash", "-c", "exec bash launch.sh $0 > agent.$0 2>&1", node], cwd=tmp_path, env=environment)
        for node in ("1", "0")
    ]
    try:
        codes = [agent.wait(timeout=180) for agent in agents]
    finally:
        stop(agents)
    said = [(tmp_path / f"agent.{node}").read_text()[-2000:] for node in (0, 1)]
    assert codes == [0, 0], said
    reports = [json.loads((tmp_path / f"report.{rank}").read_text()) for rank in range(plan.config.world_size)]
    for row, report in zip(rank_rows(plan), reports, strict=True):
        members = expected_members(plan, row.rank)
        assert report["gpu"] == row.local_rank
        assert report["agent"] == agents[1 - row.rank // (len(reports) // 2)].pid
        assert report["coordinates"] == {name: getattr(row, name) for name in members}
        assert report["members"] == members
        assert report["sums"] == {name: sum(ranks) for name, ranks in members.items()}
