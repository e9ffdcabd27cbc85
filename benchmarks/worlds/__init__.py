"""Prior of the worlds from public runs, and its judgement on sources left out: ``python -m benchmarks.worlds``."""
