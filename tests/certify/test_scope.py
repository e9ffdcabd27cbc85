"""What a certificate says that it covers, and which reason ruled out how much."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_config, make_job, make_random_cluster

from pipette_opt.base.errors import InfeasibleError, InputError, NoPlanInTimeError
from pipette_opt.candidates import SearchSpace, space_of
from pipette_opt.certify.scope import not_searched, proof, scope, searched, why_nothing
from pipette_opt.certify.state import Reason
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.prepare import Prepared, Question, prepare, prunes
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.specs import Instance
from pipette_opt.verify.certificate import proof_adds_up
from pipette_opt.verify.space import Searched

pytestmark = pytest.mark.search

SPACE = SearchSpace(micro_batch_size=(1,), tensor_parallel=(2, 4), virtual_pipeline=(1, 2))


def job() -> Instance:
    """A small model on three hosts whose links differ."""
    return make_job(make_random_cluster(np.random.default_rng(0), 3, gpus=4), TINY, 24, 2048)


def test_searched_and_not_searched_are_what_the_space_has() -> None:
    """Values come from the candidates; each pin, and what no space has, is named in the sentence."""
    prepared = prepare(Question(job(), SPACE, 0.01, keep=prunes))
    values = searched(prepared)
    assert values["tensor_parallel"] == (2, 4)
    assert values["context_parallel"] == (1, 2)
    assert values["overlap_grad_reduce"] == (False, True)
    assert values["num_gpus"] == tuple(sorted(prepared.enumeration.world_sizes))
    missing = not_searched(prepared)
    assert "tensor parallel other than 2 or 4 (pinned)" in missing
    assert "micro batch size other than 1 (pinned)" in missing
    assert "context parallelism of tensor groups over hosts" in missing
    assert "ZeRO 2 and 3 (--data-parallel-sharding-strategy)" in missing
    assert not any(text.startswith("overlap") for text in missing)
    pinned = replace(prepared, space=replace(SPACE, overlap_grad_reduce=False, context_parallel=(1,)))
    assert {"overlap grad reduce other than off (pinned)", "context parallel other than 1 (pinned)"} <= {
        *not_searched(pinned)
    }
    assert all(text in scope(prepared) for text in missing)


def test_proof_counts_every_combination_once() -> None:
    """The counts add up to all combinations; no bound of a part is below the certificate's."""
    given = job()
    plan = optimize(given, SPACE, OptimizeParams(time_limit_s=10.0, workers=1))
    parts = plan.certificate.proof
    prepared = prepare(Question(given, space_of(plan.inputs["search"]), 0.01))
    assert sum(part.configurations for part in parts) == prepared.enumeration.num_combinations
    counts = {part.by: part.configurations for part in parts}
    assert counts.get("memory", 0) == len(prepared.memory.rejected)
    assert all(sum(one.configurations for one in part.named) == part.configurations for part in parts)
    (legality,) = (part for part in parts if part.by == "legality rules")
    assert {one.name: one.configurations for one in legality.named} == prepared.enumeration.first_broken
    bounds = [part.bound_s for part in parts if part.bound_s is not None]
    assert plan.certificate.joint_model is not None
    bounds.append(plan.certificate.joint_model.bound_s)
    assert min([*bounds, plan.certificate.objective_s]) == pytest.approx(plan.certificate.lower_bound_s, rel=1e-8)
    assert list(proof_adds_up(Searched.again(given, plan), plan)) == []
    for wrong, said in (
        (replace(legality.named[0], name="taste"), "taste is no rule"),
        (replace(legality.named[0], example="because"), "rules out"),
        (replace(legality.named[0], configurations=1), "legality rules rules out"),
    ):
        forged = replace(legality, named=(wrong, *legality.named[1:]))
        certificate = replace(plan.certificate, proof=(forged, *(one for one in parts if one is not legality)))
        problems = list(proof_adds_up(Searched.again(given, plan), replace(plan, certificate=certificate)))
        assert any(said in problem for problem in problems), problems
    again = plan_from_dict(plan_to_dict(plan))
    assert again.certificate == plan.certificate
    chosen = space_of(again.inputs["search"])
    assert replace(chosen, more_splits=(), more_layouts=(), near=(), world_sizes=()) == SPACE


