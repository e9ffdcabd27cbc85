"""Notes on imported links: sentences on what was read, assumed, excluded and filled."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import GB, US, counted, first_notes, listed
from pipette_opt.options.links import Fill, Repeated
from pipette_opt.read.evidence import BothHosts, LinkEvidence, Pair
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.link_matrices import MeasuredMatrix, rates_at_distance
from pipette_opt.read.matrices import gb_text
from pipette_opt.read.measurements import Note
from pipette_opt.read.nvlink_domains import ABOVE_CARD, card_bytes_per_s
from pipette_opt.specs import LinkMatrix

SLOW = 0.5
"""Share of the median bandwidth below which a note names the pair. Chosen."""

CHANGED = 0.1
"""Relative drop of a pair's slowest source below its mean above which a note names the pair. Chosen."""

BELOW_CARD = 100
"""Factor by which a flow must be slower than a NIC for a note to name it. Chosen."""

MIN_USUAL_LATENCY_S, MAX_USUAL_LATENCY_S = 0.1 * US, 1000 * US
"""Range of usual latencies between hosts, seconds; a note names a latency outside. Chosen: NICs have 1 to 50 us."""

_NAMED = 12


def notes_on_reading(evidence: LinkEvidence, only_gpus: int | None) -> list[str]:
    """Return notes on the files that were read."""
    notes = []
    used = Counter(note.text for note in evidence.notes("used"))
    if used:
        notes.append("Read: " + ", ".join(f"{count} x {program}" for program, count in sorted(used.items())) + ".")
    if only_gpus is not None:
        notes.append(f"Only tests with {counted(only_gpus, 'GPU')} a host were used, as asked.")
    notes += _by_text(evidence.notes("method"))
    remarks = []
    for text, about in _by_text(evidence.notes("remark")).items():
        files = [name for name in dict.fromkeys(about) if name]
        remarks.append(f"{listed(files, 1, 'file')}: {text}." if files else f"{text}.")
    notes += first_notes(remarks, _NAMED, "remarks of this kind on other files")
    unused = [f"{note.file}: {note.text}" for note in evidence.notes("unused")]
    notes += first_notes(unused, _NAMED, "files with unused lines")
    return [*notes, *notes_on_skipped(evidence, _NAMED)]


def notes_on_skipped(evidence: LinkEvidence, most: int) -> list[str]:
    """Return notes on files and tests that were not used, one for each reason; of more than ``most``, their names."""
    reasons = list(_by_text(evidence.notes("not used")).items())
    notes = [
        f"{listed(names, 1, 'file')} {'was' if len(names) == 1 else 'were'} not used: {reason}"
        for reason, names in reasons[:most]
    ]
    left = dict.fromkeys(name for _, names in reasons[most:] for name in names)
    if left:
        notes.append(f"Not used, too: {listed(list(left), _NAMED)}.")
    return notes


def _by_text(notes: Iterable[Note]) -> dict[str, list[str]]:
    """Return the tests or files that notes of the same text are about, in the order of the first of them."""
    found: dict[str, list[str]] = {}
    for note in notes:
        found.setdefault(note.text, []).append(note.about or note.file)
    return found


def notes_on_units(matrix: LinkMatrix, hosts: Sequence[str], kinds: Mapping[str, CatalogueEntry]) -> list[str]:
    """Return notes on flows faster, or far slower, than a NIC of their host, usually due to a wrong unit."""
    entries = [kinds.get(host) for host in hosts]
    cards = np.array(
        [
            np.nan if entry is None or entry.usual_host is None else card_bytes_per_s(entry.usual_host)
            for entry in entries
        ]
    )
    in_domain = np.array(
        [entry is not None and entry.usual_domain is not None for entry in entries]
    )  # NVLink between hosts
    rates = matrix.bytes_per_s / matrix.concurrent_flows
    share = rates / cards[:, None]
    notes = []
    for chosen, problem in (
        (
            (share > ABOVE_CARD) & ~in_domain[:, None],
            "above the usual card of its host: is a rate in Gbit/s taken for GB/s?",
        ),
        (
            share < 1 / BELOW_CARD,
            f"more than {BELOW_CARD} times below the usual card of its host: is a rate in GB/s taken for MB/s?",
        ),
    ):
        pairs = np.argwhere(chosen)
        named = [f"{hosts[i]} to {hosts[j]} ({gb_text(float(round(rates[i, j], -7)))})" for i, j in pairs.tolist()]
        notes += [f"Check the units, GB/s of a flow: {listed(named, _NAMED)} is {problem}"] if named else []
    return notes


def notes_on_latency(latency_s: float) -> list[str]:
    """Return notes on a latency between hosts, in seconds, that is unusual, usually due to a wrong unit."""
    if latency_s > MAX_USUAL_LATENCY_S:
        slip = "is it in milliseconds or seconds?"
    elif 0 < latency_s < MIN_USUAL_LATENCY_S:
        slip = "is a number of seconds taken for microseconds?"
    else:
        return []
    return [f"Check the units: a latency of {latency_s / US:,.3g} us between hosts is unusual; {slip}"]


