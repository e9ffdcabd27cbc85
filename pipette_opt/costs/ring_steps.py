"""
Additional cost of each further block of ring attention, beside its FLOPs.

With ``cp`` context ranks, a rank works on ``cp`` blocks one after the other, Transformer Engine's ``p2p``
(``context_parallel.py``, ``AttnFuncWithCPAndKVP2P``). The first is its own causal block. In each other block, it sees
all queries against half of the keys, or half of the queries against all keys. So the FLOPs stay those of whole
attention over ``cp``.

The blocks have kernels of their own. Each starts anew, reads its queries, keys and values and writes its own output.
The outputs are merged: first the log-sum-exps, then ``out += exp(lse_i - lse) * out_i``. In the backward pass, every
block has the three kernels of fused attention (``dO * O``, the gradients, the cast of ``dQ`` from fp32;
``flash_bwd_launch_template.h`` of FlashAttention 2), and its gradients are added to those of the others.

The constants of this module count reads and writes through memory by the last rank of the ring, which has all queries
in each step; the others wait for it at the next exchange. They are counted from that code, not fitted. Statistics of
the softmax are 1 / 64 of a pass and left out, as are the copies of half of the queries on other ranks.
"""

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import exchange_ranks, micro_batch_tokens

ATTENTION_START_S = 12e-6
"""
Seconds of a fused attention kernel before its FLOPs and its memory traffic: launch, and the ramp-up of its tiles.

Median of the intercepts 17, 12, 9, 11, 13, 14 us of ``start + passes * bytes / bandwidth + FLOPs / rate``, fitted for
SGLang and vLLM on A100, H100 and B200 to 20,258 causal forward kernels of head size 128 that fill half of the chip
(public tables of NVIDIA's AIConfigurator, Apache-2.0; median errors of the form 4 to 7 %).
"""

FORWARD_QUERY_PASSES = 5
"""Forward passes over the queries' size. Counted: query read, part written; merged: two reads, a write."""

FORWARD_KEY_PASSES = 3
"""Forward passes over the keys' size. Counted: half of keys and values copied (a read and a write each), then read."""

BACKWARD_QUERY_PASSES = 12
"""
Backward passes over the queries' size. Counted.

Gradient and output of the preprocessing, 2; fp32 sums of ``dQ`` cleared, 2; query and gradient read, 2; the sums cast,
3; ``dQ`` added to that of the other blocks, 3.
"""

BACKWARD_KEY_PASSES = 7
"""
Backward passes over the keys' size. Counted.

Halves copied, 2; read, 1; their gradients written, 1; and added to the gradients that travel with the keys, 3.
"""

FORWARD_KERNELS = 1
"""Number of kernels that follow the attention kernel of a forward block: the merging. Counted."""

BACKWARD_KERNELS = 4
"""Kernels that follow the attention kernel of a backward block: preprocessing, cast, two additions. Counted."""

EXCHANGED_PASSES = 4
"""
Passes over each tensor that goes through an all-to-all. Counted.

Parts are put side by side before it, and tokens in order after it, a read and a write each
(``flash_attn_a2a_communicate``).
"""

GATHERED_PASSES = (2, 6)
"""
Passes over gathered keys and values, forward and backward. Counted.

They are put in order, a read and a write, in both passes. In the backward pass, gradients of equal size are cleared and
put in order (``AttnFuncWithCPAndKVAllGather``).
"""

HOST_KERNELS = 5
"""Number of kernels that the host launches for a forward block: attention, two copies, two that merge. Counted."""


def ring_steps(training: TrainingSpec, config: ParallelConfig) -> int:
    """
    Return the number of attention blocks after the first one.

    With ``p2p``, each follows a message of the ring. With gathered keys, one block follows: the later part of the
    sequence. After an all-to-all, a rank has a few heads of the whole sequence, in one block.
    """
    blocks = config.context_parallel_size // exchange_ranks(training, config)
    return min(blocks - 1, 1) if training.cp_comm_type == "all_gather" else blocks - 1


def ring_steps_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """Return seconds of a layer's further blocks, or of its exchange, beside FLOPs, forward and backward."""
    tp = config.tensor_model_parallel_size
    one_pass = (
        micro_batch_tokens(training, config) * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    )
    queries = one_pass * (model.query_projection_size + model.attention_output_size) / 2 / tp
    keys = one_pass * max(model.kv_projection_size / tp, model.kv_head_size)
    steps = ring_steps(training, config)
    if steps and training.cp_comm_type == "all_gather":
        starts, gathered = steps * ATTENTION_START_S, config.context_parallel_size * keys
        return starts + GATHERED_PASSES[0] * gathered, starts + GATHERED_PASSES[1] * gathered
    forward = FORWARD_QUERY_PASSES * queries + FORWARD_KEY_PASSES * keys + FORWARD_KERNELS * rates.kernel_s
    backward = BACKWARD_QUERY_PASSES * queries + BACKWARD_KEY_PASSES * keys + BACKWARD_KERNELS * rates.kernel_s
    moved = EXCHANGED_PASSES * (2 * queries + keys) if exchange_ranks(training, config) > 1 else 0.0
    return moved + steps * (ATTENTION_START_S + forward), moved + steps * (ATTENTION_START_S + backward)
