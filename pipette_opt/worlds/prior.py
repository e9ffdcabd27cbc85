"""Prior of the worlds: what public runs say of the terms of a prediction, ``data/worlds.yaml``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log, log2
from typing import NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.worlds.terms import TERMS

SHAPE = ("job", "job_length", "layout", "layout_length", "both", "noise")
"""Numbers of a prior besides those of its terms; :class:`Prior` explains them."""

PLACE = ("data", "worlds.yaml")


USUAL_HIDDEN = 4096
"""Hidden size at which the shares of the kinds are those written in the file. Chosen."""


class Kind(NamedTuple):
    """
    Kind of stacks: its share, factors on standard deviations, and how the share depends on the job.

    The factors are those of the constant, the slopes, the smooth function of the job, those of the layout, and the
    noise. ``share`` is that among stacks that train a dense model of
    hidden size ``USUAL_HIDDEN``. Before shares are made to add up to 1, its logarithm grows by ``experts`` for a model
    with experts, and by ``doubling`` for each doubling of the hidden size.
    """

    share: float
    constant: float = 1.0
    slopes: float = 1.0
    job: float = 1.0
    layout: float = 1.0
    noise: float = 1.0
    experts: float = 0.0
    doubling: float = 0.0


KINDS = ("usual", "shifted", "strange", "scaled")
"""
Kinds of stacks: like most, off by a constant, off in many ways, and off by one factor for all layouts of a job. Nobody
knows the kind of a new stack; measured runs tell it.
"""


def share_features(terms: FloatArray) -> FloatArray:
    """Return 1, whether a model has experts, and doublings of ``USUAL_HIDDEN``, shape ``(num_configs, 3)``."""
    experts, hidden = terms[:, TERMS.index("experts")], terms[:, TERMS.index("hidden size")]
    return np.column_stack([np.ones(len(terms)), experts, hidden - log2(USUAL_HIDDEN)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """
    Distribution of the logarithm of measured over predicted time, as a function of the terms.

    Its mean is the same for all layouts of a job (:meth:`job_mean`). About it, it is normal for a stack of each of the
    ``KINDS``; the standard deviations here are those of a usual stack.

    Parameters
    ----------
    kinds
        Kinds of stacks, in the order of ``KINDS``.
    mean
        Effect of each term of the reference layout on the mean, shape ``(num_terms,)``.
    sd
        Standard deviation of the slope of each term among stacks, shape ``(num_terms,)``.
    job, layout, both
        Standard deviations of three smooth functions: of the job, of the layout, and of both.
    job_length, layout_length
        Distance between features over which these functions change.
    noise
        Standard deviation of one measured run.
    """

    kinds: tuple[Kind, ...]
    mean: FloatArray
    sd: FloatArray
    job: float
    job_length: float
    layout: float
    layout_length: float
    both: float
    noise: float

    def __post_init__(self) -> None:
        for name in ("mean", "sd"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))

    def log_shares(self, terms: FloatArray) -> FloatArray:
        """
        Return the logarithms of the kinds' shares among stacks that train such jobs.

        Parameters
        ----------
        terms
            Terms of predictions, shape ``(num_configs, num_terms)``.

        Returns
        -------
        array
            Logarithms up to a constant of each configuration, shape ``(num_kinds, num_configs)``.
        """
        numbers = np.array([(log(max(kind.share, 1e-300)), kind.experts, kind.doubling) for kind in self.kinds])
        found: FloatArray = numbers @ share_features(terms).T
        return found

    def job_mean(self, reference: FloatArray) -> FloatArray:
        """
        Return the mean log ratio of the layouts of a job.

        Parameters
        ----------
        reference
            Terms of its reference layout (:mod:`~pipette_opt.worlds.reference`), shape ``(..., num_terms)``.
        """
        found: FloatArray = reference @ self.mean
        return found

    def of(self, kind: Kind) -> "Prior":
        """Return the prior of the stacks of one kind."""
        slopes = np.full(len(TERMS), kind.slopes)
        slopes[TERMS.index("constant")] = kind.constant
        return replace(
            self,
            sd=self.sd * slopes,
            job=self.job * kind.job,
            layout=self.layout * kind.layout,
            both=self.both * kind.layout,
            noise=self.noise * kind.noise,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priors:
    """
    Prior of all publishers, and of all but one.

    Parameters
    ----------
    all_sources
        Prior from the runs of every publisher.
    without
        Prior without a publisher, by its name.
    names
        Tables of each publisher, and beginnings of the column ``source`` of their rows, by the publisher's name.
    runs
        Number of runs that made the prior, by kind of job (:func:`~pipette_opt.worlds.jobs.kind_of`).
    """

    all_sources: Prior
    without: Mapping[str, Prior]
    names: Mapping[str, tuple[str, ...]]
    runs: Mapping[str, int]

    def leaving_out(self, source: str | None) -> Prior:
        """
        Return the prior without a publisher, by a table's name or by the text in the column ``source`` of its rows.

        The prior of all sources if none of its runs is from this source.
        """
        if source is None:
            return self.all_sources
        text = source.strip().lower()
        begins = [(name, publisher) for publisher, names in self.names.items() for name in (publisher, *names)]
        matches = [(len(name), publisher) for name, publisher in begins if text.startswith(name.lower())]
        return self.without[max(matches)[1]] if matches else self.all_sources


@cache
def shipped_priors() -> Priors:
    """Return the shipped priors; the file is read once."""
    return read_priors()


def read_priors() -> Priors:
    """Read the shipped file of priors."""
    place = shipped_path(*PLACE)
    fields = Fields(str(place), read_yaml(place), ("terms", "runs", "all", "sources"))
    if tuple(fields.any("terms")) != TERMS:
        raise InputError(str(place), f"terms must be {', '.join(TERMS)}; make the file anew.")
    sources = fields.any("sources")
    return Priors(
        all_sources=_prior(f"{place}, all", fields.any("all")),
        without={str(name): _prior(f"{place}, {name}", source["without"]) for name, source in sources.items()},
        names={str(name): (*source["tables"], *source["rows"]) for name, source in sources.items()},
        runs={str(kind): int(number) for kind, number in fields.any("runs").items()},
    )


def _prior(where: str, content: object) -> Prior:
    fields = Fields(where, content, ("kinds", "mean", "sd", *SHAPE))
    slopes = {name: np.array(fields.any(name), dtype=np.float64) for name in ("mean", "sd")}
    for name, values in slopes.items():
        if values.shape != (len(TERMS),):
            raise InputError(where, f"{name} must have {len(TERMS)} numbers, got {values.size}.")
    return Prior(
        kinds=tuple(Kind(**fields.any("kinds")[name]) for name in KINDS),
        mean=slopes["mean"],
        sd=slopes["sd"],
        job=fields.positive("job"),
        job_length=fields.positive("job_length"),
        layout=fields.positive("layout"),
        layout_length=fields.positive("layout_length"),
        both=fields.positive("both"),
        noise=fields.positive("noise"),
    )
