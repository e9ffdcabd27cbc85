"""
Job files: one YAML document with a job, the launch that runs today and its measured figures.

Keys are the fields of :mod:`~pipette_opt.options.description`, under any of their names, in the section that the field
declares. ``cluster`` and ``software`` may be a plain text: the path of a cluster file, the name of a software stack.
Paths are relative to the working directory, else to the folder of the job file.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, did_you_mean, meant, shown
from pipette_opt.base.files import is_file, is_folder
from pipette_opt.options.description import (
    Field,
    JobOptions,
    Measured,
    SearchOptions,
    SpaceOptions,
    fields_of,
)
from pipette_opt.options.names import RENAMED, usual_field
from pipette_opt.options.values import field_value
from pipette_opt.read.files import read_yaml
from pipette_opt.read.kinds_of_files import LAUNCH_SCRIPT, TYPED_ARGUMENTS, reads
from pipette_opt.read.launch_words import launch_words
from pipette_opt.read.megatron_table import megatron_options

SECTIONS = ("cluster", "training", "software", "parallel", "search", "measured")
"""Sections of a job file: top-level keys with a mapping. Every other top-level key is a field."""

SCALAR_FIELDS = {"cluster": "cluster", "software": "software", "measured": "measured_runs"}
"""Field that a section stands for if its value is a text instead of a mapping; for measured runs also a list."""

OTHER_KEYS = {
    ("cluster", "file"): "cluster",
    ("software", "name"): "software",
    ("measured", "runs"): "measured_runs",
}
"""Short keys of a section, and the field that each key stands for: ``cluster.file`` is the field ``cluster``."""

FILES = ("cluster", "profile", "model", "software", "expert_loads", "lengths", "launch")
"""Fields whose value may be the path of a file, which is also looked for beside the job file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """
    Content of a job file.

    Parameters
    ----------
    given
        Values of options in the file, converted to the declared types.
    megatron
        Megatron-LM options in ``parallel`` that the search does not choose, by name with underscores. Only commands
        that take one launch, such as ``estimate``, accept them.
    """

    path: Path
    given: Mapping[str, Any]
    measured: Measured
    megatron: Mapping[str, Any] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """Return the key of a field in a job file, such as ``training.seq_length``."""
        return _place(_declared()[name])

    def keywords(self) -> dict[str, Any]:
        """Return the fields as keyword arguments of functions that search, such as :func:`pipette_opt.solve`."""
        self.check_searched()
        runs = self.measured_runs()
        return dict(self.given) | ({"measured_runs": runs} if runs else {})

    def measured_runs(self) -> list[str]:
        """Return the measured runs of the file, as words of ``--measured``: its list, and the figures of ``launch``."""
        figures = [f"{self.measured.iter_time_s}s", f"{self.measured.peak_mem_gib}GiB", "oom"]
        is_known = (self.measured.iter_time_s is not None, self.measured.peak_mem_gib is not None, self.measured.oom)
        launch = self.given.get("launch")
        own = [f"{launch}={figure}" for figure, known in zip(figures, is_known, strict=True) if known]
        return [*(self.given.get("measured_runs") or ()), *(own if launch is not None else ())]

    def check_searched(self) -> None:
        """Raise ``InputError`` for a Megatron-LM option in ``parallel`` that the search does not choose."""
        for name in self.megatron:
            problem = "is no option that the search can choose; move it to launch, as a Megatron argument."
            raise InputError(f"{self.path}, parallel.{name}", problem)

    def whole_launch(self) -> str | None:
        """
        Return the launch: ``launch``, or the values in ``parallel`` as Megatron arguments; ``None`` without either.

        Raises
        ------
        InputError
            If ``parallel`` gives several values for an option, or if the file has both ``parallel`` and ``launch``.
        """
        degrees = {name: value for name, value in self.given.items() if name in fields_of(SpaceOptions)}
        launch = self.given.get("launch")
        if not (degrees or self.megatron):
            return launch
        if launch is not None:
            raise InputError(
                f"{self.path}, launch",
                "contradicts the section parallel, which describes the launch, too; remove one of the two.",
            )
        return shlex.join(launch_words(degrees, self.megatron, f"{self.path}, parallel."))


