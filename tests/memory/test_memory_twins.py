"""What measured runs tell of others that do the same work with other numbers of replicas."""

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from factories import kept_in_file

from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors, oom_probability
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.memory.twins import as_twins_take, believed, likeliest_alike, twin_offsets, twin_share, without_twins
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.memory_constants import MAX_OF_TWIN, REGRESSORS, SHOWN, MemoryConstants

MODEL = ModelSpec(
    name="m",
    num_layers=8,
    hidden_size=1024,
    num_attention_heads=8,
    num_query_groups=8,
    kv_channels=128,
    ffn_hidden_size=4096,
    vocab_size=32000,
    max_position_embeddings=2048,
)
TRAINING = TrainingSpec(global_batch_size=256, seq_length=2048)
CONFIG = ParallelConfig(
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=2,
    data_parallel_size=2,
    micro_batch_size=2,
    layers_per_stage=(4, 4),
    use_distributed_optimizer=True,
)


def run(size: float, work: str, *, peak: float | None = None, group: str = "", num_gpus: int = 8) -> MemoryRun:
    """Counted tensors of so many GiB on 80 GiB."""
    regressors = np.zeros((1, len(REGRESSORS)))
    regressors[0, REGRESSORS.index("counted")] = size
    return MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=80.0, peak_gib=peak, group=group,
                     work=(work,) if work else (), num_gpus=num_gpus)  # fmt: skip


def test_shares_by_hand() -> None:
    """Half alike: one twin gives a half of its error, two 2/3 of their mean, many nearly all; not alike: nothing."""
    assert [twin_share(0.5, count) for count in (1, 2, 99)] == pytest.approx([1 / 2, 2 / 3, 99 / 100])
    assert twin_share(0.0, 7) == 0.0


def test_errors_count_for_what_is_believed() -> None:
    """Times 5 / (4 + z^2): 1 as it is, 2 for 1.25, 6 for 0.75 only, and never more than the most."""
    assert believed(np.array([0.0, 1.0, -2.0, 6.0])) == pytest.approx([0.0, 1.0, -1.25, 0.75])
    assert np.abs(believed(np.linspace(-20, 20, 4001))).max() <= MAX_OF_TWIN


def test_offsets_by_hand() -> None:
    """Twins of 1 and 2 widths, half alike: 2/3 of (1 + 1.25) / 2; alone: a half; a work that nobody knows: none."""
    found = twin_offsets(["a", "b", "a", ""], np.array([1.0, -1.0, 2.0, 2.0]), 0.5)
    assert found == pytest.approx({"a": 2 / 3 * 1.125, "b": -0.5})
    assert twin_offsets(["a"], np.array([1.0]), 0.0) == {}


