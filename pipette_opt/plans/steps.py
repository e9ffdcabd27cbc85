"""
Steps of a search with their slices of the time limit; the table of ``docs/method.md`` is :func:`table`.

All shares are chosen.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    Step of a search, which ends when its slice of the time is over or nothing is left to do.

    Parameters
    ----------
    words
        Name of the step for people.
    share
        Fraction of the time that the step may take.
    of
        ``limit``: of the time limit; ``rest``: of the time left when the step begins.
    most_s
        Largest time of the step, seconds.
    where
        Module that runs the step.
    """

    words: str
    share: float
    of: Literal["limit", "rest"] = "rest"
    most_s: float = float("inf")
    where: str

    @property
    def at_most(self) -> str:
        """Largest time as text."""
        share = "the rest" if self.share == 1 else f"{self.share:g} of the {self.of}"
        return share if self.most_s == float("inf") else f"{share}, {self.most_s:g} s"


WORLD_SIZES = Step(
    words="a first plan of a few configurations, if the job leaves the number of GPUs free; it is the time to beat",
    share=0.25,
    where="prepare.py",
)

BOUNDS = Step(words="bounds of single configurations", share=0.1, where="solver/pruning.py")

TIME_TO_BEAT = Step(
    words="during these bounds, if more than 100 are left: annealing a better time to beat",
    share=0.05,
    most_s=10.0,
    where="solver/pruning.py",
)

JOINT = Step(words="joint model", share=0.3, where="solver/joint.py")

JOINT_UNEQUAL = Step(
    words="the same with several kinds of GPU or groups of hosts far apart, which only this model knows",
    share=0.6,
    where="solver/joint.py",
)

JOINT_CALL = Step(words="a call of CP-SAT in it, but at least 1 s", share=0.1, where="solver/joint.py")

LAYOUTS = Step(
    words="layers moved between chunks of its plan, and of a plan of every other pipeline size",
    share=0.15,
    where="solver/layouts.py",
)

BUILDING = Step(words="problems in integers", share=0.15, where="prepare.py")

SINGLE_CHANGES = Step(
    words="single changes of the fastest plan, also those that the time limit left out; then they are proven like the "
    "others",
    share=0.5,
    where="certify/more_configurations.py",
)

OTHER_SIZES = Step(
    words="bounds of the other numbers of GPUs; configurations that may be faster are then proven like the others",
    share=0.5,
    where="certify/more_configurations.py",
)

JOINT_AGAIN = Step(
    words="joint model again, with the time of the fastest plan to beat; its new splits are searched with the others",
    share=0.2,
    where="certify/more_configurations.py",
)

JOINT_LEAST = Step(
    words="the same while its bound is the least of all: no other step then raises the bound of the plan",
    share=0.5,
    where="certify/more_configurations.py",
)

OPENING = Step(
    words="the simulator over the best links for every configuration that could be faster; after every fourth, the "
    "most promising is placed",
    share=1.0,
    where="certify/opening.py",
)

FEW_ORDERS = Step(
    words="branch and bound over hosts, where there are at most 120 placements", share=1.0, where="certify/placing.py"
)

ANNEALING = Step(words="annealing and simulation", share=0.3, where="certify/placing.py")

SWAPPING = Step(
    words="swaps, then branch and bound over hosts, where the lower-bound model is not exact or the provers are done",
    share=0.5,
    where="certify/placing.py",
)

PROVERS = Step(
    words="provers, in each round; all of the rest once a round finds nothing new",
    share=0.5,
    where="certify/proving.py",
)

BOUNDS_AGAIN = Step(
    words="bounds of configurations that had no time before; then they are proven like the others",
    share=0.5,
    where="certify/more_configurations.py",
)

BEST_VALUE = Step(
    words="plans of the best value with an objective over worlds, kept from the beginning",
    share=0.4,
    of="limit",
    where="certify/beside.py",
)

BESIDE = Step(
    words="plans beside the fastest, kept from the beginning; 0.05 of the limit in any case",
    share=0.1,
    of="limit",
    where="certify/beside.py",
)

PLAINER = Step(words="plainer plans", share=0.5, where="certify/beside.py")

SAME_PLAINNESS = Step(words="of these: configurations that are equally plain", share=0.5, where="certify/beside.py")

SAFER = Step(words="less risky plans", share=0.4, where="certify/beside.py")

NEXT_BEST = Step(words="the next best", share=1.0, where="certify/beside.py")

ONE_BESIDE = Step(words="one configuration of any of these", share=0.25, where="certify/beside.py")

TIES = Step(words="equally fast plans, kept from the beginning", share=0.05, of="limit", where="certify/ties.py")

SLOTS = Step(
    words="the order of GPUs inside hosts, where their links are known: half for the first plan, half for the last",
    share=0.1,
    of="limit",
    where="simulate/slots.py",
)

STEPS = (
    WORLD_SIZES,
    JOINT,
    JOINT_UNEQUAL,
    JOINT_CALL,
    LAYOUTS,
    BOUNDS,
    TIME_TO_BEAT,
    BUILDING,
    SINGLE_CHANGES,
    OTHER_SIZES,
    JOINT_AGAIN,
    JOINT_LEAST,
    OPENING,
    FEW_ORDERS,
    ANNEALING,
    SWAPPING,
    PROVERS,
    BOUNDS_AGAIN,
    BEST_VALUE,
    BESIDE,
    PLAINER,
    SAME_PLAINNESS,
    SAFER,
    NEXT_BEST,
    ONE_BESIDE,
    TIES,
    SLOTS,
)
"""Steps of ``solve`` in their order."""


def table() -> str:
    """Return the steps as a table in Markdown."""
    rows = [f"| {step.words} | {step.at_most} | `{step.where}` |" for step in STEPS]
    return "\n".join(["| step | at most | where |", "|---|---|---|", *rows]) + "\n"
