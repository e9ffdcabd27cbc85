"""Table of candidates: the right numbers, a dash where there is none."""

from dataclasses import replace

from consoles import row, shown
from factories import small_config

from pipette_opt.prepare import CandidateRow
from pipette_opt.report.lists import candidates_table


def test_candidates() -> None:
    """One that fits and one that does not."""
    chosen = small_config()
    rows = [
        CandidateRow(config=chosen, fits=True, need_gib=33.25, fastest_s=1.5),
        CandidateRow(config=replace(chosen, micro_batch_size=8), fits=False, need_gib=133.0, fastest_s=None),
    ]
    text = shown(candidates_table(rows))
    assert row(text, chosen.label()) == ["16", "33.2", "GiB", "yes", "1.5000", "s"]
    assert row(text, rows[1].config.label()) == ["16", "133.0", "GiB", "no", "-"]
