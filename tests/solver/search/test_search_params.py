"""How long and where to search."""

import pytest

from pipette_opt.solver.search.params import SearchParams


@pytest.mark.parametrize(("changes", "field"), [({"time_limit_s": -1.0}, "time_limit_s"), ({"workers": 0}, "workers")])
def test_params_are_checked(changes: dict, field: str) -> None:
    """A setting that makes no sense names itself."""
    with pytest.raises(ValueError, match=field):
        SearchParams(**changes)
