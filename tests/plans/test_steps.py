"""The table of steps, in the code and on its page."""

from pathlib import Path

from pipette_opt.plans import steps
from pipette_opt.plans.steps import STEPS, Step, table


def test_page_has_the_table_of_the_code() -> None:
    """Paste the text of this failure into the page."""
    assert table() in Path("docs/method.md").read_text(encoding="utf-8"), table()


def test_every_step_is_in_the_table_and_has_its_module() -> None:
    """Each constant of the module is a row; its module names it."""
    constants = {name: value for name, value in vars(steps).items() if isinstance(value, Step)}
    assert set(map(id, constants.values())) == set(map(id, STEPS))
    for name, step in constants.items():
        assert (Path("pipette_opt") / step.where).exists(), name
        assert 0 < step.share <= 1
