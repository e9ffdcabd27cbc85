"""Block recomputation with as few recomputed layers as fit, against every number; what is spared, and why."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.fewest import check_memory, check_more
from pipette_opt.memory.filter import keep_fitting, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.prepare import load_predictor
from pipette_opt.problem.family_times import layer_families
from pipette_opt.specs import Instance


@pytest.fixture(scope="module")
def job() -> Instance:
    """A host of eight GPUs of 40 GB, on which a model of 8 billion parameters is tight with long sequences."""
    return make_job(make_cluster(1, kinds=(A100_40,)), LLAMA_8B, 32, 8192)


@pytest.fixture(scope="module")
def predictor(job: Instance) -> MemoryPredictor:
    """The shipped one."""
    return load_predictor(0.01, job)


def with_number(one: ParallelConfig, number: int) -> ParallelConfig:
    """So many layers of each chunk; none with 0."""
    if number == 0:
        return replace(one, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1)
    return replace(one, recompute_num_layers=number)


def whole(one: ParallelConfig) -> ParallelConfig:
    """All layers."""
    return replace(one, recompute_method="uniform", recompute_num_layers=1)


@pytest.mark.search
def test_the_fewest_of_all_numbers(job: Instance, predictor: MemoryPredictor) -> None:
    """Every number is checked; all outcomes occur: none needed, some, all, and too big with all."""
    space = SearchSpace(
        tensor_parallel=(2, 4), micro_batch_size=(1, 4), context_parallel=(1,), overlap_grad_reduce=False
    )
    found = check_memory(job, enumerate_candidates(job, space), predictor, 0.01)
    chosen = {with_number(one.config, 1): one for one in (*found.fitting, *found.rejected)}
    spared, outcomes = set(found.spared), set()
    for base in (one for one in enumerate_candidates(job, space) if one.recomputation == "block"):
        most = max(map(max, base.layers_per_chunk))
        numbers = [with_number(base, number) for number in range(most + 1)]
        fits = {one.config for one in keep_fitting(job, numbers, predictor, 0.01).fitting}
        least = min((number for number, one in enumerate(numbers) if one in fits), default=None)
        outcomes.add("none" if least == 0 else "all" if least == most else "too big" if least is None else "some")
        assert (base in spared) == (least in (0, most))
        if base not in spared:
            one = chosen[base]
            assert one.config.recompute_num_layers == (most if least is None else least)
            assert (one in found.fitting) == (least is not None)
    assert outcomes == {"none", "some", "all", "too big"}


@pytest.mark.search
def test_choices_of_overlap_share_the_number(job: Instance, predictor: MemoryPredictor) -> None:
    """What is sent beside compute changes neither memory nor the number; nothing is lost or found twice."""
    space = SearchSpace(micro_batch_size=(1,), context_parallel=(1,), virtual_pipeline=(1,))
    candidates = enumerate_candidates(job, space)
    found = check_memory(job, candidates, predictor, 0.01)
    assert len(found.fitting) + len(found.rejected) + len(found.spared) == len(candidates)
    block = [one.config for one in (*found.fitting, *found.rejected) if one.config.recomputation == "block"]
    assert len({with_number(one, 1) for one in block}) == len(block)
    assert len({without_overlap(one) for one in block}) == len({without_overlap(with_number(one, 1)) for one in block})
    kept = [one for one in candidates if one not in found.spared]
    assert [with_number(one.config, 1) for one in found.fitting] == [
        one for one in kept if one in {with_number(fits.config, 1) for fits in found.fitting}
    ]


def test_alone_it_recomputes_a_layer_at_least(job: Instance, predictor: MemoryPredictor) -> None:
    """Where no other recomputation is searched nothing is spared, and where memory does not count one layer is."""
    space = SearchSpace(micro_batch_size=(1,), context_parallel=(1,), recompute=("block",))
    found = check_memory(job, enumerate_candidates(job, space), predictor, 1.0)
    assert not found.spared
    assert not found.rejected
    assert {one.config.recompute_num_layers for one in found.fitting} == {1}


def test_both_ends_of_memory(job: Instance, predictor: MemoryPredictor) -> None:
    """With all layers of a chunk it is that of full recomputation; it falls with the number."""
    base = make_config(tp=2, pp=4, num_layers=32, recompute_granularity="full", recompute_method="block")
    base = replace(base, sequence_parallel=True)
    numbers = [with_number(base, number) for number in range(1, 9)]
    found = keep_fitting(job, [*numbers, whole(base)], predictor, 0.01)
    need = {one.config: one.need_bytes for one in (*found.fitting, *found.rejected)}
    assert (need[numbers[-1]] == need[whole(base)]).all()
    assert all((need[more] <= need[less]).all() for less, more in pairwise(numbers))


@pytest.mark.parametrize("depths", [0, 1])
def test_prediction_layers_tell_all_layers_from_full_recomputation(depths: int) -> None:
    """Block recomputation leaves them out: with them, a block of all layers is faster, and searched beside full."""
    base = make_config(pp=2, num_layers=8, recompute_granularity="full", recompute_method="block")
    all_layers, full = with_number(base, 4), whole(base)

    def job_on(memory_bytes: int) -> Instance:
        model = replace(LLAMA_8B, num_layers=8, mtp_num_layers=depths)
        return make_job(make_cluster(2, gpus=1, kinds=(replace(A100_80, memory_bytes=memory_bytes),)), model, 16, 4096)

    large = job_on(A100_80.memory_bytes)
    predictor = load_predictor(0.01, large)
    (checked,) = keep_fitting(large, [all_layers], predictor, 0.01).fitting
    spare = int(usable_bytes(large.cluster, predictor)[0] - checked.need_bytes.max())
    tight = job_on(A100_80.memory_bytes - int(0.99 * spare))
    found = check_memory(tight, [base, full], predictor, 0.01)
    assert [fits.config for fits in found.fitting] == ([all_layers, full] if depths else [full])
    assert found.spared == (() if depths else (base,))


@pytest.mark.search
def test_families_know_the_fewest_of_every_stage() -> None:
    """Of each kind of GPU, stage and number of units, as every number says; and all have no more room than full."""
    job = make_job(make_cluster(2, kinds=(A100_80, A100_40)), replace(LLAMA_8B, num_layers=16), 32, 8192)
    predictor = load_predictor(0.01, job)
    base = make_config(tp=2, pp=4, dp=2, mbs=2, num_layers=4, recompute_granularity="full", recompute_method="block")
    base = replace(base, sequence_parallel=True)
    families = layer_families(job, [base, whole(base)], predictor, 0.01)
    block, full = (next(one for one in families if (one.recomputed is None) == without) for without in (False, True))
    assert block.recomputed is not None
    assert (block.most_units == full.most_units).all()
    fewest, room = block.recomputed.fewest(), usable_bytes(job.cluster, predictor)
    some = 0
    for units in range(1, int(block.most_units.max()) + 1):
        sized = replace(base, layers_per_stage=(units,) * 4)
        found = keep_fitting(job, [with_number(sized, number) for number in range(units + 1)], predictor, 0.01)
        need = {one.config: one.need_bytes for one in (*found.fitting, *found.rejected)}
        for kind in range(2):
            for stage in np.flatnonzero(block.most_units[kind] >= units).tolist():
                fits = [n for n in range(units + 1) if need[with_number(sized, n)][stage] <= room[kind]]
                assert fewest[kind, stage, units] == min(fits)
                some += 0 < min(fits) < units
    assert some


@pytest.mark.search
def test_later_candidates_are_compared_with_earlier_ones(job: Instance, predictor: MemoryPredictor) -> None:
    """A measured run may have a partition of which the other choices come later: the check is as of all at once."""
    space = SearchSpace(tensor_parallel=(2, 4), micro_batch_size=(1, 4), context_parallel=(1,))
    candidates = enumerate_candidates(job, space)
    of_one = [config for config in candidates if config.layers_per_stage == (16, 16)]
    whole = check_memory(job, candidates, predictor, 0.01)
    blocks = [config for config in of_one if config in whole.spared]
    known = [config for config in candidates if config not in of_one] + blocks
    more = [config for config in of_one if config not in known]
    found = check_more(job, check_memory(job, known, predictor, 0.01), known, more, predictor)
    apart = check_memory(job, known, predictor, 0.01).joined(check_memory(job, more, predictor, 0.01))
    for name in ("fitting", "rejected", "spared", "kept_on_gpu", "not_overlapped"):
        listed = [{getattr(entry, "config", entry) for entry in getattr(check, name)} for check in (found, whole)]
        assert listed[0] == listed[1], name
    assert len(apart.fitting) > len(whole.fitting)
