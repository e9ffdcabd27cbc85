"""Search spaces whose link costs do not fit in memory are refused, with what would be right."""

import pytest
from specs_for_tests import LLAMA_8B, cluster

from pipette_opt import prepare as module
from pipette_opt.candidates import SearchSpace
from pipette_opt.errors import InputError
from pipette_opt.prepare import prepare
from pipette_opt.specs import Instance, TrainingSpec


def test_too_many_link_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits as it is; on a machine with next to no memory for it the error says what to pin."""
    training = TrainingSpec(global_batch_size=16, seq_length=1024)
    instance = Instance(model=LLAMA_8B, cluster=cluster(2), training=training)
    space = SearchSpace(tensor_parallel=(8,), virtual_pipeline=(1,))
    assert prepare(instance, space, 0.01).exact.candidates
    monkeypatch.setattr(module, "MEMORY_SHARE", 1e-12)
    with pytest.raises(InputError, match=r"packings of \d+ configurations.*between 2 hosts.*--tensor-parallel"):
        prepare(instance, space, 0.01)
