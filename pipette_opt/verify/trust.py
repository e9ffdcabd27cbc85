"""Figures of a plan that no rule derives again: the list that ``verify`` prints."""

from collections.abc import Callable
from typing import NamedTuple

from pipette_opt.plans.plan import Plan


class Trusted(NamedTuple):
    """
    Figures taken on trust.

    Parameters
    ----------
    fields
        Paths in the plan file; ``N`` stands for any place in a list, ``*`` for all fields inside. A list by itself
        stands for its missing entries.
    words
        Figures for people, with what the rules do show of them.
    has
        Function that returns whether a plan has such figures.
    """

    fields: tuple[str, ...]
    words: str
    has: Callable[[Plan], bool]


def _always(plan: Plan) -> bool:
    return True


JOINT = ("families", "variables", "constraints", "solves", "seconds", "splits", "bound_s")
"""Fields of the joint model that only the model itself knows."""

TRUSTED: tuple[Trusted, ...] = (
    Trusted(
        ("certificate.proof.N.bound_s", "certificate.proof.N.named.N.name", "certificate.proof.N.named.N.example"),
        "bounds of the proof's steps, beyond that each is at least the lower bound; names of engines",
        lambda plan: bool(plan.certificate.proof),
    ),
    Trusted(
        tuple(f"certificate.joint_model.{name}" for name in JOINT),
        "size, seconds and bound of the joint model, beyond that its bound is from the lower bound to the plan's time",
        lambda plan: plan.certificate.joint_model is not None,
    ),
    Trusted(
        ("alternatives",),
        "that no alternative or plan with less risk was left out, beyond what the others show",
        _always,
    ),
    Trusted(("alternatives.N.lower_bound_s",), "bounds of alternatives", lambda plan: bool(plan.alternatives)),
    Trusted(
        ("inputs.*", "launcher"),
        "the job itself: launcher, constants and source of the stack, and inputs that change no figure of this plan",
        _always,
    ),
    Trusted(
        ("seed", "created", "versions.*", "certificate.wall_time_s"),
        "seed, date, versions and seconds of the search",
        _always,
    ),
)
"""Figures of a plan that no rule checks."""


def on_trust(plan: Plan) -> tuple[str, ...]:
    """Return the figures of a plan that are taken on trust, in words."""
    return tuple(trusted.words for trusted in TRUSTED if trusted.has(plan))
