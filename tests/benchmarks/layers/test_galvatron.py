"""Galvatron's costs and decisions: against its own published figures, by hand, and by brute force."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from galvatron_profiles import mock_profile

from benchmarks.layers.costs import (
    Pipeline,
    Strategy,
    Vocabulary,
    change_s,
    layer_mb,
    layer_s,
    pipeline_terms,
)
from benchmarks.layers.profile import MEGABYTE, read_profile
from benchmarks.layers.programme import decide, decision, layer_programme
from benchmarks.layers.space import Search, searches, usable_mb
from pipette_opt.base.errors import InputError

PUBLISHED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "measured"
PUBLISHED /= "galvatron_llama2_7b_profiles.json"


def test_throughput_of_its_own_test() -> None:
    """``test_basic_search_flow`` expects 2.5578320019881313 samples/s of two stages, tp 4, 12 layers recomputed."""
    recomputed = "1111111110000011100000000000"
    pipeline = Pipeline(profile=mock_profile(), batch=64, micro_batches=32, stages=2, least_degree=2)
    search = Search(pipeline=pipeline, most_degree=4, mode="tensor")
    index = {one: search.strategies.index(Strategy(degree=4, is_recomputed=one == "1")) for one in "01"}
    layers = tuple(tuple(index[one] for one in recomputed[14 * stage : 14 * stage + 14]) for stage in (0, 1))
    option = search.options.index(Vocabulary(degree=2, is_sequence=False, is_sharded=False))
    found = decision(search, layers, option)
    assert 64 / found.seconds == pytest.approx(2.5578320019881313, rel=1e-8)


@pytest.mark.search
@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published profile is not here")
def test_recomputed_layers_of_its_published_decision() -> None:
    """
    On llama2-7b, 16 samples, 36 GB it recomputes 20 of 32 data-parallel layers with ZeRO-3.

    Its vocabulary is spread over two GPUs by sequence and sharded (``galvatron_config_llama2-7b_1nodes_8gpus_per_node_
    36GB_bf16.json`` of Time-has-wings/Hetu-Galvatron). Its links of that run are not published, so data parallelism is
    given, and its memory decides.
    """
    pipeline = Pipeline(profile=read_profile(PUBLISHED), batch=16, micro_batches=1, stages=1)
    search = Search(pipeline=pipeline, most_degree=2, mode="sequence")
    kept = [index for index, one in enumerate(search.strategies) if one.degree == 1 and one.is_sharded]
    option = search.options.index(Vocabulary(degree=2, is_sequence=True, is_sharded=True))
    left = usable_mb(36) - int(search.option_mb[option, 0])
    time, before = layer_programme(
        search.layer_mb[0][kept], search.layer_s[1][kept], search.layouts[kept], search.change_s, 32, left
    )
    layers, size = [int(time[left].argmin())], left
    for layer in range(31, 0, -1):
        layers.append(int(before[layer, size, layers[-1]]))
        size -= int(search.layer_mb[0][kept][layers[-2]])
    assert sum(search.strategies[kept[one]].is_recomputed for one in layers) == 20


@pytest.mark.parametrize("seed", range(8))
def test_programme_is_optimal(seed: int) -> None:
    """No sequence of strategies is faster within any budget."""
    rng = np.random.default_rng(seed)
    memory, times, layouts = rng.integers(1, 6, 3), rng.uniform(0.1, 1.0, 3), np.array([0, 1, 1])
    change = np.array([[0.0, 0.3], [rng.uniform(0.0, 0.3), 0.0]])
    time, _ = layer_programme(memory, times, layouts, change, 4, 20)
    for budget in (3, 8, 13, 20):
        best = float("inf")
        for chosen in itertools.product(range(3), repeat=4):
            one = list(chosen)
            if memory[one].sum() <= budget:
                changes = change[layouts[one[:-1]], layouts[one[1:]]].sum()
                best = min(best, times[one].sum() + changes)
        assert time[budget].min() == pytest.approx(best)


def test_a_layer_by_hand() -> None:
    """One GPU of a stage: compute alone. Tensor-parallel over all: and four collectives, six with recomputation."""
    profile = mock_profile()
    alone = Pipeline(profile=profile, batch=8, micro_batches=8, stages=8)
    layer = profile.layer_ms[0]
    sent = 8 * 2 * 56.0 / 108.616 / 28
    assert layer_s(alone, Strategy(degree=1), True) == pytest.approx((3 * layer + sent) / 1000)
    whole = Pipeline(profile=profile, batch=1, micro_batches=1, stages=1, least_degree=8)
    collective = profile.links.collective_ms(8, 56.0 / 8, all_to_all=False)
    for recomputed, passes, times in ((False, 3, 4), (True, 4, 6)):
        one = Strategy(degree=8, is_recomputed=recomputed)
        assert layer_s(whole, one, True) == pytest.approx((passes * layer / 8 + times * collective) / 1000)
    assert profile.sample_mb == 56.0 == 2 * 8192 * 3584 / MEGABYTE


def test_reduction_beside_the_backward_pass() -> None:
    """Data parallelism reduces beside the backward pass, both slower by the overlap, and ZeRO-3 gathers first."""
    profile = mock_profile()
    pipeline = Pipeline(profile=profile, batch=8, micro_batches=1, stages=1)
    message = 7 / 8 * profile.parameter_mb / 160.445
    plain, reduced = (layer_s(pipeline, Strategy(degree=1), reduces) for reduces in (False, True))
    assert reduced - plain == pytest.approx((profile.links.overlap - 1.0) * message / 1000)
    sharded = layer_s(pipeline, Strategy(degree=1, is_sharded=True), True)
    assert sharded - reduced == pytest.approx(message / 2 / 1000)


def test_memory_of_a_layer_by_hand() -> None:
    """ZeRO-3 on eight GPUs, one micro-batch of a sample each; 1F1B's first stage of two holds two micro-batches."""
    profile = mock_profile()
    pipeline = Pipeline(profile=profile, batch=8, micro_batches=1, stages=1)
    states = 4 * profile.parameter_mb * (1 / 8 + 0.003)
    assert layer_mb(pipeline, Strategy(degree=1, is_sharded=True), 0) == np.ceil(states + profile.activation_mb[1])
    two = Pipeline(profile=profile, batch=16, micro_batches=4, stages=2)
    for stage, held in ((0, 2), (1, 1)):
        states = 4 * profile.parameter_mb * (7 / 8 * (1 / 4 + 0.003) + 1 / 8)
        one = layer_mb(two, Strategy(degree=1, is_sharded=True, is_recomputed=True), stage)
        assert one == np.ceil(states + held * profile.recomputed_mb)


