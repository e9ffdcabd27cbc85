"""DeepSpeed's own readers: host file, launcher's options, configuration, rank order."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking import ask
from factories import make_plan

from pipette_opt.export.targets import export
from pipette_opt.plans.plan import Plan, rank_rows

pytestmark = pytest.mark.client("deepspeed")

QUESTION = '''
import json, sys
from deepspeed import comm
from deepspeed.launcher import runner
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

given = runner.parse_args(json.load(open("words.json")))
hosts = runner.parse_inclusion_exclusion(runner.fetch_hostfile(given.hostfile), given.include, given.exclude)
tp, pp, dp = map(int, sys.argv[1:])

class Grid:
    """What a pipeline engine tells the configuration, which then checks the batch."""
    def get_data_parallel_world_size(self):
        return dp

comm.get_rank = lambda group=None: 0
settings = DeepSpeedConfig("ds_config.json", mpu=Grid())
topology = PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
print(json.dumps({
    "hosts": list(hosts.items()),
    "master": [given.master_addr, given.master_port],
    "script": [given.user_script, *given.user_args],
    "batch": [settings.train_batch_size, settings.train_micro_batch_size_per_gpu, settings.gradient_accumulation_steps],
    "zero": settings.zero_optimization_stage,
    "types": [settings.bfloat16_config.enabled, settings.grad_accum_dtype, str(settings.communication_data_type)],
    "coordinates": [topology.get_coord(rank)._asdict() for rank in range(topology.world_size())],
}))
'''
SHIM = f"""#!{sys.executable}
import json, sys
json.dump(sys.argv[1:], open("words.json", "w"))
"""


def write(plan: Plan, folder: Path) -> None:
    """The files, and the words that the launch script gives to DeepSpeed's launcher."""
    for name, text in export(plan, "deepspeed").items():
        (folder / name).write_text(text)
    (folder / "deepspeed").write_text(SHIM)
    (folder / "deepspeed").chmod(stat.S_IRWXU)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "launch.sh", "train.py", "--save", "x y"], cwd=folder, env=environment, check=True)


def test_deepspeed_reads_the_files(tmp_path: Path) -> None:
    """Hosts in node order, all GPUs; batch, ZeRO stage and formats; coordinates of every rank."""
    plan = make_plan()
    write(plan, tmp_path)
    answer = ask(QUESTION, tmp_path, "2", "2", "4")
    assert answer["hosts"] == [[host, [0, 1, 2, 3]] for host in ("n3", "n0", "n4", "n1")]
    assert answer["master"] == ["n3", 29500]
    assert answer["script"][:4] == ["train.py", "--deepspeed", "--deepspeed_config", "ds_config.json"]
    assert answer["script"][-2:] == ["--save", "x y"]
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" in " ".join(answer["script"])
    assert answer["batch"] == [64, 2, 8]
    assert answer["zero"] == 1
    assert answer["types"] == [True, "fp32", "torch.float32"]
    rows = rank_rows(plan)
    assert [(one["model"], one["data"], one["pipe"]) for one in answer["coordinates"]] == [
        (row.tp, row.dp, row.pp) for row in rows
    ]
    # The launcher deals global ranks along the hosts, each host's GPUs in the order of its list (launch.py).
    dealt = [(host, gpu) for host, gpus in answer["hosts"] for gpu in gpus]
    assert dealt == [(row.host, row.local_rank) for row in rows]


def test_deepspeed_takes_some_gpus_of_a_host(tmp_path: Path) -> None:
    """GPUs 1 and 3 of each host go through the launcher's inclusion list."""
    plan = make_plan()
    some = replace(
        plan,
        config=replace(plan.config, data_parallel_size=2),
        placement=replace(plan.placement, node=np.repeat([3, 0, 4, 1], 2), local_rank=np.tile([1, 3], 4)),
    )
    write(some, tmp_path)
    assert "slots=4" in (tmp_path / "hostfile.txt").read_text()
    answer = ask(QUESTION, tmp_path, "2", "2", "2")
    assert [(host, gpu) for host, gpus in answer["hosts"] for gpu in gpus] == [
        (row.host, row.local_rank) for row in rank_rows(some)
    ]
    assert json.loads((tmp_path / "ds_config.json").read_text())["gradient_accumulation_steps"] == 16
