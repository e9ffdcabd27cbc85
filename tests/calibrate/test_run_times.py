"""Times of runs by one stack after another are those of each stack alone."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.calibrate.cases import Case, make_cases, with_stack
from pipette_opt.calibrate.free import FREE
from pipette_opt.calibrate.predict import predicted_times_s, simulated_times_s
from pipette_opt.calibrate.run_times import RunTimes
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.parallel import microbatches_of
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.specs import DEFAULT_STACK

MIXTURE = {"num_experts": "8", "moe_router_topk": "2", "moe_ffn_hidden_size": "1024", "ep": "2"}


def jobs() -> list[Case]:
    """Dense jobs of two widths on one host and on two, sharded and not, with chunks, context ranks and experts."""
    shapes: list[dict[str, object]] = [
        {"num_gpus": num, "tp": tp, "pp": pp, "dp": num // tp // pp, "hidden": hidden, "mbs": mbs, "zero_stage": zero}
        for num in (8, 16)
        for tp, pp in ((2, 2), (1, 4))
        for hidden in (1024, 2048)
        for mbs in (1, 2)
        for zero in (0, 1)
    ]
    shapes += [{"num_gpus": 16, "tp": 1, "pp": 4, "dp": 4, "vpp": 2}, {"num_gpus": 8, "tp": 2, "dp": 2, "cp": 2}]
    shapes += [{"num_gpus": 8, "tp": 1, "pp": 2, "dp": 4, "extra": MIXTURE, "hidden": wide} for wide in (1024, 2048)]
    cases = make_cases([make_run(**{"gbs": 64, "pp": 1} | one) for one in shapes], DEFAULT_STACK)
    found = [case for case in cases if isinstance(case, Case)]
    assert len(found) == len(cases)
    return found


CASES = jobs()


def test_cases_costed_together_take_what_each_takes_alone() -> None:
    """To the last bit: batches only save calls."""
    alone = [placed_times(case.instance, case.config, case.placement) for case in CASES]
    numbers = [microbatches_of(case.instance.training, case.config) for case in CASES]
    expected = [simulate_times(times, m, "blocking").iteration_time_s for times, m in zip(alone, numbers, strict=True)]
    np.testing.assert_array_equal(simulated_times_s(CASES), expected)


@pytest.mark.search
@pytest.mark.parametrize("name", [one.name for one in FREE])
def test_each_constant_moves_the_times_as_without_memory(name: str) -> None:
    """What is kept from other stacks depends on no constant that a fit moves; what is only added is added once."""
    times = RunTimes(CASES, None, {})
    before = times.predicted_s(DEFAULT_STACK)
    value = 0.5 * (getattr(DEFAULT_STACK, name) or 1e-3)
    stack = DEFAULT_STACK.with_constants({name: value})
    expected = predicted_times_s(with_stack(CASES, stack))
    np.testing.assert_allclose(times.predicted_s(stack), expected, rtol=1e-12)
    np.testing.assert_array_equal(times.predicted_s(DEFAULT_STACK), before)
    if name not in ("flash1", "attention_speed", "attention_backward_speed"):
        assert (expected != before).any()


def test_costs_with_another_stack_are_those_made_anew() -> None:
    """Everything but compute and what hides behind it is taken over."""
    stack = DEFAULT_STACK.with_constants({"matmul_speed": 0.5, "host_kernel_s": 1e-4})
    for case in CASES:
        known, slower = costs_of(case.instance, case.config), replace(case.instance, stack=stack)
        found, expected = costs_of(slower, case.config, known), costs_of(slower, case.config)
        assert found.layers.keys() == expected.layers.keys()
        for kind, layer in expected.layers.items():
            assert found.layers[kind][1:] == layer[1:]
        np.testing.assert_array_equal(found.compute.backward_s, expected.compute.backward_s)
        assert found.optimizer_s == expected.optimizer_s
        assert (found.gradient, found.embedding) == (expected.gradient, expected.embedding)
