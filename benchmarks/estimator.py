"""
Run time of an estimate: ``python -m benchmarks.estimator [--example lab-16x8] [--placements 10000] [--out PAGE]``.

The first table is the critical path of 1,024 GPUs (16 stages, 64 different replicas) and 512 micro-batches. Its
schedule is known from an earlier call (warm) or not (new schedule). The second table is the whole estimate of such a
job, on random links between 128 hosts. The third line is whole estimates of an example's candidates on random orders of
its hosts: one by one, and all in one call. Times are milliseconds of the clock and, in brackets, of the processor; the
best of several runs.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.page import made_by, option, run_page
from pipette_opt.base.types import P2PMode
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.read.example import read_example
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.program import megatron_program
from pipette_opt.specs import Instance, LinkMatrix

MODES: tuple[P2PMode, ...] = ("blocking", "async")


def random_times(
    rng: np.random.Generator,
    stages: tuple[float, float],
    link: float,
    num_stages: int,
    *,
    chunks: int = 1,
    replicas: int,
) -> PlacedTimes:
    """
    Return the times of ``replicas`` random pipelines of ``num_stages`` stages, as one job.

    Parameters
    ----------
    stages
        Range of a stage's forward and backward pass, relative to the mean.
    link
        Maximum time of a transfer, in the unit of ``stages``.
    chunks
        Model chunks of each stage.
    """
    work = rng.uniform(*stages, (chunks, num_stages, replicas)) / chunks
    ratio = rng.uniform(1.9, 2.1, work.shape)
    send = rng.uniform(0, link, (num_stages, replicas))
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


def example_instance(name: str, p2p: P2PMode) -> Instance:
    """Return a shipped example as an instance."""
    example = read_example(name)
    return Instance(model=example.model, cluster=example.cluster, training=example.training, p2p=p2p)


def best_ms(work: Callable[[], object], runs: int = 7) -> tuple[float, float]:
    """
    Return the milliseconds of the shortest of several runs: by the clock, and of the processor.

    Other programs do not change the processor's time.
    """
    wall, processor = [], []
    for _ in range(runs):
        start, worked = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - worked)
    return 1e3 * min(wall), 1e3 * min(processor)


def critical_paths() -> None:
    """Print the times of critical paths of 1,024 GPUs and 512 micro-batches."""
    rng = np.random.default_rng(0)
    print("critical path of 16 stages x 64 replicas x 512 micro-batches")
    for chunks in (1, 2, 4):
        times = random_times(rng, (0.97, 1.03), 0.1, 16, chunks=chunks, replicas=64)
        for p2p in MODES:
            warm = best_ms(lambda: critical_path(times, 512, p2p))  # noqa: B023

            def new() -> None:
                megatron_program.cache_clear()
                critical_path(times, 512, p2p)  # noqa: B023

            fresh = best_ms(new)
            print(
                f"  {chunks} chunks, {p2p:9} warm {warm[0]:8.2f} ms ({warm[1]:.2f})    new schedule {fresh[0]:8.2f} ms "
                f"({fresh[1]:.2f})"
            )


def whole_plans() -> None:
    """Print the times of whole estimates of 1,024 GPUs on 128 hosts with 512 micro-batches."""
    rng = np.random.default_rng(0)
    example = example_instance("lab-16x8", "blocking")
    cluster = replace(
        example.cluster,
        nodes=tuple(replace(example.cluster.nodes[0], host=f"n{index}") for index in range(128)),
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=rng.uniform(5e9, 25e9, (128, 128))),),
    )
    training = replace(example.training, global_batch_size=512 * 8)
    instance = replace(example, cluster=cluster, training=training)
    layers = instance.model.num_layers
    print(f"whole estimate of 128 hosts, tp 8 x pp 16 x dp 8, 512 micro-batches, {instance.model.name}")
    for chunks, overlap in ((1, False), (1, True), (5, False)):
        config = ParallelConfig(
            tensor_model_parallel_size=8,
            pipeline_model_parallel_size=16,
            data_parallel_size=8,
            micro_batch_size=1,
            layers_per_stage=(layers // 16,) * 16,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            sequence_parallel=True,
            use_distributed_optimizer=True,
            overlap_grad_reduce=overlap,
            overlap_param_gather=overlap,
        )
        placement = identity_placement(config, 8, rng.permutation(128), "tp-cp-ep-dp-pp")
        warm = best_ms(lambda: estimate(instance, config, placement))  # noqa: B023

        def new() -> None:
            megatron_program.cache_clear()
            estimate(instance, config, placement)  # noqa: B023

        fresh, beside = best_ms(new), ", overlapped" if overlap else ""
        print(
            f"  {chunks} chunks{beside:12} warm {warm[0]:8.2f} ms ({warm[1]:.2f})    new schedule {fresh[0]:8.2f} ms "
            f"({fresh[1]:.2f})"
        )


def random_placements(instance: Instance, count: int) -> list[tuple[ParallelConfig, Placement]]:
    """Return ``count`` random candidates, each on a random order of the hosts."""
    rng = np.random.default_rng(0)
    cluster = instance.cluster
    gpus = cluster.gpus_per_node
    candidates = enumerate_candidates(
        instance, SearchSpace(num_gpus=cluster.num_nodes * gpus, context_parallel=(1,), overlap_grad_reduce=False)
    )
    chosen = [candidates[int(rng.integers(len(candidates)))] for _ in range(count)]
    return [
        (config, identity_placement(config, gpus, rng.permutation(cluster.num_nodes), "tp-cp-ep-dp-pp"))
        for config in chosen
    ]


def estimates(name: str, count: int) -> None:
    """Print the times of an example's estimates, one by one and all in one call."""
    instance = example_instance(name, "blocking")
    placed = random_placements(instance, count)
    sample = placed[: min(count, 200)]
    for config, placement in sample:
        estimate(instance, config, placement)  # compiles and learns the schedules
    single = [ms / len(sample) for ms in best_ms(lambda: [estimate(instance, *pair) for pair in sample], 3)]
    estimate_many(instance, sample)
    many = best_ms(lambda: estimate_many(instance, placed), 5)
    configs = len({config for config, _ in placed})
    print(
        f"{name}: one estimate {single[0]:.2f} ms ({single[1]:.2f}); {count} estimates of {configs} configurations "
        f"{many[0]:.0f} ms ({many[1]:.0f}), {many[1] / count:.3f} ms each"
    )


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page with the times."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        critical_paths()
        whole_plans()
        estimates(given.example, given.placements)
    explanation = str(__doc__).split("\n", 2)[2].strip()
    busy = "One thread; if the load is above one, the processor's time counts."
    yield f"# What an estimate costs\n\n{made_by()} {busy}\n\n{explanation}\n\n```\n{text.getvalue()}```\n"


OPTIONS = (option("--example", default="lab-16x8"), option("--placements", type=int, default=10_000))


if __name__ == "__main__":
    run_page(make, *OPTIONS)