def test_a_change_of_layout_by_hand() -> None:
    """From one GPU to two: half of a sample is gathered at a hundred times its price; back again is free."""
    pipeline = Pipeline(profile=mock_profile(), batch=8, micro_batches=1, stages=1)
    gathered = (1 / 2) * 56 * MEGABYTE / 2 * (1 + 1 / 2)
    assert change_s(pipeline, 1, 2) == pytest.approx(gathered / 155.647 * 1e-7)
    assert change_s(pipeline, 2, 1) == 0.0


@pytest.mark.parametrize(("micro_s", "seconds"), [((1, 1, 1), 10), ((1, 1, 5), 42), ((5, 1, 1), 40), ((1, 5, 1), 14)])
def test_time_of_a_pipeline(micro_s: tuple[int, ...], seconds: int) -> None:
    """Three stages, eight micro-batches: a slow first or last stage counts for each of them, one between only once."""
    times = np.array([micro_s, np.zeros(3)])
    assert sum((term * times).sum(axis=(1, 2)).max() for term in pipeline_terms(3, 8)) == seconds


def test_what_is_left_of_the_reduction() -> None:
    """What the layers take longer with it than the stages before it need, in the stage where that is most."""
    times = np.array([[1.0, 1.0], [1.5, 3.0]])
    *_, exposed = pipeline_terms(2, 4)
    assert (exposed * times).sum(axis=(1, 2)).max() == pytest.approx(1.0)


def test_searches_divide_the_batch() -> None:
    """Eight samples in micro-batches over one stage: tensor parallelism over all GPUs allows up to eight of them."""
    found = list(searches(mock_profile(), 8, 1))
    assert {one.pipeline.micro_batches for one in found if one.pipeline.least_degree == 1} == {1}
    assert {one.pipeline.micro_batches for one in found if one.pipeline.least_degree == 8} == {1, 2, 4, 8}
    assert all(one.degree >= s.pipeline.least_degree for s in found for one in s.strategies)


def test_what_is_left_to_the_cache() -> None:
    """A fifth of a budget above 20 GB."""
    assert (usable_mb(20), usable_mb(24)) == (20480, 24576 - 4915)


def test_nothing_fits_in_eight_gigabytes() -> None:
    """States of 28 layers alone take more."""
    assert decide(mock_profile(), 8, [8.0], stages=1) == {8.0: None}


def test_files_that_are_no_profile(tmp_path: Path) -> None:
    """One message with the place."""
    path = tmp_path / "profile.json"
    path.write_text('{"data": {}}')
    with pytest.raises(InputError, match="no profile of Galvatron"):
        read_profile(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_profile(tmp_path / "missing.json")


def test_cuts_of_tofu_are_strategies() -> None:
    """
    Tofu cuts a product in two, by tokens or by features, and again: each outcome on eight GPUs is a strategy.

    Features are column and row parallel in turn, as in Megatron-LM; weights that tokens' cuts repeat are held by all or
    sharded. Cuts by features and by tokens at once are grids of both.
    """
    pipeline = Pipeline(profile=mock_profile(), batch=8, micro_batches=1, stages=1)
    found = Search(pipeline=pipeline, most_degree=8, mode="either").strategies
    for cuts in itertools.product(("tokens", "features"), repeat=3):
        degree = 2 ** cuts.count("features")
        for sharded in (False, True)[: 2 if "tokens" in cuts else 1]:
            assert Strategy(degree=degree, is_sharded=sharded) in found
