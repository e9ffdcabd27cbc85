"""The generated scripts, run: under shims that stand for Slurm and torchrun, and under the real torchrun."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_plan, plan_of, scrambled_plan, small_config, small_instance
from stand_ins import MPIRUN, RECORDER, records, run, written

from pipette_opt.base.errors import InputError
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.megatron import megatron_arguments, trial_options
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.plans.plan import Plan, rank_rows

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")


SRUN = """#!/bin/bash
# Stands for srun: one task per line of the host file, one after the other.
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
[[ " ${options[*]} " == *" --distribution=arbitrary "* ]] || exit 9
declare -A seen
task=0
while read -r host; do
  SLURM_PROCID=$task SLURM_LOCALID=${seen[$host]:-0} SLURM_NTASKS=$SHIM_TASKS SLURMD_NODENAME=$host "$@" || exit
  seen[$host]=$(( ${seen[$host]:-0} + 1 ))
  task=$(( task + 1 ))
done < "$SLURM_HOSTFILE"
"""


def expected_arguments(plan: Plan) -> list[str]:
    """The plan's arguments and the trial run's."""
    return [*megatron_arguments(plan), *(word for option in trial_options(plan) for word in option)]


@pytest.mark.parametrize("target", ["megatron", "nemo", "torchrun", "slurm", "mpi", "deepspeed"])
def test_scripts_parse(target: str, tmp_path: Path) -> None:
    """``bash -n`` has no objection."""
    for name in written(make_plan("torchrun"), target, tmp_path):
        if name.endswith((".sh", ".sbatch")):
            done = run(["bash", "-n", name], tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), name


@pytest.mark.search
@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_slurm_job_gives_every_rank_its_gpu(make: Callable[[], Plan], tmp_path: Path) -> None:
    """The whole batch script under a stand-in for srun: ranks, GPUs, hosts, rendezvous and arguments."""
    plan = make()
    written(plan, "slurm", tmp_path, srun=SRUN, python=RECORDER)
    done = run(["bash", "job.sbatch"], tmp_path, SLURM_SUBMIT_DIR=str(tmp_path), SHIM_TASKS="16")
    assert (done.returncode, done.stderr) == (0, "")
    found = records(tmp_path)
    assert [(one["RANK"], one["host"], one["LOCAL_RANK"]) for one in found] == [
        (str(row.rank), row.host, str(row.local_rank)) for row in rank_rows(plan)
    ]
    master = rank_rows(plan)[0].host
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("16", master, "29500")}
    assert {one["CUDA_DEVICE_MAX_CONNECTIONS"] for one in found} == {"1"}
    assert {one["CUDA_DEVICE_ORDER"] for one in found} == {"PCI_BUS_ID"}
    assert {one["CUDA_VISIBLE_DEVICES"] for one in found} == {None}
    assert all(one["args"] == ["-u", "pretrain_gpt.py", *expected_arguments(plan)] for one in found)


@pytest.mark.search
@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_mpi_job_gives_every_rank_its_gpu(make: Callable[[], Plan], tmp_path: Path) -> None:
    """The same under a stand-in for mpirun that deals processes to the hosts of the rankfile."""
    plan = make()
    written(plan, "mpi", tmp_path, mpirun=MPIRUN, python=RECORDER)
    done = run(["bash", "launch.sh"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = records(tmp_path)
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in found] == [
        (str(row.rank), str(row.local_rank)) for row in rank_rows(plan)
    ]
    assert {one["MASTER_ADDR"] for one in found} == {rank_rows(plan)[0].host}
    assert all(one["args"] == ["-u", "pretrain_gpt.py", *expected_arguments(plan)] for one in found)


def test_mpi_files(tmp_path: Path) -> None:
    """Ranks and hosts, by hand; as many slots as GPUs; every core, since the plan says nothing about cores."""
    files = written(make_plan(), "mpi", tmp_path)
    assert files["hostfile.txt"].splitlines() == [f"{host} slots=4" for host in ("n3", "n0", "n4", "n1")]
    lines = files["rankfile.txt"].splitlines()
    assert lines[0] == "rank 0=n3 slot=*:*"
    assert lines[4] == "rank 4=n0 slot=*:*"
    assert len(lines) == 16


@pytest.mark.parametrize(("host", "stops"), [("n0", True), ("10.0.0.7", False), ("n3", False)])
def test_mpi_task_on_the_wrong_host_stops(host: str, stops: bool, tmp_path: Path) -> None:
    """Rank 0 belongs on n3; a name that the plan does not have says nothing."""
    written(make_plan(), "mpi", tmp_path)
    done = run(["bash", "task.sh", "echo", "started"], tmp_path, OMPI_COMM_WORLD_RANK="0", PMIX_HOSTNAME=host)
    assert (done.returncode == 1, done.stdout == "") == (stops, stops)


@pytest.mark.search
@pytest.mark.parametrize("target", ["torchrun", "slurm", "mpi"])
def test_another_file_of_arguments(target: str, tmp_path: Path) -> None:
    """``ARGUMENTS`` puts NeMo's overrides where Megatron's arguments were."""
    plan = make_plan("torchrun")
    written(plan, "nemo", tmp_path)
    written(plan, target, tmp_path, srun=SRUN, mpirun=MPIRUN, python=RECORDER, torchrun=RECORDER)
    script = ["job.sbatch"] if target == "slurm" else ["launch.sh"]
    arguments = ["0", "train.train_iters=7"] if target == "torchrun" else ["train.train_iters=7"]
    environment = {"ARGUMENTS": "./nemo_args.sh", "PRETRAIN": "recipe.py", "SHIM_TASKS": "16"}
    done = run(["bash", *script, *arguments], tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    words = records(tmp_path)[0]["args"]
    assert isinstance(words, list)
    start = words.index("recipe.py")
    assert "model.num_layers=8" in words[start + 1 :]
    assert words[-2:] == ["mixed_precision=bf16_mixed", "train.train_iters=7"]


def test_local_rank_is_the_plans_not_slurms(tmp_path: Path) -> None:
    """Within a host Slurm numbers tasks in rank order; a scrambled map wants other GPUs."""
    plan = scrambled_plan()
    written(plan, "slurm", tmp_path)
    rows = rank_rows(plan)
    by_slurm = [sum(other.host == row.host for other in rows[: row.rank]) for row in rows]
    assert by_slurm != [row.local_rank for row in rows]
    for rank in (0, 5, 15):
        done = run(
            ["bash", "task.sh", "bash", "-c", "echo $RANK $LOCAL_RANK"],
            tmp_path,
            SLURM_PROCID=str(rank),
            SLURM_LOCALID="0",
        )
        assert done.stdout.split() == [str(rank), str(rows[rank].local_rank)]


def test_slurm_asks_for_the_plans_hosts(tmp_path: Path) -> None:
    """Directives and host file: hosts 3, 0, 4, 1 of the cluster, four tasks each."""
    files = written(make_plan(), "slurm", tmp_path)
    assert files["hostfile.txt"].split() == ["n3"] * 4 + ["n0"] * 4 + ["n4"] * 4 + ["n1"] * 4
    for line in ("--nodes=4", "--ntasks=16", "--nodelist=n3,n0,n4,n1", "--gpus-per-node=4"):
        assert f"#SBATCH {line}\n" in files["job.sbatch"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"SLURMD_NODENAME": "n1"}, "belongs on n3"), ({"SLURM_NTASKS": "8"}, "has 16 ranks, srun started 8")],
)
def test_task_on_the_wrong_host_stops(environment: dict[str, str], said: str, tmp_path: Path) -> None:
    """If Slurm did not follow the host file, nothing starts."""
    written(make_plan(), "slurm", tmp_path)
    done = run(["bash", "task.sh", "echo", "started"], tmp_path, SLURM_PROCID="0", **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert said in done.stderr


@pytest.mark.search
def test_own_arguments_replace_the_trial(tmp_path: Path) -> None:
    """Arguments of the job go through word by word, whatever is in them."""
    plan = make_plan()
    written(plan, "slurm", tmp_path, srun=SRUN, python=RECORDER)
    own = ["--data-path", "a folder/text; $HOME *", "--save", "it's"]
    done = run(["bash", "job.sbatch", *own], tmp_path, SHIM_TASKS="16", PRETRAIN="my pretrain.py", MASTER_PORT="1234")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(one["args"] == ["-u", "my pretrain.py", *megatron_arguments(plan), *own] for one in records(tmp_path))
    assert {one["MASTER_PORT"] for one in records(tmp_path)} == {"1234"}


@pytest.mark.search
def test_nothing_in_a_plan_is_run(tmp_path: Path) -> None:
    """Text of a plan that looks like a command stays text."""
    plan = make_plan()
    training = {**plan.inputs["training"], "attention_kernel": "$(touch pwned); `touch pwned`"}
    with pytest.raises(InputError, match="attention_kernel"):
        export(replace(plan, inputs={**plan.inputs, "training": training}), "slurm")
    model = {**plan.inputs["model"], "normalization": "$(touch pwned); `touch pwned`"}
    with pytest.raises(InputError, match="normalization"):
        export(replace(plan, inputs={**plan.inputs, "model": model}), "slurm")
    model = {**plan.inputs["model"], "name": "$(touch pwned); `touch pwned`\ntouch pwned\n"}
    plan = replace(plan, nccl_algorithm="ring\ntouch pwned\n", inputs={**plan.inputs, "model": model})
    written(plan, "slurm", tmp_path, srun=SRUN, python=RECORDER)
    assert run(["bash", "job.sbatch"], tmp_path, SHIM_TASKS="16").returncode == 0
    assert records(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("target", ["torchrun", "slurm", "mpi", "deepspeed", "kubernetes", "pytorchjob"])
def test_strange_host_names_are_refused(target: str) -> None:
    """A launcher would read these as ranges, options or several hosts."""
    options = ExportOptions(image="image:1" if TARGETS[target].needs_image else None)
    for name in ("n[0-3]", "a b", "-x", "a,b", "a;b", ""):
        plan = replace(make_plan(), hosts=("n0", "n1", "n2", name, "n4"))
        with pytest.raises(InputError, match="no host name"):
            export(plan, target, options)


@pytest.mark.parametrize("stages_per_host", [1, 2])
def test_torchrun_launch_lines(stages_per_host: int, tmp_path: Path) -> None:
    """Each node's line under a stand-in for torchrun."""
    plan = plan_of(small_instance("torchrun"), small_config(), stages_per_host=stages_per_host)
    files = written(plan, "torchrun", tmp_path, torchrun=RECORDER)
    assert files["nodes.txt"].split() == list(dict.fromkeys(row.host for row in rank_rows(plan)))
    for node in range(4):
        assert run(["bash", "launch.sh", str(node)], tmp_path).returncode == 0
    for node, one in enumerate(records(tmp_path)):
        fixed = f"--nnodes 4 --nproc-per-node 4 --node-rank {node} --rdzv-backend static"
        rendezvous = "--master-addr n3 --master-port 29500"
        assert one["args"] == [*fixed.split(), *rendezvous.split(), "pretrain_gpt.py", *expected_arguments(plan)]
        assert (one["CUDA_DEVICE_MAX_CONNECTIONS"], one["CUDA_VISIBLE_DEVICES"]) == ("1", None)


