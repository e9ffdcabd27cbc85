"""
How far the closed forms are from the critical path, by case: ``python benchmarks/closed_form.py [--pipelines N]``.

Each case is N random pipelines of 2 to 16 stages; backward is about twice forward; a transfer is up to a tenth of a
forward and backward of an average stage, or up to half of it with slow links; the two directions of a link differ by
up to 25 %. Percent of the critical path's time without reduction and optimizer: ``upper`` above it, ``lower`` below it,
mean and worst; ``plain``: pipelines whose time exceeds the plain form, round trip plus ``m - 1`` periods.
"""

import argparse
from itertools import product

import numpy as np

from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.estimator.closed_form import finish_lower_s, finish_upper_s, period_s
from pipette_opt.estimator.critical_path import critical_path
from pipette_opt.types import FloatArray, P2PMode

STAGES = {"nearly equal": (0.97, 1.03), "30 % apart": (0.85, 1.15), "fivefold": (0.33, 1.67)}
LINKS = {"fast links": 0.1, "slow links": 0.5}
MICROBATCHES = {"m = pp": 1, "m = 4 pp": 4, "m = 16 pp": 16}
MODES: tuple[P2PMode, ...] = ("blocking", "async")
REPLICAS = 20


def random_times(rng: np.random.Generator, stages: tuple[float, float], link: float, num_stages: int) -> PlacedTimes:
    """One batch of pipelines of ``num_stages`` stages, as replicas."""
    work = rng.uniform(*stages, (1, num_stages, REPLICAS))
    ratio = rng.uniform(1.9, 2.1, work.shape)
    send = rng.uniform(0, link, (num_stages, REPLICAS))
    return PlacedTimes(
        forward_s=work / (1 + ratio),
        backward_s=work * ratio / (1 + ratio),
        tensor_forward_s=np.zeros_like(work),
        tensor_backward_s=np.zeros_like(work),
        send_forward_s=send,
        send_backward_s=send * rng.uniform(0.8, 1.25, send.shape),
        reduction_s=np.zeros(num_stages),
        optimizer_s=0.0,
    )


def plain_form(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """Round trip plus ``m - 1`` periods of each replica."""
    up, down = times.send_forward_s[:-1], times.send_backward_s[:-1]
    transfers = 2 * np.maximum(up, down) if p2p == "blocking" else up + down
    form: FloatArray = (times.forward_s + times.backward_s)[0].sum(axis=0) + transfers.sum(axis=0)
    return form + (num_microbatches - 1) * period_s(times, p2p)


def gaps(
    rng: np.random.Generator, stages: tuple[float, float], link: float, groups: int, p2p: P2PMode, pipelines: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Upper above, lower below and plain above the critical path, as fractions of it."""
    rows = []
    for _ in range(-(-pipelines // REPLICAS)):
        num_stages = int(rng.integers(2, 17))
        times, m = random_times(rng, stages, link, num_stages), groups * num_stages
        exact = critical_path(times, m, p2p)[0]
        forms = finish_upper_s(times, m, p2p)[0], finish_lower_s(times, m, p2p)[0], plain_form(times, m, p2p)
        rows.append([form / exact - 1 for form in forms])
    upper, lower, plain = np.concatenate(rows, axis=1)
    return upper, -lower, plain


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--pipelines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    print(f"{'stages':14}{'links':12}{'micro-b.':11}{'sends':10}{'upper % mean, worst':>21}{'lower %':>15}{'plain':>8}")
    for (stages, link), (groups, p2p) in product(product(STAGES, LINKS), product(MICROBATCHES, MODES)):
        upper, lower, plain = gaps(rng, STAGES[stages], LINKS[link], MICROBATCHES[groups], p2p, arguments.pipelines)
        broken = int((plain < -1e-9).sum())
        print(
            f"{stages:14}{link:12}{groups:11}{p2p:10}{100 * upper.mean():14.1f}{100 * upper.max():7.1f}"
            f"{100 * lower.mean():8.1f}{100 * lower.max():7.1f}{broken:8d}"
        )


if __name__ == "__main__":
    main()
