"""Which hosts to take."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams
from pipette_opt.plans.watcher import Watcher
from pipette_opt.replan.recommend import Offer, Place, choices, duration, in_words, numbers_of_hosts, offers

DAY = 86400.0


def offer(num_hosts: int, days: float, price: float | None, *, worst: float = 1.5, least: float = 0.9) -> Offer:
    """Hosts of eight GPUs, by days of the run."""
    return Offer(
        hosts="a100-80gb",
        num_hosts=num_hosts,
        num_gpus=8 * num_hosts,
        config="tp1",
        simulated_s=days,
        expected_s=days,
        bound_s=days * least,
        tokens_per_s=1.0 / days,
        run_s=days * DAY,
        worst_run_s=worst * days * DAY,
        least_run_s=least * days * DAY,
        price=price,
    )


FOUND = [offer(1, 40.0, 800.0), offer(2, 21.0, 840.0), offer(4, 11.0, 880.0), offer(8, 6.0, 960.0)]


def test_the_choices() -> None:
    """By time, by price, and by GPUs among those in time."""
    chosen = choices(FOUND, 25 * DAY)
    assert {word: one.num_hosts for word, one in chosen.items()} == {
        "fastest": 8,
        "cheapest": 1,
        "fewest GPUs in time": 2,
        "cheapest in time": 2,
    }
    assert set(choices(FOUND, None)) == {"fastest", "cheapest"}
    assert set(choices([replace(one, price=None) for one in FOUND], 5 * DAY)) == {"fastest"}
    assert choices([Offer(hosts="x", num_hosts=1, num_gpus=8, why="too big")], None) == {}


def test_the_choices_in_words() -> None:
    """What is the same is said once; the slow end of the band and what is proven of fewer GPUs follow."""
    said = in_words(FOUND, 25 * DAY)
    assert said == [
        "Fastest: 8 hosts of a100-80gb (64 GPUs), 6.0 days, price 960.",
        "Cheapest: 1 host of a100-80gb (8 GPUs), 40.0 days, price 800.",
        "Fewest GPUs in time, cheapest in time: 2 hosts of a100-80gb (16 GPUs), 21.0 days, price 840.",
        "At the slow end of the band, the fewest GPUs take 31.5 days, too long; 4 hosts of a100-80gb "
        "(32 GPUs), 11.0 days, price 880 would meet the deadline even then.",
        "Choices with fewer GPUs are too slow: proven.",
    ]
    late = in_words(FOUND, 5 * DAY)
    assert late[-1] == (
        "No plan meets the deadline: the fastest takes 6.0 days, and no plan on these hosts takes less than 5.4 days."
    )
    assert in_words([], None) == ["No configuration is legal and fits in memory on any of these hosts."]
    open_ = in_words([offer(1, 26.0, None, least=0.5), *FOUND[1:]], 25 * DAY)
    assert open_[-1] == "Choices with fewer GPUs are too slow: not proven for all of them."


def test_numbers_and_durations() -> None:
    """Halves, down to one; days from two on."""
    assert numbers_of_hosts(12) == [1, 3, 6, 12]
    assert numbers_of_hosts(1) == [1]
    assert (duration(DAY), duration(3 * DAY), duration(None)) == ("24.0 hours", "3.0 days", "-")


@pytest.fixture(scope="module")
def searched() -> list[Offer]:
    """One and two of two hosts at a price, for a thousand iterations."""
    spec = make_cluster(2, gpus=2)
    priced = replace(spec, nodes=tuple(replace(node, price_per_gpu_hour=2.0) for node in spec.nodes))
    job = make_job(priced, TINY, 16, 1024)
    places = [Place(name="a100-80gb", instance=job, num_hosts=count) for count in (1, 2)]
    space = SearchSpace(micro_batch_size=(1, 2), virtual_pipeline=(1,))
    return offers(places, space, 1000.0 * 16 * 1024, OptimizeParams(time_limit_s=6, workers=1), Watcher())


@pytest.mark.search
def test_offers_are_searched(searched: list[Offer]) -> None:
    """More hosts are faster here; run, price and bound follow from the iteration."""
    one, two = searched
    assert (one.num_gpus, two.num_gpus) == (2, 4)
    assert one.simulated_s is not None
    assert two.simulated_s is not None
    assert two.simulated_s < one.simulated_s
    for found in searched:
        assert found.run_s == pytest.approx(1000 * (found.expected_s or 0))
        assert found.price == pytest.approx(found.num_gpus * 2.0 * (found.run_s or 0) / 3600)
        assert (found.bound_s or 0) <= (found.expected_s or 0)
        assert found.bound_s / found.simulated_bound_s == pytest.approx(found.expected_s / found.simulated_s)
        assert (found.low_s or 0) < (found.expected_s or 0) < (found.high_s or 0)
        assert found.tokens_per_s == pytest.approx(16 * 1024 / (found.expected_s or 0))
    assert "times as long in nine of ten jobs like this" in in_words(searched, None)[-1]