@pytest.mark.parametrize("argument", ["4", "-1", "n0", ""])
def test_torchrun_wrong_node_rank(argument: str, tmp_path: Path) -> None:
    """A node that is not in the plan starts nothing."""
    written(make_plan("torchrun"), "torchrun", tmp_path, torchrun=RECORDER)
    assert run(["bash", "launch.sh", argument], tmp_path).returncode != 0
    assert not (tmp_path / "record").exists()


def test_order_of_gpus_goes_through_visible_devices(tmp_path: Path) -> None:
    """The agent gives local rank i the i-th visible GPU; only the host whose order differs has to say so."""
    written(exchanged_plan(), "torchrun", tmp_path, torchrun=RECORDER)
    for node in range(4):
        assert run(["bash", "launch.sh", str(node)], tmp_path).returncode == 0
    assert [one["CUDA_VISIBLE_DEVICES"] for one in records(tmp_path)] == [None, "0,2,1,3", None, None]
    assert {one["CUDA_DEVICE_ORDER"] for one in records(tmp_path)} == {"PCI_BUS_ID"}


def exchanged_plan() -> Plan:
    """Ranks 5 and 6, both on the second host, have exchanged their GPUs."""
    plan = make_plan()
    local_rank = plan.placement.local_rank.copy()
    local_rank[[5, 6]] = local_rank[[6, 5]]
    return replace(plan, placement=replace(plan.placement, local_rank=local_rank))


