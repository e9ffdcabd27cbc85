"""The certificate, step by step."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipette_opt.base.backends import Backend
from pipette_opt.certify.ledger import CertifyParams, Ledger, Reason, Report
from pipette_opt.certify.opening import open_candidates
from pipette_opt.certify.placing import anneal_open, settle_few_orders, swap_hosts
from pipette_opt.certify.proving import prove
from pipette_opt.parallel import ParallelConfig
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified:
    """
    What the simulator's certificate says.

    Parameters
    ----------
    bound_s
        No plan of any candidate is faster by the simulator.
    simulated
        The placements that were simulated on the way, as candidates of ``prepared.problem``.
    is_closed
        Whether nothing can be faster than the fastest plan known by more than the gap limit.
    reasons
        Of each configuration of the problem which bound or engine rules it out, and that bound in seconds.
    """

    bound_s: float
    simulated: tuple[SimulatedSolution, ...]
    is_closed: bool
    reasons: Mapping[ParallelConfig, Reason]


def certify(
    prepared: Prepared,
    known: Sequence[SimulatedSolution],
    params: CertifyParams,
    report: Report = lambda step, fastest_s, bound_s: None,
    stop: threading.Event | None = None,
    backend: Backend | None = None,
) -> Certified:
    """
    Bound the simulated time over all candidates, and look for faster plans on the way.

    Parameters
    ----------
    known
        Plans simulated before; the bound is never above the fastest of these and of what is found.
    backend
        Processes over which the proof is spread; threads of this one without it.
    """
    ledger = Ledger(prepared, known, params, report, stop or threading.Event())
    report("bounding the simulator", None, None)
    open_candidates(ledger)
    settle_few_orders(ledger)
    anneal_open(ledger)
    before = None
    while before != (ledger.fastest_s, ledger.bound_s) and not ledger.is_over:  # until a round brings nothing
        before = ledger.fastest_s, ledger.bound_s
        swap_hosts(ledger)
        prove(ledger, backend)
        anneal_open(ledger)
    return Certified(
        bound_s=ledger.bound_s,
        simulated=tuple(ledger.simulated),
        is_closed=ledger.is_closed,
        reasons=ledger.reasons(),
    )
