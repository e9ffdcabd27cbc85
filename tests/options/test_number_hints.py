"""Numbers with units, and what they may mean."""

import pytest

from pipette_opt.options.number_hints import number_hint


@pytest.mark.parametrize(
    ("name", "text", "seq_length", "hint"),
    [
        ("seq_length", "128K", None, " Did you mean 131072?"),
        ("--seq-length", "1m", None, " Did you mean 1048576?"),
        ("--seq-length", "0k", None, ""),
        ("--seq-length", "8 k", None, " Did you mean 8192?"),
        ("--workers", "1e99", None, ""),
        ("--workers", "8.0", None, " Did you mean 8?"),
        ("--workers", "1.5k", None, " Did you mean 1500?"),
        ("--workers", "1.0005k", None, ""),
        ("--workers", "half", None, ""),
        ("--time-limit", "1.5h", None, " Did you mean 5400?"),
        ("--global-batch-size", "1k", "4096", " Did you mean 1000?"),
        (
            "--global-batch-size",
            "4M",
            "0",
            " It counts sequences, not tokens: give the tokens of a batch over --seq-length.",
        ),
        ("--global-batch-size", "900G", "1", " It counts sequences, not tokens."),
        ("--global-batch-size", "\u0664M", "8k", ""),
    ],
)
def test_hints(name: str, text: str, seq_length: str | None, hint: str) -> None:
    """Binary for lengths of sequences, decimal for counts, sequences for batches; nothing where nothing fits."""
    assert number_hint(name, text, seq_length) == hint
