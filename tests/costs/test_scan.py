"""Times of layers with a state: by hand, and how they follow tensor parallelism and the sequence."""

from dataclasses import replace

import pytest
from factories import make_cluster, make_config, make_job

from pipette_opt.candidates.legality import check_legal
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.context import inside_layer_s
from pipette_opt.costs.scan import SCAN_BACKWARD, SCAN_SHARE, scan_times_s
from pipette_opt.layers.recurrent import SCAN_KERNELS
from pipette_opt.read.gpus import read_gpu
from pipette_opt.read.model import read_model
from pipette_opt.specs import DEFAULT_STACK, LayerKind, TrainingSpec

HYBRID, NEXT, H100 = read_model("nemotron-h-8b"), read_model("qwen3-next-80b-a3b"), read_gpu("h100-80gb")
TRAINING = TrainingSpec(global_batch_size=8, seq_length=8192)
MAMBA, ATTENTION, MLP = LayerKind("mamba", "none"), LayerKind("attention", "none"), LayerKind("none", "dense")


def test_scan_of_mamba_by_hand() -> None:
    """8,192 tokens, 128 heads of 64 channels, states of 128 in 8 groups, chunks of 128 tokens."""
    rates, one = replace(DEFAULT_STACK, kernel_s=1e-6), make_config(num_layers=52)
    forward, backward = scan_times_s(HYBRID, TRAINING, one, H100, rates, MAMBA)
    flops = 2 * 128 * (8 * 128 + 8192) + 4 * 128 * 8192
    moved = 2 * (2 * 8192 + 2 * 8 * 128) + 3 * 4 * 8192 * 128 / 128
    scan = flops / H100.peak_flops["bf16"] + moved / H100.memory_bytes_per_s
    streamed = 2 / (H100.memory_bytes_per_s * rates.streaming)
    assert forward == pytest.approx(
        8192 * (scan / SCAN_SHARE + streamed * (2 * (8192 + 2 * 1024) + 3 * 8192)) + SCAN_KERNELS * 1e-6
    )
    assert backward > (SCAN_BACKWARD - 1) * forward
    split = scan_times_s(HYBRID, TRAINING, make_config(tp=4, num_layers=52), H100, rates, MAMBA)
    assert (split[0] - SCAN_KERNELS * 1e-6) * 4 == pytest.approx(forward - SCAN_KERNELS * 1e-6)
    assert scan_times_s(HYBRID, TRAINING, one, H100, rates, ATTENTION) == (0.0, 0.0)


def test_branches_add_up_to_a_layer() -> None:
    """Attention alone and an MLP alone take what a layer of both takes, as all their parts are counted once."""
    job = make_job(make_cluster(1), HYBRID, seq_length=8192)
    gpu, one = job.cluster.gpu_kinds[0], make_config(num_layers=52)
    both = layer_times_s(job, one, gpu, kind=LayerKind("attention", "dense"))
    apart = [layer_times_s(job, one, gpu, kind=kind) for kind in (ATTENTION, MLP)]
    for way in (0, 1):
        assert apart[0][way] + apart[1][way] == pytest.approx(both[way], rel=0.02)
    spread = make_config(tp=2, dp=4, num_layers=52)
    sent = [inside_layer_s(job, spread, (0.0, 0.0), kind, [0]) for kind in (LayerKind(), ATTENTION, MLP, MAMBA)]
    assert sent[1] == sent[2] == sent[3]
    assert sent[1][0] + sent[2][0] == pytest.approx(sent[0][0])


def test_mamba_is_faster_than_attention_over_long_sequences_only() -> None:
    """Its time grows with the tokens, that of attention with their square."""
    gpu, one, ratios = H100, make_config(num_layers=52), []
    for length in (2048, 32768):
        job = make_job(make_cluster(1, kinds=(gpu,)), HYBRID, seq_length=length)
        times = [sum(layer_times_s(job, one, gpu, kind=kind)) for kind in (MAMBA, ATTENTION)]
        ratios.append(times[0] / times[1])
    assert ratios[0] > 1 > ratios[1]


@pytest.mark.parametrize(("tp", "fine"), [(8, True), (16, False)])
def test_heads_are_split_evenly(tp: int, fine: bool) -> None:
    """Eight groups go to eight tensor ranks, not to sixteen; 16 heads of keys to sixteen, if attention had as many."""
    found = check_legal(HYBRID, TRAINING, make_config(tp=tp, dp=1, num_layers=52))
    assert any("mamba.num_groups=8 is no multiple" in one for one in found) is not fine
    odd = replace(NEXT, gated_delta_net=replace(NEXT.gated_delta_net, num_key_heads=4))  # type: ignore[type-var]
    reasons = check_legal(odd, TRAINING, make_config(tp=tp, dp=1, num_layers=48))
    assert any("gated_delta_net.num_key_heads=4 is no multiple" in one for one in reasons)


def test_sequences_of_layers_with_a_state_are_not_spread() -> None:
    """Context parallelism is refused by name."""
    one = make_config(tp=1, dp=4, num_layers=52, context_parallel_size=2)
    assert any("with mamba is not modelled" in reason for reason in check_legal(HYBRID, TRAINING, one))
