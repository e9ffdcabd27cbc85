"""
The simulator's certificate: no plan of the searched space is faster by the simulator than a proven bound.

The simulated time is a maximum over paths through the event graph of a schedule, and every path is linear in the times
of work and links. So each candidate starts with a few paths, and this goes round: place it for the longest of its paths
(a lower form), simulate the placement, and add the critical paths that the simulator found there. At that placement the
form now is the simulated time; where the simulator is slower than the form said, the form has been cut. First annealing
places, which is quick and finds most of the paths that matter, then the solver, which proves. When the solver's optimum
is a placement at which form and simulate agree, nothing is left between bound and plan.

Where expert-parallel groups span hosts the lower form counts their all-to-alls over the best links, and where
collectives run beside compute it counts waits for parameters, slowdown and queued reductions over the best rings that
the rows of the grid can have at once. Such candidates are simulated on every placement if these are few, which settles
them, and otherwise by exchanging hosts; the form, or the simulator over the best links, remains their bound.

Candidates that cannot be faster than the best plan are not placed: by their plain paths over the best links, or by
the simulator itself over links that are all as fast as the fastest, as no operation starts later when a time gets
shorter. Only a few are after the proof (``beside``): those that may be plainer, less risky, or shown as the next best.

:func:`certify` has the steps in their order: ``opening`` (best links), ``placing`` (few placements, annealing, the
simulate alone) and ``proving`` (the solver), in rounds until one brings nothing. ``budget`` says how long each may
take.
"""

from pipette_opt.certify.certificate import Certified, certify
from pipette_opt.certify.ledger import CertifyParams

__all__ = ["Certified", "CertifyParams", "certify"]
