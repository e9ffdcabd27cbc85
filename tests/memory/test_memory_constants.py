"""Constants of a stack: what they weigh by hand, and what files may say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import kept_in_file

from pipette_opt.base.units import GIB
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
from pipette_opt.memory.regressors import config_groups
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.memory_constants import NEEDED, REGRESSORS, SHOWN, LateBuffers, MemoryConstants, needed

MODEL = ModelSpec(
    name="small-llama",
    num_layers=8,
    hidden_size=1024,
    ffn_hidden_size=4096,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=64,
    vocab_size=32768,
    max_position_embeddings=2048,
    gated_linear_unit=True,
    untie_embeddings_and_output_weights=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
)
TRAINING = TrainingSpec(global_batch_size=64, seq_length=2048)
CONFIG = ParallelConfig(
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=2,
    data_parallel_size=4,
    micro_batch_size=2,
    layers_per_stage=(4, 4),
    sequence_parallel=True,
)


LATE = LateBuffers(
    busy_multiply_adds=4.5e11,
    busy_by_tensor=0.7,
    busy_by_pipeline=-2.0,
    busy_width=0.25,
    pile_layers=4.0,
    step_fits=1.4,
    wire_tokens=8192,
)


def regressors(
    config: ParallelConfig = CONFIG,
    training: TrainingSpec = TRAINING,
    moment: int = 0,
    late: LateBuffers | None = None,
    gpus_per_node: int = 8,
) -> dict[str, np.ndarray]:
    """GiB of one unit of each constant, by stage: while passes run, or in the optimizer step."""
    predictor = MemoryPredictor.load(memory_constants=MemoryConstants(late_buffers=late))
    table = predictor.regressors(MODEL, training, [config], gpus_per_node=gpus_per_node)
    return dict(zip(REGRESSORS, table[moment].T, strict=True))


def test_units_weigh_what_they_say() -> None:
    """
    By hand: stage 0 has 4 layers of (4 h^2 + 3 h f + norms) and the table, split over two ranks.

    4 * 1024^2 + 3 * 1024 * 4096 = 16777216 a layer; a gathered micro-batch is 4096 tokens * 1024 * 2 bytes.
    """
    found = regressors()
    parameters = 4 * (16777216 / 2 + 2 * 1024) + 32768 * 1024 / 2
    assert found["parameter_bytes"][0] * GIB == pytest.approx(parameters)
    assert found["gradient_copy_bytes"][0] * GIB == pytest.approx(parameters)
    assert found["step_bytes"].tolist() == [0.0, 0.0]
    assert found["gathered_per_layer"].tolist() == pytest.approx([8 * 4096 * 2048 / GIB, 4 * 4096 * 2048 / GIB])
    # Query, keys and values have 512 elements a token and rank each.
    assert found["attention_copies"].tolist() == pytest.approx([8 * 2 * 4096 * 1536 / GIB, 4 * 2 * 4096 * 1536 / GIB])
    assert found["run_ahead_buffers"].tolist() == [0.0, 0.0]
    assert found["table_bytes"].tolist() == pytest.approx([32768 * 1024 / 2 / GIB, 0.0])
    assert found["logit_bytes"].tolist() == pytest.approx([0.0, 4096 * 32768 / 2 / GIB])
    assert found["whole_logit_bytes"].tolist() == pytest.approx([0.0, 4096 * 32768 / GIB])
    assert regressors(replace(CONFIG, tensor_model_parallel_size=1))["whole_logit_bytes"].tolist() == [0.0, 0.0]
    assert found["norm_bytes"].tolist() == [0.0, 0.0]
    assert found["base_gib"].tolist() == [1.0, 1.0]


def test_sharded_optimizer_swaps_copies_for_the_step() -> None:
    """With it, what the step leaves counts; without it, the second copy of gradients, if anyone is there to share."""
    sharded = regressors(replace(CONFIG, use_distributed_optimizer=True))
    assert sharded["gradient_copy_bytes"].tolist() == [0.0, 0.0]
    assert (sharded["step_bytes"] > 0).all()
    alone = regressors(replace(CONFIG, data_parallel_size=1))
    assert alone["gradient_copy_bytes"].tolist() == [0.0, 0.0]


def test_logits_have_spare_room_without_a_pipeline() -> None:
    """4096 tokens of half a vocabulary of 32768; the last stage of a pipeline needs what shows."""
    single = regressors(replace(CONFIG, pipeline_model_parallel_size=1, layers_per_stage=(8,)))
    assert single["loss_spare_bytes"].tolist() == single["logit_bytes"].tolist() == [4096 * 32768 / 2 / GIB]
    assert regressors()["logit_bytes"][1] > 0
    assert regressors()["loss_spare_bytes"].tolist() == [0.0, 0.0]


def test_unfused_norms_and_recomputation() -> None:
    """Unfused norms weigh two inputs a layer and pass; with recomputed layers none."""
    unfused = replace(TRAINING, fused_norm=False)
    assert regressors(training=unfused)["norm_bytes"][1] * GIB == pytest.approx(2 * 4 * 2048 * 1024)
    full = {"recompute_granularity": "full"}
    for fields in (full, {"recompute_granularity": "selective", "recompute_modules": ("ops",)}):
        recomputed = regressors(replace(CONFIG, **fields), unfused)
        assert recomputed["norm_bytes"].tolist() == recomputed["attention_copies"].tolist() == [0.0, 0.0]


def test_the_step_has_no_activations() -> None:
    """A row of its own: 6 bytes a parameter, 12 / 4 of state, and what a sharded step works with; nothing of passes."""
    step = regressors(replace(CONFIG, use_distributed_optimizer=True), moment=1)
    size = step["parameter_bytes"]
    assert step["counted"] == pytest.approx(9 * size)
    assert step["step_state_bytes"] == pytest.approx(size)
    assert not any(step[name].any() for name in ("activations", "logit_bytes", "run_ahead_buffers", "table_bytes"))
    assert not regressors(moment=1)["step_state_bytes"].any()


def test_copies_of_the_step_are_of_owned_parameters() -> None:
    """Four replicas share the optimizer's work of ZeRO 1; without it none is shared. On the host it takes no room."""
    size = regressors(moment=1)["parameter_bytes"]
    sharded = replace(CONFIG, use_distributed_optimizer=True)
    assert regressors(moment=1)["step_copy_bytes"] == pytest.approx(size)
    assert regressors(sharded, moment=1)["step_copy_bytes"] == pytest.approx(size / 4)
    assert not regressors(sharded)["step_copy_bytes"].any()
    offloaded = replace(TRAINING, optimizer_offload_fraction=1.0)
    assert not regressors(training=offloaded, moment=1)["step_copy_bytes"].any()


