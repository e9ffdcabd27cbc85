"""Plans without host names: the launch uses the hosts that it gets, and the files contain no names."""

from collections.abc import Sequence

from pipette_opt.base.units import counted
from pipette_opt.export.shell import launchable, rank_array_lines
from pipette_opt.plans.plan import Plan, RankRow
from pipette_opt.read.nominal import is_number_of_hosts


def hosts_are_named(plan: Plan) -> bool:
    """Return whether the user named the hosts of a plan."""
    options = (plan.inputs.get("cluster") or {}).get("options") or {}
    return not is_number_of_hosts(str(options.get("nodes")))


def unnamed_note(num_hosts: int) -> str:
    """Return a note on which hosts a plan without host names can run."""
    hosts = "one host" if num_hosts == 1 else f"any {num_hosts} equal hosts"
    return (
        f"The hosts of this plan have no names: it runs on {hosts}, in the order in which the launch lists them.\n"
        "A placement on measured links needs names: --cluster, or --nodes 'gpu[01-08]'."
    )


def node_of_ranks(rows: Sequence[RankRow]) -> list[int]:
    """Return the host number of each rank; hosts are numbered from 0 in the order of their first ranks."""
    order = launchable(row.host for row in rows)
    return [order.index(row.host) for row in rows]


def per_host(rows: Sequence[RankRow]) -> int | None:
    """Return the number of ranks per host; ``None`` if hosts differ or the ranks of a host are not consecutive."""
    nodes = node_of_ranks(rows)
    number = nodes.count(0)
    return number if nodes == [rank // number for rank in range(len(nodes))] else None


def nodes_table(rows: Sequence[RankRow]) -> list[str]:
    """Return bash lines that define the array ``NODES``: the host number of each rank."""
    return rank_array_lines("NODES", node_of_ranks(rows))


def check_hosts_lines(num_hosts: int, source: str) -> list[str]:
    """Return bash lines that stop with an error unless the array ``HOSTS`` has the plan's number of hosts."""
    return [
        f"if (( ${{#HOSTS[@]}} != {num_hosts} )); then",
        f'  echo "the plan has {counted(num_hosts, "host")}, {source} has ${{#HOSTS[@]}}" >&2',
        "  exit 1",
        "fi",
    ]


def hosts_of_file_lines(num_hosts: int) -> list[str]:
    """Return bash lines that read the array ``HOSTS`` from the file ``$HOSTFILE`` and set ``MASTER_ADDR``."""
    return [
        f"HOSTFILE=${{HOSTFILE:?is needed: a file with the {counted(num_hosts, 'host')} to run on, one a line}}",
        "mapfile -t HOSTS < <(sed -e 's/#.*//' -e 's/^[[:space:]]*//' -e 's/[[:space:]].*//' -e '/^$/d' \"$HOSTFILE\")",
        *check_hosts_lines(num_hosts, "$HOSTFILE"),
        "export MASTER_ADDR=${MASTER_ADDR:-${HOSTS[0]}}",
    ]
