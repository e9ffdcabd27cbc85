"""Messages beside products of the backward pass, by hand, and the bounds that count them."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, make_cluster, make_config, make_job

from pipette_opt.base.units import GB, TFLOP
from pipette_opt.costs.collectives import shown_beside_s
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.context import inside_layer_s
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig, host_tiles, identity_placement, tile_placement
from pipette_opt.problem.beside import chunk_seconds
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.read.model import read_model
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import GpuSpec, Instance, LayerKind, TrainingSpec
from pipette_opt.specs.efficiency import ProductLaw

LLAMA_70B = read_model("llama-3-70b")

H100 = replace(
    A100_80,
    name="h100 with products at 600 TFLOP/s",
    peak_flops={"bf16": 600 * TFLOP},
    memory_bytes_per_s=3.35e12,
    efficiency=replace(A100_80.efficiency, wide=ProductLaw(share=1.0, half_inner=0.0, half_result=0.0, start_s=0.0)),
)

GATHER_S = (7 + 0.42) / 8 * 8192 * 8192 * 2 / (350 * GB)
"""Seconds of a gather, or a scatter, of 8,192 tokens of Llama 3 70B among eight ranks at 350 GB/s: .356 ms."""

QKV_S = 2 * 8192 * 8192 * (8192 + 2 * 1024) / 8 / 600e12
"""Seconds of the product for the gradient of queries', keys' and values' input on one of eight ranks: .286 ms."""

SLOWDOWN = 0.125
"""Extra time of compute beside messages, as a share, of the default stack."""


def job_70b(**training: object) -> Instance:
    """One host of eight GPUs at 350 GB/s without latencies."""
    cluster = make_cluster(1, kinds=(H100,), intra_node_bytes_per_s=350 * GB, intra_node_latency_s=1e-12)
    given = TrainingSpec(global_batch_size=8, seq_length=8192, **training)  # type: ignore[arg-type]
    return replace(make_job(cluster, LLAMA_70B), training=given)


def layer_s(job: Instance, config: ParallelConfig, idle_s: float = 0.0) -> tuple[float, float]:
    """Exposed communication of a layer; placed ranks have it in each of 80 layers if the GPU never waits."""
    found = inside_layer_s(job, config, (idle_s, idle_s), LayerKind(), [0])
    if not idle_s:
        times = placed_times(job, config, identity_placement(config, 8, np.arange(1), "tp-cp-ep-dp-pp"))
        whole = np.array([times.tensor_forward_s[0, 0, 0], times.tensor_backward_s[0, 0, 0]])
        two = make_config(tp=8, num_layers=2, sequence_parallel=config.sequence_parallel)
        fewer = replace(job, model=replace(LLAMA_70B, num_layers=2))
        less = placed_times(fewer, two, identity_placement(two, 8, np.arange(1), "tp-cp-ep-dp-pp"))
        rest = whole - [less.tensor_forward_s[0, 0, 0], less.tensor_backward_s[0, 0, 0]]
        assert rest / 78 == pytest.approx(found, rel=1e-6)
    return found


def test_a_layer_with_sequence_parallelism_by_hand() -> None:
    """
    Forward .356 ms four times. Backward .992 ms, where 1.42 ms were counted before.

    Two gathers are exposed (.711 ms). The second gather of attention is .069 ms longer than the product for the input's
    gradient, the scatter .048 ms longer than that for the weights'. Those of the MLP are hidden. What is hidden slows
    down compute by an eighth (.163 ms).
    """
    forward, backward = layer_s(job_70b(), make_config(tp=8, num_layers=80, sequence_parallel=True))
    assert forward == pytest.approx(4 * GATHER_S)
    beside = (GATHER_S - QKV_S) + (GATHER_S - QKV_S / 0.93)
    slower = SLOWDOWN * (QKV_S + QKV_S / 0.93 + 2 * GATHER_S)
    assert backward == pytest.approx(2 * GATHER_S + beside + slower)
    assert backward == pytest.approx(0.992e-3, rel=1e-3)


