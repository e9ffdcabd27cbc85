"""Right plans pass; each rule, broken alone, is named."""

import ast
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import factories
import numpy as np
import pytest
from factories import (
    A100_40,
    A100_80,
    HOST_ORDER,
    TINY,
    make_cluster,
    make_config,
    make_job,
    make_links,
    small_config,
    small_instance,
    sound,
)

import pipette_opt.verify
from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.base.units import GIB
from pipette_opt.parallel import Placement, RankGrid, fit_chunks, host_tiles, identity_placement, tile_placement
from pipette_opt.plans.plan import Alternative, Imbalance, Plan, RiskChoice
from pipette_opt.prepare import load_predictor
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance, YarnScaling
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.model_gaps import not_modelled_of
from pipette_opt.verify import CONTENT_RULES, MAP_RULES, verify_content
from pipette_opt.verify.alternatives import nearest_placement
from pipette_opt.verify.rules import _whole_in_chunks, configuration_is_legal, settings_are_the_given


def plan_of(given: Instance, *args: Any, **options: Any) -> Plan:
    """A plan of which everything can be reproduced."""
    return sound(given, factories.plan_of(given, *args, **options))


def small_plan() -> Plan:
    """The same of the small configuration."""
    return sound(small_instance(), factories.make_plan())


def scrambled_plan() -> Plan:
    """The same with no order in its map."""
    return sound(small_instance(), factories.scrambled_plan())


def broken(given: Instance, plan: Plan) -> set[str]:
    """Names of the rules that ``verify`` says are broken."""
    try:
        verify_content(given, plan)
    except PlanError as error:
        return {line.strip().split(":")[0] for line in str(error).splitlines()[1:]}
    return set()


@pytest.mark.search
@pytest.mark.parametrize("launcher", ["slurm", "torchrun", "mpi"])
@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("stages_per_host", [1, 2])
def test_right_plans_pass(launcher: str, chunks: int | None, stages_per_host: int) -> None:
    """Several packings, launchers and schedules; the plan file changes nothing."""
    given = small_instance(launcher)  # type: ignore[arg-type]
    plan = plan_of(given, small_config(virtual_pipeline_model_parallel_size=chunks), stages_per_host=stages_per_host)
    verify_content(given, plan)
    verify_content(given, plan_from_dict(plan_to_dict(plan)))


@pytest.mark.parametrize(
    ("size", "unequal", "chunks", "divisor"),
    [
        (20, False, None, "dp * micro-batch = 8"),
        (20, True, None, None),  # 10 micro-batches: 3 + 3 + 2 + 2
        (21, True, None, "group of micro-batches * micro-batch = 2"),
        (32, True, 2, None),
        (34, True, 2, "group of micro-batches * micro-batch = 4"),  # micro-batches go in pairs
    ],
)
def test_the_divisor_of_the_batch_is_named(size: int, unequal: bool, chunks: int | None, divisor: str | None) -> None:
    """Four replicas with micro-batches of two on two stages; replicas that differ only share whole groups."""
    given = small_instance()
    training = replace(given.training, global_batch_size=size, unequal_microbatches=unequal)
    plan = replace(factories.make_plan(), config=small_config(virtual_pipeline_model_parallel_size=chunks))
    problems = [
        one for one in configuration_is_legal(replace(given, training=training), plan) if "is not divided" in one
    ]
    assert problems == ([] if divisor is None else [f"global_batch_size {size} is not divided by {divisor}"])


def test_lists_of_a_file_are_the_models_tuples() -> None:
    """Windows, YaRN and arguments passed on are recorded as JSON has them; another window is another model."""
    model = replace(
        TINY,
        position_embedding_type="yarn",
        yarn=YarnScaling(),
        window_size=(127, 0),
        window_attn_skip_freq=(1, 0) * 4,
        other_arguments=(("--use-mup",),),
    )
    given, plan = replace(small_instance(), model=model), factories.make_plan()
    for inputs in ({"model": asdict(model)}, {"model": json.loads(json.dumps(asdict(model)))}):
        assert not list(settings_are_the_given(given, replace(plan, inputs=inputs)))
        inputs["model"]["window_size"] = [128, 0]
        (problem,) = settings_are_the_given(given, replace(plan, inputs=inputs))
        assert problem == "inputs.model.window_size is [128, 0], but the job has (127, 0)"


