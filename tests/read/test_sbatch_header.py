"""Header of a batch script, and the variables of its job."""

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.sbatch_header import job_variables, sbatch_options, slurm_variables

HEADER = """#!/bin/bash
#SBATCH --job-name=llama  # a name
#SBATCH -N 8 --ntasks-per-node 4
# a comment

#SBATCH --gpus-per-node=h100:4
#SBATCH --exclusive
##SBATCH --nodes=2
set -e
#SBATCH --nodes=3
"""


def test_options_by_long_name() -> None:
    """Several options of a line count, comments and lines behind the first command do not."""
    assert sbatch_options(HEADER, "job.sh") == {
        "job-name": "llama",
        "nodes": "8",
        "ntasks-per-node": "4",
        "gpus-per-node": "h100:4",
        "exclusive": "",
    }


def test_variables_of_the_job() -> None:
    """Slurm gives a job its header's numbers."""
    found = slurm_variables(sbatch_options(HEADER, "job.sh"))
    assert found["SLURM_NNODES"] == found["SLURM_JOB_NUM_NODES"] == "8"
    assert found["SLURM_NTASKS"] == "32"
    assert found["SLURM_GPUS_PER_NODE"] == "h100:4"
    assert found["SLURM_GPUS_ON_NODE"] == "4"
    assert found["SLURM_NODEID"] == "0"


def test_every_variable_of_a_batch_job_has_a_value() -> None:
    """Numbers follow from the header; the others are placeholders, and those of arrays belong to arrays."""
    found = job_variables(sbatch_options("#SBATCH -N 2 --ntasks-per-node 8 -c 12 --mem=900G --qos=high\n", "job.sh"))
    assert found["SLURM_CPUS_ON_NODE"] == "96"
    assert found["SLURM_JOB_CPUS_PER_NODE"] == "96(x2)"
    assert found["SLURM_TASKS_PER_NODE"] == "8(x2)"
    assert found["SLURM_MEM_PER_NODE"] == "921600"
    assert found["SLURM_JOB_QOS"] == "high"
    plain = job_variables(sbatch_options("#SBATCH -N 1\n", "job.sh"))
    assert {"SLURM_CPUS_ON_NODE", "SLURM_SUBMIT_DIR", "SLURMD_NODENAME", "SLURM_CLUSTER_NAME"} <= set(plain)
    assert "SLURM_ARRAY_TASK_ID" not in plain
    assert "SLURM_ARRAY_TASK_ID" in job_variables(sbatch_options("#SBATCH --array=0-3\n", "job.sh"))


@pytest.mark.parametrize(
    ("header", "gpus"), [("--gres=gpu:8", "8"), ("--gres gpu:a100:4,tmp:5", "4"), ("--gres=gpu", None), ("-n 4", None)]
)
def test_gpus_of_a_host(header: str, gpus: str | None) -> None:
    """``--gres`` names GPUs beside other resources."""
    assert slurm_variables(sbatch_options(f"#SBATCH {header}\n", "job.sh")).get("SLURM_GPUS_ON_NODE") == gpus


def test_options_of_a_site() -> None:
    """An option that is not Slurm's own takes the word behind it."""
    assert sbatch_options("#SBATCH --site fast -N 2\n", "job.sh") == {"site": "fast", "nodes": "2"}


def test_a_range_of_hosts_is_no_number() -> None:
    """``--nodes=2-4`` leaves the number of hosts open."""
    assert "SLURM_NNODES" not in slurm_variables({"nodes": "2-4", "ntasks-per-node": "8"})


def test_script_without_header() -> None:
    """A script that is not submitted has no job."""
    assert slurm_variables(sbatch_options("echo\n", "train.sh")) == {}


def test_open_quote_names_its_line() -> None:
    """A header that the shell's rules cannot split is refused."""
    with pytest.raises(InputError, match=r"job\.sh, line 2: #SBATCH has a quote that is not closed"):
        sbatch_options('#!/bin/bash\n#SBATCH --comment="a\n', "job.sh")
