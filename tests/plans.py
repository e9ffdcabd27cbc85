"""Small finished plans, correct by construction, for the tests of what happens to a plan."""

from dataclasses import asdict, replace

import numpy as np
from specs_for_tests import LLAMA_8B, TINY, cluster, config, instance

from pipette_opt.base.types import Launcher
from pipette_opt.base.units import GIB
from pipette_opt.parallel import ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.plans.plan import (
    Alternative,
    Baseline,
    Certificate,
    Plan,
    Proof,
    RuledOut,
    StageMemory,
    why_slower,
    why_unused,
)
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import _links_free, stage_memory
from pipette_opt.specs import Instance

HOST_ORDER = (3, 0, 4, 1)
"""Hosts of the small plan in grid order; n2 is left out."""


def small_instance(launcher: Launcher = "slurm", **options: object) -> Instance:
    """Five hosts of four GPUs, directed links, the tiny model."""
    links = np.linspace(10.0, 20.0, 25).reshape(5, 5)
    return instance(cluster(5, links, gpus=4), TINY, launcher=launcher, **options)  # type: ignore[arg-type]


def small_config(**options: object) -> ParallelConfig:
    """Tensor 2, pipeline 2, data 4: sixteen ranks."""
    return config(tp=2, pp=2, dp=4, mbs=2, sequence_parallel=True, use_distributed_optimizer=True, **options)


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
            judge_lower_bound_s=objective_s * 0.96875,
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
                components={"weights": 10 * GIB, "activations": (20 - 2 * stage) * GIB + 12345},
            )
            for stage in range(chosen.pipeline_model_parallel_size)
        ),
        unused_hosts={
            given.cluster.hosts[node]: "in place of n0 it would cost 0.0123 s (1.23%) per iteration" for node in unused
        },
        alternatives=(
            Alternative(
                config=replace(chosen, use_distributed_optimizer=False),
                hosts=("n0", "n1", "n3", "n4"),
                iteration_time_s=simulated.iteration_time_s * 1.1,
                oom_probability=0.02,
                reason="10.0% slower, most of it data parallel (+0.05 s)",
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
        baselines=(
            Baseline(
                name="megatron",
                config=chosen,
                iteration_time_s=simulated.iteration_time_s * 1.2,
                objective_s=objective_s * 1.2,
                wall_time_s=0.01,
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


def small_plan(launcher: Launcher = "slurm", **options: object) -> Plan:
    """The plan of :func:`small_config` on four of five hosts."""
    return plan_of(small_instance(launcher), small_config(**options))


def scrambled_plan() -> Plan:
    """The same with ranks dealt to GPUs at random: no host has consecutive ranks."""
    given = small_instance()
    gpus = np.random.default_rng(3).permutation(16)
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.array(HOST_ORDER)[gpus // 4], local_rank=gpus % 4)
    return plan_on(given, small_config(), placement)


def llama_plan(**options: object) -> Plan:
    """Llama 3 8B on four hosts of four GPUs: tensor 2, pipeline 2, data 4; ``options`` change the configuration."""
    given = instance(cluster(4, gpus=4), LLAMA_8B, launcher="torchrun")
    settings = {"sequence_parallel": True, "use_distributed_optimizer": True, **options}
    return plan_of(given, config(tp=2, pp=2, dp=4, num_layers=32, **settings), (2, 0, 3, 1))


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
        baselines=(),
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
        worst = max(memory, key=lambda stage: stage.oom_probability)
        return (
            Alternative(
                config=other,
                hosts=tuple(given.cluster.hosts[node] for node in used),
                iteration_time_s=simulated.iteration_time_s,
                oom_probability=worst.oom_probability,
                oom_probability_at_most=worst.oom_probability_at_most,
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
