"""Why configurations are not the plan."""

import re
from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job, make_random_cluster

from pipette_opt.base.units import three_digits
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.certify.labels import pinned
from pipette_opt.certify.why import MAX_RULES, _broken_rules, why
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.plan import Alternative

pytestmark = pytest.mark.search

JOB = make_job(make_random_cluster(np.random.default_rng(0), 4), LLAMA_8B, 32, 4096)
SPACE = SearchSpace(micro_batch_size=(1, 2))
TOGETHER = "These requirements cannot be met together: "


def test_illegal_begins_with_what_cannot_go_together() -> None:
    """Not with the combinations of what was left open that break most rules: here no group of micro-batches fits."""
    answer = why(replace(JOB, training=replace(JOB.training, global_batch_size=60)), SPACE, "vpp=4,dp=4,pp=4", 0.01)
    assert answer.verdict == "illegal"
    assert answer.reasons[0].startswith(TOGETHER)
    assert {"--data-parallel 4", "--virtual-pipeline 4", "--pipeline-parallel 4", "a batch of 60"} <= set(
        answer.reasons[0].removeprefix(TOGETHER).rstrip(".").split(", ")
    )


def test_without_a_plan_it_is_said_what_is_compared_with() -> None:
    """The fastest configuration on the hosts as listed, by name, with both times."""
    assert re.search(r"% slower than tp\d.*: \S+ s against \S+ s$", why(JOB, SPACE, "tp=16", 0.01).answer)


def test_illegal_names_the_rule() -> None:
    """With its numbers."""
    answer = why(JOB, SPACE, "tp=3", 0.01)
    assert (answer.verdict, answer.ruled_out_by) == ("illegal", "legality rules")
    assert any("num_attention_heads=32" in reason for reason in answer.reasons)
    assert answer.config is None


def test_illegal_begins_with_what_is_legal() -> None:
    """Values of each option that are legal beside the others; none if two of them are wrong."""
    assert why(JOB, SPACE, "tp=3", 0.01).answer == "illegal; legal with --tensor-parallel 1, 2, 4, 8, 16 or 32"
    assert why(JOB, SPACE, "tp=3,pp=1", 0.01).answer.startswith("illegal; legal with --tensor-parallel 1, 2, 4")
    assert why(JOB, SPACE, "tp=3,pp=64", 0.01).answer == "illegal; no change of a single value makes it legal"


def test_illegal_names_each_rule_once_with_a_count() -> None:
    """As many as fit on a screen, those that rule out most first; a count only of rules that some keep."""
    found = enumerate_with_reasons(JOB, pinned(SPACE, "tp=3"))
    answer = why(JOB, SPACE, "tp=3", 0.01)
    reasons = [one for one in answer.reasons if not one.startswith("This requirement cannot be met")]
    for reason, (rule, count) in zip(reasons, found.rejected.items(), strict=True):
        assert reason.startswith(f"{rule}: ")
        counts = f"(in {count:,} of {found.num_combinations:,} combinations)"
        assert reason.endswith(counts) == (count < found.num_combinations)
    many = replace(found, reasons={(f"rule {n}", ""): 20 - n for n in range(12)})
    lines = _broken_rules(many)
    assert len(lines) == MAX_RULES + 1
    assert lines[0].startswith("rule 0")
    assert lines[-1] == "and 3 rules more that fewer break"


def test_too_big_names_stage_and_size() -> None:
    """Nothing is split, so one stage holds all."""
    answer = why(JOB, SPACE, "tp=1,pp=1,cp=1,dopt=off", 0.01)
    assert (answer.verdict, answer.ruled_out_by) == ("too big", "memory")
    assert re.fullmatch(r"too big: it may need \S+ of \S+ GiB at the accepted risk of 1 %", answer.answer)
    assert any(reason.startswith("stage 0: ") for reason in answer.reasons)