def test_embedding_and_head_may_count_as_layers() -> None:
    """Six layers in eight chunks: the first and the last have none."""
    given = replace(small_instance(), model=replace(TINY, num_layers=6))
    chosen = small_config(layers_per_stage=(3, 3), virtual_pipeline_model_parallel_size=4)
    plan = plan_of(given, chosen)
    verify_content(given, plan)
    verify_content(given, plan_from_dict(plan_to_dict(plan)))


def test_whole_chunks_are_known_without_the_configuration() -> None:
    """The rule by hand says what configurations can be written down."""
    for chunks in (1, 2, 3, 4):
        for layers in product(range(1, 9), repeat=3):
            assert _whole_in_chunks(layers, chunks) == fit_chunks(layers, chunks), (layers, chunks)


def test_right_irregular_plan_passes() -> None:
    """Nothing asks for regular maps, unless the launcher does."""
    verify_content(small_instance(), scrambled_plan())
    assert broken(small_instance("torchrun"), replace(scrambled_plan(), launcher="torchrun")) == {
        "torchrun_ranks_contiguous"
    }


def test_hosts_may_be_listed_in_another_order() -> None:
    """Hosts are compared by name: the same plan with its host list turned round passes too."""
    plan = small_plan()
    turned = replace(plan.placement, node=len(plan.hosts) - 1 - plan.placement.node)
    verify_content(small_instance(), replace(plan, hosts=plan.hosts[::-1], placement=turned))


def placed(plan: Plan, **changes: tuple[int, int]) -> Plan:
    """The plan with single entries ``field=(rank, value)`` of its map changed."""
    arrays = {}
    for name, (rank, value) in changes.items():
        arrays[name] = getattr(plan.placement, name).copy()
        arrays[name][rank] = value
    return replace(plan, placement=replace(plan.placement, **arrays))


def certified(plan: Plan, **changes: object) -> Plan:
    """The plan with another certificate."""
    return replace(plan, certificate=replace(plan.certificate, **changes))  # type: ignore[arg-type]


def estimated(plan: Plan, **changes: object) -> Plan:
    """The plan with another estimate."""
    return replace(plan, estimate=replace(plan.estimate, **changes))  # type: ignore[arg-type]


def remembered(plan: Plan, stage: int, **changes: object) -> Plan:
    """The plan with another memory of a stage."""
    memory = list(plan.memory)
    memory[stage] = replace(memory[stage], **changes)  # type: ignore[arg-type]
    return replace(plan, memory=tuple(memory))


def lost(plan: Plan, **changes: object) -> Plan:
    """The plan with another alternative."""
    return replace(plan, alternatives=(replace(plan.alternatives[0], **changes),))  # type: ignore[arg-type]


def with_risk(plan: Plan, max_oom_risk: float) -> Plan:
    """The plan with its alternative as the fastest that has at most a risk."""
    return replace(plan, risks=(RiskChoice(max_oom_risk=max_oom_risk, plan=plan.alternatives[0]),))


def slower(plan: Plan, factor: float) -> Plan:
    """An estimate that adds up and a certificate of it, but ``factor`` of the simulator's."""
    time = plan.estimate
    return estimated(
        another_objective(plan, factor),
        iteration_time_s=time.iteration_time_s * factor,
        tokens_per_s=time.tokens_per_s / factor,
        tokens_per_s_per_gpu=time.tokens_per_s_per_gpu / factor,
        mfu=time.mfu / factor,
        hfu=(time.hfu or 0.0) / factor,
        breakdown={name: seconds * factor for name, seconds in time.breakdown.items()},
        critical_path={name: seconds * factor for name, seconds in time.critical_path.items()},
    )


def another_objective(plan: Plan, factor: float) -> Plan:
    """A consistent certificate of ``factor`` of the objective."""
    proof = plan.certificate
    return certified(
        plan,
        objective_s=proof.objective_s * factor,
        lower_bound_s=proof.lower_bound_s * factor,
        placement_dependent_s=proof.placement_dependent_s * factor,
    )


def moved(plan: Plan, source: str, target: str, field: str = "breakdown") -> Plan:
    """Time booked under another cause; the sum stays."""
    parts = dict(getattr(plan.estimate, field))
    parts[source], parts[target] = 0.75 * parts[source], parts[target] + 0.25 * parts[source]
    return estimated(plan, **{field: parts})


