"""
Slurm: one process per rank, dealt to hosts by an explicit list.

``srun --distribution=arbitrary`` puts task i on line i of ``SLURM_HOSTFILE`` (srun's manual), so ``SLURM_PROCID`` is
the rank on any map. The GPU comes from the plan's own table, not from ``SLURM_LOCALID``, which numbers the tasks of a
host in task order whatever the map says.
"""

from pipette_opt.export.megatron import argument_arrays
from pipette_opt.export.shell import (
    CUDA_CONNECTIONS,
    JOB_ARGUMENTS,
    MASTER_PORT,
    array_lines,
    comment,
    launchable,
    quoted,
)
from pipette_opt.plan import Plan, RankRow, rank_rows

TASKS_PER_LINE = 16


def export_slurm(plan: Plan) -> dict[str, str]:
    """Batch script, host of each task, and what each task runs."""
    rows = rank_rows(plan)
    return {
        "job.sbatch": _job(plan, rows),
        "hostfile.txt": "".join(f"{row.host}\n" for row in rows),
        "task.sh": _task(rows),
        "megatron_args.sh": f"#!/bin/bash\n{argument_arrays(plan)}",
    }


def _job(plan: Plan, rows: list[RankRow]) -> str:
    hosts = launchable(row.host for row in rows)
    usage = comment(
        "Submit from the folder that holds these files:  sbatch job.sbatch [arguments of pretrain_gpt.py]\n"
        "Without arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set.\n"
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
            "source ./megatron_args.sh",
            JOB_ARGUMENTS,
            'export SLURM_HOSTFILE="$PWD/hostfile.txt"',
            f"export WORLD_SIZE={len(rows)}",
            f"export MASTER_ADDR=${{MASTER_ADDR:-{quoted([rows[0].host])}}}",
            f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
            CUDA_CONNECTIONS,
            comment("Every task sees all GPUs of its host and takes the one of its LOCAL_RANK."),
            'srun --distribution=arbitrary --ntasks="$WORLD_SIZE" --gpu-bind=none --cpu-bind=none \\',
            "  --kill-on-bad-exit=1 \\",
            '  bash ./task.sh python -u "${PRETRAIN:-pretrain_gpt.py}" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"',
            "",
        ]
    )


def _task(rows: list[RankRow]) -> str:
    """Sets a rank's environment and runs the rest of its command line."""
    return "\n".join(
        [
            "#!/bin/bash",
            comment("Run by srun, once per rank:  task.sh COMMAND..."),
            "set -euo pipefail",
            *array_lines("HOSTS", _chunks([row.host for row in rows])),
            *array_lines("LOCAL_RANKS", _chunks([row.local_rank for row in rows])),
            "export RANK=$SLURM_PROCID",
            "export LOCAL_RANK=${LOCAL_RANKS[$RANK]}",
            f"export WORLD_SIZE={len(rows)}",
            f"export MASTER_ADDR=${{MASTER_ADDR:-{quoted([rows[0].host])}}}",
            f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
            'if [[ "${SLURM_NTASKS:-$WORLD_SIZE}" != "$WORLD_SIZE" ]]; then',
            '  echo "the plan has $WORLD_SIZE ranks, the step has $SLURM_NTASKS tasks" >&2',
            "  exit 1",
            "fi",
            'if [[ "${SLURMD_NODENAME:-${HOSTS[$RANK]}}" != "${HOSTS[$RANK]}" ]]; then',
            '  echo "rank $RANK belongs on ${HOSTS[$RANK]}, but runs on $SLURMD_NODENAME" >&2',
            "  exit 1",
            "fi",
            'exec "$@"',
            "",
        ]
    )


def _chunks(values: list[str] | list[int]) -> list[list[object]]:
    return [list(values[start : start + TASKS_PER_LINE]) for start in range(0, len(values), TASKS_PER_LINE)]
