"""
Which host, NIC or GPU is behind slow links.

The logarithm of a rate is taken apart by median polish (J. W. Tukey, Exploratory Data Analysis, 1977): what is usual,
what the sender and the receiver add, what the distance of their switches adds where it is known, and a rest for each
pair. Medians are not moved by a minority of faults. A host is behind its slow pairs if its own part is low, and its
better links are slow as well: a host that merely has few neighbours under its switch has fast links among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.base.units import counted
from pipette_opt.specs import ClusterSpec

SLOW_HOST = 0.9
"""Share of the usual rate below which a host's part counts as a fault. Chosen: rates vary by a few percent."""

SLOW_PAIR = 0.75
"""Share of the rate that its hosts let expect, below which a pair counts as slow by itself. Chosen."""

DEVIATIONS, PAIR_DEVIATIONS = 4.0, 5.0
"""
Robust standard deviations by which a host, or a pair, must stand out from the others. Chosen: pairs are many more.
"""

BETTER = 0.8
"""Quantile of a host's links that counts as its better ones. Chosen: a fifth of the partners may be near."""

MIN_HOSTS = 4
"""With fewer hosts medians do not tell which end of a pair is slow."""

ROUNDS = 20
"""Most rounds of a median polish; two or three are usual."""

NIC_TOLERANCE = 0.05
"""How far a host's share of the usual rate may be from that of a whole number of its NICs. Chosen."""

