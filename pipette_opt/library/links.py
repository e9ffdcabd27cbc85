"""``links``: slow links and their cause, changes between measurements, and the gain from repairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipette_opt.base.units import MIN_DIFFERENCE, difference
from pipette_opt.library.arguments import Named, Told, argument_errors, options_of, params_of, plan_or_file, watcher_of
from pipette_opt.library.plans import plan_on_cluster
from pipette_opt.options.questions import LimitOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.link_changes import changes_in_words
from pipette_opt.read.link_health import Health, health
from pipette_opt.replan.whatif import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinksFound:
    """
    State of a cluster's links.

    Parameters
    ----------
    health
        Hosts, GPUs and pairs with slow links.
    is_measured
        Whether the links were measured.
    changed
        Sentences on what changed since the first measurement.
    repairs
        Sentences on what the repair of each slow host brings to a plan, the largest gain first.
    """

    health: Health
    is_measured: bool
    changed: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()


@argument_errors()
def links(
    clusters: Sequence[Named], plan: Plan | Named | None = None, *, on_progress: Told | None = None, **limits: Any
) -> LinksFound:
    """
    Name the host, NIC or GPU behind slow links, what changed, and what repairs bring to a plan.

    Parameters
    ----------
    clusters
        Cluster files of the same hosts, the oldest first.
    plan
        A plan or its file: what repairs of slow hosts bring to it is computed, too.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    limits
        Fields of :class:`~pipette_opt.options.questions.LimitOptions`.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    """
    (how,) = options_of(limits, LimitOptions)
    snapshots = [read_cluster(path) for path in clusters]
    found = health(snapshots[-1])
    brings: list[str] = []
    if plan is not None:
        old, instance, _ = plan_on_cluster(plan_or_file(plan), Path(clusters[-1]))
        brings = _gains(WhatIf(old, instance, params_of(how), watcher_of(on_progress)), found.slow_hosts)
    return LinksFound(
        health=found,
        is_measured=snapshots[-1].links_measured,
        changed=tuple(changes_in_words(snapshots)) if len(snapshots) > 1 else (),
        repairs=tuple(brings),
    )


def _gains(asking: WhatIf, hosts: Sequence[str]) -> list[str]:
    """Return a sentence for each host with the gain that its repair brings to the plan, the largest gain first."""
    answers = asking.ask(asking.repairs(hosts))
    answers.sort(key=lambda answer: -(answer.change or 0.0))
    gains = [
        f"{answer.name}: {difference(1 + answer.change, 'more', 'fewer', 'as many')} tokens per second."
        for answer in answers
        if answer.change is not None and answer.change >= MIN_DIFFERENCE
    ]
    left = [host for host in hosts if not any(line.startswith(f"{host} repaired") for line in gains)]
    return [*gains, *([f"The repair of {', '.join(left)} does not make this job faster."] if left else [])]
