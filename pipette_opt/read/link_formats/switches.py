"""Reader of a cluster's switches, from ``scontrol show topology`` or Slurm's ``topology.conf``."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import IntArray
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Fact

_LINE = re.compile(r"^[ \t]*SwitchName=", re.IGNORECASE | re.MULTILINE)
_COMMENT = re.compile(r"\s*#")
_KEYS = ("switchname", "level", "linkspeed", "nodes", "switches")


class SwitchTree(Fact, frozen=True, kw_only=True):
    """
    Switches above each host.

    Parameters
    ----------
    ancestors
        Names of the switches above each host, from leaf to root; hosts in file order.
    """

    ancestors: Mapping[str, tuple[str, ...]]

    def distance(self, a: str, b: str) -> int | None:
        """Return the levels up to the first common switch of two hosts, 0 for a common leaf; ``None`` without one."""
        above_a, above_b = self.ancestors.get(a, ()), self.ancestors.get(b, ())
        return next((level for level, switch in enumerate(above_a) if switch in above_b), None)

    def distances(self, hosts: Sequence[str]) -> IntArray:
        """Return the distance of each two hosts, shape ``(num_hosts, num_hosts)``; -1 without a common switch."""
        found = [[self.distance(sender, receiver) for receiver in hosts] for sender in hosts]
        return np.array([[-1 if levels is None else levels for levels in row] for row in found])


@link_format("scontrol show topology", lambda file: _LINE.search(file.log.text) is not None, order=80)
def read_switches(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the switches."""
    yield parse_switches(file.log, file.where)


def parse_switches(log: Log, where: str) -> SwitchTree:
    """
    Return the switches in lines such as ``SwitchName=leaf1 Nodes=gpu[01-08]`` and ``SwitchName=top
    Switches=leaf[1-2]``.

    Hosts that ``scontrol`` lists at higher switches, and link speeds, are ignored. A switch with neither nodes nor
    switches has no hosts (Slurm 25.05 lists such switches).
    """
    nodes: dict[str, tuple[str, ...]] = {}
    parent: dict[str, str] = {}
    log.use_like(_COMMENT)
    for line in log.lines:
        if not _LINE.match(line.text):
            continue
        log.use(line)
        place = f"{where}, line {line.number}"
        fields = _fields(line.text.split("#")[0].split(), place)
        name = fields["switchname"]
        if name in nodes:
            raise InputError(place, f"switch {name!r} is listed twice; list each switch once.")
        children = fields.get("switches", "")
        nodes[name] = ()
        if children and children != "(null)":
            for child in expand_hosts(children, place):
                if child in parent:
                    raise InputError(place, f"switch {child!r} is below {parent[child]!r} already.")
                parent[child] = name
        elif fields.get("nodes", "(null)") != "(null)":
            nodes[name] = expand_hosts(fields["nodes"], place)
    ancestors: dict[str, tuple[str, ...]] = {}
    for switch, hosts in nodes.items():
        chain = _chain(switch, parent, where)
        for host in hosts:
            if host in ancestors:
                raise InputError(where, f"host {host!r} is below the leaves {ancestors[host][0]!r} and {switch!r}.")
            ancestors[host] = chain
    if not ancestors:
        raise InputError(where, "lists switches, but no host below them.")
    return SwitchTree(ancestors=ancestors)


def _fields(words: Sequence[str], place: str) -> dict[str, str]:
    """Return the values in a line by key in lower case."""
    fields = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    for key in fields:
        if key not in _KEYS:
            raise InputError(place, f"unknown field {key!r}.{did_you_mean(key, _KEYS)}")
    return fields


def _chain(switch: str, parent: Mapping[str, str], where: str) -> tuple[str, ...]:
    chain = [switch]
    while chain[-1] in parent:
        if parent[chain[-1]] in chain:
            raise InputError(where, f"switch {switch!r} is below itself, directly or through other switches.")
        chain.append(parent[chain[-1]])
    return tuple(chain)
