"""Random folders, records, logs and scripts of strangers: a few of each kind, of the half hour in ``benchmarks``."""

import json

import pytest
from benchmark_modules import loaded

from pipette_opt.read.capture import guard

pytestmark = pytest.mark.search


@pytest.mark.parametrize("kind", ["records", "commands", "folders", "logs", "scripts", "patterns"])
def test_random_inputs_of_strangers(kind: str) -> None:
    """No finding in the first inputs of each kind."""
    if kind == "scripts" and not guard.can_trace():
        pytest.skip("processes cannot be traced here")
    strangers = loaded("strangers", "hardening")
    for seed in range(2 if kind in ("scripts", "folders") else 3):
        assert strangers.findings(kind, seed) == []


def test_the_right_record_is_accepted() -> None:
    """Records that are changed at random start from one that is the job's."""
    strangers = loaded("strangers", "hardening")
    from pipette_opt.base.typed import typed
    from pipette_opt.tune.folder import TrialRecord
    from pipette_opt.tune.jobs import check_record

    record = typed(TrialRecord, json.loads(json.dumps(strangers.right_record())), "trial.json", closed=True)
    check_record(strangers.job(), record, "trial.json")
