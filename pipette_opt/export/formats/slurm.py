"""
Slurm: a process per rank, placed on hosts by an explicit list.

``srun --distribution=arbitrary`` puts task i on the host in line i of ``SLURM_HOSTFILE`` (srun's manual), so
``SLURM_PROCID`` is the rank for any rank map.
"""

from collections.abc import Sequence

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import Setting, megatron_settings, setting_lines
from pipette_opt.export.hosts import check_hosts_lines, hosts_are_named, nodes_table, per_host, unnamed_note
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.shell import (
    FOREIGN_SOURCE,
    JOB_ARGUMENTS,
    MASTER_PORT,
    comment,
    launchable,
    master_lines,
    quoted,
)
from pipette_opt.export.target import Target
from pipette_opt.export.task import ProcessVariables, task_script
from pipette_opt.options.names import option_name
from pipette_opt.plans.plan import Plan, RankRow, rank_rows
from pipette_opt.read.hosts import expand_hosts

SLURM = ProcessVariables("srun", rank="SLURM_PROCID", size="SLURM_NTASKS", host="SLURMD_NODENAME")


SITE_DIRECTIVES = ("account", "partition", "time")
"""Directives that most clusters require; without a value the script has them as comments."""


def export_slurm(plan: Plan, options: ExportOptions) -> dict[str, str]:
    """Return the batch script, the host of each task, and the script of each task."""
    rows, named = rank_rows(plan), hosts_are_named(plan)
    return {
        "job.sbatch": _job(plan, rows, options),
        **({"hostfile.txt": "".join(f"{row.host}\n" for row in rows)} if named else {}),
        "task.sh": task_script(rows, SLURM, foreign_hosts=False, named=named),
        **export_megatron(plan),
    }


def _job(plan: Plan, rows: list[RankRow], options: ExportOptions) -> str:
    hosts = launchable(row.host for row in rows)
    usage = comment(
        "Submit from the folder that holds these files:  sbatch job.sbatch [arguments of the training script]\n"
        "Without arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set;\n"
        "ARGUMENTS names another file of arguments, e.g. that of `pipette-opt export --format nemo`."
    )
    named = hosts_are_named(plan)
    if not named:
        usage = f"{usage}\n{comment(unnamed_note(len(hosts)))}"
    asked, host_lines, distribution = (_named if named else _unnamed)(rows, hosts)
    settings = megatron_settings(plan)
    container = _container_lines(options, settings)
    in_container = '"${CONTAINER[@]}" ' if container else ""
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={options.job_name}",
            *_site_lines(options),
            f"#SBATCH --nodes={len(hosts)}",
            f"#SBATCH --ntasks={len(rows)}",
            *asked,
            f"#SBATCH --gpus-per-node={plan.gpus_per_node}",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",
            *_segment_lines(options, hosts, plan.inputs.get("domains")),
            usage,
            "set -euo pipefail",
            'cd "${SLURM_SUBMIT_DIR:-.}"',
            FOREIGN_SOURCE,
            'source "${ARGUMENTS:-./megatron_args.sh}"',
            JOB_ARGUMENTS,
            f"export WORLD_SIZE={len(rows)}",
            *host_lines,
            *setting_lines(settings),
            *container,
            comment("Every task sees all GPUs of its host and takes the one of its LOCAL_RANK."),
            f'srun --distribution={distribution} --ntasks="$WORLD_SIZE" --gpu-bind=none --cpu-bind=none \\',
            f"  --kill-on-bad-exit=1 {in_container}\\",
            '  bash ./task.sh python -u "${PRETRAIN:-pretrain_gpt.py}" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"',
            "",
        ]
    )


def _named(rows: Sequence[RankRow], hosts: Sequence[str]) -> tuple[list[str], list[str], str]:
    """Return Slurm directives, bash lines and the srun distribution for a plan with host names."""
    lines = ['export SLURM_HOSTFILE="$PWD/hostfile.txt"', *master_lines(rows[0].host)]
    return [f"#SBATCH --nodelist={','.join(hosts)}"], lines, "arbitrary"


def _unnamed(rows: Sequence[RankRow], hosts: Sequence[str]) -> tuple[list[str], list[str], str]:
    """
    Return Slurm directives, bash lines and the srun distribution for a plan without host names.

    Slurm chooses the hosts, and the plan uses them in Slurm's order.
    """
    lines = [
        'mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        *check_hosts_lines(len(hosts), "the job"),
        "export MASTER_ADDR=${MASTER_ADDR:-${HOSTS[0]}}",
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
    ]
    number = per_host(rows)
    if number is not None:
        return [f"#SBATCH --ntasks-per-node={number}"], lines, "block"
    written = 'for node in "${NODES[@]}"; do echo "${HOSTS[$node]}"; done > "$SLURM_HOSTFILE"'
    listed = ['export SLURM_HOSTFILE="$PWD/hostfile.$SLURM_JOB_ID.txt"', *nodes_table(rows), written]
    return [], [*lines, *listed], "arbitrary"


def _site_lines(options: ExportOptions) -> list[str]:
    """Return the lines of account, partition and time limit; ``##SBATCH`` is a comment."""
    given = {name: getattr(options, name) for name in SITE_DIRECTIVES}
    return [
        f"##SBATCH {option_name(name)}=..." if value is None else f"#SBATCH {option_name(name)}={value}"
        for name, value in given.items()
    ]


def _segment_lines(options: ExportOptions, hosts: Sequence[str], domains: object) -> list[str]:
    """
    Return the line ``#SBATCH --segment``; empty if no segment applies.

    A segment is a number of hosts that must be in the same block; it divides the number of hosts (sbatch's manual).
    Unless the user sets it, it is the number of the plan's hosts in each NVLink domain, if domains have equal numbers:
    topology/block has a block per domain.
    """
    segment = options.segment or _used_of_a_domain(hosts, domains)
    if segment is None:
        return []
    if len(hosts) % segment:
        raise InputError("--segment", f"must divide {len(hosts)}, the number of hosts of the plan, got {segment}.")
    return [f"#SBATCH --segment={segment}"]


def _used_of_a_domain(hosts: Sequence[str], domains: object) -> int | None:
    if not isinstance(domains, list):
        return None
    used = {len(set(hosts).intersection(expand_hosts(group))) for group in domains} - {0}
    return used.pop() if len(used) == 1 and used != {1} else None


def _container_lines(options: ExportOptions, settings: Sequence[Setting]) -> list[str]:
    """
    Return bash lines with srun's options for pyxis; empty without an image.

    A variable that the image sets overrides the job's unless ``--container-env`` names it (pyxis' README).
    """
    if options.image is None:
        if options.container_mounts:
            raise InputError("--container-mounts", "has no effect without --image; give --image, too.")
        return []
    mounts = "".join(f",{mount}" for mount in options.container_mounts or ())
    return [
        comment("The container sees the folder of this script; --container-mounts of the export adds others."),
        "CONTAINER=(",
        f"  {quoted([f'--container-image={options.image}'])}",
        f'  --container-mounts="$PWD:$PWD{mounts}"',
        '  --container-workdir="$PWD"',
        f'  --container-env="{",".join(setting.name for setting in settings)}"',
        ")",
    ]


TARGET = Target(
    export_slurm,
    "job.sbatch, hostfile.txt, task.sh, megatron_args.sh",
    takes=("job_name", "account", "partition", "time", "segment", "image", "container_mounts"),
    programs=("sbatch", "srun"),
)
