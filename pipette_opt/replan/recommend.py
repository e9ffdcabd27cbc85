"""Recommendation of hosts: the fewest GPUs for a deadline, the cheapest and the fastest choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.units import counted, three_digits
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams
from pipette_opt.plans.target import HOUR_S
from pipette_opt.plans.verdict import times_words
from pipette_opt.plans.watcher import Watcher
from pipette_opt.replan.searching import search
from pipette_opt.specs import Instance
from pipette_opt.worlds.bands import job_band

AS_MANY_TIMES = 2
"""Ratio between consecutive numbers of hosts that are tried. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """
    Hosts that the job may run on.

    Parameters
    ----------
    name
        Name of the hosts' GPU types, for tables.
    num_hosts
        Largest number of hosts that may be used; the fastest plan may use fewer.
    """

    name: str
    instance: Instance
    num_hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """
    The best plan found for a job on some hosts.

    Parameters
    ----------
    num_hosts, num_gpus
        Hosts and GPUs that the plan uses; without a plan, those that may be used.
    expected_s, tokens_per_s
        Expected seconds of an iteration, the middle of the error band, and the tokens per second at this time.
    bound_s
        Lower bound, in expected seconds, on every searched plan on these hosts.
    simulated_s, simulated_bound_s
        Simulated seconds, before the factor of the job; solver and proofs use them.
    low_s, high_s
        Ends of the error band, in seconds.
    run_s, worst_run_s, least_run_s
        Seconds of the whole run: expected, at the upper end of the band, and at the lower bound. ``None``
        if the number of tokens was not given.
    price
        Price of the whole run, or of a million tokens if the number of tokens was not given; ``None`` without prices.
    why
        Reason why no plan exists; otherwise empty.
    """

    hosts: str
    num_hosts: int
    num_gpus: int
    config: str = ""
    expected_s: float | None = None
    bound_s: float | None = None
    simulated_s: float | None = None
    simulated_bound_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    tokens_per_s: float | None = None
    run_s: float | None = None
    worst_run_s: float | None = None
    least_run_s: float | None = None
    price: float | None = None
    why: str = ""


