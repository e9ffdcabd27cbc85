"""Who needs which message and when reductions start, by hand."""

from pipette_opt.parallel.schedule import BACKWARD, FORWARD, build_schedule
from pipette_opt.simulate.program import FIRST, LAST, launches, megatron_program, messages


def test_messages_of_two_stages() -> None:
    """Two micro-batches, F F B B on the first stage and F B F B on the second; 4 and 5 are the gradients."""
    needed, made = messages(build_schedule(2, 2, 1))
    assert needed.tolist() == [[-1, -1, 4, 5], [0, -1, 1, -1]]
    assert made.tolist() == [[0, 1, -1, -1], [-1, 4, -1, 5]]


def test_reductions_start_with_the_last_backward() -> None:
    """Of the only chunk; its first forward and last backward are kinds of their own."""
    assert launches(build_schedule(2, 2, 1)).tolist() == [[-1, -1, -1, 0]] * 2
    program = megatron_program(2, 2, 1, "async")
    assert program.kind.tolist() == [[FIRST, FORWARD, BACKWARD, LAST], [FIRST, BACKWARD, FORWARD, LAST]]
