"""
Open MPI: a process per rank, placed on hosts by a rankfile.

A rankfile also binds each rank to processors (mpirun's manual, "Rankfiles"). ``slot=*:*`` allows every core of every
socket: a plan places no cores, and a single slot would put a rank and its data loaders on the same core.
"""

from collections import Counter

from pipette_opt.export.environment import megatron_settings, setting_lines
from pipette_opt.export.hosts import hosts_are_named, hosts_of_file_lines, nodes_table, unnamed_note
from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.shell import (
    FOREIGN_SOURCE,
    JOB_ARGUMENTS,
    MASTER_PORT,
    array_lines,
    comment,
    launchable,
    master_lines,
)
from pipette_opt.export.target import Target
from pipette_opt.export.task import ProcessVariables, task_script
from pipette_opt.plans.plan import Plan, RankRow, rank_rows

OPEN_MPI = ProcessVariables("mpirun", rank="OMPI_COMM_WORLD_RANK", size="OMPI_COMM_WORLD_SIZE", host="PMIX_HOSTNAME")


def export_mpi(plan: Plan) -> dict[str, str]:
    """Return host file, rankfile, launch script, and the script of each process."""
    rows = rank_rows(plan)
    hosts = launchable(row.host for row in rows)
    ranks = Counter(row.host for row in rows)
    equal = len(set(ranks.values())) == 1
    slots = [plan.gpus_per_node if equal else ranks[host] for host in hosts]
    if not hosts_are_named(plan):
        task = task_script(rows, OPEN_MPI, foreign_hosts=True, named=False)
        return {"launch.sh": _launch(plan, rows, _unnamed(rows, slots)), "task.sh": task, **export_megatron(plan)}
    return {
        "launch.sh": _launch(plan, rows, master_lines(rows[0].host)),
        "hostfile.txt": "".join(f"{host} slots={count}\n" for host, count in zip(hosts, slots, strict=True)),
        "rankfile.txt": "".join(f"rank {row.rank}={row.host} slot=*:*\n" for row in rows),
        "task.sh": task_script(rows, OPEN_MPI, foreign_hosts=True),
        **export_megatron(plan),
    }


def _unnamed(rows: list[RankRow], slots: list[int]) -> list[str]:
    """Return bash lines that write host file and rankfile for the hosts in the user's file."""
    return [
        *hosts_of_file_lines(len(slots)),
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
        *nodes_table(rows),
        *array_lines("SLOTS", [slots]),
        'for node in "${!HOSTS[@]}"; do echo "${HOSTS[$node]} slots=${SLOTS[$node]}"; done > hostfile.txt',
        'for rank in "${!NODES[@]}"; do echo "rank $rank=${HOSTS[${NODES[$rank]}]} slot=*:*"; done > rankfile.txt',
    ]


def _launch(plan: Plan, rows: list[RankRow], hosts: list[str]) -> str:
    """Return the script that starts all processes; ``hosts`` are bash lines that define the hosts."""
    usage = comment(
        "Run once, from the folder that holds these files, which every host must see under the same path:\n"
        "  bash launch.sh [arguments of the training script]\n"
        "Without arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set;\n"
        "ARGUMENTS names another file of arguments, e.g. that of `pipette-opt export --format nemo`.\n"
        "Open MPI 4; its settings go through OMPI_MCA_... variables. Open MPI 5 says\n"
        "--map-by rankfile:file=rankfile.txt for --rankfile."
    )
    if not hosts_are_named(plan):
        usage += "\n" + comment(
            f"HOSTFILE names a file with your hosts.\n{unnamed_note(len({row.host for row in rows}))}"
        )
    settings = megatron_settings(plan)
    handed_on = " ".join(
        f"-x {name}" for name in ("MASTER_ADDR", "MASTER_PORT", *(setting.name for setting in settings))
    )
    return "\n".join(
        [
            "#!/bin/bash",
            usage,
            "set -euo pipefail",
            'cd "$(dirname "${BASH_SOURCE[0]}")"',
            FOREIGN_SOURCE,
            'source "${ARGUMENTS:-./megatron_args.sh}"',
            JOB_ARGUMENTS,
            *hosts,
            *setting_lines(settings),
            f'mpirun -np {len(rows)} --hostfile hostfile.txt --rankfile rankfile.txt --wdir "$PWD" \\',
            f"  {handed_on} \\",
            '  bash ./task.sh python -u "${PRETRAIN:-pretrain_gpt.py}" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"',
            "",
        ]
    )


TARGET = Target(
    export_mpi,
    "launch.sh, hostfile.txt, rankfile.txt, task.sh, megatron_args.sh",
    any_count=True,
    programs=("mpirun", "mpiexec", "openmpi"),
)
