"""Today's launch out of its arguments: what changes its numbers, what is said beside them, and what cannot run."""

import json
import re
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from consoles import shown
from factories import TINY, make_cluster, make_config, make_job, plan_of, plan_on
from levels import in_domains
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.cli.app import app
from pipette_opt.job.read import Job
from pipette_opt.library.current import Current, current_of
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.specs import ClusterSpec, LinkMatrix
from pipette_opt.specs.stack import Anchor
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import described_plan

DEGREES = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 2 --bf16"
PLAIN = f"{DEGREES} --use-distributed-optimizer"


def today(arguments: str, spec: ClusterSpec | None = None) -> Current:
    """Eight layers on two hosts of four GPUs."""
    job = Job(instance=make_job(spec or make_cluster(2, gpus=4), TINY), num_gpus=None, inputs={})
    return current_of(replace(job, launch=parse_megatron_args(arguments)), None)


def seconds_and_bytes(arguments: str) -> tuple[float, int]:
    """Iteration time, and the largest stage's memory."""
    found = today(arguments)
    return found.estimate.iteration_time_s, max(stage.predicted_bytes for stage in found.memory)


@pytest.mark.parametrize(
    ("options", "time", "memory"),
    [
        ("--grad-reduce-in-bf16", "less", "less"),
        ("--accumulate-allreduce-grads-in-fp32", "same", "same"),
        ("--attention-backend flash", "same", "same"),
        ("--attention-backend unfused", "more", "more"),
        ("--pipeline-model-parallel-layout Ett|t*6L", "more", "more"),
        ("--pipeline-model-parallel-layout Et*4|t*4L", "same", "same"),
        ("--recompute-granularity full", "more", "less"),
        ("--recompute-granularity selective --recompute-modules mlp", "more", "less"),
        (
            "--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 "
            "--main-grads-dtype bf16 --grad-reduce-in-bf16",
            "less",
            "less",
        ),
    ],
)
def test_what_is_modelled_changes_the_numbers(options: str, time: str, memory: str) -> None:
    """Beside the same launch without the options."""
    base, found = seconds_and_bytes(PLAIN), seconds_and_bytes(f"{PLAIN} {options}")

    def direction(value: float, before: float) -> str:
        return "same" if value == before else "less" if value < before else "more"

    assert direction(found[0], base[0]) == time
    assert direction(found[1], base[1]) == memory


@pytest.mark.parametrize(("capacity", "word"), [(0.5, "does not fit: stage 1 needs"), (1.001, "may not fit: ")])
@pytest.mark.search
def test_a_gain_over_a_launch_that_does_not_fit_is_no_fact(capacity: float, word: str) -> None:
    """The launch is said not to fit, and its time and the gain are what they would be; in tables, too."""
    job = make_job(make_cluster(2, gpus=4), TINY)
    plan = plan_of(job, make_config(tp=2, pp=1, dp=4, num_layers=TINY.num_layers), (0, 1))
    launch = today(PLAIN)
    memory = tuple(
        replace(stage, capacity_bytes=round(capacity * stage.predicted_bytes), oom_probability=0.4)
        for stage in launch.memory
    )
    unfit = replace(launch, memory=memory)
    first, *others = unfit.sentences(plan, job)
    assert first.startswith(f"today's launch {word}")
    assert "would take" in others[0]
    assert others[1].startswith("If the launch fitted, the plan would have")
    assert others[-1] == "If it does run, give its time or its peak with --measured."
    assert "If the launch fitted" in shown(*unfit.tables((plan, job)))
    assert unfit.as_dict()["fits"] is False
    for fitting in (launch, replace(unfit, max_oom_risk=1.0)):
        assert not any("fit" in sentence for sentence in fitting.sentences(plan, job))


