"""What the joint model proves of splits of the layers that are not searched, in time that is left at the end."""

from dataclasses import replace

from pipette_opt.prepare import Prepared
from pipette_opt.solver.family_bounds import FAMILY_MARGIN


def prove_splits(prepared: Prepared, fastest_s: float, gap_limit: float, seconds: float) -> Prepared:
    """
    The same with what the joint model proves in so many seconds, if it has not proven enough before.

    Parameters
    ----------
    fastest_s
        Time of the plan.
    gap_limit
        Share of it that the bound may be below.
    """
    joined = prepared.joined
    if joined is None or seconds <= 0 or joined.model.bound_s >= (1 - max(gap_limit, FAMILY_MARGIN)) * fastest_s:
        return prepared
    again = joined.go_on(seconds, fastest_s)
    bound_s = max(again.bound_s, joined.model.bound_s)
    return replace(prepared, joined=replace(joined, model=replace(again, bound_s=bound_s)))
