"""Certificate of the simulated time: runs bounding, placing and proving in rounds."""

from pipette_opt.base.backends import Backend
from pipette_opt.certify.opening import open_candidates
from pipette_opt.certify.placing import anneal_open, settle_few_orders, swap_hosts
from pipette_opt.certify.proving import prove
from pipette_opt.certify.state import SearchState


def certify(state: SearchState, backend: Backend | None = None) -> None:
    """
    Bound the simulated time over all candidate configurations, and search for faster plans at the same time.

    Parameters
    ----------
    backend
        Processes for the proof; ``None``: threads of this process.
    """
    state.clock.report("bounding the simulator")
    open_candidates(state)
    settle_few_orders(state)
    anneal_open(state)
    before = None
    while before != (state.fastest_s, state.listed_bound_s) and not state.is_over:  # until a round changes nothing
        before = state.fastest_s, state.listed_bound_s
        swap_hosts(state)
        prove(state, backend)
        anneal_open(state)
