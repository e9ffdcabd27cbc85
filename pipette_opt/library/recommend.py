"""``recommend``: which and how many hosts to use."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.job.read import Job, Made, read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.arguments import (
    Listed,
    Named,
    Told,
    argument_errors,
    comma_text,
    described,
    params_of,
    watcher_of,
)
from pipette_opt.library.measured import with_measured
from pipette_opt.options.description import JobOptions
from pipette_opt.options.questions import LimitOptions, RecommendOptions
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.read.prices import parse_prices, with_prices
from pipette_opt.replan.recommend import Offer, Place, choices, in_words, numbers_of_hosts, offers
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.worlds.bands import jobs_of_bands

SECONDS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
"""Seconds per unit of a duration: hour, day, week."""

ROW_S = 5.0
"""Default search time for each combination of GPU type and number of hosts, in seconds. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recommendation:
    """
    Plans of a job on several GPU types and numbers of hosts, and recommended choices.

    Parameters
    ----------
    offers
        The best plan found for each combination; fewer if the search was stopped.
    choices
        Offers by reason: the fastest, the cheapest, and those that meet the deadline.
    sentences
        The choices in words, and what is proven about the deadline.
    num_places
        Number of combinations of GPU type and number of hosts.
    """

    offers: tuple[Offer, ...]
    choices: Mapping[str, Offer]
    sentences: tuple[str, ...]
    num_places: int

    def __repr__(self) -> str:
        return lines_at_most(f"{len(self.offers)} of {self.num_places} kinds and numbers of hosts", self.sentences)


@argument_errors()
def recommend(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    gpu: Listed | None = None,
    on_progress: Told | None = None,
    **options: Any,
) -> Recommendation:
    """
    Recommend hosts: the fewest GPUs for a deadline, the cheapest and the fastest choice.

    Parameters
    ----------
    cluster, model, training, space
        The job, as in :func:`~pipette_opt.solve`. From a cluster the best hosts are taken; hosts given by ``nodes`` are
        equal.
    gpu
        GPU types to compare, with ``nodes``.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    options
        The job, as in :func:`~pipette_opt.solve`, and fields of
        :class:`~pipette_opt.options.questions.RecommendOptions` and
        :class:`~pipette_opt.options.questions.LimitOptions`: ``num_hosts=(4, 8)``, ``tokens=1e12``, ``deadline="30d"``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    """
    given = {**options, "gpu": comma_text(gpu)}
    job, pinned, made, asked, limits = described(cluster, model, training, given, RecommendOptions, LimitOptions)
    if job.num_gpus is not None:
        raise InputError("num_gpus", "has no effect here; give num_hosts, the numbers of hosts to compare.")
    tokens = asked.tokens
    if tokens is not None and not 0 < tokens < 1e20:
        raise InputError("--tokens", f"must be > 0 and below 1e20, got {tokens:g}.")
    if asked.deadline is not None and tokens is None:
        raise InputError("--deadline", "needs --tokens, the number of tokens of the training run.")
    deadline_s = None if asked.deadline is None else _seconds(asked.deadline)
    places, first = _places(job, made, asked.num_hosts)
    time_limit_s = ROW_S * len(places) if asked.time_limit is None else asked.time_limit
    params = params_of(limits, time_limit_s=time_limit_s)
    found = offers(places, search_space(first, pinned, space), tokens, params, watcher_of(on_progress))
    return Recommendation(
        offers=tuple(found),
        choices=choices(found, deadline_s),
        sentences=tuple(in_words(found, deadline_s, jobs_of_bands([place.instance for place in places]))),
        num_places=len(places),
    )


def _seconds(text: str) -> float:
    """Return the seconds of a duration such as ``30d``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([hdw])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(
            "--deadline", f"must be a number of hours, days or weeks, such as 36h, 30d or 6w; got {text!r}."
        )
    return float(match[1]) * SECONDS[match[2]]


def _places(options: JobOptions, made: Made | None, num_hosts: Sequence[int] | None) -> tuple[list[Place], Job]:
    """Return every combination of GPU type and number of hosts, and the job on the first GPU type."""
    named = [name.strip() for name in (options.gpu or "").split(",") if name.strip()]
    kinds: list[str | None] = [*named] or [None]
    jobs = [
        with_measured(read_job(replace(options, gpu=kind, gpu_price=None), made), options.measured_runs)
        for kind in kinds
    ]
    found = []
    for job in jobs:
        cluster = with_prices(
            job.instance.cluster, parse_prices(options.gpu_price or (), job.instance.cluster).of_hosts
        )
        instance = replace(job.instance, cluster=cluster)
        name = " and ".join(gpu.name for gpu in cluster.gpu_kinds)
        for count in num_hosts or numbers_of_hosts(cluster.num_nodes):
            if count > cluster.num_nodes:
                raise InputError(
                    "--num-hosts",
                    f"must be at most {cluster.num_nodes}, the number of hosts of the cluster, got {count}.",
                )
            found.append(Place(name=name, instance=instance, num_hosts=count))
    return found, replace(jobs[0], num_gpus=None)
