"""Which hosts to take: the fewest GPUs for a deadline, the cheapest, the fastest, over numbers and kinds of hosts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.units import counted, three_digits
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams
from pipette_opt.plans.target import HOUR_S
from pipette_opt.plans.watcher import Watcher
from pipette_opt.read.bands import job_band
from pipette_opt.replan.searching import search
from pipette_opt.specs import Instance

AS_MANY_TIMES = 2
"""By how much the numbers of hosts that are tried differ, the most first. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """
    Where the job may run.

    Parameters
    ----------
    name
        Of the hosts, for people.
    num_hosts
        Largest number of hosts that may be used; how many are, is chosen by time.
    """

    name: str
    instance: Instance
    num_hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """
    The job on some hosts.

    Parameters
    ----------
    num_hosts, num_gpus
        Hosts and GPUs that are used; those that may be used where there is no plan.
    iteration_time_s, bound_s
        Simulated; no plan searched on as many of these hosts as may be used, or fewer, is faster than the latter.
    expected_s, tokens_per_s
        Expected time, the middle of its band, and the tokens per second at it.
    low_s, high_s
        Ends of that band.
    run_s, worst_run_s, least_run_s
        Seconds of the whole run: expected, at the upper end of the band, and by the bound, as far above the simulated
        time as the expected one is. ``None`` if its number of tokens was not given.
    price
        Of the whole run, or of a million tokens where its number of tokens was not given; ``None`` without prices.
    why
        Why there is no plan.
    """

    hosts: str
    num_hosts: int
    num_gpus: int
    config: str = ""
    iteration_time_s: float | None = None
    bound_s: float | None = None
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    tokens_per_s: float | None = None
    run_s: float | None = None
    worst_run_s: float | None = None
    least_run_s: float | None = None
    price: float | None = None
    why: str = ""


def numbers_of_hosts(most: int) -> list[int]:
    """All hosts, half of them, a quarter, ... down to one."""
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
    told: Callable[[Offer], None] = lambda offer: None,
) -> list[Offer]:
    """
    The best plan found in each place, in an equal share of the time limit; fewer after a stop of the watcher.

    Parameters
    ----------
    tokens
        Of the whole run.
    """
    found: list[Offer] = []
    for number, place in enumerate(places):
        if watcher.stop.is_set():
            break
        watcher.report(f"{counted(place.num_hosts, 'host')} of {place.name} ({number + 1} of {len(places)})")
        seconds = (params.time_limit_s - watcher.elapsed_s) / (len(places) - number)
        found.append(_offer(place, space, tokens, max(seconds, 1.0), params, watcher))
        told(found[-1])
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
    band = job_band(instance, best.candidate.config, estimate.iteration_time_s)
    prices = [cluster.nodes[node].price_per_gpu_hour for node in best.placement.node.tolist()]
    known = [price for price in prices if price is not None]
    iterations = None if tokens is None else tokens / instance.training.tokens
    priced_iterations = 1e6 / instance.training.tokens if iterations is None else iterations
    hourly = None if len(known) < len(prices) else sum(known)

    bound_s = min(searched.bound_s, estimate.iteration_time_s)

    def of_run(seconds: float) -> float | None:
        return None if iterations is None else seconds * iterations

    return replace(
        offer,
        num_hosts=len(best.placement.nodes_used),
        num_gpus=best.candidate.config.world_size,
        config=best.candidate.config.label(),
        iteration_time_s=estimate.iteration_time_s,
        bound_s=bound_s,
        expected_s=band.middle_s,
        low_s=band.low_s,
        high_s=band.high_s,
        tokens_per_s=instance.training.tokens / band.middle_s,
        price=None if hourly is None else hourly * band.middle_s * priced_iterations / HOUR_S,
        run_s=of_run(band.middle_s),
        worst_run_s=of_run(band.high_s),
        least_run_s=of_run(bound_s * band.middle_s / estimate.iteration_time_s),
    )


