"""Reader of a cluster's switches, from ``scontrol show topology`` or Slurm's ``topology.conf``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipette_opt.base.errors import InputError
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.log_lines import Log

_LINE = re.compile(r"^\s*SwitchName=", re.IGNORECASE)
_COMMENT = re.compile(r"\s*#")
_KEYS = ("switchname", "level", "linkspeed", "nodes", "switches")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """
    Switches above each host.

    Parameters
    ----------
    ancestors
        Names of the switches above each host, from leaf to root.
    """

    ancestors: Mapping[str, tuple[str, ...]]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in file order."""
        return tuple(self.ancestors)

    def distance(self, a: str, b: str) -> int | None:
        """Return the levels up to the first common switch of two hosts, 0 for a common leaf; ``None`` without one."""
        above_a, above_b = self.ancestors.get(a, ()), self.ancestors.get(b, ())
        return next((level for level, switch in enumerate(above_a) if switch in above_b), None)


def is_switch_list(text: str) -> bool:
    """Return whether a text looks like Slurm's list of switches."""
    return any(_LINE.match(line) for line in text.splitlines())


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
