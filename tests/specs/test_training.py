"""What one iteration may be."""

from pipette_opt.specs import TrainingSpec


def test_bytes_by_precision() -> None:
    """Adam's 18 bytes a parameter with bf16 and fp32 gradients; 16 in fp32."""
    mixed = TrainingSpec(global_batch_size=4, seq_length=8)
    assert mixed.parameter_bytes + mixed.gradient_bytes + mixed.optimizer_bytes == 18
    plain = TrainingSpec(global_batch_size=4, seq_length=8, precision="fp32")
    assert plain.parameter_bytes + plain.gradient_bytes + plain.optimizer_bytes == 16
    assert mixed.tokens == 32
