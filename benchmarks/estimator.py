"""
What an estimate costs: ``python benchmarks/estimator.py [--example lab-16x8] [--placements 10000]``.

First the critical path of 1,024 GPUs (16 stages, 64 replicas that all differ) and 512 micro-batches, with the schedule
known from an earlier call (warm) and not (new schedule); then whole estimates of an example's candidates on random
orders of its hosts: one by one, and all at once. Milliseconds, the best of several runs.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from closed_form import example_instance, random_times

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.estimator import critical_path, estimate
from pipette_opt.estimator.critical_path import megatron_program
from pipette_opt.estimator.many import estimate_many
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.specs import Instance
from pipette_opt.types import P2PMode

MODES: tuple[P2PMode, ...] = ("blocking", "async")


def best_ms(work: Callable[[], object], runs: int = 7) -> float:
    """Shortest of several runs."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds)


def critical_paths() -> None:
    """1,024 GPUs and 512 micro-batches."""
    rng = np.random.default_rng(0)
    print("critical path of 16 stages x 64 replicas x 512 micro-batches")
    for chunks in (1, 2, 4):
        times = random_times(rng, (0.97, 1.03), 0.1, 16, chunks=chunks, replicas=64)
        for p2p in MODES:
            warm = best_ms(lambda: critical_path(times, 512, p2p))  # noqa: B023

            def new() -> None:
                megatron_program.cache_clear()
                critical_path(times, 512, p2p)  # noqa: B023

            print(f"  {chunks} chunks, {p2p:9} warm {warm:8.2f} ms    new schedule {best_ms(new):8.2f} ms")


def random_placements(instance: Instance, count: int) -> list[tuple[ParallelConfig, Placement]]:
    """Random candidates on random orders of the hosts."""
    rng = np.random.default_rng(0)
    cluster = instance.cluster
    gpus = cluster.gpus_per_node
    candidates = enumerate_candidates(instance, SearchSpace(num_gpus=cluster.num_nodes * gpus))
    chosen = [candidates[int(rng.integers(len(candidates)))] for _ in range(count)]
    return [
        (config, identity_placement(config, gpus, rng.permutation(cluster.num_nodes), "tp-cp-ep-dp-pp"))
        for config in chosen
    ]


def estimates(name: str, count: int) -> None:
    """One by one, and all at once."""
    instance = example_instance(name, "blocking")
    placed = random_placements(instance, count)
    some = placed[: min(count, 200)]
    for one in some:
        estimate(instance, *one)  # compiles and learns the schedules
    single = best_ms(lambda: [estimate(instance, *one) for one in some], 3) / len(some)
    estimate_many(instance, some)
    many = best_ms(lambda: estimate_many(instance, placed), 3)
    print(f"{name}: one estimate {single:.2f} ms, {count} estimates {many:.0f} ms ({many / count:.3f} ms each)")


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--example", default="lab-16x8")
    parser.add_argument("--placements", type=int, default=10_000)
    arguments = parser.parse_args()
    critical_paths()
    estimates(arguments.example, arguments.placements)


if __name__ == "__main__":
    main()
