"""Random jobs compared with enumeration: which plans a certificate speaks about."""

from dataclasses import replace

from benchmark_modules import loaded

from pipette_opt.candidates import SearchSpace


def test_values_that_a_search_left_out_for_time_are_not_compared() -> None:
    """Sizes of a narrowed search; but splits of the layers that it adds, and numbers of GPUs that it bounds, are."""
    given = SearchSpace()
    recorded = replace(
        given, micro_batch_size=(1, 2), world_sizes=(8,), more_splits=((3, 5),), narrowed=("micro_batch_size",)
    )
    promised = loaded("soak", "hardening").promised_space(given, recorded)
    assert promised == replace(given, micro_batch_size=(1, 2))
