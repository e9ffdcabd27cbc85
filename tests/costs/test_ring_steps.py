"""What blocks of ring attention cost beside their FLOPs, against hand counts."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.ring_steps import ATTENTION_START_S, ring_steps_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import LayerKind, StackSpec


def _spread(cp: int) -> ParallelConfig:
    return make_config(tp=2, pp=1, dp=1, num_layers=32, context_parallel_size=cp)


def test_by_hand() -> None:
    """
    8,192 tokens a rank, 16 query heads and 4 key heads of 128 on each of two tensor ranks, three further blocks.

    Forward 5 passes over 8192 x 2048 elements of two bytes and 3 over a quarter of that; backward 12 and 7.
    """
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    gpu, rates = job.cluster.gpu_kinds[0], StackSpec(streaming=0.5, kernel_s=1e-6)
    queries = 8192 * 16 * 128 * 2 / (0.5 * gpu.memory_bytes_per_s)
    forward, backward = ring_steps_s(LLAMA_8B, job.training, _spread(4), gpu, rates)
    assert forward == pytest.approx(3 * (ATTENTION_START_S + 1e-6 + (5 + 3 / 4) * queries))
    assert backward == pytest.approx(3 * (ATTENTION_START_S + 4e-6 + (12 + 7 / 4) * queries))


def test_attention_is_its_flops_and_its_blocks() -> None:
    """Attention of a rank falls with its share of the sequence, and each further block adds to it."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    gpu = job.cluster.gpu_kinds[0]
    alone, spread = (
        attention_times_s(LLAMA_8B, job.training, _spread(cp), gpu, StackSpec(kernel_s=0.0), LayerKind())
        for cp in (1, 8)
    )
    further = ring_steps_s(LLAMA_8B, job.training, _spread(8), gpu, StackSpec(kernel_s=0.0))
    start = gpu.efficiency.attention.start_s
    expected = [(one - start) / 8 + start + more for one, more in zip(alone, further, strict=True)]
    assert spread == pytest.approx(expected)
    assert ring_steps_s(LLAMA_8B, job.training, _spread(1), gpu, job.stack) == (0.0, 0.0)


def test_short_blocks_are_dear() -> None:
    """Of 4,096 tokens eight ranks spend more on starting and merging than on the FLOPs of attention; of 131,072 not."""
    dear = []
    for seq_length in (4096, 131072):
        job = make_job(make_cluster(2), LLAMA_8B, seq_length=seq_length)
        gpu = job.cluster.gpu_kinds[0]
        whole = attention_times_s(LLAMA_8B, job.training, _spread(8), gpu, job.stack, LayerKind())
        further = ring_steps_s(LLAMA_8B, job.training, _spread(8), gpu, job.stack)
        dear.append([more > one / 2 for one, more in zip(whole, further, strict=True)])
    assert dear == [[True, True], [False, False]]


def test_the_host_launches_every_block() -> None:
    """A layer that waits for the host takes five launches and a message more for each of three further blocks."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=4096)
    gpu = job.cluster.gpu_kinds[0]
    slow = StackSpec(host_kernel_s=1.0, host_collective_s=0.25)
    alone, spread = (layer_times_s(job, _spread(cp), gpu, slow)[0] for cp in (1, 4))
    assert spread - alone == pytest.approx(3 * (5 * 1.0 + 0.25))


def test_recomputed_attention_merges_again() -> None:
    """Selective recomputation repeats every block of the forward pass."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=4096)
    gpu, plain = job.cluster.gpu_kinds[0], _spread(4)
    again = replace(plain, recompute_granularity="selective")
    more = layer_times_s(job, again, gpu)[1] - layer_times_s(job, plain, gpu)[1]
    assert more == pytest.approx(attention_times_s(LLAMA_8B, job.training, plain, gpu, job.stack, LayerKind())[0])
