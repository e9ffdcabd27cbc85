"""
Hosts, NICs and GPUs that make links slow.

Median polish (J. W. Tukey, Exploratory Data Analysis, 1977) writes the logarithm of a bandwidth as a sum: the usual
value, an effect of the sender, an effect of the receiver, an effect of the distance of their switches if known, and a
residual of the pair. A minority of faults does not move medians. A host is faulty if its own effect is low and its
better links are slow, too. A host with few neighbours under its switch still has fast links to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.base.units import counted, listed
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.host_names import compress_hosts

SLOW_HOST = 0.9
"""Share of the usual bandwidth below which a host is faulty. Chosen: bandwidths vary by a few percent."""

SLOW_PAIR = 0.75
"""Share of the bandwidth expected from its two hosts below which a pair is slow by itself. Chosen."""

DEVIATIONS, PAIR_DEVIATIONS = 4.0, 5.0
"""Robust standard deviations by which a host, and a pair, must be below the others. Chosen: pairs are more numerous."""

BETTER = 0.8
"""Quantile of a host's links that represents its better links. Chosen: up to a fifth of the partners may be near."""

MIN_HOSTS = 4
"""Smallest number of hosts for which medians show whether sender or receiver is slow. Chosen."""

ROUNDS = 20
"""Largest number of rounds of a median polish; two or three are usual. Chosen."""

NIC_TOLERANCE = 0.05
"""Largest distance of a host's lost share from a whole number of NICs, relative to all its NICs. Chosen."""

