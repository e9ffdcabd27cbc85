"""AMP's dynamic programme against all splits, and its place beside the other baselines."""

from itertools import product

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_job
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_opt.baselines.amp_layers import amp_splits, deal_layers, stage_times, with_amp_splits
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.problem.family_times import layer_families
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search


def cost(times: np.ndarray, split: tuple[int, ...], m: int) -> float:
    """What the programme minimises, written out."""
    stages = [times[stage, layers - 1] for stage, layers in enumerate(split)]
    return float((m - 1) * max(stages) + sum(stages))


@settings(max_examples=60, deadline=None)
@given(
    stages=st.integers(1, 4),
    more=st.integers(0, 4),
    m=st.integers(1, 9),
    seed=st.integers(0, 10_000),
)
def test_the_programme_finds_the_best_of_all_splits(stages: int, more: int, m: int, seed: int) -> None:
    """As cheap as the best of all compositions, for random times that grow with the layers."""
    layers = stages + more
    times = np.random.default_rng(seed).uniform(0.1, 2.0, (stages, layers)).cumsum(axis=1)
    splits = [one for one in product(range(1, layers + 1), repeat=stages) if sum(one) == layers]
    found = deal_layers(times, m)
    assert found in splits
    assert cost(times, found, m) == pytest.approx(min(cost(times, one, m) for one in splits), rel=1e-12)


def test_too_few_layers_are_refused() -> None:
    """Every stage needs a layer."""
    with pytest.raises(ValueError, match="1 layers cannot fill 2 stages"):
        deal_layers(np.ones((2, 1)), 4)


@pytest.fixture(scope="module")
def mixed() -> Instance:
    """Two hosts, the second at half the speed."""
    return make_job(make_cluster(2, kinds=(A100_80, A100_80.at_speed(0.5))), LLAMA_8B)


def test_slow_hosts_get_fewer_layers(mixed: Instance) -> None:
    """With a stage on each of two hosts of speed 1 and 0.5 about two thirds of the layers are on the fast one."""
    space = SearchSpace(tensor_parallel=(8,), pipeline_parallel=(2,), virtual_pipeline=(1,), context_parallel=(1,))
    splits = amp_splits(mixed, space, stack_predictor(mixed.stack))
    assert splits
    for first, second in splits:
        assert first + second == LLAMA_8B.num_layers
        assert 1.6 < first / second < 2.4
    assert set(splits) <= set(with_amp_splits(mixed, space, stack_predictor(mixed.stack)).more_splits)
    pinned = SearchSpace(layers_per_stage=((16, 16),))
    assert with_amp_splits(mixed, pinned, stack_predictor(mixed.stack)) is pinned


def test_stage_times_are_means_over_replicas(mixed: Instance) -> None:
    """A stage with replicas on both hosts takes the mean of what they take."""
    space = SearchSpace(tensor_parallel=(4,), pipeline_parallel=(2,), virtual_pipeline=(1,), context_parallel=(1,))
    config = next(one for one in enumerate_candidates(mixed, space) if one.layers_per_stage == (16, 16))
    for family in layer_families(mixed, [config], stack_predictor(mixed.stack), 1.0):
        times, layer_s = stage_times(mixed, family), family.layer_s.sum(axis=0)
        if family.grid == (1, 2, 1):  # both stages on each host
            assert np.diff(times, axis=1) == pytest.approx(layer_s.mean())
        else:
            assert np.diff(times, axis=1)[0] == pytest.approx(layer_s[0])
            assert np.diff(times, axis=1)[1] == pytest.approx(layer_s[1])
