"""The integer objective, against hand counts and properties."""

from dataclasses import replace

import numpy as np
from instances import SMALL_SHAPES, Variant, pipeline_paths, random_problem

from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, Paths, ProblemData
from pipette_opt.problem.objective import PlacedTicks, objective_ticks, place, placed_objective_ticks

LINK = np.array([[0, 5, 9], [7, 0, 2], [1, 3, 0]])
"""Transfer from host i to host j."""


def chain(paths: Paths) -> ProblemData:
    """Three stages on three hosts: forward 10, 20, 30, backward 20, 40, 50; no ring, optimizer step 7."""
    nothing = np.zeros((0, 0))
    candidate = CandidateData(
        config=ParallelConfig(
            tensor_model_parallel_size=8,
            pipeline_model_parallel_size=3,
            data_parallel_size=1,
            micro_batch_size=1,
            layers_per_stage=(1, 1, 1),
        ),
        tile=HostTile(stages=1, replicas=1, nodes_per_slot=1, order="tp-cp-ep-dp-pp", contiguous=True),
        grid=(3, 1, 1),
        num_microbatches=4,
        forward_ticks=np.array([[10, 20, 30]]),
        backward_ticks=np.array([[20, 40, 50]]),
        intra_p2p_ticks=1,
        p2p_ticks=LINK,
        ring_class=np.zeros(3),
        ring_ticks=np.zeros((1, 3, 3)),
        ring_floor_ticks=np.array([0, 100, 0]),
        tensor_forward_ticks=nothing,
        tensor_backward_ticks=nothing,
        optimizer_ticks=7,
        memory_need_mib=np.array([10, 20, 30]),
        paths=paths,
    )
    capacity = np.array([10, 20, 30])
    return ProblemData(
        candidates=(candidate,), p2p="blocking", tick_s=1.0, kind_of_node=np.zeros(3), capacity_mib=capacity
    )


def test_longest_path_by_hand() -> None:
    """
    Two paths to the end of stage 0 and one to that of stage 1, which reduces for 100.

    The first: 300 on stage 0 and a transfer to stage 1 and back; the second twice from the last stage to the first.
    """
    paths = Paths(
        stage=np.array([0, 0, 1]),
        work_ticks=np.array([[[300, 0, 0]], [[100, 100, 90]], [[0, 220, 0]]]),
        forward_layers=np.zeros((3, 3)),
        backward_layers=np.zeros((3, 3)),
        up=np.array([[1, 0, 0], [0, 0, 2], [0, 1, 0]]),
        down=np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]]),
    )
    data = chain(paths)
    interleaved = replace(
        data.candidates[0],
        config=replace(data.candidates[0].config, layers_per_stage=(2, 2, 2), virtual_pipeline_model_parallel_size=2),
    )
    nodes = np.array([0, 1, 2]).reshape(3, 1, 1)
    assert interleaved.wraps
    # Without interleaving there is no link from stage 2 to stage 0, on hosts 2 and 0.
    assert objective_ticks(data, data.candidates[0], nodes) == max(300 + 5 + 7, 290, 220 + 2 + 100) + 7
    assert objective_ticks(data, interleaved, nodes) == max(300 + 5 + 7, 290 + 2 * 1, 220 + 2 + 100) + 7
    longer = replace(interleaved, paths=paths.take(np.array([1])))
    assert objective_ticks(data, longer, nodes) == max(290 + 2 * 1, 0 + 100) + 7
    assert len(paths.joined(paths.take(np.array([2, 0])))) == 3


def test_objective_stays_in_64_bits_on_unusable_links() -> None:
    """However many micro-batches, a placement on an unusable link is worth ``UNUSABLE_TICKS``, and not less than 0."""
    data = chain(pipeline_paths(np.array([[10, 20, 30]]), np.array([[20, 40, 50]]), 1 << 14))
    link = LINK.copy()
    link[0, 1] = UNUSABLE_TICKS
    candidate = replace(data.candidates[0], p2p_ticks=link)
    assert objective_ticks(data, candidate, np.array([0, 1, 2]).reshape(3, 1, 1)) == UNUSABLE_TICKS
    assert objective_ticks(data, candidate, np.array([0, 2, 1]).reshape(3, 1, 1)) < UNUSABLE_TICKS


def test_objective_never_falls_when_a_time_grows() -> None:
    """Bounds rest on this: every entry of the placed times."""
    rng = np.random.default_rng(1)
    names = list(PlacedTicks.__dataclass_fields__)
    for trial in range(100):
        shape = SMALL_SHAPES[trial % len(SMALL_SHAPES)]
        data = random_problem(rng, [shape], 5, Variant())
        candidate = data.candidates[0]
        placed = place(data, candidate, rng.permutation(5)[: candidate.num_cells].reshape(shape))
        before = placed_objective_ticks(candidate, placed)
        for name in names:
            grown = getattr(placed, name) + rng.integers(0, 20, size=np.shape(getattr(placed, name)))
            assert placed_objective_ticks(candidate, replace(placed, **{name: grown})) >= before


def test_turning_rings_changes_nothing_and_reversing_them_may() -> None:
    """The symmetry that the solver breaks is one; going round a directed ring backwards is not."""
    rng = np.random.default_rng(2)
    reversed_differs = False
    for _ in range(30):
        data = random_problem(rng, [(1, 4, 1)], 5, Variant(directed=True))
        nodes = rng.permutation(5)[:4].reshape(1, 4, 1)
        value = objective_ticks(data, data.candidates[0], nodes)
        for turn in range(4):
            assert objective_ticks(data, data.candidates[0], np.roll(nodes, turn, axis=1)) == value
        reversed_differs |= objective_ticks(data, data.candidates[0], nodes[:, ::-1]) != value
    assert reversed_differs
