"""Tensor overlap as a choice of the search: against every split, recomputation, choice and placement."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from all_placements import all_placements, every_fitting_s, least_s, tight_job
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.candidates import SearchSpace, check_legal, enumerate_candidates, enumerate_with_reasons, left_out
from pipette_opt.certify.why import why
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import user_buffer_bytes
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, with_tensor_overlap, without_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify import verify
from pipette_opt.verify.rules import configuration_is_legal

pytestmark = pytest.mark.search

LAYERS = 9
"""Layers of the model of the test: few enough for every split."""

SPACE = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    data_parallel=(1,),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    overlap_grad_reduce=False,
    recompute=(None, "block", "selective", "full"),
    tp_comm_overlap=None,
)
"""Two stages on two hosts; recomputation is pinned to what the brute force lists."""

PARAMS = OptimizeParams(time_limit_s=30, workers=2, max_oom_risk=0.01)


@pytest.mark.parametrize(
    ("memory_gib", "overlaps"),
    [
        (18.2, False),  # only without the buffers is there room
        (19.0, False),  # with them more layers are recomputed, which takes longer than what they hide
        (19.4, True),  # with as many layers recomputed either way
        (28.0, True),  # everything fits
    ],
)
def test_the_plan_is_the_optimum_of_both_choices(memory_gib: float, overlaps: bool) -> None:
    """Proven, and verified; the plan has buffers where it is faster with the memory that is left."""
    job = tight_job(memory_gib, LAYERS)
    every = every_fitting_s(job, SPACE)
    assert any(one.tp_comm_overlap for one in every) == (memory_gib > 18.2)
    plan = optimize(job, SPACE, PARAMS)
    assert plan.estimate.iteration_time_s == pytest.approx(min(every.values()), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.config.tp_comm_overlap == overlaps
    verify(job, plan)


def test_without_it_only_where_memory_asks_for_that() -> None:
    """Of every choice that fits, what is left out without buffers is no faster than what is kept."""
    job, predictor = tight_job(19.2, LAYERS), load_predictor(0.01, tight_job(19.2, LAYERS))
    candidates = enumerate_candidates(job, SPACE)
    found = check_memory(job, candidates, predictor, 0.01)
    parts = (found.fitting, found.rejected, found.spared, found.kept_on_gpu, found.not_overlapped)
    assert sum(map(len, parts)) == len(candidates)
    assert found.not_overlapped
    assert not found.kept_on_gpu
    kept = [one.config for one in found.fitting]
    for one in found.not_overlapped:
        assert not one.tp_comm_overlap
        alone = [each.config for each in check_memory(job, [one], predictor, 0.01).fitting]
        twins = [other for other in kept if other.tp_comm_overlap and _but_layers(other) == _but_layers(one)]
        plain = [other for other in kept if other.tp_comm_overlap and other.recomputation is None]
        times = least_s(job, [*twins, *plain, *alone])
        assert all(min(times[other] for other in (*twins, *plain)) <= times[each] * (1 + 1e-12) for each in alone)


def _but_layers(one: ParallelConfig) -> ParallelConfig:
    """The configuration for any number of recomputed layers, with tensor overlap."""
    return with_tensor_overlap(replace(without_overlap(one), recompute_num_layers=1), True)


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_overlap_makes_nothing_slower(micro_batch_size: int) -> None:
    """The simulated time with buffers is at most that without, and memory is more by the buffers."""
    job, predictor = tight_job(28.0, LAYERS), load_predictor(0.01, tight_job(28.0, LAYERS))
    space = replace(SPACE, micro_batch_size=(micro_batch_size,), tp_comm_overlap=False, virtual_pipeline=(1, 3))
    for base in enumerate_candidates(job, space):
        overlapped = with_tensor_overlap(base, True)
        placement = next(iter(all_placements(job, base)))
        times = [estimate(job, one, placement).iteration_time_s for one in (overlapped, base)]
        assert times[0] < times[1]
        more, less = (predictor.predict(job.model, job.training, [one])[0] for one in (overlapped, base))
        buffers = user_buffer_bytes(job.model, job.training, overlapped)
        assert np.allclose(more.predicted_bytes - less.predicted_bytes, buffers, atol=2)


WIDE = SearchSpace(pipeline_parallel=(1,), micro_batch_size=(1,), context_parallel=(1,), tp_comm_overlap=None)


def chosen_sizes(job: Instance) -> dict[bool, set[int]]:
    """Tensor sizes of the legal configurations with and without overlap."""
    listed = enumerate_candidates(job, WIDE)
    return {on: {one.tensor_model_parallel_size for one in listed if one.tp_comm_overlap == on} for on in (True, False)}


def test_both_choices_are_inside_an_nvlink_domain() -> None:
    """Tensor groups over hosts, and single GPUs, go without; a job that has the option has no choice."""
    job = make_job(make_cluster(2), LLAMA_8B, 32, 4096)
    assert chosen_sizes(job) == {True: {2, 4, 8}, False: {1, 2, 4, 8, 16}}
    given = replace(job, training=replace(job.training, tp_comm_overlap=True))
    assert chosen_sizes(given) == {True: set(), False: {1, 2, 4, 8}}
    every = enumerate_with_reasons(job, replace(WIDE, tp_comm_overlap=True))
    assert {one.tensor_model_parallel_size for one in every.candidates} == {2, 4, 8}
    assert any("user buffers of 16 tensor ranks" in reason for _, reason in every.reasons)


@pytest.mark.parametrize(
    ("training", "hosts"),
    [
        ({"precision": "fp16", "accumulate_allreduce_grads_in_fp32": False}, {}),
        ({"other_arguments": (("--transformer-impl", "local"),)}, {}),
        ({}, {"intra_node_bytes_per_s": 20e9}),
    ],
)
def test_jobs_that_cannot_have_it(training: dict, hosts: dict) -> None:  # type: ignore[type-arg]
    """Another type than bf16, layers without Transformer Engine, and hosts with PCIe only have no choice."""
    job = make_job(make_cluster(2, **hosts), LLAMA_8B, 32, 4096)
    job = replace(job, training=replace(job.training, **training))
    assert chosen_sizes(job)[True] == set()
    assert not any("--tp-comm-overlap" in text for text in left_out(job, WIDE, enumerate_with_reasons(job, WIDE)))


def test_the_scope_names_it_where_it_is_not_searched() -> None:
    """Searched, it is no option that may save time; pinned, it is."""
    job = make_job(make_cluster(2), LLAMA_8B, 32, 4096)
    for overlap, is_named in ((None, False), (False, True), (True, False)):
        space = replace(WIDE, tp_comm_overlap=overlap)
        missing = left_out(job, space, enumerate_with_reasons(job, space))
        options = next(text for text in missing if text.startswith("options that may save time"))
        assert ("--tp-comm-overlap" in options) == is_named
        assert "--cuda-graph-impl local" in options


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with tensor overlap, with its inputs."""
    job = tight_job(28.0, LAYERS)
    found = optimize(job, SPACE, PARAMS)
    given = {"model": asdict(job.model), "training": asdict(job.training)}
    return replace(found, inputs={**found.inputs, **given})