@reads(LAUNCH_SCRIPT, TYPED_ARGUMENTS)
def read_job_file(path: str | Path) -> JobFile:
    """
    Read a job file.

    Raises
    ------
    InputError
        For an unknown key, a key in the wrong section, an invalid value, or an empty file. The error names the file and
        the key, as ``job.yaml, training.seq_length``.
    """
    path = Path(path)
    content = read_yaml(path)
    if not isinstance(content, Mapping) or not content:
        problem = f"must be a mapping with model, cluster, training and so on, got {shown(content)}."
        raise InputError(str(path), problem)
    given: dict[str, Any] = {}
    megatron: dict[str, Any] = {}
    for section, key, value in _entries(path, content):
        where = f"{path}, {section}.{key}" if section else f"{path}, {key}"
        name = usual_field(key)
        declared = _declared().get(name)
        if declared is None and section == "parallel" and key in megatron_options():
            megatron[key] = value
            continue
        _check_key(where, section, key, declared)
        assert declared is not None
        if name in given:
            raise InputError(where, "is given twice, under two names of the same key; remove one of them.")
        if value is not None:
            is_path = name in FILES and isinstance(value, str) and "\n" not in value
            given[name] = field_value(declared, _path_of(value, path) if is_path else value, where)
    if "measured_runs" in given:
        given["measured_runs"] = [_word_of(word, path) for word in given["measured_runs"]]
    measured = Measured(**{name: given.pop(name) for name in fields_of(Measured) if name in given})
    for name in ("iter_time_s", "peak_mem_gib"):
        if (figure := getattr(measured, name)) is not None and figure <= 0:
            raise InputError(f"{path}, measured.{name}", f"must be > 0, got {figure:g}.")
    return JobFile(path=path, given=given, measured=measured, megatron=megatron)


def read_job(path: str | Path) -> dict[str, Any]:
    """
    Read a job file as keyword arguments of a function: ``pipette_opt.solve(**pipette_opt.read_job("job.yaml"))``.

    Raises
    ------
    InputError
        For errors in the file (see :func:`read_job_file`), and for Megatron-LM options that the search does not choose.
    """
    return read_job_file(path).keywords()


def _entries(path: Path, content: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield section (``""`` at the top level), field name and value of each entry of a job file."""
    for key, value in content.items():
        if key not in SECTIONS:
            yield "", str(key), value
        elif isinstance(value, Mapping):
            for name, each in value.items():
                yield key, OTHER_KEYS.get((key, name), str(name)), each
        elif key in SCALAR_FIELDS and isinstance(value, (str, list) if key == "measured" else str):
            yield key, SCALAR_FIELDS[key], value
        else:
            known = ", ".join(name for name, each in _declared().items() if _section(each) == key)
            raise InputError(f"{path}, {key}", f"must be a mapping of {known}; got {shown(value)}.")


def _check_key(where: str, section: str, key: str, declared: Field | None) -> None:
    """Raise ``InputError`` for an unknown key, or for a key in the wrong section."""
    if declared is None:
        names = [_place(each).rpartition(".")[2] for each in _declared().values()]
        near = meant([RENAMED[key]]) if key in RENAMED else did_you_mean(key, [*names, *SECTIONS])
        raise InputError(where, f"is no key of a job file.{near} docs/job.md lists all keys.")
    if _section(declared) != section:
        raise InputError(where, f"stands in the wrong section; write it as {_place(declared)}.")


def _path_of(value: str, path: Path) -> str:
    """Return a path; the one beside the job file if only that exists."""
    beside = path.parent / value
    is_beside = not _exists(value) and _exists(beside)
    return str(beside) if is_beside else value


def _exists(path: str | Path) -> bool:
    return is_file(path) or is_folder(path)


def _word_of(word: str, path: Path) -> str:
    """Return a word of ``--measured`` with the paths of its launch and its log, see :func:`_path_of`."""
    launch, equals, figure = word.rpartition("=")
    return f"{_path_of(launch, path)}={_path_of(figure, path)}" if equals else _path_of(word, path)


def _declared() -> dict[str, Field]:
    """Return every field that a job file may hold, by name."""
    return {**fields_of(JobOptions), **fields_of(SpaceOptions), **fields_of(SearchOptions), **fields_of(Measured)}


def _section(declared: Field) -> str:
    return "measured" if declared.name in fields_of(Measured) else declared.option.section


def _place(declared: Field) -> str:
    section = _section(declared)
    return f"{section}.{declared.name}" if section else declared.name
