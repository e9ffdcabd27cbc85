"""
Slurm: one process per rank, dealt to hosts by an explicit list.

``srun --distribution=arbitrary`` puts task i on line i of ``SLURM_HOSTFILE`` (srun's manual), so ``SLURM_PROCID`` is
the rank on any map.
"""

from pipette_opt.export.megatron import arguments_file
from pipette_opt.export.shell import CUDA_SETTINGS, JOB_ARGUMENTS, comment, launchable, master_lines
from pipette_opt.export.task import ProcessVariables, task_script
from pipette_opt.plan import Plan, RankRow, rank_rows

SLURM = ProcessVariables("srun", rank="SLURM_PROCID", size="SLURM_NTASKS", host="SLURMD_NODENAME")


def export_slurm(plan: Plan) -> dict[str, str]:
    """Batch script, host of each task, and what each task runs."""
    rows = rank_rows(plan)
    return {
        "job.sbatch": _job(plan, rows),
        "hostfile.txt": "".join(f"{row.host}\n" for row in rows),
        "task.sh": task_script(rows, SLURM, foreign_hosts=False),
        **arguments_file(plan),
    }


def _job(plan: Plan, rows: list[RankRow]) -> str:
    hosts = launchable(row.host for row in rows)
    usage = comment(
        "Submit from the folder that holds these files:  sbatch job.sbatch [arguments of the training script]\n"
        "Without arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set;\n"
        "ARGUMENTS names another file of arguments, e.g. that of `pipette-opt export --format nemo`.\n"
        f"The plan's times assume NCCL's {plan.nccl_algorithm} algorithm."
    )
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=pretrain",
            f"#SBATCH --nodes={len(hosts)}",
            f"#SBATCH --ntasks={len(rows)}",
            f"#SBATCH --nodelist={','.join(hosts)}",
            f"#SBATCH --gpus-per-node={plan.gpus_per_node}",
            "#SBATCH --exclusive",
            usage,
            "set -euo pipefail",
            'cd "${SLURM_SUBMIT_DIR:-.}"',
            'source "${ARGUMENTS:-./megatron_args.sh}"',
            JOB_ARGUMENTS,
            'export SLURM_HOSTFILE="$PWD/hostfile.txt"',
            f"export WORLD_SIZE={len(rows)}",
            *master_lines(rows[0].host),
            CUDA_SETTINGS,
            comment("Every task sees all GPUs of its host and takes the one of its LOCAL_RANK."),
            'srun --distribution=arbitrary --ntasks="$WORLD_SIZE" --gpu-bind=none --cpu-bind=none \\',
            "  --kill-on-bad-exit=1 \\",
            '  bash ./task.sh python -u "${PRETRAIN:-pretrain_gpt.py}" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"',
            "",
        ]
    )
