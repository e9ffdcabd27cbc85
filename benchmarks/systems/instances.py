"""Jobs on generated clusters of at most sixteen hosts: sizes, links and GPUs rotate, the rest is random by seed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.placement.clusters import GENERATED, cluster_of, link_gb_per_s
from pipette_opt.read.gpus import read_gpu
from pipette_opt.read.model import read_model
from pipette_opt.specs import Instance, TrainingSpec
from pipette_opt.specs.model_gaps import not_modelled_of

SIZES = (2, 4, 8, 16, 3, 8, 4, 16, 6, 2, 12, 8)
"""Numbers of hosts, which rotate."""

PATTERNS = tuple(name for name in GENERATED if name != "spares")
"""Link patterns, which rotate; see :data:`~benchmarks.placement.clusters.GENERATED`."""

KINDS = (("a100-80gb",), ("h100-80gb",), ("a100-40gb", "a100-80gb"), ("a100-80gb",))
"""GPU types, which rotate; of several types, hosts have them alternately."""

MODELS = {
    2: ("gpt-3-6.7b", "llama-2-7b", "llama-3-8b"),
    4: ("llama-2-13b", "gpt-neox-20b", "megatron-18b"),
    8: ("qwen3-32b", "megatron-39b", "mixtral-8x7b"),
    12: ("llama-2-70b", "megatron-76b", "llama-3-70b"),
}
"""Models by the smallest number of hosts that runs them."""

BATCHES, LENGTHS = (64, 128, 256, 512), (2048, 4096)

FLOWS = 8
"""
Number of flows that reach a pattern's bandwidth together: 20 to 25 GB/s between two hosts are a NIC of 200 Gbit/s.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SystemsCase:
    """Job with its name, such as ``8 tree a100-80gb llama-2-13b``."""

    name: str
    instance: Instance


def cases(count: int, seed: int, most_hosts: int = 16) -> Iterator[SystemsCase]:
    """
    Yield the first ``count`` jobs of a seed; a larger count begins with the same jobs.

    Parameters
    ----------
    most_hosts
        Maximum number of hosts; larger jobs are left out.
    """
    for number in range(count):
        random = np.random.default_rng((seed, number))
        hosts, pattern = SIZES[number % len(SIZES)], PATTERNS[number % len(PATTERNS)]
        kinds = KINDS[number % len(KINDS)]
        model = str(random.choice(MODELS[max(least for least in MODELS if least <= hosts or least == 2)]))
        spec = read_model(model)
        batch = int(random.choice(BATCHES))
        length = min(int(random.choice(LENGTHS)), spec.max_position_embeddings)
        if hosts > most_hosts:
            continue
        cluster = cluster_of(link_gb_per_s(pattern, hosts, seed * 1000 + number), FLOWS, kinds[0])
        gpus = [read_gpu(kinds[host % len(kinds)]) for host in range(hosts)]
        nodes = tuple(replace(node, gpu=gpu) for node, gpu in zip(cluster.nodes, gpus, strict=True))
        training = TrainingSpec(global_batch_size=batch, seq_length=length)
        yield SystemsCase(
            name=f"{hosts} hosts, {pattern}, {'+'.join(kinds)}, {model}, batch {batch} x {length}",
            instance=Instance(
                model=spec,
                cluster=replace(cluster, name=pattern, nodes=nodes),
                training=training,
                not_modelled=not_modelled_of(spec, training),
            ),
        )
