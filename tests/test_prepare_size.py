"""Link costs of many hosts: how much memory they take, and what happens where there is none."""

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster

from pipette_opt import prepare as module
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import IntArray
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.prepare import MAX_LINK_BYTES, Question, fitting_candidates, load_predictor, prepare, prunes
from pipette_opt.problem.build import build_problem_data, build_relaxations
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.pruning import BoundedCandidates
from pipette_opt.specs import Instance, TrainingSpec

pytestmark = pytest.mark.search

MATRICES = ("p2p_ticks", "ring_ticks", "embedding_ticks", "tensor_forward_ticks", "tensor_backward_ticks")

TWO_HOSTS = Instance(
    model=LLAMA_8B, cluster=make_cluster(2), training=TrainingSpec(global_batch_size=16, seq_length=1024)
)

SPACE = SearchSpace(tensor_parallel=(8,), virtual_pipeline=(1, 2))


def arrays_of(*problems: ProblemData) -> dict[int, IntArray]:
    """Every link matrix, each array once."""
    each = (getattr(one, name) for data in problems for one in data.candidates for name in MATRICES)
    return {id(one): one for one in each}


def test_too_many_link_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are to be kept, and there is next to no memory for it, the error says what to pin."""
    assert prepare(Question(TWO_HOSTS, SPACE, 0.01)).problem.candidates
    monkeypatch.setattr(module, "MEMORY_SHARE", 1e-12)
    with pytest.raises(InputError, match=r"\d+ configurations.*between 2 hosts.*--tensor-parallel"):
        prepare(Question(TWO_HOSTS, SPACE, 0.01))


def test_what_memory_has_no_room_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most promising configuration is built in any case; no bound of the rest is lost."""
    whole = prepare(Question(TWO_HOSTS, SPACE, 0.01, keep=prunes))
    monkeypatch.setattr(module, "MEMORY_SHARE", 1e-12)
    small = prepare(Question(TWO_HOSTS, SPACE, 0.01, keep=prunes))
    assert whole.pruned is not None
    assert small.pruned is not None
    assert len(small.pruned.kept) == 1 < len(whole.pruned.kept)
    assert len(small.left_out) == len(whole.memory.fitting) - 1
    assert small.pruned.bounds_s == whole.pruned.bounds_s


def test_sizes_at_512_hosts() -> None:
    """Bounding keeps no matrix of all hosts; what is built is shared, and ends at the limit given."""
    training = TrainingSpec(global_batch_size=2048, seq_length=1024)
    instance = Instance(model=LLAMA_8B, cluster=make_cluster(512), training=training)
    space = SearchSpace(tensor_parallel=(8,), pipeline_parallel=(4, 8), virtual_pipeline=(1,), micro_batch_size=(1, 2))
    memory = keep_fitting(instance, enumerate_candidates(instance, space), load_predictor(0.01, instance), 0.01)
    fitting = fitting_candidates(memory)
    bounded = BoundedCandidates(WorkBounds(instance), fitting, memory.capacity_bytes)
    assert max(array.size for one in bounded for array in arrays_of(one.data).values()) == 1
    limit = 20 * 512**2 * 8
    relaxations = build_relaxations(
        instance, fitting, memory.capacity_bytes, is_enough=lambda size, number: size > limit
    )
    taken = sum(array.nbytes for array in arrays_of(relaxations.problem).values())
    assert limit < taken < 1.3 * limit < MAX_LINK_BYTES
    assert 1 < len(relaxations.built) < len(fitting)


def test_order_of_building_changes_nothing() -> None:
    """Built most promising first, the problem is that of the given order."""
    memory = prepare(Question(TWO_HOSTS, SPACE, 0.01)).memory
    fitting = fitting_candidates(memory)
    backwards = tuple(reversed(range(len(fitting))))
    found = build_relaxations(TWO_HOSTS, fitting, memory.capacity_bytes, order=backwards)
    assert found.built == tuple(range(len(fitting)))
    plain = build_problem_data(TWO_HOSTS, fitting, memory.capacity_bytes)
    assert plain.tick_s == found.problem.tick_s
    assert [(one.config, one.tile) for one in plain.candidates] == [
        (one.config, one.tile) for one in found.problem.candidates
    ]
    for one, other in zip(plain.candidates, found.problem.candidates, strict=True):
        for name in (*MATRICES, "forward_ticks", "ring_class", "ring_floor_ticks"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
