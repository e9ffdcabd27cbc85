"""Bands of predicted times, without measured runs."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job
from llama_jobs import OTHER_GPU, job

from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.plans.plan import FEW_RUNS, Band
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import GpuSpec, Instance, ModelSpec
from pipette_opt.specs.stack import Anchor
from pipette_opt.worlds.bands import SHARE, job_band, jobs_of_bands, with_band
from pipette_opt.worlds.factor import job_factor
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import describe
from pipette_opt.worlds.worlds import Worlds

MIXTURE = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)


def width(band: Band) -> float:
    """Ratio of the ends."""
    return band.high_s / band.low_s


def test_a_band_is_that_of_the_prior() -> None:
    """Its quantiles times the expected time, and the public runs of this kind of job."""
    given, config = job(), make_config(tp=8)
    band = job_band(given, config, 20.0)
    place = identity_placement(config, 8, np.arange(2), "tp-cp-ep-dp-pp")
    _, terms = describe(given, [(config, place)])
    ends = 20 * job_factor(given) * Worlds.load().bands(terms, SHARE)[0]
    assert [band.low_s, band.high_s] == pytest.approx([ends[0], ends[2]])
    assert band.middle_s == pytest.approx(20 * job_factor(given))
    counts = shipped_priors().runs
    like = counts["dense, 16 bit, ampere"]
    assert (band.share, band.runs) == (SHARE, like)
    assert band.source.startswith(f"{sum(counts.values()):,} public runs, {like} of them like this (dense, 16 bit")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (job("h100-80gb", precision="fp32"), "none of them like this (dense, fp32, hopper)"),
        (make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B), "none of them like this (dense, 16 bit, mi300x)"),
    ],
)
def test_few_runs_like_a_job_are_said(given: Instance, said: str) -> None:
    """Who reads the band learns that few runs are like the job."""
    few = job_band(given, make_config(tp=8), 10.0)
    assert few.runs < FEW_RUNS <= job_band(job(), make_config(tp=8), 10.0).runs
    assert few.source.endswith(said)


def test_a_gpu_that_no_public_run_used_is_said() -> None:
    """By its generation or its name, whatever its name is like; not where the user measured."""
    config = make_config(tp=8)

    def said(gpu: GpuSpec) -> str:
        return job_band(make_job(make_cluster(2, kinds=(gpu,)), LLAMA_8B), config, 10.0).unmeasured

    h100 = read_gpu_catalogue()["h100-80gb"].gpu
    assert said(h100) == said(replace(h100, name="mine")) == ""
    assert said(replace(OTHER_GPU, generation="cdna3")) == "a GPU of generation cdna3"
    assert said(replace(h100, generation="")) == "h100-80gb, a GPU without `generation` in the cluster file"
    given = make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B)
    _, terms = describe(given, [(config, identity_placement(config, 8, np.arange(2), "tp-cp-ep-dp-pp"))])
    run = Anchor(run="a", terms=tuple(terms[0]), log_ratio=0.2, reference=tuple(reference_terms(given)))
    measured = replace(given, stack=replace(given.stack, anchors=(run,)))
    assert job_band(measured, config, 10.0).unmeasured == ""
    words = jobs_of_bands([job(), given])
    assert words == "jobs; no public run on mi300x, a GPU without `generation` in the cluster file, so the band is wide"
    assert jobs_of_bands([job()]) == "jobs like this"
    assert jobs_of_bands([job(), measured]) == "jobs like this"


def test_less_usual_jobs_have_wider_bands() -> None:
    """Mixtures of experts, small models, and GPUs that nobody measured."""
    usual = width(job_band(job("h100-80gb"), make_config(tp=8), 10.0))
    for given in (
        replace(job("h100-80gb"), model=MIXTURE),
        replace(job("h100-80gb"), model=TINY),
        make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B),
    ):
        config = make_config(tp=4, dp=2, num_layers=given.model.num_layers)
        assert width(job_band(given, config, 10.0)) > usual


def random_config(rng: np.random.Generator, num_gpus: int, model: ModelSpec) -> ParallelConfig:
    """Degrees of two, for so many GPUs."""
    tp, pp = (2 ** int(rng.integers(0, 4)) for _ in range(2))
    tp = min(tp, num_gpus)
    pp = min(pp, num_gpus // tp)
    return make_config(tp=tp, pp=pp, dp=num_gpus // tp // pp, num_layers=model.num_layers)


@pytest.mark.search
@pytest.mark.parametrize("name", list_models())
def test_every_job_has_a_band(name: str) -> None:
    """Each preset on a kind of GPU, in two precisions, on 8 or 64 GPUs."""
    rng, model = np.random.default_rng(len(name)), read_model(name)
    kind = read_gpu_catalogue()[str(rng.choice(sorted(read_gpu_catalogue())))].gpu
    for hosts, changes in ((1, {}), (8, {"precision": "fp32"})):
        given = make_job(make_cluster(hosts, kinds=(kind,) * hosts), model)
        given = replace(given, training=replace(given.training, global_batch_size=256, **changes))
        band = job_band(given, random_config(rng, 8 * hosts, model), 3.0)
        assert 0 < band.low_s < band.middle_s < band.high_s


def test_an_estimate_gets_its_band() -> None:
    """With nothing else changed; what people are shown is its middle."""
    from factories import llama_plan

    plan, given = llama_plan(), make_job(make_cluster(4, gpus=4), LLAMA_8B, launcher="torchrun")
    found = with_band(plan.estimate, given, plan.config, plan.placement)
    assert found.band == job_band(given, plan.config, plan.estimate.iteration_time_s, plan.placement)
    assert replace(found, band=None) == plan.estimate
    assert found.expected_s == found.band.middle_s
    assert found.expected_tokens_per_s * found.expected_s == pytest.approx(found.tokens_per_s * found.iteration_time_s)
