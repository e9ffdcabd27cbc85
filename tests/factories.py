"""Factories of small jobs, configurations, plans and measured runs: what they make is right by construction."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from pipette_opt.base.types import Launcher
from pipette_opt.base.units import GB, GIB, TFLOP
from pipette_opt.candidates import Enumeration
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import MemoryCheck
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.plans.certificate import Robust
from pipette_opt.plans.plan import (
    Alternative,
    Band,
    Certificate,
    Imbalance,
    JointModel,
    Plan,
    Proof,
    RiskChoice,
    RuledOut,
    SizeProof,
    StageMemory,
    Target,
    Usual,
    why_slower,
    why_unused,
)
from pipette_opt.prepare import Prepared, load_predictor
from pipette_opt.problem.data import ProblemData
from pipette_opt.read.runs import MeasuredRun, read_row
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import _links_free, stage_memory
from pipette_opt.specs import (
    DEFAULT_STACK,
    ClusterSpec,
    GpuSpec,
    Instance,
    LinkMatrix,
    ModelSpec,
    NodeSpec,
    TrainingSpec,
)
from pipette_opt.specs.memory_constants import REGRESSORS, MemoryConstants
from pipette_opt.specs.objective import Objective

A100_80 = GpuSpec(
    name="a100-80gb",
    memory_bytes=80 * GIB,
    peak_flops={"bf16": 312 * TFLOP, "fp16": 312 * TFLOP, "fp32": 19.5 * TFLOP},
    memory_bytes_per_s=2.0e12,
    generation="ampere",
)
A100_40 = GpuSpec(
    name="a100-40gb",
    memory_bytes=40 * GIB,
    peak_flops={"bf16": 312 * TFLOP, "fp16": 312 * TFLOP, "fp32": 19.5 * TFLOP},
    memory_bytes_per_s=1.5e12,
    generation="ampere",
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


def make_links(values: np.ndarray | float, num_nodes: int, concurrent_flows: int = 1) -> LinkMatrix:
    """A link matrix from GB/s."""
    return LinkMatrix(
        concurrent_flows=concurrent_flows,
        bytes_per_s=np.broadcast_to(np.asarray(values, dtype=float) * GB, (num_nodes, num_nodes)),
    )


def make_cluster(
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
        "link_matrices": (make_links(values, num_nodes),) if num_nodes > 1 else (),
        "nics_per_node": 8,
    }
    return ClusterSpec(**{**settings, **options})  # type: ignore[arg-type]


def make_random_cluster(rng: np.random.Generator, num_nodes: int, **options: object) -> ClusterSpec:
    """A cluster with directed links between 5 and 25 GB/s."""
    return make_cluster(num_nodes, rng.uniform(5.0, 25.0, (num_nodes, num_nodes)), **options)  # type: ignore[arg-type]


def make_config(
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


MEASURED = replace(DEFAULT_STACK, memory=replace(DEFAULT_STACK.memory, activation_spread=1e-6))
"""Stack whose errors of memory were learned, so that only a prediction's own 5 % are unknown."""


def make_job(
    spec: ClusterSpec, model: ModelSpec = TINY, global_batch_size: int = 64, seq_length: int = 1024, **options: object
) -> Instance:
    """An instance of a model on a cluster, with the stack :data:`MEASURED`."""
    return Instance(
        model=model,
        cluster=spec,
        training=TrainingSpec(global_batch_size=global_batch_size, seq_length=seq_length),
        **{"stack": MEASURED, **options},  # type: ignore[arg-type]
    )


HOST_ORDER = (3, 0, 4, 1)
"""Hosts of the small plan in grid order; n2 is left out."""


def small_instance(launcher: Launcher = "slurm", **options: object) -> Instance:
    """Five hosts of four GPUs, directed links, the tiny model."""
    links = np.linspace(10.0, 20.0, 25).reshape(5, 5)
    return make_job(make_cluster(5, links, gpus=4), TINY, launcher=launcher, **options)  # type: ignore[arg-type]


def small_config(**options: object) -> ParallelConfig:
    """Tensor 2, pipeline 2, data 4: sixteen ranks."""
    return make_config(tp=2, pp=2, dp=4, mbs=2, sequence_parallel=True, use_distributed_optimizer=True, **options)


