"""What the host's memory has as a choice of the search: against every split, recomputation, choice and placement."""

from dataclasses import asdict, replace

import pytest
from all_placements import all_placements, every_fitting_s, least_s, tight_job
from factories import make_config

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.offload import Offload, offload_of
from pipette_opt.candidates import SearchSpace, check_legal, enumerate_candidates
from pipette_opt.certify.conflicts import explained
from pipette_opt.certify.why import why
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.job.read import read_job
from pipette_opt.job.space import search_space
from pipette_opt.memory.fewest import check_memory
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.options.description import JobOptions, SpaceOptions
from pipette_opt.parallel import ParallelConfig, Placement, with_offload, without_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

LAYERS = 9
"""Layers of the model of the test: few enough for every split."""

WORDS = (None, "optimizer:0.5", "optimizer", "optimizer+core_attn", "core_attn")
"""What the hosts' memory may have: nothing, states of the optimizer, inputs of a module, both."""

SPACE = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    data_parallel=(1,),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    overlap_grad_reduce=False,
    offload=WORDS,
)
"""Two stages on two hosts."""

PARAMS = OptimizeParams(time_limit_s=30, workers=2, max_oom_risk=0.01)


@pytest.mark.parametrize(
    ("memory_gib", "batch", "words"),
    [
        (13.0, 24, {"optimizer", "optimizer+core_attn"}),  # nothing fits without
        (20.0, 24, {None}),  # a step on the host takes longer than layers that are recomputed
        (20.0, 240, set(WORDS) - {None}),  # and of so large a batch it does not
        (38.0, 24, {None}),  # everything fits
    ],
)
def test_the_plan_is_the_optimum_of_all_choices(memory_gib: float, batch: int, words: set[str | None]) -> None:
    """Proven, and verified; the plan has the host's memory where that is faster or the only way."""
    job = tight_job(memory_gib, LAYERS, batch)
    every = every_fitting_s(job, SPACE)
    assert any(one.offload is None for one in every) == (None in words or memory_gib > 13)
    plan = optimize(job, SPACE, PARAMS)
    assert plan.estimate.iteration_time_s == pytest.approx(min(every.values()), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.config.offload in words
    assert plan.certificate.searched["offload"] == (None, *sorted(word for word in WORDS if word))
    verify(job, plan)


def test_only_what_memory_asks_for() -> None:
    """Of every choice that fits, what is left out recomputes no fewer layers and is no faster than what is kept."""
    job = tight_job(20.0, LAYERS, 24)
    predictor = load_predictor(0.01, job)
    candidates = enumerate_candidates(job, SPACE)
    found = check_memory(job, candidates, predictor, 0.01)
    parts = (found.fitting, found.rejected, found.spared, found.kept_on_gpu)
    assert sum(map(len, parts)) == len(candidates)
    assert all(parts)

    def listed(one: ParallelConfig) -> ParallelConfig:
        base = without_overlap(one)
        return replace(base, recompute_num_layers=1) if one.recomputation == "block" else base

    kept = {listed(one.config): one.config for one in found.fitting}
    for one in found.kept_on_gpu:
        less = [with_offload(listed(one), word) for word in WORDS if word != one.offload and has_all(one, word)]
        others = [kept[other] for other in less if other in kept]
        plain = replace(one, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1)
        others += [kept[p] for word in WORDS if has_all(one, word) and (p := with_offload(plain, word)) in kept]
        assert others
        alone = check_memory(job, [one], predictor, 0.01).fitting
        times = least_s(job, [*others, *(each.config for each in alone)])
        assert all(min(times[other] for other in others) <= times[each.config] * (1 + 1e-12) for each in alone)


def has_all(config: ParallelConfig, word: str | None) -> bool:
    """Whether a configuration has all on the host that a choice has."""
    return offload_of(config.offload).has_all_of(offload_of(word))


def test_the_host_makes_nothing_faster() -> None:
    """The simulated time of each choice is at least that of every choice with less on the host."""
    job = tight_job(20.0, LAYERS, 24)
    for base in enumerate_candidates(job, replace(SPACE, offload=(None,), micro_batch_size=(1, 2))):
        times = {
            word: estimate(job, one, placement).iteration_time_s
            for word in WORDS
            if (one := with_offload(base, word)) and (placement := placed(job, one)) is not None
        }
        for word, seconds in times.items():
            assert all(times[less] <= seconds for less in times if offload_of(word).has_all_of(offload_of(less)))


def placed(job: Instance, one: ParallelConfig) -> Placement | None:
    """Its first placement."""
    return next(iter(all_placements(job, one)), None)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of the job that only fits with the host's memory, where only optimizer states may be there."""
    job = tight_job(13.0, LAYERS, 24)
    found = optimize(job, replace(SPACE, offload=(None, "optimizer")), PARAMS)
    given = {"model": asdict(job.model), "training": asdict(job.training)}
    return replace(found, inputs={**found.inputs, **given})


def test_a_plan_says_it_and_is_read_again(plan: Plan) -> None:
    """Label, file, note on the host's memory, and Megatron-LM's words, with all that these want."""
    assert "offload:optimizer" in plan.config.label().split()
    assert plan_from_dict(plan_to_dict(plan), "plan").config == plan.config
    assert any("of host memory for each GPU" in note for note in plan.notes)
    said = megatron_arguments(plan)
    wanted = ("--optimizer-cpu-offload", "--use-precision-aware-optimizer", "--use-distributed-optimizer")
    assert set(wanted) <= set(said)
    assert said[said.index("--optimizer-offload-fraction") + 1] == "1"


def test_why_knows_the_choice(plan: Plan) -> None:
    """By pin and by label; without it nothing fits."""
    job, space = tight_job(13.0, LAYERS, 24), replace(SPACE, offload=(None, "optimizer"))
    assert why(job, space, "offload=none", 0.01, plan).verdict == "too big"
    assert why(job, space, plan.config.label(), 0.01, plan).verdict == "the plan"
    with pytest.raises(InputError, match=r"offload=disk: must be none, optimizer, optimizer:0.5"):
        why(job, space, "offload=disk", 0.01, plan)


def test_where_nothing_fits_it_is_offered() -> None:
    """Without the option a job that would fit with it fails, and the requirement is named."""
    job, space = tight_job(13.0, LAYERS, 24), replace(SPACE, offload=None)
    with pytest.raises(InfeasibleError) as caught:
        optimize(job, space, PARAMS)
    assert "(--offload)" in str(explained(caught.value, job, space, 0.01))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("disk",), "must be some of none, optimizer, optimizer:0.5, parameters, layers:8, or modules .*; got disk"),
        (("parameters+optimizer",), r"got parameters\+optimizer"),
        (("optimizer:2",), r"optimizer_offload_fraction must be in \[0, 1\], got 2"),
        (("optimizer:0",), "has optimizer:0, which offloads nothing; write none instead"),
        (("layers:1.5",), "got layers:1.5"),
        (("optimizer+optimizer:0.5",), r"got optimizer\+optimizer:0.5"),
        (("attn_proj",), "attn_proj without core_attn"),
        (("layers:2+moe_act",), "cannot be combined with cpu_offloading_num_layers"),
        ((), "must list at least one value"),
    ],
)
def test_unknown_words_are_refused(words: tuple[str, ...], problem: str) -> None:
    """One message that names the option, the value, and what would be right."""
    with pytest.raises(InputError, match=f"--offload: .*{problem}"):
        SearchSpace(offload=words)


