"""Plans of hosts that nobody named: no file has an invented name, and scripts take the hosts that they are given."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from factories import exportable_plan, make_plan, plan_of, scrambled_plan, small_config, small_instance
from stand_ins import MPIRUN, RECORDER, records, run, written

from pipette_opt.base.errors import InputError
from pipette_opt.export.hosts import hosts_are_named
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.plans.plan import Plan, rank_rows
from pipette_opt.read.nominal import nominal_cluster, nominal_record

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")

REAL = ("alpha", "bravo", "charlie", "delta")
"""Hosts that a scheduler or a user gives, in this order."""


SCONTROL = """#!/bin/bash
# Stands for scontrol: the names of a list of hosts.
[[ "$1 $2" == "show hostnames" && $3 == "given[1-4]" ]] || exit 9
printf '%s\\n' alpha bravo charlie delta
"""

SRUN = """#!/bin/bash
# Stands for srun: tasks in blocks of four, or by the host file, one after the other.
while [[ $1 == --* ]]; do
  case $1 in --distribution=*) distribution=${1#*=} ;; esac
  shift
done
hosts=(alpha bravo charlie delta)
for (( task = 0; task < 16; task++ )); do
  host=${hosts[$(( task / 4 ))]}
  [[ $distribution == arbitrary ]] && host=$(sed -n "$(( task + 1 ))p" "$SLURM_HOSTFILE")
  HOST=$host SLURM_PROCID=$task SLURM_NTASKS=16 SLURMD_NODENAME=$host "$@" || exit
done
"""


def unnamed(plan: Plan) -> Plan:
    """The plan on as many hosts that nobody named."""
    count = str(len(plan.hosts))
    options: dict[str, Any] = {"nodes": count, "gpu": "h100", "nics": "4x400", "gpus_per_node": 4}
    record = nominal_record(nominal_cluster(**options), **options)
    hosts = tuple(f"node{number}" for number in range(1, len(plan.hosts) + 1))
    unused = {hosts[plan.hosts.index(host)]: why for host, why in plan.unused_hosts.items()}
    return replace(plan, hosts=hosts, unused_hosts=unused, inputs={**plan.inputs, "cluster": record})


def real_hosts(plan: Plan) -> list[str]:
    """The host of each rank: the plan's hosts in the order of their ranks are the given ones in theirs."""
    order = list(dict.fromkeys(row.host for row in rank_rows(plan)))
    return [REAL[order.index(row.host)] for row in rank_rows(plan)]


@pytest.mark.parametrize("target", TARGETS)
def test_no_file_has_a_name_that_nobody_gave(target: str) -> None:
    """Of any format: neither in scripts, nor in tables, manifests and comments."""
    plan = unnamed(exportable_plan(target))
    options = ExportOptions(image="image:1" if TARGETS[target].needs_image else None)
    files = export(plan, target, options)
    named = re.compile("|".join(rf"\b{host}\b" for host in plan.hosts))
    for name, text in files.items():
        assert named.search(text) is None, name
    named_options = plan.inputs["cluster"]["options"] | {"nodes": ",".join(plan.hosts)}
    plan = replace(plan, inputs={**plan.inputs, "cluster": {**plan.inputs["cluster"], "options": named_options}})
    has_hosts = any(named.search(text) for text in export(plan, target, options).values())
    assert has_hosts is (target not in ("megatron", "nemo"))


def test_what_is_recorded_of_names() -> None:
    """A number of hosts gives none, names and ranges do."""

    def recorded(nodes: str) -> dict[str, Any]:
        options: dict[str, Any] = {"nodes": nodes, "gpu": "h100", "nics": "8x400", "gpus_per_node": None}
        return nominal_record(nominal_cluster(**options), **options)

    made = [replace(make_plan(), inputs={"cluster": recorded(nodes)}) for nodes in ("8", "gpu[01-08]", "node[1-8]")]
    assert list(map(hosts_are_named, made)) == [False, True, True]
    file = {"path": "cluster.yaml", "sha256": "0", "matrices": {}}
    assert hosts_are_named(replace(make_plan(), inputs={"cluster": file}))
    assert not hosts_are_named(unnamed(make_plan()))
    assert hosts_are_named(make_plan())


@pytest.mark.search
@needs_bash
@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_the_slurm_job_runs_on_the_hosts_that_slurm_gives(make: Callable[[], Plan], tmp_path: Path) -> None:
    """Ranks by SLURM_PROCID, the first host is the master; scattered ranks through a host file made by the job."""
    plan = unnamed(make())
    files = written(plan, "slurm", tmp_path, srun=SRUN, scontrol=SCONTROL, python=RECORDER)
    assert "#SBATCH --nodes=4\n" in files["job.sbatch"]
    assert "--nodelist" not in files["job.sbatch"]
    assert ("#SBATCH --ntasks-per-node=4\n" in files["job.sbatch"]) is (make is make_plan)
    given = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "given[1-4]", "SLURM_JOB_ID": "7"}
    done = run(["bash", "job.sbatch"], tmp_path, **given)
    assert (done.returncode, done.stderr) == (0, "")
    found = records(tmp_path)
    assert [one["HOST"] for one in found] == real_hosts(plan)
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in found] == [
        (str(row.rank), str(row.local_rank)) for row in rank_rows(plan)
    ]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("16", "alpha", "29500")}


@needs_bash
def test_a_slurm_job_on_another_number_of_hosts_stops(tmp_path: Path) -> None:
    """The message has both numbers."""
    fewer = SCONTROL.replace(" delta", "")
    written(unnamed(make_plan()), "slurm", tmp_path, srun=SRUN, scontrol=fewer, python=RECORDER)
    done = run(["bash", "job.sbatch"], tmp_path, SLURM_JOB_NODELIST="given[1-4]", SLURM_JOB_ID="7")
    assert (done.returncode, "the plan has 4 hosts, the job has 3" in done.stderr) == (1, True)