def plan_of(
    given: Instance, chosen: ParallelConfig, hosts: tuple[int, ...] = HOST_ORDER, *, stages_per_host: int = 1
) -> Plan:
    """A plan with round gaps and the simulator's own estimate."""
    tiles = host_tiles(chosen, given.cluster.gpus_per_node, given.launcher)
    tile = next(one for one in tiles if one.stages == stages_per_host)
    placement = tile_placement(chosen, tile, np.array(hosts).reshape(tile.node_grid(chosen)))
    return plan_on(given, chosen, placement)


def plan_on(given: Instance, chosen: ParallelConfig, placement: Placement) -> Plan:
    """The same for any placement."""
    simulated = estimate(given, chosen, placement)
    objective_s = simulated.iteration_time_s
    dependent_s = objective_s / 4
    unused = sorted(set(range(given.cluster.num_nodes)) - set(placement.node.tolist()))
    return Plan(
        config=chosen,
        placement=placement,
        hosts=given.cluster.hosts,
        gpus_per_node=given.cluster.gpus_per_node,
        global_batch_size=given.training.global_batch_size,
        launcher=given.launcher,
        p2p=given.p2p,
        certificate=Certificate(
            status="FEASIBLE",
            objective_s=objective_s,
            lower_bound_s=objective_s * 0.96875,
            gap=0.03125,
            placement_dependent_s=dependent_s,
            placement_gap=0.125,
            scope="the simulated time of every configuration searched",
            wall_time_s=12.5,
            num_candidates=120,
            num_pruned=100,
            searched={"tensor_parallel": (1, 2)},
            not_searched=("ZeRO 2 and 3",),
            proof=(
                Proof(
                    by="memory",
                    configurations=20,
                    bound_s=None,
                    named=(RuledOut(name="predicted peak", configurations=20, example=chosen.label()),),
                ),
                Proof(by="best links", configurations=100, bound_s=objective_s * 0.96875),
            ),
        ),
        estimate=simulated,
        memory=tuple(
            StageMemory(
                stage=stage,
                predicted_bytes=(30 - 2 * stage) * GIB + 12345,
                upper_bytes=(34 - 2 * stage) * GIB,
                capacity_bytes=78 * GIB,
                oom_probability=1e-3 / (stage + 1),
                counted_bytes=15 * GIB,
                spread=0.2,
                components={"weights": 10 * GIB, "activations": (20 - 2 * stage) * GIB + 12345},
            )
            for stage in range(chosen.pipeline_model_parallel_size)
        ),
        unused_hosts={
            given.cluster.hosts[node]: "in place of n0 an iteration would take 1.23 % more" for node in unused
        },
        alternatives=(
            Alternative(
                config=replace(
                    chosen, use_distributed_optimizer=False, zero_stage=None, num_distributed_optimizer_instances=1
                ),
                hosts=("n0", "n1", "n3", "n4"),
                iteration_time_s=simulated.iteration_time_s * 1.1,
                oom_probability=0.02,
                reason="10.0 % slower, most of it data parallel (+6.00 %)",
                breakdown={cause: seconds * 1.1 for cause, seconds in simulated.breakdown.items()},
            ),
            Alternative(
                config=replace(chosen, micro_batch_size=1, recompute_granularity="full"),
                hosts=("n0", "n1", "n2", "n3"),
                iteration_time_s=None,
                oom_probability=None,
                reason="not simulated: its bound is above the plan",
            ),
        ),
        inputs={
            "cluster": {"path": "cluster.yaml", "sha256": "ab" * 32},
            "model": asdict(given.model),
            "training": asdict(given.training),
        },
        notes=("2 directed host pairs were not measured and are not used.",),
        seed=7,
        created="2026-01-02T03:04:05+00:00",
        versions={"pipette-opt": "0.1.0", "ortools": "9.15"},
    )


def bare_problem(data: ProblemData) -> Prepared:
    """A problem in integers without a job behind it."""
    return Prepared(
        instance=Instance.__new__(Instance),
        enumeration=Enumeration.__new__(Enumeration),
        predictor=MemoryPredictor.__new__(MemoryPredictor),
        memory=MemoryCheck.__new__(MemoryCheck),
        problem=data,
        work=WorkBounds.__new__(WorkBounds),
    )