MAX_NAMED = 12
"""Pairs that a sentence names at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    A host, or a GPU, that is behind slow links.

    Parameters
    ----------
    send, receive
        Its own part of the rates out of it, and into it, as a share of what is usual.
    pairs
        Measured links that it has, both directions.
    """

    name: str
    send: float
    receive: float
    pairs: int

    @property
    def share(self) -> float:
        """The smaller of both."""
        return min(self.send, self.receive)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """A link that is slow by itself: the share of the rate that its hosts let expect."""

    sender: str
    receiver: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """
    What stands out in a table of rates, or of ratios.

    Parameters
    ----------
    usual
        The rate, or the ratio, of an ordinary pair.
    hosts, pairs
        The worst first.
    """

    usual: float
    hosts: tuple[Fault, ...]
    pairs: tuple[SlowPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """
    The health of a cluster's links.

    Parameters
    ----------
    by_flows
        Faults by number of flows at once.
    gpus
        GPUs of hosts that are not slow as a whole, as ``host:slot``; known where links of single GPUs are.
    sentences
        The same in words, hosts first.
    """

    by_flows: dict[int, Faults]
    gpus: tuple[Fault, ...]
    sentences: tuple[str, ...]

    @property
    def slow_hosts(self) -> tuple[str, ...]:
        """Hosts with a fault at any number of flows, the worst first."""
        shares: dict[str, float] = {}
        for faults in self.by_flows.values():
            for one in faults.hosts:
                shares[one.name] = min(one.share, shares.get(one.name, 1.0))
        return tuple(sorted(shares, key=lambda name: shares[name]))


def find_faults(rates: FloatArray, names: Sequence[str], distance: IntArray | None = None) -> Faults:
    """
    Hosts and pairs that are slower than others.

    Parameters
    ----------
    rates
        From i to j, any unit, or ratios of two measurements; above 0, NaN where unknown; shape ``(n, n)``.
    distance
        Which pairs are as far apart as others, any whole numbers, shape ``(n, n)``; all by default.
    """
    known = ~np.isnan(rates)
    if not known.any():
        return Faults(usual=float("nan"), hosts=(), pairs=())
    logs = np.log(rates, where=known, out=np.full(rates.shape, np.nan))
    if len(names) < MIN_HOSTS:
        middle = float(np.median(logs[known]))
        return Faults(usual=float(np.exp(middle)), hosts=(), pairs=_slow_pairs(logs - middle, names))
    middle, near, send, receive, rest = _polished(logs, distance)
    logs = logs - near
    slow_send = _slow(send, rest, _better(logs - receive[None, :], axis=1))
    slow_receive = _slow(receive, rest, _better(logs - send[:, None], axis=0))
    hosts = [
        Fault(
            name=name,
            send=float(np.exp(send[index])),
            receive=float(np.exp(receive[index])),
            pairs=int(known[index].sum() + known[:, index].sum()),
        )
        for index, name in enumerate(names)
        if slow_send[index] or slow_receive[index]
    ]
    hosts.sort(key=lambda one: one.share)
    return Faults(usual=float(np.exp(middle)), hosts=tuple(hosts), pairs=_slow_pairs(rest, names))


def _polished(
    logs: FloatArray, distance: IntArray | None
) -> tuple[float, FloatArray, FloatArray, FloatArray, FloatArray]:
    """The usual, what distance adds to each pair, the senders' and the receivers' parts with median 0, and the rest."""
    rest, known = logs.copy(), ~np.isnan(logs)
    middle, near = 0.0, np.zeros(logs.shape)
    send, receive = np.zeros(len(logs)), np.zeros(len(logs))
    for _ in range(ROUNDS):
        moved = 0.0
        for place in () if distance is None else np.unique(distance[known]):
            alike = known & (distance == place)
            step = float(np.median(rest[alike]))
            near[alike] += step
            rest[alike] -= step
            moved = max(moved, abs(step))
        for part, axis in ((send, 1), (receive, 0)):
            steps = _medians(rest, axis)
            part += steps
            rest -= steps[:, None] if axis == 1 else steps[None, :]
            moved = max(moved, float(np.abs(steps).max()))
            shift = float(np.median(part))
            part -= shift
            middle += shift
        if moved < 1e-9:
            break
    return middle, near, send, receive, rest


def _medians(array: FloatArray, axis: int) -> FloatArray:
    """Of what is known along an axis; 0 where nothing is."""
    found = np.zeros(array.shape[1 - axis])
    for index, line in enumerate(array if axis == 1 else array.T):
        known = line[~np.isnan(line)]
        if known.size:
            found[index] = np.median(known)
    return found


def _better(logs: FloatArray, axis: int) -> FloatArray:
    """The better links of each host against those of the others."""
    found = np.full(len(logs), np.nan)
    for index, line in enumerate(logs if axis == 1 else logs.T):
        known = line[~np.isnan(line)]
        if known.size:
            found[index] = np.quantile(known, BETTER)
    against: FloatArray = np.nan_to_num(found - np.nanmedian(found))
    return against


def _slow(part: FloatArray, rest: FloatArray, better: FloatArray) -> BoolArray:
    """Which hosts' parts, and better links, are lower than chance and habit make them."""
    of_rest = _deviation(rest[~np.isnan(rest)]) * 1.2533 / np.sqrt(max(len(part) - 1, 1))
    limit = min(np.log(SLOW_HOST), -DEVIATIONS * max(_deviation(part), of_rest))
    limit_better = min(np.log(SLOW_HOST), -DEVIATIONS * of_rest)
    slow: BoolArray = (part < limit) & (better < limit_better)
    return slow


def _deviation(values: FloatArray) -> float:
    """Standard deviation of the bulk of some numbers, by the median of distances from their median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _slow_pairs(rest: FloatArray, names: Sequence[str]) -> tuple[SlowPair, ...]:
    """Pairs far below what their hosts let expect."""
    known = ~np.isnan(rest)
    limit = min(np.log(SLOW_PAIR), -PAIR_DEVIATIONS * _deviation(rest[known]))
    found = [
        SlowPair(sender=names[i], receiver=names[j], share=float(np.exp(rest[i, j])))
        for i, j in np.argwhere(known & (np.nan_to_num(rest) < limit)).tolist()
    ]
    return tuple(sorted(found, key=lambda one: one.share))


def health(cluster: ClusterSpec, distance: IntArray | None = None) -> Health:
    """
    What is wrong with the links of a cluster as they were measured.

    Parameters
    ----------
    distance
        Of the switches of each two hosts, where it is known; by default the innermost level that holds both.
    """
    if distance is None and cluster.levels:
        distance = np.full((cluster.num_nodes,) * 2, len(cluster.levels))
        for place, level in reversed(list(enumerate(cluster.levels))):
            distance[level.group_of_node[:, None] == level.group_of_node] = place
    by_flows = {
        matrix.concurrent_flows: find_faults(matrix.bytes_per_s, cluster.hosts, distance)
        for matrix in cluster.link_matrices
    }
    slow = {one.name for faults in by_flows.values() for one in faults.hosts}
    gpus = tuple(one for one in _slow_gpus(cluster) if one.name.rpartition(":")[0] not in slow)
    found = Health(by_flows=by_flows, gpus=gpus, sentences=())
    sentences = [_host_sentence(cluster, found, host) for host in found.slow_hosts]
    sentences += [_gpu_sentence(cluster, one) for one in gpus]
    for flows, faults in by_flows.items():
        if faults.pairs:
            sentences.append(f"{counted(flows, 'flow')}: slow by themselves {_pairs_text(faults.pairs)}.")
    if not sentences and by_flows and cluster.links_measured:
        sentences.append("No host, GPU or link stands out from the others.")
    return Health(by_flows=by_flows, gpus=gpus, sentences=tuple(sentences))


def _slow_gpus(cluster: ClusterSpec) -> tuple[Fault, ...]:
    """GPUs whose links to other hosts are slow, of a cluster whose links of single GPUs are known."""
    links = cluster.gpu_links
    if links is None or links.between is None:
        return ()
    size = cluster.num_nodes * links.num_slots
    names = [f"{host}:{slot}" for host in cluster.hosts for slot in range(links.num_slots)]
    return find_faults(links.between.reshape(size, size), names).hosts


def _host_sentence(cluster: ClusterSpec, found: Health, host: str) -> str:
    """What a host's fault is, as far as the numbers of flows tell."""
    of_flows = {flows: one for flows, faults in found.by_flows.items() for one in faults.hosts if one.name == host}
    flows = min(of_flows, key=lambda count: of_flows[count].share)
    one = of_flows[flows]
    directions = [
        f"{word} {share:.0%} of what is usual"
        for word, share in (("sends", one.send), ("receives", one.receive))
        if share < SLOW_HOST
    ]
    nics = _nics_down(cluster, of_flows, found)
    if nics:
        what = f"as if {nics} of its {cluster.nics_per_node} NICs were down"
    elif len(directions) == 1:
        what = "one direction only: look at a cable or a port"
    else:
        what = "the whole host: look at its NICs, PCIe and switch port"
    rates = f"attains {one.share:.0%} of what is usual" if len(directions) == 2 else directions[0]
    return f"{host} {rates} with {counted(flows, 'flow')} ({what}); it has {one.pairs} links."


def _nics_down(cluster: ClusterSpec, of_flows: dict[int, Fault], found: Health) -> int:
    """How many NICs of a host seem down: a single flow is as usual, and all together have a whole number's share."""
    most, nics = max(found.by_flows), cluster.nics_per_node
    if min(found.by_flows) != 1 or 1 in of_flows or most not in of_flows or nics < 2:
        return 0
    lost = (1 - of_flows[most].share) * nics
    near = round(lost)
    return near if 0 < near < nics and abs(lost - near) <= NIC_TOLERANCE * nics else 0


def _gpu_sentence(cluster: ClusterSpec, one: Fault) -> str:
    host, _, slot = one.name.rpartition(":")
    nic = ""
    if cluster.gpu_links is not None:
        of_nic = cluster.gpu_links.nic_of_slot
        if len(set(of_nic.tolist())) > 1:
            nic = f" or its NIC {int(of_nic[int(slot)])}"
    return f"GPU {slot} of {host}{nic} has {one.share:.0%} of the usual rate to other hosts, other GPUs there do not."


def _pairs_text(pairs: Sequence[SlowPair]) -> str:
    named = ", ".join(f"{one.sender} to {one.receiver} ({one.share:.0%})" for one in pairs[:MAX_NAMED])
    return named + (f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else "")