BREAKS: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("degrees_fill_the_world", lambda plan: replace(plan, config=replace(plan.config, data_parallel_size=8))),
    ("hosts_exist", lambda plan: placed(plan, node=(0, 9))),
    ("hosts_exist", lambda plan: replace(plan, hosts=("n0", "n1", "n2", "elsewhere", "n4"))),
    ("hosts_exist", lambda plan: replace(plan, unused_hosts={})),
    ("hosts_exist", lambda plan: replace(plan, unused_hosts={"n2": "", "n3": ""})),
    ("one_rank_per_gpu", lambda plan: placed(plan, local_rank=(0, 1))),
    ("one_rank_per_gpu", lambda plan: placed(plan, local_rank=(3, 4))),
    ("one_rank_per_gpu", lambda plan: placed(plan, node=(0, 0))),
    ("one_rank_per_gpu", lambda plan: replace(plan, gpus_per_node=8)),
    ("settings_are_the_given", lambda plan: replace(plan, p2p="async")),
    ("settings_are_the_given", lambda plan: replace(plan, launcher="mpi")),
    ("settings_are_the_given", lambda plan: replace(plan, global_batch_size=128)),
    (
        "settings_are_the_given",
        lambda plan: replace(plan, inputs={**plan.inputs, "model": {**asdict(TINY), "hidden_size": 2048}}),
    ),
    ("memory_fits memory_is_reproduced", lambda plan: remembered(plan, 0, upper_bytes=80 * GIB + 1)),
    ("memory_is_reproduced", lambda plan: remembered(plan, 1, capacity_bytes=80 * GIB + 1)),
    ("memory_is_reproduced", lambda plan: remembered(plan, 1, predicted_bytes=60 * GIB)),
    ("memory_is_reproduced", lambda plan: remembered(plan, 1, upper_bytes=plan.memory[1].upper_bytes * 1.01)),
    ("memory_fits memory_is_reproduced", lambda plan: remembered(plan, 1, predicted_bytes=1, upper_bytes=2)),
    ("memory_fits memory_is_reproduced", lambda plan: remembered(plan, 0, oom_probability=1.5)),
    ("memory_is_reproduced", lambda plan: remembered(plan, 0, oom_probability=1e-5)),
    ("memory_is_reproduced", lambda plan: remembered(plan, 0, extrapolates=not plan.memory[0].extrapolates)),
    ("memory_fits", lambda plan: replace(plan, memory=plan.memory[:1])),
    ("memory_is_reproduced", lambda plan: replace(plan, inputs={**plan.inputs, "max_oom_risk": 0.02})),
    ("memory_is_reproduced", lambda plan: replace(plan, inputs={**plan.inputs, "max_oom_risk": None})),
    ("settings_are_the_given", lambda plan: replace(plan, nccl_algorithm="tree")),
    ("alternatives_are_reproduced", lambda plan: lost(plan, config=plan.config)),
    ("alternatives_are_reproduced", lambda plan: lost(plan, hosts=("n0", "n1", "n3"))),
    ("alternatives_are_reproduced", lambda plan: lost(plan, hosts=("n0", "n1", "n3", "n3"))),
    ("alternatives_are_reproduced", lambda plan: lost(plan, hosts=("n0", "n1", "n3", "n9"))),
    ("alternatives_are_reproduced", lambda plan: lost(plan, hosts=("n0", "n4", "n1", "n3"))),
    ("alternatives_are_reproduced", lambda plan: lost(plan, iteration_time_s=plan.estimate.iteration_time_s * 2)),
    ("alternatives_are_reproduced", lambda plan: lost(plan, iteration_time_s=None)),
    ("alternatives_are_reproduced", lambda plan: lost(plan, oom_probability=0.5)),
    ("alternatives_are_reproduced", lambda plan: lost(plan, reason="99.0 % slower, most of it bubble (+9.00 %)")),
    (
        "alternatives_are_reproduced",
        lambda plan: lost(plan, config=replace(plan.config, tensor_model_parallel_size=3, data_parallel_size=8)),
    ),
    (
        "unused_hosts_are_reproduced",
        lambda plan: replace(plan, unused_hosts={"n2": "in place of n0 an iteration would take 9.00 % more"}),
    ),
    ("unused_hosts_are_reproduced", lambda plan: replace(plan, unused_hosts={"n2": "not needed; as good as n2"})),
    (
        "unused_hosts_are_reproduced",
        lambda plan: replace(plan, unused_hosts={"n2": "an iteration would take 9.00 % more"}),
    ),
    ("preference_holds", lambda plan: certified(plan, fastest_s=plan.certificate.objective_s)),
    ("risks_are_reproduced", lambda plan: with_risk(plan, 1e-9)),
    (
        "imbalance_is_reproduced",
        lambda plan: replace(
            plan, imbalance=Imbalance(expert_imbalance=1.3, iteration_time_s=99.0, oom_probability=1e-6)
        ),
    ),
    ("certificate_is_consistent", lambda plan: certified(plan, gap=0.01)),
    ("certificate_is_consistent", lambda plan: certified(plan, placement_gap=0.01)),
    ("certificate_is_consistent", lambda plan: certified(plan, status="OPTIMAL")),
    ("certificate_is_consistent", lambda plan: certified(plan, status="UNKNOWN")),
    (
        "certificate_is_consistent",
        lambda plan: certified(
            plan,
            lower_bound_s=plan.certificate.objective_s * 1.5,
            gap=-0.5,
            placement_gap=-2.0,
        ),
    ),
    ("certificate_is_consistent", lambda plan: certified(plan, num_pruned=-1)),
    ("certificate_is_consistent", lambda plan: certified(plan, num_pruned=plan.certificate.num_candidates + 1)),
    ("estimate_is_reproduced", lambda plan: moved(plan, "compute", "bubble")),
    ("estimate_is_reproduced", lambda plan: moved(plan, "compute", "bubble", "critical_path")),
    ("estimate_is_reproduced", lambda plan: estimated(plan, hfu=plan.estimate.mfu / 2)),
    ("estimate_adds_up", lambda plan: estimated(plan, critical_path={})),
    ("memory_fits memory_is_reproduced", lambda plan: replace(plan, inputs={"max_oom_risk": 1e-7})),
    (
        "estimate_adds_up",
        lambda plan: estimated(plan, breakdown={**plan.estimate.breakdown, "bubble": 0.0}),
    ),
    ("estimate_adds_up", lambda plan: estimated(plan, tokens_per_s=plan.estimate.tokens_per_s * 1.001)),
    ("estimate_is_reproduced objective_is_reproduced", lambda plan: slower(plan, 1 + 1e-5)),
    ("estimate_is_reproduced objective_is_reproduced", lambda plan: slower(plan, 1 - 1e-5)),
    ("estimate_is_reproduced", lambda plan: estimated(plan, mfu=plan.estimate.mfu / 2)),
    ("objective_is_reproduced", lambda plan: another_objective(plan, 1 + 1e-6)),
    ("objective_is_reproduced", lambda plan: another_objective(plan, 1 - 1e-6)),
]


