from dataclasses import replace

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import P2PMode
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.read.example import read_example
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance


@pytest.fixture(scope="module")
def instance() -> Instance:
    """The mixed example: hosts of two kinds."""
    example = read_example("mixed-4x8")
    return Instance(model=example.model, cluster=example.cluster, training=example.training)


def configs(num_layers: int) -> list[ParallelConfig]:
    """Some configurations of 32 GPUs, one interleaved; with and without overlap of the reduction."""
    found = []
    for tp, pp, chunks in ((8, 4, None), (4, 4, None), (8, 2, None), (4, 4, 2), (2, 2, None)):
        layers, rest = divmod(num_layers, pp)
        found.append(
            ParallelConfig(
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                data_parallel_size=32 // tp // pp,
                micro_batch_size=1,
                layers_per_stage=tuple(layers + (stage < rest) for stage in range(pp)),
                virtual_pipeline_model_parallel_size=chunks,
            )
        )
    return [*found, *(replace(config, overlap_grad_reduce=True) for config in found)]


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_many_are_as_one_by_one(instance: Instance, p2p: P2PMode) -> None:
    """A mixed batch, in any order and with repetitions, has the very same times."""
    rng = np.random.default_rng(0)
    given = replace(instance, p2p=p2p)
    placed = []
    for _ in range(6):
        for config in configs(instance.model.num_layers):
            placed.append((config, identity_placement(config, 8, rng.permutation(4), "tp-cp-ep-dp-pp")))
    placed += placed[:3]
    expected = [estimate(given, *one).iteration_time_s for one in placed]
    assert len(set(expected)) > 10
    np.testing.assert_array_equal(estimate_many(given, placed), expected)


def test_unmeasured_links_are_infinite(instance: Instance) -> None:
    """A placement over a missing link has no time; the others have theirs."""
    matrices = []
    for matrix in instance.cluster.link_matrices:
        holes = matrix.bytes_per_s.copy()
        holes[0, 1] = np.nan
        matrices.append(replace(matrix, bytes_per_s=holes))
    given = replace(instance, cluster=replace(instance.cluster, link_matrices=tuple(matrices)))
    config = configs(instance.model.num_layers)[0]
    placed = [
        (config, identity_placement(config, 8, np.array(nodes), "tp-cp-ep-dp-pp"))
        for nodes in ([0, 1, 2, 3], [1, 0, 2, 3])
    ]
    found = estimate_many(given, placed)
    # The first sends forward over the missing link, the second sends gradients back over it.
    assert np.isinf(found).all()
    apart = [(config, identity_placement(config, 8, np.array([0, 2, 1, 3]), "tp-cp-ep-dp-pp")), *placed]
    assert np.isfinite(estimate_many(given, apart)).tolist() == [True, False, False]


def test_nothing_and_a_broken_batch(instance: Instance) -> None:
    """No placements give no times; a batch that does not divide is the user's error."""
    assert estimate_many(instance, []).shape == (0,)
    config = configs(instance.model.num_layers)[-1]
    training = replace(instance.training, global_batch_size=7)
    with pytest.raises(InputError, match="global_batch_size=7"):
        estimate_many(
            replace(instance, training=training),
            [(config, identity_placement(config, 8, np.arange(4), "tp-cp-ep-dp-pp"))],
        )
