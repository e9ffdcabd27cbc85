"""Plans whose hosts have no names: the launch takes the hosts that it finds, and files name none."""

from collections.abc import Sequence

from pipette_opt.base.units import counted
from pipette_opt.export.shell import array_lines, launchable
from pipette_opt.plans.plan import Plan, RankRow
from pipette_opt.read.nominal import has_named_hosts

PER_LINE = 16
"""Entries of a bash array on each line. Chosen."""


def hosts_are_named(plan: Plan) -> bool:
    """Return whether the user named the hosts of a plan."""
    return has_named_hosts(plan.inputs.get("cluster"))


def unnamed_note(num_hosts: int) -> str:
    """Return a note for people about the hosts that a plan without host names runs on."""
    hosts = "one host" if num_hosts == 1 else f"any {num_hosts} equal hosts"
    return (
        f"The hosts of this plan have no names: it runs on {hosts}, in the order in which the launch lists them.\n"
        "A placement on measured links needs names: --cluster, or --nodes 'gpu[01-08]'."
    )


def node_of_ranks(rows: Sequence[RankRow]) -> list[int]:
    """Return the host of each rank, counted from 0 in the order of their first ranks."""
    order = launchable(row.host for row in rows)
    return [order.index(row.host) for row in rows]


def per_host(rows: Sequence[RankRow]) -> int | None:
    """Return the number of consecutive ranks of each host; ``None`` if hosts differ or ranks are scattered."""
    nodes = node_of_ranks(rows)
    number = nodes.count(0)
    return number if nodes == [rank // number for rank in range(len(nodes))] else None


def nodes_table(rows: Sequence[RankRow]) -> list[str]:
    """Definition of the bash array ``NODES``, the number of each rank's host."""
    nodes = node_of_ranks(rows)
    return array_lines("NODES", [nodes[start : start + PER_LINE] for start in range(0, len(nodes), PER_LINE)])


def check_hosts_lines(num_hosts: int, source: str) -> list[str]:
    """Lines of bash that stop unless the array ``HOSTS`` has as many hosts as the plan."""
    return [
        f"if (( ${{#HOSTS[@]}} != {num_hosts} )); then",
        f'  echo "the plan has {counted(num_hosts, "host")}, {source} has ${{#HOSTS[@]}}" >&2',
        "  exit 1",
        "fi",
    ]


def hosts_of_file_lines(num_hosts: int) -> list[str]:
    """Lines of bash that read the array ``HOSTS`` from the file that ``HOSTFILE`` names, and the master from it."""
    return [
        f"HOSTFILE=${{HOSTFILE:?is needed: a file with the {counted(num_hosts, 'host')} to run on, one a line}}",
        "mapfile -t HOSTS < <(sed -e 's/#.*//' -e 's/^[[:space:]]*//' -e 's/[[:space:]].*//' -e '/^$/d' \"$HOSTFILE\")",
        *check_hosts_lines(num_hosts, "$HOSTFILE"),
        "export MASTER_ADDR=${MASTER_ADDR:-${HOSTS[0]}}",
    ]
