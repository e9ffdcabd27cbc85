"""What one iteration may be."""

import pytest

from pipette_opt.specs import TrainingSpec


def test_bytes_by_precision() -> None:
    """Adam's 18 bytes a parameter with bf16 and fp32 gradients; 16 in fp32."""
    mixed = TrainingSpec(global_batch_size=4, seq_length=8)
    assert mixed.parameter_bytes + mixed.gradient_bytes + mixed.optimizer_bytes == 18
    plain = TrainingSpec(global_batch_size=4, seq_length=8, precision="fp32")
    assert plain.parameter_bytes + plain.gradient_bytes + plain.optimizer_bytes == 16
    assert mixed.tokens == 32


@pytest.mark.parametrize(
    "fields",
    [
        {"global_batch_size": 0},
        {"seq_length": 2.5},
        {"precision": "fp8"},
        {"attention_kernel": "triton"},
        {"flash_version": "two"},
        {"flash_version": None},
        {"fused_norm": 1},
    ],
)
def test_what_is_refused(fields: dict[str, object]) -> None:
    """The message names the field."""
    (name,) = fields
    with pytest.raises(ValueError, match=name):
        TrainingSpec(**{"global_batch_size": 4, "seq_length": 8, **fields})  # type: ignore[arg-type]