def test_a_plan_says_it_and_is_read_again(plan: Plan) -> None:
    """Label, file, note and Megatron-LM's words."""
    assert "tp-overlap" in plan.config.label().split()
    content = plan_to_dict(plan)
    assert plan_from_dict(content, "plan").config == plan.config
    assert any("--tp-comm-overlap" in note for note in plan.notes)
    assert megatron_arguments(plan).count("--tp-comm-overlap") == 1


def test_a_forged_choice_is_found(plan: Plan) -> None:
    """The times, the NVLink domain, and the searched space tell."""
    job = tight_job(28.0, LAYERS)
    with pytest.raises(PlanError, match="the simulator gives"):
        verify(job, replace(plan, config=with_tensor_overlap(plan.config, False)))
    one_gpu = replace(job, cluster=make_cluster(4, gpus=1))
    assert any("leave the NVLink domain of 1" in problem for problem in configuration_is_legal(one_gpu, plan))
    forged = {**plan.inputs, "search": {**plan.inputs["search"], "tp_comm_overlap": False}}
    with pytest.raises(PlanError, match="is not among"):
        verify(job, replace(plan, inputs=forged))


def test_why_knows_the_choice(plan: Plan) -> None:
    """By label and by pin; without it the same layout is slower."""
    job = tight_job(28.0, LAYERS)
    assert why(job, SPACE, plan.config.label(), 0.01, plan).verdict == "the plan"
    assert why(job, SPACE, "tp2 tp-comm-overlap=off recompute=none", 0.01, plan).verdict != "the plan"
    with pytest.raises(InputError, match=r"tp-overlap=maybe: must be on or off"):
        why(job, SPACE, "tp-overlap=maybe", 0.01, plan)


def test_legality_of_the_choice() -> None:
    """It needs sequence parallelism, hence several tensor-parallel ranks."""
    job = tight_job(28.0, LAYERS)
    with_sequence = make_config(tp=2, num_layers=LAYERS, sequence_parallel=True, tp_comm_overlap=True)
    assert not check_legal(job.model, job.training, with_sequence)
    for broken in (
        replace(with_sequence, sequence_parallel=False),
        make_config(num_layers=LAYERS, tp_comm_overlap=True),
    ):
        assert check_legal(job.model, job.training, broken) == ["tp_comm_overlap needs sequence_parallel"]
