"""Accelerate's own launcher reads our configuration; transformers' trainer has the batch arguments."""

import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from factories import sharded_plan

from pipette_opt.export.targets import export

pytestmark = pytest.mark.client("accelerate", "torch")

QUESTION = """
import json, sys, types

class Any(types.ModuleType):
    \"\"\"Stands for packages that Accelerate imports and that reading a configuration does not need.\"\"\"
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

for name in ("huggingface_hub", "huggingface_hub.utils", "safetensors", "safetensors.torch"):
    sys.modules[name] = Any(name)
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.utils.launch import prepare_multi_gpu_env
args = launch_command_parser().parse_args(sys.argv[1:])
args, defaults, _ = _validate_launch_command(args)
environment = prepare_multi_gpu_env(args)
names = ("use_fsdp", "mixed_precision", "training_script", "training_script_args", "nnodes", "nproc_per_node",
    "node_rank", "rdzv_backend", "rdzv_endpoint", "num_processes")
prefixes = ("FSDP_", "PARALLELISM_", "ACCELERATE_")
print(json.dumps({**{name: getattr(args, name, None) for name in names},
    "environment": {name: value for name, value in environment.items() if name.startswith(prefixes)}}))
"""


def launched(tmp_path: Path, node: int, **options: object) -> dict[str, Any]:
    """What Accelerate's launcher makes of the words that the script of a host gives it."""
    for name, text in export(sharded_plan(**options), "accelerate").items():
        (tmp_path / name).write_text(text)
    recorder = tmp_path / "accelerate"
    recorder.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\" > words\n")
    recorder.chmod(stat.S_IRWXU)
    command = [str(shutil.which("bash")), "launch.sh", str(node), "train.py", "--seed", "1"]
    subprocess.run(command, cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=60)
    first, *words = (tmp_path / "words").read_text().splitlines()
    assert first == "launch"
    answer: dict[str, Any] = ask(QUESTION, tmp_path, *words)
    return answer


def test_accelerate_reads_a_sharded_plan(tmp_path: Path) -> None:
    """Sixteen ranks on four hosts; ZeRO 3 is FSDP 2 that reshards; the program has its batch sizes."""
    found = launched(tmp_path, 2, recompute_granularity="full", micro_batch_size=2)
    assert (found["use_fsdp"], found["mixed_precision"], found["num_processes"]) == (True, "bf16", 16)
    assert [found[name] for name in ("nnodes", "nproc_per_node", "node_rank")] == ["4", "4", 2]
    assert (found["rdzv_backend"], found["rdzv_endpoint"]) == ("static", "n2:29500")
    assert found["training_script"] == "train.py"
    batch = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"]
    assert found["training_script_args"] == ["--seed", "1", *batch]
    wanted = {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_ACTIVATION_CHECKPOINTING": "true"}
    assert wanted.items() <= found["environment"].items()
    assert "PARALLELISM_CONFIG_DP_SHARD_SIZE" not in found["environment"]


def test_accelerate_reads_hybrid_sharding(tmp_path: Path) -> None:
    """Groups of replicas; ZeRO 2 keeps its parameters."""
    found = launched(tmp_path, 0, zero_stage=2, num_distributed_optimizer_instances=4)["environment"]
    assert found["FSDP_RESHARD_AFTER_FORWARD"] == "false"
    degrees = ("DP_REPLICATE_SIZE", "DP_SHARD_SIZE", "TP_SIZE", "CP_SIZE")
    assert [found[f"PARALLELISM_CONFIG_{name}"] for name in degrees] == ["4", "4", "1", "1"]
