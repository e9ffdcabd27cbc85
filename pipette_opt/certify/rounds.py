"""
Rounds of a search: each step that has work runs in turn, until none has any or the time is over.

The steps and their order are :data:`ROUND`; ``plans/steps.py`` has their slices of the time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipette_opt.base.units import listed, percent
from pipette_opt.certify.more_configurations import (
    bound_left_out,
    continue_joint_model,
    joint_model,
    least_joint_model,
    left_out,
    other_sizes,
    search_other_sizes,
    search_single_changes,
    unchanged,
)
from pipette_opt.certify.opening import has_unopened, open_candidates
from pipette_opt.certify.placing import MAX_HOSTS, anneal_open, host_work, settle_few_orders, swap_hosts
from pipette_opt.certify.proving import prove
from pipette_opt.certify.state import CLOSE_ENOUGH, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.notes import ENDED_EARLY
from pipette_opt.plans.steps import (
    ANNEALING,
    BOUNDS_AGAIN,
    FEW_ORDERS,
    JOINT_AGAIN,
    JOINT_LEAST,
    OPENING,
    OTHER_SIZES,
    PROVERS,
    SINGLE_CHANGES,
    SWAPPING,
    Step,
)
from pipette_opt.simulate.host_tree import MAX_OPEN, MAX_WITHOUT_BOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """
    Step of a search with the functions that run it.

    Parameters
    ----------
    work
        Function to a value that stands for the work of the step, ``None`` if it has none.
    run
        Runs the step within the clock that is its slice of the time.
    """

    step: Step
    work: Callable[[SearchState], object]
    run: Callable[[SearchState, Clock], None]

    def applies(self, state: SearchState) -> bool:
        """Return whether the step has work that differs from that of its last run."""
        work = self.work(state)
        return work is not None and state.done.get(self.step) != work

    def __call__(self, state: SearchState) -> None:
        """Run the step if it has work."""
        if self.applies(state):
            state.done[self.step] = self.work(state)
            self.run(state, state.clock.step(self.step))
            if state.clock.is_over:  # cut off: a later proof goes on with it
                del state.done[self.step]


def open_gap(state: SearchState) -> object:
    """Return the time to beat and the bound of the listed configurations, and their number; ``None`` once closed."""
    return None if state.is_closed else (state.fastest_s, state.listed_bound_s, len(state.data.candidates))


FEW, ANNEAL, SWAP = (
    Move(step=FEW_ORDERS, work=open_gap, run=settle_few_orders),
    Move(step=ANNEALING, work=open_gap, run=anneal_open),
    Move(step=SWAPPING, work=host_work, run=swap_hosts),
)

PLACE = (FEW, ANNEAL, SWAP)
"""Steps that place candidates."""

OPEN = Move(step=OPENING, work=has_unopened, run=open_candidates)

ROUND = (
    Move(step=SINGLE_CHANGES, work=unchanged, run=search_single_changes),
    Move(step=OTHER_SIZES, work=other_sizes, run=search_other_sizes),
    Move(step=JOINT_AGAIN, work=joint_model, run=continue_joint_model),
    Move(step=JOINT_LEAST, work=least_joint_model, run=continue_joint_model),
    OPEN,
    *PLACE,
    Move(step=PROVERS, work=open_gap, run=prove),
    Move(step=BOUNDS_AGAIN, work=left_out, run=bound_left_out),
)
"""Steps of a round in their order."""


def certify(state: SearchState) -> None:
    """Bound the simulated time over all configurations, and search for faster plans at the same time."""
    state.clock.report("bounding simulated times")
    while not state.clock.is_over and any(move.applies(state) for move in ROUND):
        for move in ROUND:
            if not state.clock.is_over:
                move(state)
    state.why_open = () if state.clock.is_over else why_open(state)
    OPEN(state)  # without time it still bounds candidates over the best links


def why_open(state: SearchState) -> tuple[str, ...]:
    """Return a sentence for each prover that has no more work although the gap is open; empty once it is closed."""
    if not state.plans or state.bound_s >= (1 - max(state.params.gap_limit, CLOSE_ENOUGH)) * state.fastest_s:
        return ()
    entries, found = ([] if state.is_closed else state.could_win()), []
    trees = [(entry, entry.tree) for entry in entries if entry.tree is not None]
    for sentence, of_sentence in (
        ("the lower-bound model of {} stays below the simulated time", [each for each in entries if each.is_proven]),
        (
            f"branch and bound supports {MAX_HOSTS} hosts, not those of {{}}",
            [each for each in entries if each.tree is None],
        ),
        (
            f"branch and bound supports {MAX_WITHOUT_BOUND:,} placements in NVLink domains, not those of {{}}",
            [entry for entry, tree in trees if not tree.is_supported],
        ),
        (
            f"branch and bound has {MAX_OPEN:,} open placements of {{}}",
            [entry for entry, tree in trees if tree.is_supported and tree.is_done],
        ),
    ):
        if of_sentence:
            labels = [entry.candidate.config.label() for entry in of_sentence]
            found.append(sentence.format(listed(labels, 1)))
    if joint_model(state) is not None:
        share = percent(1 - state.other_splits_s / state.fastest_s)
        found.append(f"the joint model is done, but other layers of its stages may save up to {share}")
    return tuple(f"{ENDED_EARLY}{sentence}." for sentence in found)