@pytest.mark.search
@needs_bash
@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_mpi_runs_on_the_hosts_of_a_file(make: Callable[[], Plan], tmp_path: Path) -> None:
    """One a line, with slots and remarks or without; host file and rankfile are made of it."""
    plan = unnamed(make())
    written(plan, "mpi", tmp_path, mpirun=MPIRUN, python=RECORDER)
    (tmp_path / "mine").write_text("# my hosts\nalpha slots=4\n  bravo\n\ncharlie # the third\ndelta\n")
    done = run(["bash", "launch.sh"], tmp_path, HOSTFILE="mine", NAMED="other")
    assert (done.returncode, done.stderr) == (0, "")
    found = records(tmp_path)
    assert [one["HOST"] for one in found] == real_hosts(plan)
    assert [one["LOCAL_RANK"] for one in found] == [str(row.local_rank) for row in rank_rows(plan)]
    assert {one["MASTER_ADDR"] for one in found} == {"alpha"}
    assert (tmp_path / "hostfile.txt").read_text().splitlines() == [f"{host} slots=4" for host in REAL]


@needs_bash
@pytest.mark.parametrize("target", ["mpi", "deepspeed"])
def test_without_hosts_nothing_starts(target: str, tmp_path: Path) -> None:
    """No file of hosts, or one with too few."""
    written(unnamed(make_plan("torchrun")), target, tmp_path, mpirun=MPIRUN, deepspeed=RECORDER, python=RECORDER)
    script = ["bash", "launch.sh", "train.py"]
    done = run(script, tmp_path)
    assert (done.returncode != 0, "HOSTFILE: is needed: a file with the 4 hosts" in done.stderr) == (True, True)
    (tmp_path / "mine").write_text("alpha\nbravo\n")
    done = run(script, tmp_path, HOSTFILE="mine")
    assert (done.returncode, "the plan has 4 hosts, mine has 2" in done.stderr) == (1, True)
    assert not (tmp_path / "record").exists()


@needs_bash
def test_deepspeed_runs_on_the_hosts_of_a_file(tmp_path: Path) -> None:
    """The launcher's own host file is made of it."""
    written(unnamed(make_plan("torchrun")), "deepspeed", tmp_path, deepspeed=RECORDER)
    (tmp_path / "mine").write_text("\n".join(REAL))
    done = run(["bash", "launch.sh", "train.py"], tmp_path, HOSTFILE="mine")
    assert (done.returncode, done.stderr) == (0, "")
    words = records(tmp_path)[0]["args"]
    assert words[:4] == ["--hostfile", "hostfile.txt", "--master_addr", "alpha"]
    assert (tmp_path / "hostfile.txt").read_text().splitlines() == [f"{host} slots=4" for host in REAL]


@needs_bash
def test_torchrun_asks_for_the_master(tmp_path: Path) -> None:
    """Nodes are numbered by the user; without MASTER_ADDR nothing starts."""
    files = written(unnamed(make_plan("torchrun")), "torchrun", tmp_path, torchrun=RECORDER)
    assert "nodes.txt" not in files
    done = run(["bash", "launch.sh", "1"], tmp_path)
    assert (done.returncode != 0, "MASTER_ADDR: is needed" in done.stderr) == (True, True)
    assert run(["bash", "launch.sh", "1"], tmp_path, MASTER_ADDR="alpha").returncode == 0
    words = records(tmp_path)[0]["args"]
    assert words[:8] == ["--nnodes", "4", "--nproc-per-node", "4", "--node-rank", "1", "--rdzv-backend", "static"]
    assert words[8:10] == ["--master-addr", "alpha"]


def test_pods_go_to_any_hosts() -> None:
    """No node affinity, one pod a host, node ranks from the controllers."""
    plan, options = unnamed(make_plan("torchrun")), ExportOptions(image="image:1")
    _, job = yaml.safe_load_all(export(plan, "kubernetes", options)["jobset.yaml"])
    (only,) = job["spec"]["replicatedJobs"]
    spec = only["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (4, 4, "Indexed")
    command = spec["template"]["spec"]["containers"][0]["command"][-1]
    assert command.startswith('NODE_RANK="$JOB_COMPLETION_INDEX"; MASTER_ADDR=pretrain-node-0-0.pretrain ')
    _, job = yaml.safe_load_all(export(plan, "pytorchjob", options)["pytorchjob.yaml"])
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert [replicas[name]["replicas"] for name in ("Master", "Worker")] == [1, 3]
    for template in (spec["template"], replicas["Master"]["template"], replicas["Worker"]["template"]):
        assert set(template["spec"]["affinity"]) == {"podAntiAffinity"}
        assert template["metadata"]["labels"] == {"app": "pretrain"}


def test_a_refusal_numbers_the_hosts() -> None:
    """An agent per host cannot start scattered ranks; no invented name is in the message either."""
    with pytest.raises(InputError, match="rank 1 is on host 1"):
        export(unnamed(scrambled_plan()), "torchrun")


def test_gpus_in_another_order_on_unnamed_hosts() -> None:
    """What a node shows its ranks is said by its number."""
    plan = unnamed(plan_of(small_instance("torchrun"), small_config()))
    local_rank = plan.placement.local_rank.copy()
    local_rank[[5, 6]] = local_rank[[6, 5]]
    text = export(replace(plan, placement=replace(plan.placement, local_rank=local_rank)), "torchrun")["launch.sh"]
    assert "  1) export CUDA_VISIBLE_DEVICES=0,2,1,3 ;;\n" in text