def notes_on_snapshots(evidence: LinkEvidence, repeated: Repeated) -> list[str]:
    """Return notes on differences between sources: hosts that some sources lack, and links that changed."""
    of_source = evidence.hosts_of_snapshots
    if len(of_source) < 2:
        return []
    notes = [f"{len(of_source)} sources, each a moment in time: of a pair's rates the {repeated} counts."]
    everywhere = set.intersection(*of_source.values())
    partial = [host for host in evidence.hosts if host not in everywhere]
    if partial:
        notes.append(f"Not every source has {listed(partial, _NAMED)}.")
    for flows in evidence.flows:
        changed = [
            (worst / mean - 1, pair, mean, worst)
            for pair, (mean, worst) in evidence.changes(flows).items()
            if worst < (1 - CHANGED) * mean
        ]
        if changed:
            changed.sort()
            named = [f"{a} to {b} (mean {mean / GB:.1f}, worst {worst / GB:.1f})" for _, (a, b), mean, worst in changed]
            notes.append(
                f"{counted(flows, 'flow')}: {counted(len(changed), 'link')} had a moment more than "
                f"{100 * CHANGED:.0f} % below the mean, GB/s: {listed(named, _NAMED)}."
            )
    return notes


def notes_on_matrix(
    matrix: MeasuredMatrix,
    failures: Mapping[BothHosts, Mapping[int, str]],
    distance: IntArray | None,
) -> list[str]:
    """Return notes on range, slow pairs and missing pairs of a matrix; by distance if the switches are known."""
    flows, hosts, array = matrix.concurrent_flows, matrix.hosts, matrix.bytes_per_s
    known = array[~np.isnan(array)]
    if not len(known):
        return []
    middle = float(np.median(known))
    notes = [
        f"{counted(flows, 'flow')} at once: median {gb_text(round(middle, -7))} GB/s, "
        f"from {gb_text(round(known.min(), -7))} to {gb_text(round(known.max(), -7))}."
    ]
    if distance is not None:
        notes.append(_note_on_distances(flows, array, distance))
    worst = np.fmin(array, array.T)
    slow = np.argwhere(np.triu(worst < SLOW * middle)).tolist()
    if slow:
        slow.sort(key=lambda pair: worst[tuple(pair)])
        named = listed([f"{hosts[i]} - {hosts[j]} ({worst[i, j] / GB:.1f})" for i, j in slow], _NAMED)
        notes.append(f"{counted(flows, 'flow')}: {len(slow)} pairs attain less than half of the median: {named}.")
    failed = [pair for pair in matrix.missing if frozenset(pair) in failures]
    untested = [pair for pair in matrix.missing if frozenset(pair) not in failures]
    if failed:
        reason = next(iter(failures[frozenset(failed[0])].values()))
        text = _pairs_text(failed, every=True)
        notes.append(f"Missing, {counted(flows, 'flow')}: a test failed between {text} (e.g. {reason}).")
    if untested:
        notes.append(f"Missing, {counted(flows, 'flow')}: no test between {_pairs_text(untested)}.")
    return notes


def note_on_excluded(pairs: Sequence[Pair]) -> str:
    """Return a note on the links that no plan may use."""
    return f"Excluded: no plan will use these {len(pairs)} links, whatever the flows: {_pairs_text(pairs, every=True)}."


def note_on_filled(matrix: MeasuredMatrix, array: FloatArray, fill: Fill) -> str:
    """Return a note on the bandwidths that fill the missing pairs of a matrix."""
    values = array[matrix.is_missing & np.isnan(matrix.bytes_per_s)].tolist()
    given = " to ".join(gb_text(value) for value in sorted({min(values), max(values)}))
    kind = {
        "worst": "the worst measured pair",
        "median": "the median measured pair",
        "switch": "the worst measured pair at the same distance of switches",
        "exclude": "nothing",
    }[fill]
    pairs = _pairs_text(matrix.missing, every=True)
    return f"Filled: {counted(matrix.concurrent_flows, 'flow')} of {pairs} got {kind}, {given} GB/s."


def _note_on_distances(flows: int, array: FloatArray, distance: IntArray) -> str:
    parts = []
    for levels, rates in rates_at_distance(array, distance).items():
        place = {-1: "unknown to the switch list", 0: "under one leaf"}.get(levels, f"{counted(levels, 'level')} up")
        parts.append(f"{place} {float(np.median(rates)) / GB:.2f} ({len(rates)} links)")
    return f"{counted(flows, 'flow')}, median GB/s by switch: {', '.join(parts)}."


def _pairs_text(pairs: Sequence[Pair], *, every: bool = False) -> str:
    return listed([f"{a} - {b}" for a, b in pairs], len(pairs) if every else _NAMED, "pair")