def _shortly(text: str) -> str:
    """What memory says of it, or the first line."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line.startswith("memory rules out")), lines[0])


def choices(found: Sequence[Offer], deadline_s: float | None) -> dict[str, Offer]:
    """The fastest, the cheapest where prices are known, and the fewest GPUs that meet a deadline, if any do."""
    able = [one for one in found if one.iteration_time_s is not None]
    chosen: dict[str, Offer] = {}
    if not able:
        return chosen
    chosen["fastest"] = min(able, key=lambda one: one.expected_s or 0.0)
    priced = [one for one in able if one.price is not None]
    if priced:
        chosen["cheapest"] = min(priced, key=lambda one: (one.price, one.expected_s))
    if deadline_s is not None:
        in_time = [one for one in able if one.run_s is not None and one.run_s <= deadline_s]
        if in_time:
            chosen["fewest GPUs in time"] = min(in_time, key=lambda one: (one.num_gpus, one.run_s))
            cheap = [one for one in in_time if one.price is not None]
            if cheap:
                chosen["cheapest in time"] = min(cheap, key=lambda one: (one.price, one.run_s))
    return chosen


def in_words(found: Sequence[Offer], deadline_s: float | None) -> list[str]:
    """The choices in sentences, and what is proven of the deadline."""
    chosen = choices(found, deadline_s)
    if not chosen:
        return ["Nothing is legal and fits on any of these hosts."]
    said = _band_words(found)
    for one in dict.fromkeys(chosen.values()):
        words = ", ".join(word for word, other in chosen.items() if other == one)
        said.append(f"{words[0].upper()}{words[1:]}: {_told(one)}.")
    if deadline_s is None:
        return said
    best = chosen.get("fewest GPUs in time")
    if best is None:
        fastest = chosen["fastest"]
        sure = fastest.least_run_s is not None and fastest.least_run_s > deadline_s
        proven = f", and at least {duration(fastest.least_run_s)} are proven there" if sure else ""
        return [*said, f"Nothing asked about meets the deadline: the fastest takes {duration(fastest.run_s)}{proven}."]
    if best.worst_run_s is None:
        said.append("No run like this was ever measured, so the deadline has no margin that is known.")
    elif best.worst_run_s > deadline_s:
        safe = [one for one in found if one.worst_run_s is not None and one.worst_run_s <= deadline_s]
        more = min(safe, key=lambda one: one.num_gpus, default=None)
        end = f"; {_told(more)} would hold even then" if more is not None else ""
        said.append(f"At the slow end of measured runs like this it takes {duration(best.worst_run_s)}, too long{end}.")
    fewer = [one for one in found if one.num_gpus < best.num_gpus and one.least_run_s is not None]
    sure_not = [one for one in fewer if one.least_run_s is not None and one.least_run_s > deadline_s]
    if fewer:
        proven = "proven" if len(sure_not) == len(fewer) else "not proven for all"
        said.append(f"That fewer GPUs of those asked about are too slow is {proven}.")
    return said


def _band_words(found: Sequence[Offer]) -> list[str]:
    """How far the times shown may be off, by the offer with the widest band; nothing where none has a band."""
    shares = [
        (one.low_s / one.expected_s, one.high_s / one.expected_s)
        for one in found
        if one.expected_s and one.low_s is not None and one.high_s is not None
    ]
    if not shares:
        return []
    low, high = min(low for low, _ in shares), max(high for _, high in shares)
    return [
        f"Times are expected ones: nine of ten jobs like these take between {100 * (1 - low):.0f} % less and "
        f"{100 * (high - 1):.0f} % more."
    ]


def duration(seconds: float | None) -> str:
    """Days, or hours where it is less than two days."""
    if seconds is None:
        return "-"
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else f"{seconds / HOUR_S:.1f} hours"


def _told(offer: Offer) -> str:
    """An offer in a sentence."""
    time = (
        f", {duration(offer.run_s)}"
        if offer.run_s is not None
        else f", {three_digits(offer.tokens_per_s or 0.0)} tokens/s"
    )
    unit = "" if offer.run_s is not None else " a million tokens"
    price = "" if offer.price is None else f", price {three_digits(offer.price)}{unit}"
    return f"{counted(offer.num_hosts, 'host')} of {offer.hosts} ({offer.num_gpus} GPUs){time}{price}"
