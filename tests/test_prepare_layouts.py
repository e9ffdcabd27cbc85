"""Layouts of the search space while a problem is prepared."""

from types import SimpleNamespace

import pytest
from factories import A100_80, LLAMA_8B, TINY, make_cluster, make_job

from pipette_opt import prepare
from pipette_opt.candidates import SearchSpace
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Question, load_predictor, prunes
from pipette_opt.solver.joint import JointLimits


def test_given_layouts_stay_beside_those_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of an old plan is a candidate, so the space that a plan records has it; found ones are added."""
    job = make_job(make_cluster(2, gpus=2), TINY)
    given, found = "Et|t|t|tL", "Et|tt|t|L"
    plan = SimpleNamespace(config=SimpleNamespace(pipeline_model_parallel_layout=found), seconds=1.0)
    joined = SimpleNamespace(splits=(), first=plan)
    monkeypatch.setattr(prepare, "join", lambda *_: joined)
    monkeypatch.setattr(prepare, "near_layouts", lambda *_: [plan])
    space = SearchSpace(more_layouts=(given,))
    question = Question(job, space, 0.01, keep=prunes)
    bounding = prepare._Bounding(question, job, WorkBounds(job), load_predictor(0.01, job), Clock())
    _, wider = bounding.join(space, [], check_memory(job, [], bounding.predictor), JointLimits(time_limit_s=1.0))
    assert wider.more_layouts == (given, found)


def test_layouts_start_from_every_pipeline_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven chunks are searched near a plan of each pipeline size that is near the fastest, whatever that one has."""
    job = make_job(make_cluster(2, 10.0, gpus=4, kinds=(A100_80,)), LLAMA_8B, 16, 4096)
    starts = []
    monkeypatch.setattr(prepare, "near_layouts", lambda *given: starts.append(given[2]) or [])
    question = Question(job, SearchSpace(num_gpus=8), 0.01, keep=prunes, joint=JointLimits(time_limit_s=5.0))
    prepared = prepare.prepare(question)
    depths = [start.config.pipeline_model_parallel_size for start in starts]
    fastest = min(start.seconds for start in starts)
    assert len(depths) == len(set(depths)) > 1
    near = {
        config.pipeline_model_parallel_size
        for config, bound_s in prepared.pruned.bounds_s.items()
        if bound_s < fastest and config.pipeline_model_parallel_size > 1
    }
    assert near <= set(depths)
