"""A right plan passes; each forged one fails, and the rule is named."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from forgeries import FORGERIES, HARMLESS, Forgery, put, rules_that_break, several, solved, worse_hosts

from pipette_opt.base.errors import PlanError
from pipette_opt.library.verify import check_file
from pipette_opt.replan import prove as module
from pipette_opt.replan.prove import prove
from pipette_opt.verify import exchanges, space
from pipette_opt.verify.trust import TRUSTED

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


def leaves(content: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Every text and number of a plan file, with its path."""
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in parts:
        yield from leaves(part, f"{place}.{name}".lstrip("."))
    if not isinstance(content, dict | list):
        yield place, content


def is_on_trust(path: str) -> bool:
    """Return whether a field of a plan file is taken on trust, by its path with ``N`` for places in lists."""
    fields = [field for trusted in TRUSTED for field in trusted.fields]
    return any(path.startswith(field[:-1]) if field.endswith("*") else path == field for field in fields)


def test_every_figure_is_checked_or_listed_as_taken_on_trust(plan: Path) -> None:
    """A text or number drawn at random and changed breaks a rule, unless ``verify`` lists it."""
    kinds = {re.sub(r"[.][0-9]+", ".N", path): (path, value) for path, value in leaves(json.loads(plan.read_text()))}
    open_kinds = sorted(kind for kind in kinds if not is_on_trust(kind))
    assert len(open_kinds) > 100
    draw = Random(0)
    for kind in draw.sample(open_kinds, 24):
        path, value = kinds[kind]
        other = f"{value}x" if isinstance(value, str) else draw.choice((0.7, 1.3)) * value if value else None
        if isinstance(value, bool) or other is None or other == value:
            continue
        assert rules_that_break(plan, put(path, other)), path


def test_what_is_taken_on_trust_is_said(plan: Path) -> None:
    """The list names what the plan has: bounds of its proof, the joint model, other plans, and the job."""
    said = " ".join(check_file(plan)[2].on_trust)
    assert all(
        words in said for words in ("bounds of the proof", "joint model", "no alternative", "source of the stack")
    )
