"""Kernels of the flex dispatcher against the times that their authors publish."""

from dataclasses import replace

import pytest
from factories import make_config

from pipette_opt.costs.exchange import least_exchange_s
from pipette_opt.costs.experts import distinct_share, distinct_shares, expert_traffic
from pipette_opt.costs.token_kernels import most_sent_bytes_per_s
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.specs import Instance, TrainingSpec

TOKENS, HIDDEN, TOPK, LOCAL = 4096, 7168, 8, 8
"""Of the published table: for each rank, with random experts."""


def published_job(gpu: str, ranks: int, per_node: int, **training: object) -> Instance:
    """Experts of the published benchmark on hosts of a GPU."""
    model = (
        f"--num-layers 1 --hidden-size {HIDDEN} --num-attention-heads 56 --ffn-hidden-size 2048 --seq-length {TOKENS} "
        f"--max-position-embeddings {TOKENS} --micro-batch-size 1 --global-batch-size {ranks} --bf16 --swiglu "
        f"--num-experts {LOCAL * ranks} --moe-router-topk {TOPK} --moe-token-dispatcher-type flex "
        f"--moe-ffn-hidden-size 2048 --moe-grouped-gemm --vocab-size 1024 --expert-model-parallel-size {ranks}"
    )
    job = read_job(JobOptions(nodes=str(-(-ranks // per_node)), gpu=gpu, gpus_per_node=per_node, launch=model)).instance
    return replace(job, training=replace(job.training, **training))  # type: ignore[arg-type]


def exchange_s(job: Instance, ranks: int, here: int) -> float:
    """One dispatch or combine on hosts with ``here`` ranks of the group each, less NCCL's start."""
    chosen = make_config(tp=1, dp=ranks, expert_model_parallel_size=ranks, sequence_parallel=False)
    shares = distinct_shares(job.model, job.training, chosen)
    part = expert_traffic(job.model, job.training, chosen).sent_bytes / ranks
    most = most_sent_bytes_per_s(job.training)
    hosts = ranks // here
    found = least_exchange_s(job, part, here, hosts, here, shares, hands_on=hosts > 1, most_bytes_per_s=most)
    return found - job.stack.collective_s


def published_s(ranks: int, places: int, gb_per_s: float) -> float:
    """Time behind a published rate: all copies that arrive at ``places`` ranks or hosts, their own ones included."""
    experts = LOCAL * ranks
    copies = TOPK * distinct_share(experts, TOPK, experts // places)
    return TOKENS * HIDDEN * 2 * copies / (gb_per_s * 1e9)


@pytest.mark.parametrize(
    ("gpu", "ranks", "per_node", "kernels", "rates", "within"),
    [
        ("b200", 8, 8, ("hybridep", 16), (734.95, 673.84), 0.10),
        ("b200", 8, 8, ("deepep", 16), (348, 302), 0.10),
        ("b200", 8, 8, ("deepep", 24), (494, 420), 0.10),
        ("gb200", 36, 4, ("hybridep", 16), (612.85, 543.27), 0.10),
        ("gb200", 36, 4, ("hybridep", 32), (632.31, 596.99), 0.15),
        ("h100", 32, 8, ("hybridep", 16), (57.69, 57.46), 0.10),
        ("h100", 64, 8, ("hybridep", 16), (49.97, 49.77), 0.10),
        ("h100", 32, 8, ("deepep", 24), (58, 57), 0.10),
        ("h100", 64, 8, ("deepep", 24), (51, 50), 0.10),
    ],
)
def test_against_published_rates(
    gpu: str, ranks: int, per_node: int, kernels: tuple[str, int], rates: tuple[float, float], within: float
) -> None:
    """Dispatch and combine in bf16 of DeepEP's pages: over NVLink per rank, over NICs per host (tables of H100)."""
    backend, used = kernels
    job = published_job(gpu, ranks, per_node, moe_flex_dispatcher_backend=backend, moe_flex_dispatcher_num_sms=used)
    places = ranks // per_node if gpu == "h100" else ranks
    published = sum(published_s(ranks, places, rate) for rate in rates) / 2
    assert exchange_s(job, ranks, per_node) == pytest.approx(published, rel=within)


def test_multiprocessors_bound_what_is_sent() -> None:
    """DeepEP halves its rate across domains; an all-to-all has no bound of this kind."""
    job = TrainingSpec(global_batch_size=1, seq_length=1)
    assert most_sent_bytes_per_s(job) == (float("inf"), float("inf"))
    deep = replace(job, moe_token_dispatcher_type="flex")
    inside, across = most_sent_bytes_per_s(deep)
    assert inside == 2 * across
    more = most_sent_bytes_per_s(replace(deep, moe_flex_dispatcher_num_sms=40))
    assert more == pytest.approx((2 * inside, 2 * across))
