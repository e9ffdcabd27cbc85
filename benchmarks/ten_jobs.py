"""
First screens of ten jobs as a lead sees them: ``python -m benchmarks.ten_jobs -o PAGE``.

Each job is solved by the command line with its defaults, one after the other. The page has the screens, and a table of
what in their plans is not plain: a layout string, hosts in another order than listed, a pipeline. After every change of
words, preferences or bounds the same ten jobs show what people would be told.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import made_by, option, run_page, say
from pipette_opt import read_plan
from pipette_opt.base.files import write_atomically
from pipette_opt.base.units import above_best, three_digits
from pipette_opt.plans.plainness import unevenness
from pipette_opt.plans.plan import Plan

JOBS: Mapping[str, str] = {
    "8B on 8 H100": "--model llama-3.1-8b --nodes 1 --gpu h100 --global-batch-size 128 --seq-length 8192",
    "70B on 64 H100": "--model llama-3.1-70b --nodes 8 --gpu h100 --global-batch-size 512 --seq-length 8192",
    "405B on 1,024 H100": "--model llama-3.1-405b --nodes 128 --gpu h100 --global-batch-size 1024 --seq-length 8192",
    "Qwen3-30B on 32 H100": "--model qwen3-30b-a3b --nodes 4 --gpu h100 --global-batch-size 512 --seq-length 4096",
    "Qwen3-235B on 128 H100": "--model qwen3-235b-a22b --nodes 16 --gpu h100 --global-batch-size 1024 "
    "--seq-length 4096",
    "DeepSeek-V3 on 256 H200": "--model deepseek-v3 --nodes 32 --gpu h200 --global-batch-size 2048 --seq-length 4096",
    "70B on 32 MI300X": "--model llama-3.1-70b --nodes 4 --gpu mi300x --global-batch-size 256 --seq-length 8192",
    "8B at 131,072 tokens on 32 H100": "--model llama-3.1-8b --nodes 4 --gpu h100 --global-batch-size 32 "
    "--seq-length 131072",
    "lab-16x8": "--example lab-16x8",
    "mixed-4x8": "--example mixed-4x8",
}
"""Arguments of ``solve`` by job. Chosen: sizes, kinds of model and clusters that people ask about."""

LIMIT_S = 300.0
"""Time after which a command is taken to hang, seconds. Chosen: five times the default limit of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Screen of a job, its plan, and the plan's file as text; ``None`` and empty where there is none."""

    screen: str
    plan: Plan | None
    text: str = ""


def make(given: argparse.Namespace) -> Iterator[str]:
    """Solve ten jobs; yield the page with their first screens after each."""
    answers = {}
    for number, (name, arguments) in enumerate(JOBS.items()):
        if given.only.lower() in name.lower():
            say(name)
            answers[name] = solved(arguments.split())
            if given.plans is not None and answers[name].plan is not None:
                write_atomically(given.plans / f"{number}.json", answers[name].text)
            yield page(answers)


OPTIONS = (
    option("--plans", type=Path, help="folder that keeps the plans"),
    option("--only", default="", help="only jobs whose name contains this text"),
)


def solved(arguments: Sequence[str]) -> Answer:
    """Return the answer of ``solve`` with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        run = subprocess.run(
            [sys.executable, "-m", "pipette_opt", "solve", *arguments, "--out", "plan.json"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        screen = "\n".join(line.rstrip() for line in (run.stdout or run.stderr).strip().splitlines())
        if not file.is_file():
            return Answer(screen=screen, plan=None)
        return Answer(screen=screen, plan=read_plan(file), text=file.read_text(encoding="utf-8"))


def page(answers: Mapping[str, Answer]) -> str:
    """Return the page: the table, then the screens."""
    lines = [
        "# Ten jobs",
        "",
        f"{made_by()} `solve` with its defaults (60 s), one after the other. A layout "
        "string, an order of the hosts or a pipeline stands only where plans without it are more than 1 % slower, as "
        "far as they were found. Percentages are of expected times.",
        "",
        "| job | plan | proof | layout | hosts | as most run it |",
        "|---|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(_cells(answer.plan))} |" for name, answer in answers.items()),
    ]
    for name, answer in answers.items():
        lines += ["", f"## {name}", "", f"`pipette-opt solve {JOBS[name]}`", "", "```", answer.screen, "```"]
    return "\n".join(lines) + "\n"


def _cells(plan: Plan | None) -> tuple[str, ...]:
    """Return the cells of a plan: label, distance from the best, layout, order of the hosts, data parallelism alone."""
    if plan is None:
        return "none", "", "", "", ""
    proof, usual = plan.certificate, plan.usual
    seconds = plan.estimate.iteration_time_s
    layout = ("even", "ends differ", "string")[unevenness(plan.config)]
    order = "as listed" if plan.listed is None else "another order"
    if usual is None:
        alone = "this plan"
    elif usual.plan is None or usual.plan.iteration_time_s is None:
        alone = usual.problem
    else:
        alone = f"{three_digits(100 * (usual.plan.iteration_time_s / seconds - 1))} % slower"
    label = plan.config.label().replace("|", r"\|")  # of layouts; it would end the cell
    return label, above_best(1 - proof.lower_bound_s / seconds), layout, order, alone


if __name__ == "__main__":
    run_page(make, *OPTIONS)