@pytest.mark.search
def test_a_gain_has_the_range_that_runs_of_both_leave() -> None:
    """A launch that took twice its prediction, a plan that took its own: the range holds both gains."""
    job = make_job(make_cluster(2, gpus=4), TINY)
    plan = plan_of(job, make_config(tp=2, pp=1, dp=4, num_layers=TINY.num_layers), (0, 1))
    launch = today(PLAIN)
    terms = [described_plan(job, placed.config, placed.placement)[1] for placed in (launch, plan)]
    reference = tuple(reference_terms(job).tolist())
    anchors = tuple(
        Anchor(run="log", terms=tuple(own.tolist()), log_ratio=log_ratio, reference=reference)
        for own, log_ratio in zip(terms, (float(np.log(2)), 0.0), strict=True)
        for _ in range(10)
    )
    known = replace(job, stack=replace(job.stack, anchors=anchors))
    said = " ".join(replace(launch, instance=known).sentences(plan, known)[-1].split())
    found = re.search(r"tokens per second \((\S+) % (\w+) to (\S+) % (\w+) in nine of ten", said)
    assert found is not None, said
    ends = [1 + float(found[i]) / 100 * (1 if found[i + 1] == "more" else -1) for i in (1, 3)]
    gain = 2 * launch.estimate.iteration_time_s / plan.estimate.iteration_time_s
    assert ends[0] < gain < ends[1] < 1.6 * gain
    same = replace(plan, config=launch.config)
    assert "nine of ten" not in replace(launch, instance=known).sentences(same, known)[-1]


def test_the_screen_of_a_launch_is_short() -> None:
    """Verdict once, job, launch, time with its band, memory, what is not counted and what to do next, in 40 lines."""
    found = today(f"{PLAIN} --use-sharp --cross-entropy-loss-fusion --sequence-parallel")
    lines = shown(*found.screen(), width=80).splitlines()
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert text.count("per iteration") == 1
    for name in ("Job", "Launch", "Hosts", "Time", "Memory", "Left out", "find faster"):
        assert name in text
    assert "tensor 2 x pipeline 2 x data 2; micro-batch 2" in text
    assert "--use-sharp saves today's launch up to" in text
    assert all(one.option in text for one in found.would_pay()[:2])


def test_what_is_not_counted_bounds_the_time() -> None:
    """Switches save at most the data-parallel communication of the critical path, in the tables and in JSON."""
    found = today(f"{PLAIN} --use-sharp --overlap-moe-expert-parallel-comm --delay-wgrad-compute")
    answer = found.as_dict()
    least_s = found.estimate.iteration_time_s - found.estimate.critical_path["data_parallel"]
    assert answer["least_iteration_time_s"] == pytest.approx(least_s)
    assert [one["option"] for one in answer["not_modelled"]] == ["--use-sharp"] + ["--delay-wgrad-compute"] * 2
    assert found.uncounted().others == 1
    assert today(PLAIN).uncounted().least_s(found.estimate) == found.estimate.iteration_time_s


def test_a_layout_may_split_layers_in_any_way() -> None:
    """Stages of 1, 3, 2 and 2 layers: no options for the ends say so, but the layout does."""
    degrees = PLAIN.replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4")
    found = today(f"{degrees} --pipeline-model-parallel-layout Et|ttt|tt|ttL")
    assert found.config.layers_per_stage == (1, 3, 2, 2)


def test_a_layout_may_give_a_stage_unequal_chunks() -> None:
    """Five layers on the first stage, three before the large head: faster than four and four, with more memory."""
    layout = "--pipeline-model-parallel-layout Ettt|t|tt|ttL"
    found, even = today(f"{PLAIN} {layout}"), today(f"{PLAIN} --num-virtual-stages-per-pipeline-rank 2")
    assert found.config.layers_per_chunk == ((3, 1), (2, 2))
    assert even.config.layers_per_chunk == ((2, 2), (2, 2))
    assert found.estimate.iteration_time_s < even.estimate.iteration_time_s
    assert [
        stage.predicted_bytes > other.predicted_bytes for stage, other in zip(found.memory, even.memory, strict=True)
    ] == [True, False]


def test_a_whole_launch_has_its_own_dropout() -> None:
    """Megatron's default is 0.1 where the script is silent: its masks take memory, and the comparison says so."""
    sizes = f"--num-layers {TINY.num_layers} --hidden-size {TINY.hidden_size} --num-attention-heads 16 "
    whole = f"{PLAIN} {sizes} --ffn-hidden-size 4096 --max-position-embeddings 2048 --vocab-size 50257"
    with_masks, without = today(whole), today(f"{whole} --hidden-dropout 0 --attention-dropout 0")
    peak, least = (max(stage.predicted_bytes for stage in found.memory) for found in (with_masks, without))
    assert peak > least
    job = make_job(make_cluster(2, gpus=4), TINY)
    plan = plan_on(job, with_masks.config, with_masks.placement)
    said = [line for line in with_masks.sentences(plan, job) if "dropout" in line]
    assert said == [
        "it trains with --hidden-dropout 0.1 (the plan 0) and --attention-dropout 0.1 (the plan 0); dropout masks take "
        "memory"
    ]
    assert not [line for line in without.sentences(plan, job) if "dropout" in line]