def test_a_layer_without_sequence_parallelism_by_hand() -> None:
    """Backward, the all-reduce of attention is .383 ms longer than the product beside it; the MLP's is hidden."""
    forward, backward = layer_s(job_70b(), make_config(tp=8, num_layers=80))
    reduction_s = (14 + 0.42) / 7.42 * GATHER_S
    assert forward == pytest.approx(2 * reduction_s)
    hidden_s = QKV_S / 0.93
    assert backward == pytest.approx(reduction_s - hidden_s + SLOWDOWN * (hidden_s + reduction_s))
    assert reduction_s - hidden_s == pytest.approx(0.383e-3, rel=2e-3)


@pytest.mark.parametrize("family", ["fsdp", "own"])
def test_other_software_waits_for_its_messages(family: str) -> None:
    """It keeps gathered inputs, and sends as much backward as forward: 1.42 ms."""
    job = job_70b()
    waits = replace(job, stack=replace(job.stack, family=family))
    forward, backward = layer_s(waits, make_config(tp=8, num_layers=80, sequence_parallel=True))
    assert backward == pytest.approx(forward) == pytest.approx(4 * GATHER_S)


def test_user_buffers_hide_half_of_what_is_exposed() -> None:
    """Of seven of eight parts of both exposed gathers half; messages beside products stay as they are."""
    config = make_config(tp=8, num_layers=80, sequence_parallel=True)
    plain, buffers = (layer_s(job_70b(tp_comm_overlap=overlaps), config)[1] for overlaps in (False, True))
    sent_s = 7 / 7.42 * GATHER_S  # without the part that a rank keeps
    assert plain - buffers == pytest.approx(2 * 0.5 * 7 / 8 * sent_s)


def test_a_wait_for_the_host_hides_what_is_left() -> None:
    """Seconds in which the GPU waits hide exposed messages and slower compute, and no more."""
    config = make_config(tp=8, num_layers=80, sequence_parallel=True)
    _, backward = layer_s(job_70b(), config)
    assert layer_s(job_70b(), config, 0.5e-3)[1] == pytest.approx(backward - 0.5e-3)
    assert layer_s(job_70b(), config, 2e-3) == (0.0, 0.0)


def test_faster_products_hide_less() -> None:
    """The fastest of two GPU types in use hides least."""
    fast = replace(H100, name="fast", peak_flops={"bf16": 2400 * TFLOP})
    job = job_70b()
    job = replace(job, cluster=make_cluster(2, kinds=(H100, fast), intra_node_bytes_per_s=350 * GB))
    config = make_config(tp=8, num_layers=80, sequence_parallel=True)
    slow, faster, both = (
        inside_layer_s(job, config, (0.0, 0.0), LayerKind(), kinds)[1] for kinds in ([0], [1], [0, 1])
    )
    assert slow < faster == both


@pytest.mark.parametrize("slowdown", [0.0, 0.125, 1.0, 3.0])
def test_what_a_message_adds(slowdown: float) -> None:
    """From nothing to the whole message, more with a longer message, less with more compute beside it."""
    messages, work = np.linspace(0.0, 3.0, 31)[:, None], np.linspace(0.0, 3.0, 31)
    shown = shown_beside_s(messages, work, slowdown)
    assert (shown >= np.maximum(messages - work, 0.0) - 1e-12).all()
    assert (shown <= messages + 1e-12).all()
    assert (np.diff(shown, axis=0) >= -1e-12).all()
    assert (np.diff(shown, axis=1) <= 1e-12).all()


NUM_HOSTS = 24
"""Hosts of random jobs, eight of each type."""

MODELS = ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "nemotron-h-8b")
"""Grouped attention; experts; latent attention with shared experts; state mixers in layers of one branch."""