@pytest.mark.search
@pytest.mark.parametrize(("rules", "change"), BREAKS)
def test_each_broken_rule_is_named(rules: str, change: Callable[[Plan], Plan]) -> None:
    """One thing wrong in a right plan breaks these rules, and no other."""
    assert broken(small_instance(), change(small_plan())) == set(rules.split())


def test_all_broken_rules_are_named() -> None:
    """What is wrong is collected, not only the first."""
    plan = certified(remembered(small_plan(), 0, oom_probability=-0.1), gap=0.5)
    assert broken(small_instance(), plan) == {"memory_is_reproduced", "certificate_is_consistent"}


@pytest.mark.parametrize("chunks", [None, 2])
def test_illegal_configuration(chunks: int | None) -> None:
    """Three-way tensor parallelism does not divide sixteen heads."""
    given = small_instance()
    odd = replace(small_config(virtual_pipeline_model_parallel_size=chunks), layers_per_stage=(4, 2))
    assert "configuration_is_legal" in broken(given, replace(small_plan(), config=odd))


def test_an_alternative_needs_the_links_of_its_own_tile() -> None:
    """
    Hosts n0, n2, n3, n1 hold two stages and four replicas in two ways: a stage on two hosts, or both stages on each.

    The second way has a ring from n1 to n0, which was not measured. Without n3 to n0, no way is left.
    """
    links = np.full((4, 4), 20.0)
    links[1, 0] = np.nan
    given, config, order = make_job(make_cluster(4, links, gpus=2), TINY), make_config(tp=1, pp=2, dp=4), (0, 2, 3, 1)
    of_stages = {tile.stages: tile for tile in host_tiles(config, 2, given.launcher)}
    assert set(of_stages) == {1, 2}
    own = tile_placement(config, of_stages[1], np.array(order).reshape(2, 2, 1))
    seconds = estimate(given, config, own).iteration_time_s
    hosts = tuple(f"n{host}" for host in order)
    recorded = Alternative(config=config, hosts=hosts, iteration_time_s=seconds, oom_probability=0.0, reason="")
    placement, simulated = nearest_placement(given, recorded)
    assert (placement.node == own.node).all()
    assert simulated.iteration_time_s == seconds
    links[3, 0] = np.nan
    with pytest.raises(InputError, match="not measured"):
        nearest_placement(make_job(make_cluster(4, links, gpus=2), TINY), recorded)