@pytest.mark.parametrize("target", ["torchrun", "deepspeed", "kubernetes", "pytorchjob"])
def test_agents_start_consecutive_ranks_only(target: str) -> None:
    """Scattered ranks and hosts of unequal size; the first wrong rank is named."""
    options = ExportOptions(image="image:1" if TARGETS[target].needs_image else None)
    with pytest.raises(InputError, match="rank 1 is on n1"):
        export(scrambled_plan(), target, options)
    plan = make_plan()
    node = plan.placement.node.copy()
    node[-1] = 2
    unequal = replace(plan, placement=replace(plan.placement, node=node))
    with pytest.raises(InputError, match="rank 15 is on n2"):
        export(unequal, target, options)


def test_two_ranks_on_one_gpu_are_never_exported() -> None:
    """A map that no launcher could run is refused by every target, also by the bare rank map."""
    plan = make_plan()
    local_rank = plan.placement.local_rank.copy()
    local_rank[7] = 0
    shared = replace(plan, placement=replace(plan.placement, local_rank=local_rank))
    local_rank[7] = 4
    outside = replace(plan, placement=replace(plan.placement, local_rank=local_rank))
    for target, entry in TARGETS.items():
        options = ExportOptions(image="image:1" if entry.needs_image else None)
        with pytest.raises(InputError, match=r"placement\[7\].*GPU 0 of n0, like rank 4"):
            export(shared, target, options)
        with pytest.raises(InputError, match=r"placement\[7\].local_rank: is 4, but host n0 has GPUs 0 to 3"):
            export(outside, target, options)
