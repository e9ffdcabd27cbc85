"""Loads of experts from files and laws."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import LLAMA_8B

from pipette_opt.base.errors import InputError
from pipette_opt.read.expert_loads import read_expert_loads
from pipette_opt.specs.expert_loads import RankImbalance, listed_imbalance, zipf_loads

MOE = replace(LLAMA_8B, num_layers=2, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=1024)


def test_counts_and_shares(tmp_path: Path) -> None:
    """A line for all layers or one for each; counts become shares."""
    path = tmp_path / "loads.csv"
    path.write_text("# tokens of each expert\n10, 30, 20, 40\n")
    assert read_expert_loads(str(path), MOE).tolist() == [[0.1, 0.3, 0.2, 0.4]]
    path.write_text("0.1 0.3 0.2 0.4\n0.25 0.25 0.25 0.25\n")
    loads = read_expert_loads(str(path), MOE)
    assert listed_imbalance(loads, 2) == pytest.approx((1.2 + 1.0) / 2)
    assert listed_imbalance(loads, 4) == pytest.approx((1.6 + 1.0) / 2)
    assert listed_imbalance(loads, 1) == pytest.approx(1.0)


def test_models_without_experts_are_refused() -> None:
    """It would have no effect."""
    with pytest.raises(InputError, match="has no experts"):
        read_expert_loads("zipf:1", LLAMA_8B)


def test_zipf_is_a_share_of_the_copies() -> None:
    """Even at 0; falling as the law says; no expert above one copy of each token, the others in proportion."""
    assert zipf_loads(8, 2, 0.0) == pytest.approx(np.full((1, 8), 1 / 8))
    loads = np.sort(zipf_loads(8, 1, 1.0)[0])[::-1]
    assert loads == pytest.approx(loads[0] / np.arange(1, 9))
    steep = np.sort(zipf_loads(8, 2, 3.0)[0])[::-1]
    assert steep[0] == pytest.approx(0.5)
    assert steep.sum() == pytest.approx(1.0)
    assert steep[1:] == pytest.approx(steep[1] * (2 / np.arange(2, 9)) ** 3)


def test_imbalance_of_ranks_has_bounds() -> None:
    """From 1 to their number."""
    for wrong in (0.5, 4.5):
        with pytest.raises(ValueError, match="from 1 to 4"):
            RankImbalance(ranks=4, imbalance=wrong)
