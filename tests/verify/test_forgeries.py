"""A right plan passes; each forged one fails, and the rule is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from forgeries import FORGERIES, HARMLESS, Forgery, rules_that_break, several, solved, worse_hosts

from pipette_opt.base.errors import PlanError
from pipette_opt.cli.verify import check_file
from pipette_opt.replan import prove as module
from pipette_opt.replan.prove import prove
from pipette_opt.verify import exchanges, space

pytestmark = pytest.mark.search


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file of two of three hosts."""
    return solved(tmp_path_factory.mktemp("forged"))


def test_the_right_plan_passes_and_so_does_what_nobody_relies_on(plan: Path) -> None:
    """Seed, date, versions and seconds of the search may be anything."""
    assert rules_that_break(plan, several()) == []
    assert rules_that_break(plan, several(*HARMLESS)) == []


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda one: f"{one.field} -> {one.value}")
def test_a_forged_field_is_named(plan: Path, forgery: Forgery) -> None:
    """The rule is among those that say what is wrong."""
    assert forgery.rule in rules_that_break(plan, forgery.change)


def test_what_rests_on_the_search_is_named_and_solved_again(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without simulating placements one by one, some configurations rest on the search; solving again bounds them."""
    monkeypatch.setattr(space, "MAX_PLACEMENTS", 0)
    found, instance, checked, _ = check_file(plan)
    assert found.config in checked.open_configs
    proven = prove(instance, found, checked.open_configs, time_limit_s=20.0)
    assert proven.bound_s == pytest.approx(found.certificate.lower_bound_s, rel=1e-5)


def test_a_worse_plan_called_optimal_is_refuted_by_solving_again(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are honest but for the bound: an exchange of hosts refutes it, or else a search that finds more."""
    monkeypatch.setattr(space, "MAX_PLACEMENTS", 0)
    content = json.loads(plan.read_text())
    worse_hosts(content)
    forged = plan.with_name("worse.json")
    forged.write_text(json.dumps(content))
    assert rules_that_break(forged, several()) == ["no_exchange_is_faster"]
    monkeypatch.setattr(exchanges, "MAX_EXCHANGES", 0)
    found, instance, checked, _ = check_file(forged)
    assert found.certificate.status == "OPTIMAL"
    assert checked.open_configs
    with pytest.raises(PlanError, match=r"bound_is_proven: lower_bound_s is .* takes"):
        prove(instance, found, checked.open_configs, time_limit_s=20.0)


def test_a_bound_that_is_not_reached_is_no_proof(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that proves less refutes nothing; the message says how far it came."""
    monkeypatch.setattr(space, "MAX_PLACEMENTS", 0)
    found, instance, checked, _ = check_file(plan)
    less = replace(found, certificate=replace(found.certificate, lower_bound_s=found.certificate.lower_bound_s * 0.9))
    monkeypatch.setattr(module, "complete", lambda state: less)
    with pytest.raises(PlanError, match=r"only .* were proven again"):
        prove(instance, found, checked.open_configs, time_limit_s=20.0)
