"""Arguments of the launch that have no field of their own."""

from pipette_opt.specs import TrainingSpec


def test_values_of_an_argument() -> None:
    """None, one or several words; ``None`` if it is not there."""
    others = (("--a",), ("--b", "3"), ("--c", "x", "y"))
    training = TrainingSpec(global_batch_size=8, seq_length=512, other_arguments=others)
    assert [training.argument(option) for option in ("--a", "--b", "--c", "--d")] == [(), ("3",), ("x", "y"), None]
    assert TrainingSpec(global_batch_size=8, seq_length=512).argument("--a") is None
