"""Which candidates fit, on which GPUs, and by how much the others miss."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.memory.filter import MemoryCheck, keep_fitting
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import ParallelConfig
from pipette_opt.prepare import load_predictor
from pipette_opt.specs import GpuSpec


@pytest.fixture(scope="module")
def predictor() -> MemoryPredictor:
    """The shipped one."""
    return MemoryPredictor.load()


def sized(usable: int, predictor: MemoryPredictor, name: str = "sized") -> GpuSpec:
    """A GPU on which a stage may use that many bytes."""
    return replace(A100_80, name=name, memory_bytes=usable + int(predictor.memory_constants.unusable_gib * GIB))


def check(
    kinds: tuple[GpuSpec, ...], num_nodes: int, candidates: list[ParallelConfig], predictor: MemoryPredictor
) -> MemoryCheck:
    """Filter candidates for an 8-billion-parameter model on hosts of these kinds, in turn."""
    job = make_job(make_cluster(num_nodes, kinds=kinds), LLAMA_8B, 64, 4096)
    return keep_fitting(job, candidates, predictor)


ONE_HOST = make_config(8, 1, 1, 1, 32, sequence_parallel=True)
TWO_STAGES = make_config(8, 2, 1, 1, 32, sequence_parallel=True)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_edge_of_one_byte(predictor: MemoryPredictor, spare: int, fits: bool) -> None:
    """Exactly the need fits; one byte less does not, and the check says what is missing."""
    need = int(check((A100_80,), 1, [ONE_HOST], predictor).fitting[0].need_bytes[0])
    result = check((sized(need + spare, predictor),), 1, [ONE_HOST], predictor)
    assert len(result.fitting) == fits
    assert [checked.short_bytes for checked in result.rejected] == ([] if fits else [1])


def test_large_hosts_must_be_enough(predictor: MemoryPredictor) -> None:
    """Two stages that both need the large GPU: two large hosts are enough, one large and one small are not."""
    need = check((A100_80,), 2, [TWO_STAGES], predictor).fitting[0].need_bytes
    large, between, small = (sized(int(size), predictor, name) for size, name in (
        (need.max(), "large"), (need.min(), "between"), (need.min() - 1, "small")))  # fmt: skip
    assert check((large,), 2, [TWO_STAGES], predictor).fitting
    assert check((large, between), 2, [TWO_STAGES], predictor).fitting
    assert check((between, large), 2, [TWO_STAGES], predictor).fitting
    mixed = check((large, small), 2, [TWO_STAGES], predictor)
    assert not mixed.fitting
    assert mixed.nearest_miss is mixed.rejected[0]
    assert "too few hosts" in mixed.explain()


def test_nearest_miss_is_the_one_that_lacks_least(predictor: MemoryPredictor) -> None:
    """Of three rejected candidates, the message names the nearest with both numbers."""
    candidates = [replace(ONE_HOST, micro_batch_size=size) for size in (4, 1, 2)]
    result = check((sized(4 * GIB, predictor),), 1, candidates, predictor)
    assert len(result.rejected) == 3
    assert result.nearest_miss is not None
    assert result.nearest_miss.config.micro_batch_size == 1
    need = result.nearest_miss.need_bytes.max() / GIB
    assert f"needs {need:.1f} GiB of 4.0" in result.explain()
    assert "rules out 3 of 3" in result.explain()


def test_order_and_capacity_are_kept(predictor: MemoryPredictor) -> None:
    """Candidates keep their order; capacity is per host in the user's order."""
    candidates = [replace(ONE_HOST, micro_batch_size=size) for size in (2, 1, 64)]
    result = check((A100_80, A100_40), 2, candidates, predictor)
    assert [checked.config for checked in result.fitting] == candidates[:2]
    expected = [kind.memory_bytes - int(predictor.memory_constants.unusable_gib * GIB) for kind in (A100_80, A100_40)]
    np.testing.assert_array_equal(result.capacity_bytes, expected)


def test_a_smaller_risk_needs_more(predictor: MemoryPredictor) -> None:
    """The accepted risk moves the need, and with it what fits."""
    job = make_job(make_cluster(1), LLAMA_8B, 64, 4096)
    careful, careless = (keep_fitting(job, [ONE_HOST], predictor, risk).fitting[0] for risk in (0.01, 0.2))
    assert careful.need_bytes[0] > careless.need_bytes[0]
    np.testing.assert_array_equal(careful.prediction.predicted_bytes, careless.prediction.predicted_bytes)


def test_the_way_out_is_the_least_risk_that_fits(predictor: MemoryPredictor) -> None:
    """Where a larger risk admits a candidate, the sentence says which; taken at its word, that candidate fits."""
    job = make_job(make_cluster(1), LLAMA_8B, 64, 4096)
    peaks = [keep_fitting(job, [ONE_HOST], predictor, 0.5).fitting[0].prediction.predicted_bytes.max()]
    tight = make_job(make_cluster(1, kinds=(sized(int(1.05 * max(peaks)), predictor),)), LLAMA_8B, 64, 4096)
    refused = keep_fitting(tight, [ONE_HOST, replace(ONE_HOST, micro_batch_size=2)], predictor, 0.01)
    assert not refused.fitting
    words = refused.way_out().split()
    assert words[:2] == ["With", "--max-oom-risk"]
    assert ONE_HOST.label() in refused.way_out()
    assert keep_fitting(tight, [ONE_HOST], predictor, float(words[2])).fitting
    assert not keep_fitting(tight, [ONE_HOST], predictor, float(words[2]) - 0.01).fitting
    hopeless = make_job(make_cluster(1, kinds=(sized(4 * GIB, predictor),)), LLAMA_8B, 64, 4096)
    assert keep_fitting(hopeless, [ONE_HOST], predictor, 0.01).way_out() == ""


def test_memory_that_does_not_count(predictor: MemoryPredictor) -> None:
    """With an accepted risk of 1 everything fits anywhere, and the prediction is still there to be shown."""
    job = make_job(make_cluster(1, kinds=(sized(4 * GIB, predictor),)), LLAMA_8B, 64, 4096)
    assert not keep_fitting(job, [ONE_HOST], predictor, 0.5).fitting
    (kept,) = keep_fitting(job, [ONE_HOST], predictor, 1.0).fitting
    assert kept.need_bytes.tolist() == [0]
    assert kept.prediction.upper_bytes[0] > 4 * GIB


def test_a_risk_of_one_is_accepted() -> None:
    """By search and predictor; more than that is no probability."""
    job = make_job(make_cluster(1), LLAMA_8B, 64, 4096)
    assert OptimizeParams(max_oom_risk=1.0).max_oom_risk == 1
    load_predictor(1.0, job)
    with pytest.raises(InputError, match=r"1: memory does not count"):
        load_predictor(1.5, job)
