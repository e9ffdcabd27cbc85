"""Script of each process, for launchers that start a process per rank: it sets rank and GPU, then runs its command."""

from collections.abc import Sequence
from typing import NamedTuple

from pipette_opt.export.shell import comment, master_lines, rank_array_lines
from pipette_opt.plans.plan import RankRow


class ProcessVariables(NamedTuple):
    """Names of a launcher's environment variables for rank, number of processes, and host."""

    launcher: str
    rank: str
    size: str
    host: str


def task_script(
    rows: Sequence[RankRow], variables: ProcessVariables, *, foreign_hosts: bool, named: bool = True
) -> str:
    """
    Return a script that sets the environment of a rank and runs the command in its arguments.

    The GPU comes from the plan's table, because launchers number the processes of a host in any order. A process on the
    wrong host stops.

    Parameters
    ----------
    foreign_hosts
        Whether the launcher may use host names that are not in the plan; such names are not checked.
    named
        Whether the plan's hosts have names; without names no host is written or checked.
    """
    rank, size, host = variables.rank, variables.size, variables.host
    wrong = f'"${{{host}:-${{HOSTS[$RANK]}}}}" != "${{HOSTS[$RANK]}}"'
    if foreign_hosts:
        wrong += f' && " ${{HOSTS[*]}} " == *" ${host} "*'
    wrong_host = [
        f"if [[ {wrong} ]]; then",
        f'  echo "rank $RANK belongs on ${{HOSTS[$RANK]}}, but runs on ${host}" >&2',
        "  exit 1",
        "fi",
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            comment(f"Run by {variables.launcher}, once per rank:  task.sh COMMAND..."),
            "set -euo pipefail",
            *(rank_array_lines("HOSTS", [row.host for row in rows]) if named else []),
            *rank_array_lines("LOCAL_RANKS", [row.local_rank for row in rows]),
            f"export RANK=${rank}",
            "export LOCAL_RANK=${LOCAL_RANKS[$RANK]}",
            f"export WORLD_SIZE={len(rows)}",
            *master_lines(rows[0].host if named else None),
            f'if [[ "${{{size}:-$WORLD_SIZE}}" != "$WORLD_SIZE" ]]; then',
            f'  echo "the plan has $WORLD_SIZE ranks, {variables.launcher} started ${size}" >&2',
            "  exit 1",
            "fi",
            *(wrong_host if named else []),
            'exec "$@"',
            "",
        ]
    )