@pytest.mark.search
@pytest.mark.parametrize(("common", "low", "high"), [(0.0, 0.0, 0.25), (0.6, 0.4, 0.75), (0.95, 0.8, 0.95)])
def test_how_alike_twins_are_is_learnt(common: float, low: float, high: float) -> None:
    """60 pairs with a common part of the variance: that part, about."""
    rng = np.random.default_rng(0)
    shared = np.repeat(rng.normal(0, common**0.5, 60), 2)
    errors = shared + rng.normal(0, (1 - common) ** 0.5, 120)
    work = [str(index // 2) for index in range(120)]
    assert low <= likeliest_alike(work, errors) <= high
    wild = errors.copy()
    wild[:2] = 8.0, -8.0  # one pair that has nothing in common
    assert likeliest_alike(work, wild) == pytest.approx(likeliest_alike(work, errors), abs=0.1)


def test_few_twins_tell_nothing() -> None:
    """Four pairs, however alike, and any number of runs alone: not alike."""
    assert likeliest_alike(list("aabbccdd"), np.repeat([1.0, -1.0, 2.0, 1.5], 2)) == 0.0
    assert likeliest_alike([str(index) for index in range(50)], np.ones(50)) == 0.0
    assert likeliest_alike([""] * 50, np.ones(50)) == 0.0


def test_twins_differ_in_replicas_only() -> None:
    """Twice the replicas: the same work. A tensor degree, micro-batch, ZeRO stage, model or host more: another one."""
    work = stage_works(MODEL, TRAINING, [CONFIG], gpus_per_node=8)
    assert len(set(work)) == 2
    for replicas in (4, 8, 16):
        assert stage_works(MODEL, TRAINING, [replace(CONFIG, data_parallel_size=replicas)], gpus_per_node=8) == work
    others = [
        replace(CONFIG, tensor_model_parallel_size=4),
        replace(CONFIG, micro_batch_size=1),
        replace(CONFIG, use_distributed_optimizer=False),
        replace(CONFIG, sequence_parallel=True),
        replace(CONFIG, recompute_granularity="full"),
        replace(CONFIG, layers_per_stage=(5, 3)),
        replace(CONFIG, data_parallel_size=1, use_distributed_optimizer=False),
    ]
    for other in others:
        assert not set(stage_works(MODEL, TRAINING, [other], gpus_per_node=8)) & set(work)
    assert not set(stage_works(replace(MODEL, hidden_size=2048), TRAINING, [CONFIG], gpus_per_node=8)) & set(work)
    assert not set(stage_works(MODEL, TRAINING, [CONFIG], gpus_per_node=1)) & set(work)


def test_few_micro_batches_are_other_work() -> None:
    """Replicas that leave a pipeline of 2 one micro-batch: the first stage holds less at once."""
    full, starved = (
        stage_works(MODEL, TRAINING, [replace(CONFIG, data_parallel_size=replicas)]) for replicas in (64, 128)
    )
    assert full[0] != starved[0]


def test_rows_are_scaled_by_their_width() -> None:
    """0.8 widths of 5 %: 4 % more, of that work; others and unknown ones stay."""
    memory_constants = MemoryConstants(spread=0.05, twins={"a": 0.8})
    regressors = np.concatenate([run(10.0, "").regressors] * 2)
    constants = memory_constants.vector() * SHOWN
    found = as_twins_take(memory_constants, regressors, constants, ("a", "b"))
    assert found.sum(axis=1) == pytest.approx([10 * np.exp(0.04), 10])
    assert as_twins_take(memory_constants, regressors, constants, ()) is regressors
    assert as_twins_take(MemoryConstants(), regressors, constants, ("a", "b")) is regressors


def test_what_a_twin_took_is_predicted() -> None:
    """Taken and needed alike; without a twin nothing changes, and how sure it is never does."""
    plain, knowing = (MemoryConstants(spread=0.05, twins=twins) for twins in ({}, {"a": -1.0}))
    before, after = (predict_memory(memory_constants, run(40.0, "a")) for memory_constants in (plain, knowing))
    assert after.taken_gib / before.taken_gib == pytest.approx(np.exp(-0.05), rel=1e-3)
    assert after.needed_gib / before.needed_gib == pytest.approx(np.exp(-0.05))
    assert (after.taken_spread, after.needed_spread) == (before.taken_spread, before.needed_spread)
    for other in ("b", ""):
        found, usual = (predict_memory(memory_constants, run(40.0, other)) for memory_constants in (knowing, plain))
        assert astuple(found) == astuple(usual)


def test_no_twin_makes_what_is_surely_out_fit() -> None:
    """4 widths too much: with the luckiest twins there can be, still out 99 times of 100."""
    memory_constants = MemoryConstants(spread=0.05, group_gib=0.0, twins={"a": -MAX_OF_TWIN})
    room = 80 - memory_constants.unusable_gib
    memory = predict_memory(memory_constants, run(room * np.exp(4 * 0.05), "a"))
    assert oom_probability(memory) > 0.99


def works(count: int, seed: int, common: float, *, named: bool = True) -> tuple[list[MemoryRun], list[MemoryRun]]:
    """Runs on 8 and 16 GPUs, and their twins on 32: off by 4 %, of whose variance a part is common."""
    rng = np.random.default_rng(seed)
    small, large = [], []
    for index in range(count):
        size, shared = rng.uniform(10, 50), rng.normal(0, common**0.5)
        for num_gpus, found in ((8, small), (16, small), (32, large)):
            off = 0.04 * (shared + rng.normal(0, (1 - common) ** 0.5))
            found.append(
                run(
                    size,
                    f"w{index}" if named else "",
                    peak=size * np.exp(off),
                    group=str(index),
                    num_gpus=num_gpus,
                )
            )
    return small, large


@pytest.mark.search
def test_a_fit_learns_from_twins(tmp_path: Path) -> None:
    """Four fifths in common: known works are predicted with an error a quarter smaller, at least; the file keeps it."""
    small, large = works(40, 1, 0.8)
    fitted = fit_with_errors(small, MemoryConstants())
    assert 0.6 < fitted.alike < 0.95
    assert len(fitted.twins) == 40
    plain = without_twins(fitted)
    kept = kept_in_file(fitted, tmp_path)
    before, after = (
        np.mean([abs(predict_memory(memory_constants, one).taken_gib / (one.peak_gib or 0.0) - 1) for one in large])
        for memory_constants in (plain, kept)
    )
    assert after < 0.75 * before


@pytest.mark.search
def test_a_fit_without_names_or_likeness_stays() -> None:
    """Works that nobody knows: no twins at all. Nothing in common: nearly none of their errors."""
    assert fit_with_errors(works(40, 2, 0.8, named=False)[0], MemoryConstants()).twins == {}
    small, large = works(60, 3, 0.0)
    fitted = fit_with_errors(small, MemoryConstants())
    assert fitted.alike < 0.3
    plain = without_twins(fitted)
    before, after = (
        np.mean([abs(predict_memory(memory_constants, one).taken_gib / (one.peak_gib or 0.0) - 1) for one in large])
        for memory_constants in (plain, fitted)
    )
    assert after == pytest.approx(before, rel=0.05)


@pytest.mark.search
def test_twins_of_another_fit_are_forgotten() -> None:
    """They are errors of its constants: a new fit starts without."""
    base = MemoryConstants(alike=0.5, twins={"old": 1.0})
    assert fit_with_errors(works(20, 4, 0.0, named=False)[0], base).twins == {}
    assert fit_with_errors([run(10.0, "", peak=11.0)], base).twins == {}


def test_twins_go_through_a_file(tmp_path: Path) -> None:
    """What no calibration can say is refused."""
    memory_constants = MemoryConstants(alike=0.5, twins={"0a1b": 0.25, "ff00": -1.0})
    assert kept_in_file(memory_constants, tmp_path) == memory_constants
    with pytest.raises(ValueError, match=r"twins.0a must be within 1.25 of 0, got 1.5"):
        MemoryConstants(twins={"0a": 1.5})
    with pytest.raises(ValueError, match=r"alike must be a number in \[0, 1\], got 2.0"):
        MemoryConstants(alike=2.0)


def test_a_plan_gains_from_a_twin() -> None:
    """The stage whose twin was measured takes more, the other one stays; the spread does not move."""
    first, _ = stage_works(MODEL, TRAINING, [CONFIG], gpus_per_node=8)
    asked = replace(CONFIG, data_parallel_size=8)
    plain, knowing = (
        MemoryPredictor.load(memory_constants=MemoryConstants(spread=0.05, twins=twins)).predict(
            MODEL, TRAINING, [asked], gpus_per_node=8
        )[0]
        for twins in ({}, {first: 1.0})
    )
    ratio = knowing.predicted_bytes / plain.predicted_bytes
    assert ratio == pytest.approx([np.exp(0.05), 1.0], rel=1e-6)
    assert knowing.upper_bytes / plain.upper_bytes == pytest.approx(ratio, rel=1e-6)
    assert knowing.spread == pytest.approx(plain.spread)


@pytest.mark.search
def test_bounds_are_as_wide_as_without_twins() -> None:
    """Names of works change neither constants nor widths, nor what is learnt of larger jobs: most have no twin."""
    named, nameless = (
        fit_with_errors([one for part in works(25, 5, 0.8, named=known) for one in part], MemoryConstants())
        for known in (True, False)
    )
    assert len(named.twins) == 25
    assert without_twins(named) == nameless