def make_plan(launcher: Launcher = "slurm", **options: object) -> Plan:
    """The plan of :func:`small_config` on four of five hosts."""
    return plan_of(small_instance(launcher), small_config(**options))


def whole_plan(factor: float = 1.0) -> Plan:
    """
    A plan with all that a plan may have: other plans, a band, an objective, every part of the proof.

    Parameters
    ----------
    factor
        Expected over simulated time.
    """
    plan = make_plan()
    seconds = plan.estimate.iteration_time_s
    band = Band(
        low_s=0.8 * factor * seconds,
        middle_s=factor * seconds,
        high_s=1.4 * factor * seconds,
        share=0.9,
        source="30 public runs",
        runs=30,
    )
    slower = replace(plan.alternatives[0], lower_bound_s=0.97 * seconds)
    fast = replace(slower, iteration_time_s=0.992 * seconds, oom_probability=0.004, lower_bound_s=0.992 * seconds)
    size = SizeProof(
        num_gpus=16,
        dearest=None,
        status="searched",
        iteration_time_s=seconds,
        lower_bound_s=0.9 * seconds,
        value=400.0,
        bound=440.0,
    )
    joint = JointModel(
        families=7,
        variables=5,
        constraints=7,
        solves=2,
        seconds=1.5,
        splits=1,
        status="FEASIBLE",
        bound_s=0.9 * seconds,
    )
    robust = Robust(
        value_s=3.0, best_s=3.0, lower_bound_s=2.5, gap=1 / 6, factor=1.5, share=0.9, measured_runs=0, groups=12
    )
    return replace(
        plan,
        estimate=replace(plan.estimate, band=band),
        certificate=replace(plan.certificate, joint_model=joint, robust=robust),
        alternatives=(slower, fast, plan.alternatives[1]),
        risks=(RiskChoice(max_oom_risk=1e-4, plan=fast),),
        fastest=fast,
        usual=Usual(plan=replace(fast, iteration_time_s=1.06 * seconds)),
        imbalance=Imbalance(expert_imbalance=1.3, iteration_time_s=1.1 * seconds, oom_probability=0.1),
        target=Target(
            objective=Objective.TOKENS_PER_GPU, unit="tokens/s/GPU", value=400.0, bound=440.0, gap=0.1, sizes=(size,)
        ),
    )


