"""Tables of what-if answers and of recommendations."""

from dataclasses import replace

from consoles import shown

from pipette_opt.replan.question_tables import answers_table, offers_table
from pipette_opt.replan.recommend import Offer
from pipette_opt.replan.whatif import Answer

ANSWER = Answer(
    name="without n1",
    group="without",
    simulated_s=10.0,
    expected_s=12.0,
    tokens_per_s=123_456.0,
    change=-0.2,
    as_it_is_s=13.2,
    bound_s=10.8,
    config="tp1",
    num_gpus=8,
)


def test_times_of_answers_are_expected_ones() -> None:
    """Not the simulated 10 s; three digits."""
    text = shown(answers_table("A host less", [ANSWER]))
    for cell in ("12.0 s", "13.2 s", "10.8 s", "123,000"):
        assert cell in text
    assert "10.0" not in text
    assert "proven" in shown(answers_table("A host less", [replace(ANSWER, bound_s=12.0)]))


def test_times_of_offers_are_expected_ones() -> None:
    """Dashes where there is no plan."""
    offer = Offer(
        hosts="h100-80gb",
        num_hosts=2,
        num_gpus=16,
        config="tp1",
        simulated_s=5.86,
        bound_s=6.0,
        expected_s=7.032,
        tokens_per_s=149_113.0,
        price=43_276.18,
    )
    text = shown(offers_table([offer, Offer(hosts="x", num_hosts=1, num_gpus=8, why="too big")]))
    for cell in ("7.03 s", "6.00 s", "149,000", "43,300", "too big"):
        assert cell in text
    assert "5.86" not in text
