"""Protection of a plan in a default file: a plan of another job does not replace it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file, read_output
from pipette_opt.read.files import parse_json
from pipette_opt.report.json_text import plain

TRAINED = {"global_batch_size": "batch", "seq_length": "sequence length", "precision": "precision", "fp8": "fp8"}
"""Fields of the training that make another job, each with its word. Others may follow from ``--launch``."""


def check_same_job(path: Path, inputs: Mapping[str, Any]) -> None:
    """
    Raise ``InputError`` if a default output file exists and is not the plan of this job.

    Parameters
    ----------
    inputs
        Inputs of the job, as ``plan.json`` records them.
    """
    if not is_file(path):
        return
    advice = f"Give -o FILE; -o {path} replaces it."
    recorded = _recorded_inputs(path)
    if recorded is None:
        raise InputError(str(path), f"exists and is no plan. {advice}")
    unlike = list(_differences(recorded, plain(dict(inputs))))
    if unlike:
        raise InputError(str(path), f"is the plan of another job: {', '.join(unlike)}. {advice}")


def _recorded_inputs(path: Path) -> Mapping[str, Any] | None:
    """Return the inputs that a plan file records; ``None`` if the file is no plan, or a plan without them."""
    try:
        content = parse_json(read_output(path).decode(), str(path))
    except (InputError, OSError, ValueError):
        return None
    inputs = content.get("inputs") if isinstance(content, dict) else None
    return inputs if isinstance(inputs, Mapping) else None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what two jobs differ in, each with its value before and now: model, training, machines."""
    old, new = _part(before, "model"), _part(now, "model")
    if any(old[name] != new[name] for name in old.keys() & new.keys()) or bool(old) != bool(new):
        yield _changed("model", old.get("name"), new.get("name"), "other sizes")
    old, new = _part(before, "training"), _part(now, "training")
    for name, word in TRAINED.items():
        if old.get(name) != new.get(name):
            yield _changed(word, old.get(name), new.get(name), "")
    old, new = _part(before, "cluster"), _part(now, "cluster")
    if not _are_same_machines(old, new):
        yield _changed("machines", _machines(old), _machines(new), "another network")


def _part(inputs: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = inputs.get(name)
    return found if isinstance(found, Mapping) else {}


def _changed(word: str, before: object, now: object, otherwise: str) -> str:
    """Return a difference in words; ``otherwise`` says what differs if both names are equal."""
    if before == now:
        return f"{word} {now} with {otherwise}"
    return f"{word} {'unknown' if before is None else before}, now {'unknown' if now is None else now}"


def _are_same_machines(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two records are of one cluster: one file, though measured again, or one description."""
    if "document" in before or "document" in now:
        return before.get("document") == now.get("document")
    if before.get("sha256") == now.get("sha256"):
        return True
    paths = [record.get("path") for record in (before, now)]
    return None not in paths and Path(str(paths[0])).resolve() == Path(str(paths[1])).resolve()


def _machines(record: Mapping[str, Any]) -> object:
    """Return the name of the machines in a record: the path of the cluster file, or the name of the description."""
    return _part(record, "document").get("name", record.get("path"))