def test_the_job_and_the_space_do_not_both_say() -> None:
    """What the job's own options have on the host is no choice any more."""
    job = tight_job(20.0, LAYERS, 24)
    own = replace(job, training=replace(job.training, optimizer_offload_fraction=1.0))
    with pytest.raises(InputError, match=r"--offload: repeats the offload .* \(optimizer\)"):
        enumerate_candidates(own, SPACE)
    assert Offload(optimizer_offload_fraction=1.0).word == "optimizer"
    assert offload_of("parameters").has_all_of(offload_of("optimizer"))
    with pytest.raises(ValueError, match=r"offload of parameters keeps all states on the host, got .*=0\.5"):
        Offload(parameters=True, optimizer_offload_fraction=0.5)


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan"])
def test_shards_stay_on_gpus_with_megatron(software: str) -> None:
    """Megatron-Core has no such option; FSDP2 does."""
    options = JobOptions(
        nodes="1", gpu="h100", model="llama-3-8b", global_batch_size=64, seq_length=4096, software=software
    )
    given = SpaceOptions(offload=("none", "parameters"))
    if software == "torchtitan":
        assert search_space(read_job(options), given).offload == (None, "parameters")
        return
    with pytest.raises(
        InputError, match=r"--offload: has parameters, which megatron-core does not keep .* --for accelerate"
    ):
        search_space(read_job(options), given)


REPLICAS = {"dp": 2, "pp": 1, "tp": 1}
SHARED = {**REPLICAS, "use_distributed_optimizer": True}


@pytest.mark.parametrize(
    ("training", "broken", "mended"),
    [
        ({"optimizer": "muon"}, {"offload": "optimizer"}, {"offload": None}),
        ({}, {"offload": "optimizer", **REPLICAS}, {"use_distributed_optimizer": True}),
        ({}, {"offload": "core_attn", "recompute_granularity": "full"}, {"recompute_granularity": "selective"}),
        ({}, {"offload": "layers:2", "pp": 3}, {"pp": 1, "layers_per_stage": (LAYERS,)}),
        ({}, {"offload": "layers:9"}, {"offload": "layers:8"}),
        ({}, {"offload": "parameters", "zero_stage": 2, **SHARED}, {"zero_stage": 3}),
    ],
)
def test_legality_of_a_choice(training: dict, broken: dict, mended: dict) -> None:  # type: ignore[type-arg]
    """Both sides of each edge."""
    job = tight_job(20.0, LAYERS, 24)
    trained, model = replace(job.training, **training), job.model
    (reason,) = check_legal(model, trained, make_config(num_layers=LAYERS, **broken))
    words = (f"offload={broken['offload']}", "cpu_offloading_num_layers", "offload of parameters needs zero_stage=3")
    assert any(word in reason for word in words)
    assert not check_legal(model, trained, make_config(num_layers=LAYERS, **(broken | mended)))