def test_swapped_hosts_change_the_times_only() -> None:
    """A right map that is not the estimated one: two stages exchange a host. Alternatives lost to another time."""
    plan = small_plan()
    swapped = plan.placement.node.copy()
    swapped[[0, 1, 2, 3, 12, 13, 14, 15]] = swapped[[12, 13, 14, 15, 0, 1, 2, 3]]
    moved = replace(plan, placement=replace(plan.placement, node=swapped))
    assert broken(small_instance(), moved) == {
        "estimate_is_reproduced",
        "objective_is_reproduced",
        "alternatives_are_reproduced",
    }


@pytest.mark.search
@pytest.mark.parametrize(
    ("source", "target", "chunks", "used"),
    [
        # Stage 0 is on n3, n0 (two replicas each) and stage 1 on n4, n1: messages n3 <-> n4 and n0 <-> n1, and the
        # rings n3 <-> n0 and n4 <-> n1.
        (3, 4, None, True),
        (4, 3, None, True),
        (1, 0, None, True),
        (3, 0, None, True),
        (1, 4, None, True),
        (3, 1, None, False),
        (0, 4, None, False),
        (2, 3, None, False),
    ],
)
def test_unmeasured_links(source: int, target: int, chunks: int | None, used: bool) -> None:
    """A missing measurement matters exactly where the plan sends something."""
    links = np.linspace(10.0, 20.0, 25).reshape(5, 5)
    links[source, target] = np.nan
    given = make_job(make_cluster(5, links, gpus=4))
    expected = {"links_were_measured", "estimate_is_reproduced"} if used else set()
    assert broken(given, small_plan()) - {"unused_hosts_are_reproduced"} == expected  # n2 may need that link


def test_wrap_around_of_interleaved_pipelines_is_a_link() -> None:
    """Four stages on four hosts: the last one sends to the first only if the stages hold several chunks."""
    links = np.full((4, 4), 20.0)
    links[3, 0] = np.nan
    given = make_job(make_cluster(4, links, gpus=4))
    full = small_instance().cluster
    for chunks, expected in ((None, set()), (2, {"links_were_measured", "estimate_is_reproduced"})):
        chosen = replace(
            small_config(virtual_pipeline_model_parallel_size=chunks),
            pipeline_model_parallel_size=4,
            data_parallel_size=2,
            layers_per_stage=(2, 2, 2, 2),
        )
        complete = replace(given, cluster=replace(full, nodes=full.nodes[:4], link_matrices=(make_links(20.0, 4),)))
        plan = plan_of(complete, chosen, (0, 1, 2, 3))
        assert broken(given, plan) - {"estimate_is_reproduced"} == expected - {"estimate_is_reproduced"}


def test_capacity_is_that_of_the_smallest_gpu() -> None:
    """Hosts n0, n2, n4 have 80 GiB, n1 and n3 40: a stage on n3 may not count on 78."""
    given = make_job(make_cluster(5, 15.0, gpus=4, kinds=(A100_80, A100_40)))
    plan = plan_of(given, small_config())
    usable = load_predictor(0.01, given).usable_bytes(A100_40)
    assert [stage.capacity_bytes for stage in plan.memory] == [usable, usable]
    verify_content(given, plan)
    more = remembered(plan, 0, capacity_bytes=load_predictor(0.01, given).usable_bytes(A100_80))
    assert broken(given, more) == {"memory_is_reproduced"}