def scrambled_plan() -> Plan:
    """The same with ranks dealt to GPUs at random: no host has consecutive ranks."""
    given = small_instance()
    gpus = np.random.default_rng(3).permutation(16)
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.array(HOST_ORDER)[gpus // 4], local_rank=gpus % 4)
    return plan_on(given, small_config(), placement)


def llama_plan(**options: object) -> Plan:
    """Llama 3 8B on four hosts of four GPUs: tensor 2, pipeline 2, data 4; ``options`` change the configuration."""
    given = make_job(make_cluster(4, gpus=4), LLAMA_8B, launcher="torchrun")
    settings = {"sequence_parallel": True, "use_distributed_optimizer": True, **options}
    return plan_of(given, make_config(tp=2, pp=2, dp=4, num_layers=32, **settings), (2, 0, 3, 1))


def exportable_plan(target: str) -> Plan:
    """A plan that the format can express: a small one that most can, else the one that it needs."""
    return EXPORTABLE[target]() if target in EXPORTABLE else make_plan("torchrun")


def sharded_plan(**options: object) -> Plan:
    """Llama 3 8B on four hosts of four GPUs, fully sharded; ``options`` change the configuration."""
    given = make_job(make_cluster(4, gpus=4), LLAMA_8B, launcher="torchrun")
    settings = {"use_distributed_optimizer": True, "zero_stage": 3, "sequence_parallel": False, **options}
    return plan_of(given, make_config(tp=1, pp=1, dp=16, num_layers=32, **settings), (2, 0, 3, 1))


EXPORTABLE: dict[str, Callable[[], Plan]] = {
    **dict.fromkeys(("accelerate", "axolotl", "llamafactory", "msswift"), sharded_plan),
    "torchtitan": llama_plan,
}
"""Plans for formats that cannot express ``make_plan``."""


def sound(given: Instance, plan: Plan) -> Plan:
    """The plan with its real memory and placement-dependent time, and a simulated alternative: nothing is invented."""
    links_free = estimate(_links_free(given), plan.config, plan.placement)
    dependent_s, proof = plan.estimate.iteration_time_s - links_free.iteration_time_s, plan.certificate
    certificate = replace(
        proof,
        placement_dependent_s=dependent_s,
        placement_gap=(proof.objective_s - proof.lower_bound_s) / dependent_s,
    )
    return replace(
        plan,
        memory=stage_memory(given, plan.config, plan.placement, load_predictor(0.01, given), 0.01),
        certificate=certificate,
        alternatives=_slower(given, plan),
        unused_hosts=_unused(given, plan),
        notes=(),
        inputs={**plan.inputs, "max_oom_risk": 0.01},
    )


def _slower(given: Instance, plan: Plan) -> tuple[Alternative, ...]:
    """The plan without its distributed optimizer, in the first packing of the same hosts; nothing if that is faster."""
    other = replace(plan.config, use_distributed_optimizer=not plan.config.use_distributed_optimizer)
    used = plan.placement.nodes_used
    for tile in host_tiles(other, given.cluster.gpus_per_node, given.launcher):
        placement = tile_placement(other, tile, used.reshape(tile.node_grid(other)))
        simulated = estimate(given, other, placement)
        if simulated.iteration_time_s < plan.estimate.iteration_time_s:
            return ()
        memory = stage_memory(given, other, placement, load_predictor(0.01, given), 0.01)
        return (
            Alternative(
                config=other,
                hosts=tuple(given.cluster.hosts[node] for node in used),
                iteration_time_s=simulated.iteration_time_s,
                oom_probability=max(stage.oom_probability for stage in memory),
                reason=why_slower(plan.estimate, simulated),
                breakdown=simulated.breakdown,
            ),
        )
    return ()


def _unused(given: Instance, plan: Plan) -> dict[str, str]:
    """Each host without a rank, in place of the first that has some."""
    first, found = int(plan.placement.nodes_used[0]), {}
    for host in plan.unused_hosts:
        node = np.where(plan.placement.node == first, given.cluster.hosts.index(host), plan.placement.node)
        seconds = estimate(given, plan.config, replace(plan.placement, node=node)).iteration_time_s
        found[host] = why_unused(given.cluster.hosts[first], seconds, plan.estimate.iteration_time_s)
    return found


GPT_RUN = {
    "source": "own",
    "gpu": "A100-80GB",
    "num_gpus": "16",
    "model": "gpt",
    "num_layers": "24",
    "hidden": "2048",
    "ffn_hidden": "8192",
    "heads": "16",
    "kv_heads": "16",
    "vocab": "50257",
    "seq_len": "2048",
    "gbs": "64",
    "mbs": "2",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "attention_kernel": "flash",
    "precision": "bf16",
}
"""Cells of a row: a GPT of 24 layers on 16 A100, tp 2, pp 2, dp 4."""


OUTCOME = {"row": 0, "iter_time_s": 1.0, "peak_mem_bytes": None, "oom": False}
"""Number of the row, and what was measured."""


def make_run(**changes: object) -> MeasuredRun:
    """The run of ``GPT_RUN`` with other cells, or other values of ``OUTCOME``, which may be impossible."""
    cells = {name: "" if value is None else str(value) for name, value in changes.items() if name not in OUTCOME}
    measured = {name: changes.get(name, value) for name, value in OUTCOME.items()}
    return replace(read_row("runs.csv, line 2", 0, GPT_RUN | cells, Path()), **measured)  # type: ignore[arg-type]


def kept_in_file(memory: MemoryConstants, folder: Path) -> MemoryConstants:
    """Memory constants of a stack that was written and read again."""
    write_stack(replace(DEFAULT_STACK, memory=memory), folder / "kept.yaml")
    return read_stack(folder / "kept.yaml").memory


def make_regressors(**weights: float) -> np.ndarray:
    """A row of regressors, GiB; what is not named weighs nothing."""
    return np.array([weights.get(name, 0.0) for name in REGRESSORS])