def test_slower_says_by_how_much_and_where() -> None:
    """Small tensor groups win over groups that span hosts; a plan that is known may be compared with."""
    answer = why(JOB, SPACE, "tp=16", 0.01)
    assert (answer.verdict, answer.ruled_out_by) in (("slower", "work alone"), ("slower", "best links"))
    assert answer.bound_s is not None
    assert answer.best_s is not None
    assert answer.bound_s >= answer.best_s
    assert answer.config is not None
    layers = "" if answer.config.pipeline_model_parallel_size == 1 else "with even layers or lighter ends "
    assert answer.answer.startswith("at least ")
    assert answer.reasons[0].startswith(f"{layers}no placement takes less than")
    assert ": tensor parallel +" in answer.listed[0]


def test_what_nothing_rules_out_may_win() -> None:
    """The whole space holds the best."""
    answer = why(JOB, SPACE, "gpus=32", 0.01)
    assert (answer.verdict, answer.ruled_out_by) == ("may win", "")


def test_too_big_names_what_it_is_made_of() -> None:
    """The parts of the peak, the largest first, and by how much it is too big."""
    answer = why(JOB, SPACE, "tp=1,pp=1,cp=1,dopt=off", 0.01)
    (stage,) = [reason for reason in answer.reasons if reason.startswith("stage 0")]
    assert "GiB too many; predicted" in stage
    over, predicted, *parts = [float(number) for number in re.findall(r"[0-9.]+(?=[,: ]|$)", stage.split(": ", 1)[1])]
    need, room = (float(number) for number in re.findall(r"[0-9.]+(?= of| GiB)", answer.answer))
    assert need - room == pytest.approx(over, rel=0.01)
    assert sum(parts) == pytest.approx(predicted, rel=0.01)
    assert parts == sorted(parts, reverse=True)


def test_an_unplaceable_configuration() -> None:
    """No link between hosts was measured."""
    links = np.full((2, 2), np.nan)
    answer = why(make_job(make_cluster(2, links), LLAMA_8B, 32, 4096), SPACE, "gpus=16,tp=8", 0.01)
    assert answer.verdict == "cannot be placed"


def test_a_plan_answers_for_itself_and_for_what_it_searched() -> None:
    """Its own configuration is no rival, and its certificate covers the others."""
    space = replace(SPACE, pipeline_parallel=(1, 2), context_parallel=(1, 2), virtual_pipeline=(1,))
    plan = optimize(JOB, space, OptimizeParams(time_limit_s=600, workers=1))  # ends when it is proven
    recorded = replace(plan, inputs={"search": plan.inputs["search"]})
    tp = plan.config.tensor_model_parallel_size
    own = why(JOB, space, f"tp={tp}", 0.01, recorded)
    assert own.verdict == "the plan"
    assert own.answer.endswith(f"takes {three_digits(plan.estimate.expected_s)} s")  # as on the first screen
    assert plan.certificate.status == "OPTIMAL"
    mbs = plan.config.micro_batch_size
    fastest = Alternative(config=plan.config, hosts=(), iteration_time_s=1.0, oom_probability=0.0, reason="")
    plainer = replace(recorded, config=replace(plan.config, micro_batch_size=3 - mbs), fastest=fastest)
    assert why(JOB, space, f"tp={tp},mbs={mbs}", 0.01, plainer).verdict == "less plain"
    others = replace(space, micro_batch_size=(3 - plan.config.micro_batch_size,))
    assert why(JOB, others, f"tp={tp}", 0.01, recorded).verdict in ("slower", "not faster")
    more = why(JOB, replace(space, micro_batch_size=(16,)), f"tp={tp},pp=1,cp=1,recompute=full,mbs=16", 1.0, recorded)
    assert more.verdict in ("not searched", "slower")
    assert any(reason.startswith("micro batch size: only 1 or 2 searched, not 16") for reason in more.reasons) or (
        more.verdict == "slower"
    )