MAX_NAMED = 12
"""Largest number of hosts or pairs that a sentence names. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    Host or GPU that makes its links slow.

    Parameters
    ----------
    send, receive
        Effect on outgoing and incoming links, as a share of the usual bandwidth.
    pairs
        Number of its measured links, both directions.
    """

    name: str
    send: float
    receive: float
    pairs: int

    @property
    def share(self) -> float:
        """Smaller share of ``send`` and ``receive``."""
        return min(self.send, self.receive)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """Link that is slow by itself: ``share`` is its bandwidth over the bandwidth expected from its two hosts."""

    sender: str
    receiver: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """
    Hosts and pairs that are slower than others, in a table of bandwidths or of ratios.

    Parameters
    ----------
    usual
        Usual value in the table.
    hosts, pairs
        Slow hosts and slow pairs, the worst first.
    """

    usual: float
    hosts: tuple[Fault, ...]
    pairs: tuple[SlowPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """
    Health of the links of a cluster.

    Parameters
    ----------
    by_flows
        Slow hosts and pairs, by number of concurrent flows.
    gpus
        GPUs with slow links to other hosts, named ``host:number``, of hosts that are not slow as a whole; empty without
        links of single GPUs.
    sentences
        Sentences on all faults, hosts first.
    """

    by_flows: dict[int, Faults]
    gpus: tuple[Fault, ...]
    sentences: tuple[str, ...]

    @property
    def slow_hosts(self) -> tuple[str, ...]:
        """Names of hosts that are slow with any number of flows, the worst first."""
        shares: dict[str, float] = {}
        for faults in self.by_flows.values():
            for fault in faults.hosts:
                shares[fault.name] = min(fault.share, shares.get(fault.name, 1.0))
        return tuple(sorted(shares, key=lambda name: shares[name]))


def find_faults(rates: FloatArray, names: Sequence[str], distance: IntArray | None = None) -> Faults:
    """
    Return the hosts and pairs that are slower than others.

    Parameters
    ----------
    rates
        Bandwidths from i to j in any unit, or ratios of two measurements, > 0, NaN if unknown; shape ``(n, n)``.
    distance
        Distance class of each pair, whole numbers of shape ``(n, n)``; ``None`` if all pairs are equal.
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
    hosts.sort(key=lambda fault: fault.share)
    return Faults(usual=float(np.exp(middle)), hosts=tuple(hosts), pairs=_slow_pairs(rest, names))


def _polished(
    logs: FloatArray, distance: IntArray | None
) -> tuple[float, FloatArray, FloatArray, FloatArray, FloatArray]:
    """
    Return the effects of a median polish of ``logs``, shape ``(n, n)``.

    Effects are the usual value, distance, senders, receivers (both of median 0), and residuals.
    """
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
            steps = _of_lines(rest, axis, 0.5, 0.0)
            part += steps
            rest -= steps[:, None] if axis == 1 else steps[None, :]
            moved = max(moved, float(np.abs(steps).max()))
            shift = float(np.median(part))
            part -= shift
            middle += shift
        if moved < 1e-9:
            break
    return middle, near, send, receive, rest


def _of_lines(array: FloatArray, axis: int, share: float, unknown: float) -> FloatArray:
    """Return a quantile of the known values in each row (``axis`` 1) or column (0); ``unknown`` if none is known."""
    lines = array if axis == 1 else array.T
    known = [line[~np.isnan(line)] for line in lines]
    return np.array([np.quantile(line, share) if line.size else unknown for line in known])


def _better(logs: FloatArray, axis: int) -> FloatArray:
    """Return the ``BETTER`` quantile of each host's links, relative to the median over hosts; 0 if unknown."""
    found = _of_lines(logs, axis, BETTER, np.nan)
    against: FloatArray = np.nan_to_num(found - np.nanmedian(found))
    return against


def _slow(part: FloatArray, rest: FloatArray, better: FloatArray) -> BoolArray:
    """Return a mask of the hosts whose effect and whose better links are lower than chance explains."""
    of_rest = _deviation(rest[~np.isnan(rest)]) * 1.2533 / np.sqrt(max(len(part) - 1, 1))
    limit = min(np.log(SLOW_HOST), -DEVIATIONS * max(_deviation(part), of_rest))
    limit_better = min(np.log(SLOW_HOST), -DEVIATIONS * of_rest)
    slow: BoolArray = (part < limit) & (better < limit_better)
    return slow


def _deviation(values: FloatArray) -> float:
    """Return a robust standard deviation: 1.4826 times the median distance from the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _slow_pairs(rest: FloatArray, names: Sequence[str]) -> tuple[SlowPair, ...]:
    """Return the pairs whose residual is far below zero, the worst first."""
    known = ~np.isnan(rest)
    limit = min(np.log(SLOW_PAIR), -PAIR_DEVIATIONS * _deviation(rest[known]))
    found = [
        SlowPair(sender=names[i], receiver=names[j], share=float(np.exp(rest[i, j])))
        for i, j in np.argwhere(known & (np.nan_to_num(rest) < limit)).tolist()
    ]
    return tuple(sorted(found, key=lambda pair: pair.share))


def health(cluster: ClusterSpec, distance: IntArray | None = None, known: Sequence[str] = ()) -> Health:
    """
    Return the health of a cluster's measured links.

    Parameters
    ----------
    distance
        Distance class of the switches of each two hosts; ``None``: the innermost level that holds both hosts.
    known
        Sentences on faults that the links of the cluster do not show.
    """
    if distance is None and cluster.levels:
        distance = np.full((cluster.num_nodes,) * 2, len(cluster.levels))
        for place, level in reversed(list(enumerate(cluster.levels))):
            distance[level.group_of_node[:, None] == level.group_of_node] = place
    by_flows = {
        matrix.concurrent_flows: find_faults(matrix.bytes_per_s, cluster.hosts, distance)
        for matrix in cluster.link_matrices
    }
    slow = {fault.name for faults in by_flows.values() for fault in faults.hosts}
    gpus = tuple(fault for fault in _slow_gpus(cluster) if fault.name.rpartition(":")[0] not in slow)
    found = Health(by_flows=by_flows, gpus=gpus, sentences=())
    sentences = [*known, *(_host_sentence(cluster, found, host) for host in found.slow_hosts)]
    sentences += [_gpu_sentence(cluster, fault) for fault in gpus]
    sentences += _sentences_inside(cluster)
    for flows, faults in by_flows.items():
        if faults.pairs:
            named = [f"{pair.sender} to {pair.receiver} ({100 * pair.share:.0f} %)" for pair in faults.pairs]
            sentences.append(f"{counted(flows, 'flow')}: slow by themselves {listed(named, MAX_NAMED)}.")
    if not sentences and by_flows and cluster.links_measured:
        sentences.append("No host, GPU or link stands out from the others.")
    return Health(by_flows=by_flows, gpus=gpus, sentences=tuple(sentences))


def _slow_gpus(cluster: ClusterSpec) -> tuple[Fault, ...]:
    """Return the GPUs with slow links to other hosts; empty without links of single GPUs."""
    links = cluster.gpu_links
    if links is None or links.between is None:
        return ()
    size = cluster.num_nodes * links.num_slots
    names = [f"{host}:{slot}" for host in cluster.hosts for slot in range(links.num_slots)]
    return find_faults(links.between.reshape(size, size), names).hosts


def _sentences_inside(cluster: ClusterSpec) -> list[str]:
    """Return sentences on GPUs and pairs of GPUs with slow links inside their host, for each kind of host."""
    links, sentences = cluster.gpu_links, []
    for kind in range(0 if links is None else len(links.kinds)):
        assert links is not None
        rates, fastest = links.kinds[kind].copy(), links.kinds[kind].max(axis=1)
        hosts = compress_hosts(
            tuple(host for host, own in zip(cluster.hosts, links.kind_of_node, strict=True) if own == kind)
        )
        np.fill_diagonal(rates, np.nan)
        middle = np.nanmedian(rates, axis=1)
        share = np.minimum(fastest / np.median(fastest), middle / np.median(middle))
        slow = np.flatnonzero(share < SLOW_HOST)
        sentences += [
            f"GPU {gpu} of {hosts} has {100 * share[gpu]:.0f} % of the usual rate to the other GPUs of its host: "
            "look at its NVLinks."
            for gpu in slow.tolist()
        ]
        rates[slow] = rates[:, slow] = np.nan
        pairs = find_faults(rates, [f"GPU {gpu}" for gpu in range(links.num_slots)]).pairs
        if pairs:
            named = [f"{pair.sender} to {pair.receiver} ({100 * pair.share:.0f} %)" for pair in pairs]
            sentences.append(f"Inside {hosts}: slow by themselves {listed(named, MAX_NAMED)}.")
    return sentences


def _host_sentence(cluster: ClusterSpec, found: Health, host: str) -> str:
    """Return a sentence on a slow host and its likely cause."""
    of_flows = {
        flows: fault for flows, faults in found.by_flows.items() for fault in faults.hosts if fault.name == host
    }
    flows = min(of_flows, key=lambda count: of_flows[count].share)
    fault = of_flows[flows]
    directions = [
        f"{word} {100 * share:.0f} % of what is usual"
        for word, share in (("sends", fault.send), ("receives", fault.receive))
        if share < SLOW_HOST
    ]
    nics = _nics_down(cluster, of_flows, found)
    if nics:
        cause = f"as if {nics} of its {cluster.nics_per_node} NICs were down"
    elif len(directions) == 1:
        cause = "one direction only: look at a cable or a port"
    else:
        cause = "the whole host: look at its NICs, PCIe and switch port"
    rates = f"attains {100 * fault.share:.0f} % of what is usual" if len(directions) == 2 else directions[0]
    return f"{host} {rates} with {counted(flows, 'flow')} ({cause}); it has {fault.pairs} links."


def _nics_down(cluster: ClusterSpec, of_flows: dict[int, Fault], found: Health) -> int:
    """
    Return the number of NICs of a host that seem to be down, else 0.

    NICs seem down if a single flow is as fast as usual and all flows together lack the share of a whole number of NICs.
    """
    most, nics = max(found.by_flows), cluster.nics_per_node
    if min(found.by_flows) != 1 or 1 in of_flows or most not in of_flows or nics < 2:
        return 0
    lost = (1 - of_flows[most].share) * nics
    near = round(lost)
    return near if 0 < near < nics and abs(lost - near) <= NIC_TOLERANCE * nics else 0


def _gpu_sentence(cluster: ClusterSpec, fault: Fault) -> str:
    host, _, slot = fault.name.rpartition(":")
    nic = ""
    if cluster.gpu_links is not None:
        of_nic = cluster.gpu_links.nic_of_slot
        if len(set(of_nic.tolist())) > 1:
            nic = f" or its NIC {int(of_nic[int(slot)])}"
    share = f"{100 * fault.share:.0f} %"
    return f"GPU {slot} of {host}{nic} has {share} of the usual rate to other hosts, other GPUs there do not."