def test_a_loss_in_chunks_has_a_part_of_the_logits() -> None:
    """By hand: 4096 tokens of half a vocabulary of 32768, an eighth of them at once."""
    chunks = regressors(training=replace(TRAINING, loss_chunks=8))
    assert chunks["logit_bytes"].tolist() == pytest.approx([0.0, 4096 / 8 * 32768 / 2 / GIB])


def test_narrow_gradients_save_only_what_a_rank_holds() -> None:
    """Under ZeRO-3, four replicas share the gradients; whole ones exist only of a gathered layer and the table."""
    size = regressors()["parameter_bytes"]
    shared = regressors(replace(CONFIG, use_distributed_optimizer=True, zero_stage=3))["parameter_bytes"]
    unit = (16777216 / 2 + 2 * 1024 + 32768 * 1024 / 2) / GIB
    assert shared == pytest.approx(size / 4 + unit, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "of_shard", "of_unit"),
    [
        ({}, 2, 2),
        ({"accumulate_allreduce_grads_in_fp32": False}, 0, 0),
        ({"precision": "fp32"}, 0, 0),
    ],
)
def test_fp32_shards_have_16_bytes(changes: dict[str, Any], of_shard: int, of_unit: int) -> None:
    """
    By hand: 4 of weights, 4 of gradients and 8 of moments, whatever is counted; nothing without ZeRO 3.

    Counted are 18 bytes, 16 with 16-bit gradients, and 16 in fp32. Gathered gradients are as wide as gathered weights.
    """
    training, config = replace(TRAINING, **changes), replace(CONFIG, use_distributed_optimizer=True, zero_stage=3)
    size = regressors()["parameter_bytes"]
    unit = (16777216 / 2 + 2 * 1024 + 32768 * 1024 / 2) / GIB
    found = regressors(config, training)["fp32_shards"]
    assert found == pytest.approx(-of_shard * size / 4 - of_unit * unit, rel=1e-3)
    assert not regressors(replace(config, zero_stage=2), training)["fp32_shards"].any()


