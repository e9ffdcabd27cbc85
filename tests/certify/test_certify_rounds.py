"""Steps of a round: which run again, and with what time."""

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt import optimize as story
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.rounds import Move
from pipette_opt.certify.state import SearchState
from pipette_opt.optimize import OptimizeParams, begun, optimize
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import ANNEALING
from pipette_opt.plans.watcher import Watcher

pytestmark = pytest.mark.search

SPACE = SearchSpace(num_gpus=4, tensor_parallel=(2,), pipeline_parallel=(2,), micro_batch_size=(1,), recompute=(None,))
PARAMS = OptimizeParams(time_limit_s=100.0, workers=1)


def test_a_step_that_was_cut_off_runs_again() -> None:
    """A step whose work is unchanged does not run again, unless the time was over in its last run."""
    state = begun(make_job(make_cluster(2, gpus=2), LLAMA_8B, 8, 1024), SPACE, PARAMS, Watcher())
    clock, runs = state.clock, list[float]()
    move = Move(step=ANNEALING, work=lambda state: "open", run=lambda state, clock: runs.append(clock.left_s))
    state.clock = clock.after(0.0)
    move(state)
    assert move.applies(state)
    state.clock = clock
    move(state)
    assert not move.applies(state)
    assert len(runs) == 2


def test_time_left_over_goes_to_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof runs a second time, until only the time of ties is left."""
    clocks = list[Clock]()

    def recorded(state: SearchState) -> None:
        clocks.append(state.clock)

    monkeypatch.setattr(story, "certify", recorded)
    optimize(make_job(make_cluster(2, gpus=2), LLAMA_8B, 8, 1024), SPACE, PARAMS)
    assert [clock.ends_s for clock in clocks] == pytest.approx([85.0, 95.0], abs=0.5)