def test_state_floor_by_hand() -> None:
    """
    Four layers of the tiny model on two tensor ranks, bf16 with fp32 gradients, optimizer over four replicas.

    Sharded per layer: 12 h^2 weights, 3 h and 4 h biases, h = 1024; halved; times 2 + 4 + 12 / 4 bytes.
    """
    floor = 4 * (12 * 1024**2 + 7 * 1024) / 2 * 9
    plan = remembered(small_plan(), 0, predicted_bytes=0)
    assert "memory_fits" in broken(small_instance(), remembered(plan, 0, upper_bytes=int(floor) - 1))
    assert "memory_fits" not in broken(small_instance(), remembered(plan, 0, upper_bytes=int(floor)))


def test_state_floor_of_narrow_gradients() -> None:
    """A stack whose gradients stay in 16 bits takes 2 + 2 + 12 / 4 bytes; a constant cannot save more than that."""
    floor = 4 * (12 * 1024**2 + 7 * 1024) / 2 * 7
    given = small_instance()
    narrow = replace(given, stack=replace(given.stack, memory=MemoryConstants(parameter_bytes=-2.0)))
    plan = remembered(small_plan(), 0, predicted_bytes=0)
    assert "memory_fits" in broken(narrow, remembered(plan, 0, upper_bytes=int(floor) - 1))
    assert "memory_fits" not in broken(narrow, remembered(plan, 0, upper_bytes=int(floor)))
    with pytest.raises(ValueError, match="parameter_bytes"):
        MemoryConstants(parameter_bytes=-2.25)


def test_coordinates_are_checked_against_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the rank grid wrong, the rule would say so: turn its replicas round."""
    original = RankGrid.coordinates

    def turned(self: RankGrid) -> np.ndarray:
        coordinates = original(self)
        coordinates[:, 1] = self.dp - 1 - coordinates[:, 1]
        return coordinates

    plan = small_plan()
    monkeypatch.setattr(RankGrid, "coordinates", turned)
    assert broken(small_instance(), plan) == {"coordinates_in_rank_order"}


def test_torchrun_needs_equal_hosts() -> None:
    """Ten ranks on hosts of four: the last host has two, which one launch line for all cannot say."""
    chosen = replace(
        small_config(), data_parallel_size=5, micro_batch_size=1, pipeline_model_parallel_size=1, layers_per_stage=(8,)
    )
    given = replace(small_instance("torchrun"), training=replace(small_instance().training, global_batch_size=40))
    placement = identity_placement(chosen, 4, np.array(HOST_ORDER[:3]), "tp-cp-ep-dp-pp")
    assert broken(given, sound(given, factories.plan_on(given, chosen, placement))) == {"torchrun_ranks_contiguous"}


def test_same_placement_object_is_not_changed() -> None:
    """Verifying reads only."""
    plan = small_plan()
    before = Placement(order=plan.placement.order, node=plan.placement.node, local_rank=plan.placement.local_rank)
    verify_content(small_instance(), plan)
    np.testing.assert_array_equal(plan.placement.node, before.node)


def test_independent_of_the_solver() -> None:
    """``verify`` imports neither the integer problem nor anything that solves it."""
    forbidden = {"problem", "solutions", "solver", "annealing", "certify", "prepare", "optimize"}
    for file in Path(pipette_opt.verify.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not {module for module in modules if set(module.split(".")) & forbidden}, file.name


def test_gaps_of_the_model_are_named() -> None:
    """A layer whose attention and MLP share a reduction, which no number counts, must be said."""
    given = replace(small_instance(), model=replace(TINY, parallel_residual=True))
    plan = plan_of(given, small_config())
    assert broken(given, plan) == {"gaps_are_named"}
    verify_content(given, replace(plan, not_modelled=not_modelled_of(given.model, given.training)))


def test_every_rule_is_broken_somewhere() -> None:
    """No rule without a test that breaks it."""
    elsewhere = {
        "gaps_are_named",
        "coordinates_in_rank_order",
        "torchrun_ranks_contiguous",
        "configuration_is_legal",
        "links_were_measured",
        "target_is_reproduced",
    }
    assert {rule.__name__ for rule in (*MAP_RULES, *CONTENT_RULES)} == {
        name for names, _ in BREAKS for name in names.split()
    } | elsewhere