def test_no_constant_predicts_less_than_the_state() -> None:
    """By hand: 2 bytes of weights, 2 of narrow gradients, 12 of the optimizer, whatever else the constants take off."""
    least = MemoryConstants(counted=0.5, parameter_bytes=-2.0, base_gib=0.0, placeholders=0.0, group_gib=0.0)
    (found,) = MemoryPredictor.load(memory_constants=least).predict(MODEL, TRAINING, [CONFIG])
    state = 16 * regressors()["parameter_bytes"] * GIB
    assert (found.predicted_bytes >= state - 1).all()
    assert found.components.sum(axis=1).tolist() == found.predicted_bytes.tolist()


def test_fp32_shards_have_a_least_state_of_their_own() -> None:
    """By hand: 16 bytes of each parameter that four replicas share, and 4 of the gathered layer and table."""
    config = replace(CONFIG, use_distributed_optimizer=True, zero_stage=3, micro_batch_size=1)
    least = MemoryConstants(counted=0.5, fp32_shards=1.0, base_gib=0.0, placeholders=0.0, group_gib=0.0)
    (found,) = MemoryPredictor.load(memory_constants=least).predict(MODEL, replace(TRAINING, seq_length=64), [config])
    size = regressors()["parameter_bytes"] * GIB
    unit = 16777216 / 2 + 2 * 1024 + 32768 * 1024 / 2
    assert found.predicted_bytes.tolist() == pytest.approx((4 * size + 4 * unit).tolist(), rel=1e-3)


def test_large_activations_leave_room_for_the_step() -> None:
    """Gradients of a step find freed blocks where micro-batches are large; small ones leave most of them without."""
    sharded = replace(CONFIG, use_distributed_optimizer=True, tensor_model_parallel_size=1)
    small, large = (
        found["step_bytes"] / found["parameter_bytes"]
        for mbs, seq in ((1, 512), (8, 4096))
        for found in [regressors(replace(sharded, micro_batch_size=mbs), replace(TRAINING, seq_length=seq), late=LATE)]
    )
    # By hand: 4 * 1024 / (2 * 512 * 1.4) = 2.857, squared over one more than that.
    assert small == pytest.approx([2.857**2 / (1 + 2.857**2)] * 2, rel=1e-3)
    assert (large < 0.01).all()


def test_hosts_run_ahead() -> None:
    """
    Without a pipeline as many buffers wait as the queue holds; with one, inside hosts and behind busy GPUs, or where no
    network holds the hosts back, as all of the job is on one.

    Across hosts collectives hold the hosts back where gradients are reduced.
    """
    single = replace(CONFIG, pipeline_model_parallel_size=1, layers_per_stage=(8,))
    assert regressors(single, late=LATE)["pile_up_buffers"][0] == 0
    late = 4096 * 1024 * 2 * (1 + 1 / 2)  # whole and, of two tensor ranks, half
    assert regressors(single, late=LATE)["run_ahead_buffers"][0] * GIB == pytest.approx(late)
    busy = replace(CONFIG, micro_batch_size=16)
    idle, working = regressors(late=LATE)["pile_up_buffers"], regressors(busy, late=LATE)["pile_up_buffers"]
    assert (working / 8 > idle).all()
    across = regressors(busy, late=LATE, gpus_per_node=1)
    assert not across["pile_up_buffers"].any()
    on_one_host = regressors(late=LATE, gpus_per_node=CONFIG.world_size)
    four_layers = late / np.sqrt(2)
    assert on_one_host["pile_up_buffers"] * GIB == pytest.approx([four_layers] * 2)
    wide = replace(single, micro_batch_size=16)
    flows = [
        regressors(config, late=LATE, gpus_per_node=1)["run_ahead_buffers"][0]
        for config in (wide, replace(wide, data_parallel_size=1))
    ]
    assert flows[0] < 0.1 * flows[1]