def test_each_reason_is_counted_by_hand() -> None:
    """
    Eight GPUs in two hosts, a model of eight layers, tensor 2 or 3, pipeline 1, 2 or 16: 32 combinations.

    Three does not divide eight GPUs, nor two times sixteen: 24 of the combinations split no GPUs. Of the eight legal
    ones two are given as too big, one as slower by its work, one as slower over the best links, one has no placement,
    and the search has the other three: two by one engine, one by the simulator. Another, beside these, would recompute
    more than its memory asks for.
    """
    configs = [make_config(tp=2, pp=2, dp=2, micro_batch_size=size) for size in range(1, 9)]
    first_broken = {"tensor_parallel divides the GPUs": 16, "pipeline_parallel divides the GPUs": 8}
    examples = {rule: f"{rule}, which it does not" for rule in first_broken}
    fitting = [SimpleNamespace(config=one) for one in configs[2:]]
    prepared = SimpleNamespace(
        enumeration=SimpleNamespace(first_broken=first_broken, examples=examples),
        memory=SimpleNamespace(
            fitting=fitting,
            rejected=[SimpleNamespace(config=one) for one in configs[:2]],
            spared=[make_config(tp=2, pp=2)],
            kept_on_gpu=[make_config(tp=2, pp=2, offload="optimizer"), make_config(tp=2, pp=2, offload="core_attn")],
            not_overlapped=[make_config(tp=2, pp=2, sequence_parallel=True)],
        ),
    )
    reasons = {
        configs[2]: Reason("work alone", "work alone", 9.0),
        configs[3]: Reason("best links", "best links", 8.0),
        configs[5]: Reason("search", "class-assignment", 5.0),
        configs[6]: Reason("search", "branch and bound over hosts", 4.0),
        configs[7]: Reason("search", "class-assignment", 6.0),
    }
    found = proof(cast(Prepared, prepared), reasons)
    assert [(one.by, one.configurations, one.bound_s) for one in found] == [
        ("legality rules", 24, None),
        ("memory", 2, None),
        ("fewer recomputed layers", 1, None),
        ("less on the host", 2, None),
        ("tensor overlap", 1, None),
        ("no placement", 1, None),
        ("work alone", 1, 9.0),
        ("best links", 1, 8.0),
        ("search", 3, 4.0),
    ]
    assert sum(one.configurations for one in found) == 36
    named = {one.by: [(each.name, each.configurations, each.example) for each in one.named] for one in found}
    assert named["legality rules"] == [(rule, number, examples[rule]) for rule, number in first_broken.items()]
    assert named["memory"] == [("predicted peak", 2, configs[0].label())]
    assert named["no placement"] == [("hosts or links", 1, configs[4].label())]
    assert named["search"] == [
        ("class-assignment", 2, configs[5].label()),
        ("branch and bound over hosts", 1, configs[6].label()),
    ]


def test_no_plan_in_time_is_not_that_there_is_none() -> None:
    """Of eight configurations three were not placed: there may be a plan; where all were tried there is none."""
    fitting = [SimpleNamespace(config=make_config(tp=2, pp=2, dp=2, micro_batch_size=size)) for size in range(1, 9)]
    bounds_s = {fits.config: 5.0 for fits in fitting[:3]} | {fits.config: float("inf") for fits in fitting[3:]}
    prepared = SimpleNamespace(
        instance=job(),
        problem=SimpleNamespace(candidates=()),
        memory=SimpleNamespace(fitting=fitting),
        pruned=SimpleNamespace(bounds_s=bounds_s),
        left_out=fitting,
    )
    early = why_nothing(cast(Prepared, prepared))
    assert isinstance(early, NoPlanInTimeError)
    assert "8 candidates are legal and fit some host, 3 of them were not placed" in str(early)
    prepared.pruned = None
    assert type(why_nothing(cast(Prepared, prepared))) is InfeasibleError


def test_a_recorded_space_comes_back() -> None:
    """As JSON has it; an unknown field is refused."""
    space = SearchSpace(num_gpus=8, layers_per_stage=((3, 5),), recompute=(None, "full"))
    recorded = {"num_gpus": 8, "layers_per_stage": [[3, 5]], "recompute": [None, "full"]}
    assert space_of(recorded) == space
    with pytest.raises(InputError, match="unheard_of"):
        space_of({"unheard_of": 1})


def test_models_with_experts_have_their_dimensions() -> None:
    """A dense model has none of them."""
    dense = make_job(make_random_cluster(np.random.default_rng(0), 2), LLAMA_8B, 16, 4096)
    prepared = prepare(Question(dense, SPACE, 0.01))
    assert "expert_parallel" not in searched(prepared)
