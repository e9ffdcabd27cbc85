"""What people should know of a fit before they use it."""

from collections.abc import Sequence

from pipette_opt.backtest.versions import run_version
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec

INTERRUPTED = "cross-validation was interrupted: how far it can be trusted is not known"
"""Note of a fit that was kept."""


def layer_notes(stack: StackSpec) -> list[str]:
    """What was learned of layers, for people."""
    if stack.layers is None:
        return ["layers take what the formula says: what their shapes seemed to add did not help runs left out"]
    factors = [one.factor for one in stack.layers.shapes]
    return [f"layers of {len(factors)} shapes take {min(factors):.2f} to {max(factors):.2f} of what the formula says"]


def version_notes(stack: StackSpec, runs: Sequence[MeasuredRun], last: str) -> list[str]:
    """Factors of versions, for people, and what is missing of them."""
    several = len({run_version(run) for run in runs}) > 1
    if several and not stack.versions:
        return [
            f"there are runs of several versions of the stack, but too few of {last or 'none, as in the last row'}: "
            "all are taken for one"
        ]
    return [
        f"version {name} takes {factor:.3f} of the last row's time" for name, factor in (stack.versions or {}).items()
    ]
