"""ShellCheck has no objection to any script that is written."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from factories import llama_plan, make_plan, scrambled_plan

from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.targets import export

IN_CONTAINER = {"image": "nvcr.io#nvidia/nemo:25.09", "container_mounts": ["/data:/data"], "segment": 2}


@pytest.mark.client(programs=("shellcheck",))
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("megatron", {}),
        ("nemo", {}),
        ("torchrun", {}),
        ("slurm", {}),
        ("slurm", IN_CONTAINER),
        ("mpi", {}),
        ("deepspeed", {}),
        ("torchtitan", {}),
    ],
)
def test_scripts_are_clean(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Quoting, unused names, sources: all of its checks, with the directives in the files."""
    plans = {"torchtitan": llama_plan, "slurm": scrambled_plan, "mpi": scrambled_plan}
    plan = plans.get(target, lambda: make_plan("torchrun"))()
    for name, text in export(plan, target, ExportOptions(**options)).items():
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(text)
            done = subprocess.run(["shellcheck", name], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (0, ""), name