@pytest.mark.parametrize("gpus_per_node", [1, 8, 16])
def test_without_thresholds_every_late_buffer_counts(gpus_per_node: int) -> None:
    """A gathered micro-batch and its shard in each pass, a gradient for each parameter; thresholds only lower these."""
    sharded = replace(CONFIG, use_distributed_optimizer=True)
    single = replace(sharded, pipeline_model_parallel_size=1, layers_per_stage=(8,))
    late = 4096 * 1024 * 2 * (1 + 1 / 2)
    inside = gpus_per_node > 1
    for config, name, expected in ((sharded, "pile_up_buffers", late * inside), (single, "run_ahead_buffers", late)):
        plain = regressors(config, gpus_per_node=gpus_per_node)
        limited = regressors(config, late=LATE, gpus_per_node=gpus_per_node)
        assert plain[name] * GIB == pytest.approx(np.full(len(plain[name]), expected))
        assert plain["step_bytes"].tolist() == plain["parameter_bytes"].tolist()
        for other in REGRESSORS:
            assert (limited[other] <= plain[other] * (1 + 1e-12)).all()
        assert (limited["step_bytes"] < plain["step_bytes"]).all()


def test_fused_softmax_has_a_term() -> None:
    """Per score of one kernel; not where it does not apply."""
    unfused = replace(TRAINING, attention_kernel="unfused")
    scores = regressors(training=unfused)
    assert scores["fused_score_bytes"][1] * GIB == pytest.approx(4 * 8 * 2048**2 * 2)
    assert not scores["score_bytes"].any()
    several = regressors(training=replace(unfused, fused_softmax=False))
    assert several["score_bytes"] == pytest.approx(scores["fused_score_bytes"])


def test_need_leaves_out_what_is_returned() -> None:
    """Step leftovers and gaps are not needed, late buffers are; spare room for the loss is needed and never seen."""
    vector = MemoryConstants(step_bytes=3.0, pile_up_buffers=2.0, activations=0.2).vector()
    kept = dict(zip(REGRESSORS, needed(vector), strict=True))
    assert kept["step_bytes"] == 0.0
    assert (kept["activations"], kept["pile_up_buffers"]) == (0.2, 2.0)
    assert NEEDED[REGRESSORS.index("loss_spare_bytes")]
    assert not SHOWN[REGRESSORS.index("loss_spare_bytes")]


def test_groups_weigh_by_their_links() -> None:
    """Three groups of several ranks, or one; PCIe of 20 GB/s opens a twelfth of A100's channels, H100 a third more."""

    def groups(config: ParallelConfig, link: float | None) -> float:
        table = MemoryPredictor.load().regressors(MODEL, TRAINING, [config], intra_node_bytes_per_s=link)
        weights = table[:, :, REGRESSORS.index("group_gib")]
        assert (weights == weights[0, 0]).all()
        return float(weights[0, 0])

    alone = replace(CONFIG, pipeline_model_parallel_size=1, data_parallel_size=1, layers_per_stage=(8,))
    assert groups(CONFIG, None) == groups(CONFIG, 235e9) == 3.0
    assert groups(alone, None) == 1.0
    assert groups(alone, 20e9) == pytest.approx(20 / 235)
    assert groups(alone, 360e9) == pytest.approx(4 / 3)
    assert NEEDED[REGRESSORS.index("group_gib")]
    assert not SHOWN[REGRESSORS.index("group_gib")]