def numbers_of_hosts(most: int) -> list[int]:
    """Return ``most``, half of it, a quarter, and so on down to 1, in ascending order."""
    found = [most]
    while found[-1] > 1:
        found.append(found[-1] // AS_MANY_TIMES)
    return found[::-1]


def offers(
    places: Sequence[Place],
    space: SearchSpace,
    tokens: float | None,
    params: OptimizeParams,
    watcher: Watcher,
) -> list[Offer]:
    """
    Return the best plan found in each place; fewer if the watcher stops.

    Each search gets an equal share of the remaining time limit.

    Parameters
    ----------
    tokens
        Number of tokens of the whole run; ``None`` if not given.
    """
    found: list[Offer] = []
    for number, place in enumerate(places):
        if watcher.stop.is_set():
            break
        watcher.report(f"{counted(place.num_hosts, 'host')} of {place.name} ({number + 1} of {len(places)})")
        seconds = (params.time_limit_s - watcher.elapsed_s) / (len(places) - number)
        found.append(_offer(place, space, tokens, max(seconds, 1.0), params, watcher))
    return found


def _offer(
    place: Place, space: SearchSpace, tokens: float | None, seconds: float, params: OptimizeParams, watcher: Watcher
) -> Offer:
    instance = place.instance
    cluster = instance.cluster
    size = place.num_hosts * cluster.gpus_per_node
    offer = Offer(hosts=place.name, num_hosts=place.num_hosts, num_gpus=size)
    limited = replace(space, max_gpus=min(size, space.max_gpus or size))
    try:
        searched = search(instance, limited, None, seconds, params, watcher)
    except (InfeasibleError, InputError) as error:
        why = error.problem if isinstance(error, InputError) else _shortly(str(error))
        return replace(offer, why=why)
    best = searched.best
    estimate = best.estimate
    band = job_band(instance, best.candidate.config, estimate.iteration_time_s, best.placement)
    prices = [cluster.nodes[node].price_per_gpu_hour for node in best.placement.node.tolist()]
    known = [price for price in prices if price is not None]
    iterations = None if tokens is None else tokens / instance.training.tokens
    priced_iterations = 1e6 / instance.training.tokens if iterations is None else iterations
    hourly = None if len(known) < len(prices) else sum(known)

    simulated_bound_s = min(searched.bound_s, estimate.iteration_time_s)
    bound_s = simulated_bound_s * band.middle_s / estimate.iteration_time_s

    def of_run(seconds: float) -> float | None:
        return None if iterations is None else seconds * iterations

    return replace(
        offer,
        num_hosts=len(best.placement.nodes_used),
        num_gpus=best.candidate.config.world_size,
        config=best.candidate.config.label(),
        simulated_s=estimate.iteration_time_s,
        simulated_bound_s=simulated_bound_s,
        expected_s=band.middle_s,
        bound_s=bound_s,
        low_s=band.low_s,
        high_s=band.high_s,
        tokens_per_s=instance.training.tokens / band.middle_s,
        price=None if hourly is None else hourly * band.middle_s * priced_iterations / HOUR_S,
        run_s=of_run(band.middle_s),
        worst_run_s=of_run(band.high_s),
        least_run_s=of_run(bound_s),
    )


def _shortly(text: str) -> str:
    """Return the line of an error text that tells what memory rules out, or else its first line."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line.startswith("memory rules out")), lines[0])


def choices(found: Sequence[Offer], deadline_s: float | None) -> dict[str, Offer]:
    """Return by name the fastest and cheapest offers, and those with the fewest GPUs that meet the deadline."""
    able = [offer for offer in found if offer.expected_s is not None]
    chosen: dict[str, Offer] = {}
    if not able:
        return chosen
    chosen["fastest"] = min(able, key=lambda offer: offer.expected_s or 0.0)
    priced = [offer for offer in able if offer.price is not None]
    if priced:
        chosen["cheapest"] = min(priced, key=lambda offer: (offer.price, offer.expected_s))
    if deadline_s is not None:
        in_time = [offer for offer in able if offer.run_s is not None and offer.run_s <= deadline_s]
        if in_time:
            chosen["fewest GPUs in time"] = min(in_time, key=lambda offer: (offer.num_gpus, offer.run_s))
            cheap = [offer for offer in in_time if offer.price is not None]
            if cheap:
                chosen["cheapest in time"] = min(cheap, key=lambda offer: (offer.price, offer.run_s))
    return chosen


def in_words(found: Sequence[Offer], deadline_s: float | None, jobs: str = "jobs like this") -> list[str]:
    """
    Return the choices as sentences, and what is proven about the deadline.

    Parameters
    ----------
    jobs
        Words for the jobs whose times the error bands hold.
    """
    chosen = choices(found, deadline_s)
    if not chosen:
        return ["No configuration is legal and fits in memory on any of these hosts."]
    sentences = []
    for offer in dict.fromkeys(chosen.values()):
        words = ", ".join(word for word, other in chosen.items() if other == offer)
        sentences.append(f"{words[0].upper()}{words[1:]}: {_told(offer)}.")
    if deadline_s is not None:
        sentences += _deadline_words(found, chosen, deadline_s)
    return [*sentences, *_band_words(found, jobs)]


def _deadline_words(found: Sequence[Offer], chosen: Mapping[str, Offer], deadline_s: float) -> list[str]:
    """Return sentences on the deadline: the margin of the choice with the fewest GPUs, and what is proven of fewer."""
    best = chosen.get("fewest GPUs in time")
    if best is None:
        fastest = chosen["fastest"]
        sure = fastest.least_run_s is not None and fastest.least_run_s > deadline_s
        proven = f", and no plan on these hosts takes less than {duration(fastest.least_run_s)}" if sure else ""
        return [f"No plan meets the deadline: the fastest takes {duration(fastest.run_s)}{proven}."]
    sentences = []
    if best.worst_run_s is None:
        sentences.append("No band is known, so the margin to the deadline is unknown.")
    elif best.worst_run_s > deadline_s:
        safe = [offer for offer in found if offer.worst_run_s is not None and offer.worst_run_s <= deadline_s]
        more = min(safe, key=lambda offer: offer.num_gpus, default=None)
        end = f"; {_told(more)} would meet the deadline even then" if more is not None else ""
        sentences.append(
            f"At the slow end of the band, the fewest GPUs take {duration(best.worst_run_s)}, too long{end}."
        )
    fewer = [offer for offer in found if offer.num_gpus < best.num_gpus and offer.least_run_s is not None]
    sure_not = [offer for offer in fewer if offer.least_run_s is not None and offer.least_run_s > deadline_s]
    if fewer:
        proven = "proven" if len(sure_not) == len(fewer) else "not proven for all of them"
        sentences.append(f"Choices with fewer GPUs are too slow: {proven}.")
    return sentences


def _band_words(found: Sequence[Offer], jobs: str) -> list[str]:
    """Return a sentence on the error of the times, from the widest error band; empty if no offer has a band."""
    shares = [
        (offer.low_s / offer.expected_s, offer.high_s / offer.expected_s)
        for offer in found
        if offer.expected_s and offer.low_s is not None and offer.high_s is not None
    ]
    if not shares:
        return []
    low, high = min(low for low, _ in shares), max(high for _, high in shares)
    return [times_words(low, high, jobs)]


def duration(seconds: float | None) -> str:
    """Return a duration as text: in days, or in hours below two days."""
    if seconds is None:
        return "-"
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else f"{seconds / HOUR_S:.1f} hours"


def _told(offer: Offer) -> str:
    """Return an offer as text: hosts, duration or speed, and price."""
    time = (
        f", {duration(offer.run_s)}"
        if offer.run_s is not None
        else f", {three_digits(offer.tokens_per_s or 0.0)} tokens/s"
    )
    unit = "" if offer.run_s is not None else " a million tokens"
    price = "" if offer.price is None else f", price {three_digits(offer.price)}{unit}"
    return f"{counted(offer.num_hosts, 'host')} of {offer.hosts} ({offer.num_gpus} GPUs){time}{price}"
