"""
Ranges of the ratio of two plans' times.

Most of what nobody knows of a stack changes the times of all its plans alike, so a ratio is surer than either time.
"""

from pipette_opt.base.types import FloatArray
from pipette_opt.specs import StackSpec
from pipette_opt.worlds.bands import SHARE, anchored


def ratio_ends(stack: StackSpec, terms: FloatArray, other: FloatArray) -> tuple[float, float]:
    """
    Return lower and upper end of the measured ratio of two plans' times over its simulated ratio.

    In ``SHARE`` of the pairs of measured runs in the worlds that the measured runs of the stack leave.

    Parameters
    ----------
    terms, other
        Terms of the plan whose time is divided, and of the plan whose time divides it, each of shape ``(num_terms,)``,
        by :func:`~pipette_opt.worlds.terms.terms_of_plan`. Of two different configurations: the noise of both runs
        would be all that the range of one configuration tells.
    """
    low, _, high = anchored(stack).ratio_bands(terms[None], other, SHARE)[0].tolist()
    return low, high