def test_groups_of_experts_and_context_count() -> None:
    """
    By hand, on hosts of 8 with experts over 8 ranks: an all-to-all among 8 is (8 - 1) / 2 groups.

    Tensor 2, data 8, pipeline 2, expert data 2, and the all-to-all: 4 + 3.5. All-to-alls of 32 ranks have 7 others on a
    host, like those of 8; two ranks have one group. A ring of context ranks is one group, their exchange an all-to-all.
    """
    model = replace(MODEL, num_experts=32, moe_router_topk=2, moe_ffn_hidden_size=512)
    experts = replace(CONFIG, data_parallel_size=8, expert_model_parallel_size=8, expert_tensor_parallel_size=1)
    wide = replace(experts, data_parallel_size=16, expert_model_parallel_size=32)
    for config, training, expected in (
        (experts, TRAINING, 4 + 3.5),
        (wide, TRAINING, 3 + 3.5),
        (replace(experts, expert_model_parallel_size=2), TRAINING, 4 + 1),
        (replace(experts, expert_model_parallel_size=4, expert_tensor_parallel_size=2), TRAINING, 4 + 1.5 + 1),
        (experts, replace(TRAINING, moe_token_dispatcher_type="allgather"), 4 + 1),
    ):
        assert config_groups(model, training, config, 8) == expected
    assert config_groups(MODEL, TRAINING, replace(CONFIG, context_parallel_size=4), 8) == 3 + 1
    instances = {"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True}
    assert config_groups(MODEL, TRAINING, replace(CONFIG, **instances), 8) == 3 + 1
    ulysses = replace(TRAINING, cp_comm_type="a2a")
    assert config_groups(MODEL, ulysses, replace(CONFIG, context_parallel_size=4), 8) == 3 + 1.5


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_that_ranks_form(seed: int) -> None:
    """All-to-alls and groups of random sizes, counted rank by rank on hosts in order; the fullest rank decides."""
    rng = np.random.default_rng(seed)
    tp, cp, dp, etp, ep, per_host = (2 ** rng.integers(0, 4, 6)).tolist()
    stage = tp * cp * dp
    etp, ep = min(etp, stage), min(ep, stage // min(etp, stage))
    config = ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=1,
        data_parallel_size=dp,
        context_parallel_size=cp,
        micro_batch_size=1,
        layers_per_stage=(8,),
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    ranks = np.arange(stage)
    keys = {  # ranks with equal keys are a group
        "tensor": ranks // tp,
        "data with context": ranks % tp,
        "context": ranks // (tp * cp) * tp + ranks % tp,
        "expert tensor": ranks // etp,
        "expert data": ranks % (etp * ep),
    }
    expected = sum(float((key == key[0]).sum() > 1) for key in keys.values())
    expert = ranks // (etp * ep) * etp + ranks % etp
    others = max(int(((expert == expert[rank]) & (ranks // per_host == rank // per_host)).sum()) for rank in ranks) - 1
    expected += max(others / 2, 1.0) if ep > 1 else 0.0
    model = replace(MODEL, num_experts=64, moe_router_topk=2, moe_ffn_hidden_size=512)
    assert config_groups(model, TRAINING, config, per_host) == expected


def test_widths_follow_shares() -> None:
    """Half certain, half buffers at 30 %: sqrt(0.02^2 + (0.5 * 0.3)^2)."""
    memory_constants = MemoryConstants(counted=1.0, run_ahead_buffers=1.0, spread=0.02, buffer_spread=0.3)
    row = np.zeros(len(REGRESSORS))
    row[REGRESSORS.index("counted")] = row[REGRESSORS.index("run_ahead_buffers")] = 10.0
    assert memory_constants.widths(row, memory_constants.vector()) == pytest.approx(np.hypot(0.02, 0.15))


def test_numbers_go_through_a_file(tmp_path: Path) -> None:
    """What is written is read, errors included."""
    memory_constants = MemoryConstants(activations=0.25, group_gib=0.5, unusable_gib=3.0, errors=(-0.1, 0.0, 0.2))
    assert kept_in_file(memory_constants, tmp_path) == memory_constants


def test_a_predictor_with_a_framework_is_coherent() -> None:
    """At the upper bound of a risk, the probability is that risk; more room, less of it."""
    predictor = MemoryPredictor.load(memory_constants=MemoryConstants(activations=0.3, spread=0.05))
    (prediction,) = predictor.predict(MODEL, TRAINING, [CONFIG], max_oom_risk=0.02)
    risk = oom_probability(prediction, prediction.upper_bytes)
    assert risk == pytest.approx([0.02, 0.02], rel=1e-3)
    assert (oom_probability(prediction, prediction.upper_bytes * 2) < risk).all()
    (plain,) = MemoryPredictor.load(memory_constants=MemoryConstants()).predict(MODEL, TRAINING, [CONFIG])
    assert (prediction.predicted_bytes > plain.predicted_bytes).all()


def test_a_predictor_widens_for_jobs_beyond_the_fit() -> None:
    """16 GPUs after a fit to at most 4: two doublings of 50 % of the variance each."""
    job = replace(TRAINING, global_batch_size=128)
    config = replace(CONFIG, data_parallel_size=16)
    inside, beyond = (
        MemoryPredictor.load(memory_constants=MemoryConstants(spread=0.04, growth=0.5, largest_job=largest)).predict(
            MODEL, job, [config]
        )[0]
        for largest in (64, 16)
    )
    assert inside.own_spread == pytest.approx([0.04, 0.04])
    assert beyond.own_spread == pytest.approx([0.04 * 2**0.5] * 2)
    assert (beyond.upper_bytes > inside.upper_bytes).all()
