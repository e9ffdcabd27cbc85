"""
Detection rate of planted slow hosts, and false alarms, on random clusters of 4 to 32 hosts with and without racks.

``python -m benchmarks.link_health`` prints the table of docs/links.md.
"""

import numpy as np

from pipette_opt.read.link_health import find_faults

CLUSTERS = 300
"""Number of random clusters per row. Chosen."""

NOISE, OF_HOST, NEAR = 0.08, 0.02, 1.6
"""Standard deviations of a log bandwidth between pairs, and between hosts; speed-up inside a rack. Chosen."""


def rates_of(rng: np.random.Generator, num_hosts: int, *, racks: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return random bandwidths from host to host, GB/s, and the mask of pairs in one rack as integers."""
    of_host = rng.normal(0.0, OF_HOST, num_hosts)
    rack = np.sort(rng.integers(0, 3, num_hosts)) if racks else np.zeros(num_hosts)
    near = rack[:, None] == rack
    logs = of_host[:, None] + of_host + rng.normal(0.0, NOISE, near.shape) + np.log(NEAR) * near
    rates = 20.0 * np.exp(logs)
    np.fill_diagonal(rates, np.nan)
    return rates, near.astype(int)


def row(share: float | None, *, racks: bool, known: bool) -> tuple[int, int, int]:
    """
    Count detections over all clusters with one host slowed to ``share`` of its bandwidth.

    Returns
    -------
    tuple
        Clusters where the slow host is named; sound hosts that are blamed; number of sound hosts.
    """
    found = blamed = sound = 0
    for seed in range(CLUSTERS):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(4, 33))
        rates, near = rates_of(rng, count, racks=racks)
        bad = -1
        if share is not None:
            bad = int(rng.integers(count))
            rates[bad] *= share
            rates[:, bad] *= share
        names = [str(host) for host in range(count)]
        hosts = {fault.name for fault in find_faults(rates, names, near if known else None).hosts}
        found += str(bad) in hosts
        blamed += len(hosts - {str(bad)})
        sound += count - (share is not None)
    return found, blamed, sound


def main() -> None:
    """Print the table."""
    print("| hosts | fault | found | sound hosts blamed |")
    print("|---|---|---|---|")
    for name, racks, known in (
        ("without racks", False, False),
        ("in three racks of random sizes, known", True, True),
        ("in three racks, not known", True, False),
    ):
        for share in (None, 0.8, 0.7, 0.5):
            found, blamed, sound = row(share, racks=racks, known=known)
            fault = "none" if share is None else f"a host at {share:.0%}"
            hits = "" if share is None else f"{found} of {CLUSTERS}"
            print(f"| {name} | {fault} | {hits} | {blamed} of {sound:,} |")


if __name__ == "__main__":
    main()
