"""Certificate of the simulated time: runs bounding, placing and proving in rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipette_opt.base.backends import Backend
from pipette_opt.certify.ledger import Ledger, Reason
from pipette_opt.certify.opening import open_candidates
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.placing import anneal_open, settle_few_orders, swap_hosts
from pipette_opt.certify.proving import prove
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified:
    """
    Result of the simulator's certificate.

    Parameters
    ----------
    bound_s
        Lower bound on the simulated time of all candidates, seconds.
    simulated
        Placements simulated by the certificate, as candidates of ``prepared.problem``.
    is_closed
        Whether the gap between the bound and the fastest known plan is at most the gap limit.
    reasons
        Bound or engine that rules out each configuration of the problem, with its bound in seconds.
    """

    bound_s: float
    simulated: tuple[SimulatedSolution, ...]
    is_closed: bool
    reasons: Mapping[ParallelConfig, Reason]


def certify(
    prepared: Prepared,
    known: Sequence[SimulatedSolution],
    params: OptimizeParams,
    clock: Clock | None = None,
    backend: Backend | None = None,
) -> Certified:
    """
    Bound the simulated time over all candidate configurations, and search for faster plans at the same time.

    Parameters
    ----------
    known
        Plans simulated before. The bound is never above the fastest of all known and found plans.
    clock
        Time limit; by default, that of ``params`` from now on.
    backend
        Processes for the proof; ``None``: threads of this process.
    """
    ledger = Ledger(prepared, known, params, clock or Clock().after(params.time_limit_s))
    ledger.clock.report("bounding the simulator")
    open_candidates(ledger)
    settle_few_orders(ledger)
    anneal_open(ledger)
    before = None
    while before != (ledger.fastest_s, ledger.bound_s) and not ledger.is_over:  # until a round changes nothing
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