def test_links_that_were_not_measured() -> None:
    """They count as the slowest measured one, and are named; the job's own cluster stays as it is."""
    spec = make_cluster(4, gpus=2)
    (matrix,) = spec.link_matrices
    slowest = matrix.bytes_per_s.copy()
    slowest[2, 3] = np.nanmin(slowest) / 2
    with_hole = slowest.copy()
    with_hole[0, 1] = with_hole[1, 0] = np.nan
    filled = np.where(np.isnan(with_hole), slowest[2, 3], with_hole)

    def on(links: np.ndarray) -> Current:
        matrices = (LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=links),)
        return today(PLAIN, replace(spec, link_matrices=matrices))

    found = on(with_hole)
    assert found.estimate.iteration_time_s == on(filled).estimate.iteration_time_s
    ((option, value),) = [(one.option, one.value) for one in found.not_modelled]
    assert (option, value) == ("links not measured", f"{spec.hosts[0]} - {spec.hosts[1]}")
    assert on(slowest).not_modelled == ()


def test_links_inside_a_domain_need_no_measurement() -> None:
    """Pairs in one NVLink domain keep its rate, and are not named, although the matrix has no entry for them."""
    spec = in_domains([0, 0, 1, 1], gpus=2)
    (matrix,) = spec.link_matrices
    links = matrix.bytes_per_s.copy()
    links[0, 1] = links[1, 0] = links[2, 3] = links[3, 2] = np.nan
    measured = replace(
        spec,
        links_measured=True,
        link_matrices=(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=links),),
    )
    found = today(PLAIN, measured)
    plan = plan_on(make_job(measured, TINY), found.config, found.placement)
    assert found.estimate.iteration_time_s == plan.estimate.iteration_time_s
    assert found.not_modelled == ()


def test_what_the_job_leaves_out_is_listed_once() -> None:
    """Options of the model's file that today's arguments repeat."""
    arguments = f"{PLAIN} --use-sharp"
    entries = parse_megatron_args(arguments).not_modelled
    given = replace(make_job(make_cluster(2, gpus=4), TINY), not_modelled=entries)
    found = current_of(Job(instance=given, num_gpus=None, inputs={}, launch=parse_megatron_args(arguments)), None)
    assert found.not_modelled == entries


def as_json(*arguments: str) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return cast("dict[str, Any]", json.loads(done.stdout))


def test_the_arguments_bring_batch_and_format() -> None:
    """Of a model that is named, and of one that they describe; what is not modelled is in the answer."""
    lab = ("estimate", "--cluster", str(shipped_path("data", "clusters", "lab-2x8.yaml")))
    degrees = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"
    batch = "--micro-batch-size 1 --global-batch-size 64 --seq-length 2048 --bf16"
    named = as_json(*lab, "--model", "gpt-3-1.3b", "--launch", f"{degrees} {batch}")
    model = (
        "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --max-position-embeddings 2048 "
        "--vocab-size 50257 --hidden-dropout 0.1 --attention-dropout 0.1"
    )
    described = as_json(*lab, "--launch", f"{degrees} {batch} {model}")
    for answer in (named, described):
        assert [one["direction"] for one in answer["not_modelled"]] == ["either"]
    assert described["estimate"]["tokens_per_s"] == pytest.approx(named["estimate"]["tokens_per_s"], rel=0.05)
    imported = as_json("import", "model", f"{model} --fp8-format hybrid --fp8-quantizer-factory ours")
    assert [one["option"] for one in imported["not_modelled"]] == ["--fp8-quantizer-factory"]


def test_jobs_that_cannot_start() -> None:
    """Experts that need more ranks than there are, and a batch that does not divide."""
    experts = replace(TINY, num_experts=8, moe_router_topk=2)
    job = Job(instance=make_job(make_cluster(2, gpus=4), experts), num_gpus=None, inputs={})
    arguments = f"{PLAIN} --num-experts 8 --expert-model-parallel-size 8 --sequence-parallel --moe-grouped-gemm"
    with pytest.raises(InputError, match=r"cannot run on 8 GPUs: .* is no multiple of expert tensor size"):
        current_of(replace(job, launch=parse_megatron_args(arguments)), None)
    with pytest.raises(InputError, match=r"cannot run on 8 GPUs: global_batch_size=64 is no multiple"):
        today(PLAIN.replace("--micro-batch-size 2", "--micro-batch-size 3"))
