"""Small specifications with round numbers, for tests of every part."""

import numpy as np

from pipette_opt.base.units import GB, GIB, TFLOP
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec

A100_80 = GpuSpec(
    name="a100-80gb",
    memory_bytes=80 * GIB,
    peak_flops={"bf16": 312 * TFLOP, "fp16": 312 * TFLOP, "fp32": 19.5 * TFLOP},
    memory_bytes_per_s=2.0e12,
)
A100_40 = GpuSpec(
    name="a100-40gb",
    memory_bytes=40 * GIB,
    peak_flops={"bf16": 312 * TFLOP, "fp16": 312 * TFLOP, "fp32": 19.5 * TFLOP},
    memory_bytes_per_s=1.5e12,
)

TINY = ModelSpec(
    name="tiny",
    num_layers=8,
    hidden_size=1024,
    ffn_hidden_size=4096,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=64,
    vocab_size=50257,
    max_position_embeddings=2048,
)

LLAMA_8B = ModelSpec(
    name="llama",
    num_layers=32,
    hidden_size=4096,
    ffn_hidden_size=14336,
    num_attention_heads=32,
    num_query_groups=8,
    kv_channels=128,
    vocab_size=128256,
    max_position_embeddings=8192,
    gated_linear_unit=True,
    untie_embeddings_and_output_weights=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
    rotary_base=500000,
    rope_scaling_factor=8.0,
)


def matrix(values: np.ndarray | float, num_nodes: int, concurrent_flows: int = 1) -> LinkMatrix:
    """A link matrix from GB/s."""
    return LinkMatrix(
        concurrent_flows=concurrent_flows,
        bytes_per_s=np.broadcast_to(np.asarray(values, dtype=float) * GB, (num_nodes, num_nodes)),
    )


def cluster(
    num_nodes: int,
    values: np.ndarray | float = 20.0,
    *,
    gpus: int = 8,
    kinds: tuple[GpuSpec, ...] = (A100_80,),
    **options: object,
) -> ClusterSpec:
    """A cluster with hosts n0, n1, ..., kinds dealt out in turn."""
    settings: dict[str, object] = {
        "name": "test",
        "nodes": tuple(NodeSpec(host=f"n{i}", gpu=kinds[i % len(kinds)], num_gpus=gpus) for i in range(num_nodes)),
        "intra_node_bytes_per_s": 200.0 * GB,
        "link_matrices": (matrix(values, num_nodes),) if num_nodes > 1 else (),
        "nics_per_node": 8,
    }
    return ClusterSpec(**{**settings, **options})  # type: ignore[arg-type]


def random_cluster(rng: np.random.Generator, num_nodes: int, **options: object) -> ClusterSpec:
    """A cluster with directed links between 5 and 25 GB/s."""
    return cluster(num_nodes, rng.uniform(5.0, 25.0, (num_nodes, num_nodes)), **options)  # type: ignore[arg-type]


def config(
    tp: int = 1, pp: int = 1, dp: int = 1, mbs: int = 1, num_layers: int = 8, **options: object
) -> ParallelConfig:
    """An even configuration of a model with ``num_layers``."""
    settings: dict[str, object] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "micro_batch_size": mbs,
        "layers_per_stage": (num_layers // pp,) * pp,
    }
    return ParallelConfig(**{**settings, **options})  # type: ignore[arg-type]


def instance(
    spec: ClusterSpec, model: ModelSpec = TINY, global_batch_size: int = 64, seq_length: int = 1024, **options: object
) -> Instance:
    """An instance of a model on a cluster."""
    return Instance(
        model=model,
        cluster=spec,
        training=TrainingSpec(global_batch_size=global_batch_size, seq_length=seq_length),
        **options,  # type: ignore[arg-type]
    )
