"""Numbers with units, and what they may mean."""

import pytest
from tables import table

from pipette_opt.options.number_hints import number_hint


@pytest.mark.parametrize(("name", "text", "seq_length", "hint"), table(__file__, "hints"))
def test_hints(name: str, text: str, seq_length: str | None, hint: str) -> None:
    """Binary for lengths of sequences, decimal for counts, sequences for batches; nothing where nothing fits."""
    assert number_hint(name, text, seq_length) == hint