def random_job(seed: int) -> tuple[Instance, ParallelConfig, np.random.Generator]:
    """Draw hosts of three GPU types, links, a model, a training and a configuration with tensor ranks."""
    rng = np.random.default_rng(seed)
    fast: GpuSpec = replace(A100_80, name="fast", memory_bytes_per_s=8e12, peak_flops={"bf16": 2e15})
    slow: GpuSpec = replace(A100_80, name="slow", peak_flops={"bf16": 50e12})
    gpus = int(rng.choice([2, 4]))
    cluster = make_cluster(
        NUM_HOSTS,
        rng.uniform(5.0, 25.0, (NUM_HOSTS, NUM_HOSTS)),
        gpus=gpus,
        kinds=(A100_80, slow, fast),
        intra_node_bytes_per_s=float(rng.choice([10, 50, 400])) * GB,
    )
    whole = read_model(MODELS[seed % len(MODELS)])
    model = whole if seed % len(MODELS) == 3 else replace(whole, num_layers=8)
    training = TrainingSpec(
        global_batch_size=16, seq_length=int(rng.choice([1024, 4096])), tp_comm_overlap=bool(rng.random() < 0.3)
    )
    job = replace(make_job(cluster, model), training=training)
    constants = {
        "overlap_slowdown": float(rng.choice([0.0, 0.125, 2.0])),
        "host_kernel_s": float(rng.choice([0, 3e-5])),
    }
    job = replace(job, stack=job.stack.with_constants(constants))
    pp = int(rng.choice([1, 2]))
    config = make_config(
        tp=int(rng.choice([2, 4])),
        pp=pp,
        dp=2,
        num_layers=model.num_layers,
        sequence_parallel=bool(model.num_experts or rng.random() < 0.6),
        recompute_granularity=rng.choice([None, "full"]),
        use_distributed_optimizer=True,
        overlap_grad_reduce=bool(rng.random() < 0.5),
    )
    return job, config, rng


@pytest.mark.parametrize("seed", range(40))
def test_no_bound_is_above_the_simulation(seed: int) -> None:
    """Random jobs with tensor groups in hosts and over them, on mixed hosts and on those of each type alone."""
    job, config, rng = random_job(seed)
    need = np.full(config.pipeline_model_parallel_size, 1 << 30)
    problem = build_problem_data(job, [FittingCandidate(config=config, need_bytes=need)], np.full(NUM_HOSTS, 1 << 36))
    bound_s = WorkBounds(job)(config)
    assert problem.candidates
    for candidate in problem.candidates:
        for hosts in (np.arange(NUM_HOSTS), *job.cluster.kind_of_node.argsort(kind="stable").reshape(3, -1)):
            nodes = rng.permutation(hosts)[: candidate.num_cells].reshape(candidate.grid)
            placement = tile_placement(config, candidate.tile, nodes)
            seconds = estimate(job, config, placement).iteration_time_s
            assert objective_ticks(problem, candidate, nodes) * problem.tick_s <= seconds
            assert bound_s <= seconds
            times = placed_times(job, config, placement)
            least = chunk_seconds(job, config, stage_compute(job, config), candidate.tile)
            for found, bound in zip((times.forward_s, times.backward_s), least, strict=True):
                assert (bound.min(axis=0) <= found.min(axis=2) * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(12))
def test_faster_links_never_make_a_stage_slower(seed: int) -> None:
    """Inside hosts and between them, on random jobs."""
    job, config, rng = random_job(seed)
    cluster = job.cluster
    faster = replace(
        cluster,
        intra_node_bytes_per_s=cluster.intra_node_bytes_per_s * rng.uniform(1.0, 4.0),
        link_matrices=tuple(
            replace(each, bytes_per_s=each.bytes_per_s * rng.uniform(1.0, 4.0, each.bytes_per_s.shape))
            for each in cluster.link_matrices
        ),
    )
    for tile in host_tiles(config, cluster.gpus_per_node, job.launcher):
        grid = tile.node_grid(config)
        placement = tile_placement(config, tile, rng.permutation(NUM_HOSTS)[: int(np.prod(grid))].reshape(grid))
        before, after = (placed_times(each, config, placement) for each in (job, replace(job, cluster=faster)))
        assert (after.backward_s <= before.backward_s * (1 + 1e-9)).all()
        assert (after.forward_s <= before.forward_s * (1 + 1e-9)).all()
