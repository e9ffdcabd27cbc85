"""
Random jobs, each asked in many ways: no answer may contradict another by more than its stated gap.

``python -m benchmarks.hardening.contracts --jobs 100 --seed 1`` makes the jobs of ``soak.py``: clusters of one to six
hosts with measured link matrices, or without; models with and without experts. Each is solved once, with ``--prefer
simple`` or ``fastest``, and its plan is compared with the answers of all other functions, by the contracts:

- ``pins``: random pins inside the searched space, and the degrees of the plan's alternatives;
- ``one-time``: ``estimate``, ``whatif``, ``replan`` and ``explain`` give the plan's time;
- ``explained``: ``explain`` of each alternative agrees with the proof;
- ``measured``: a run as long as predicted changes nothing, another one only the factor;
- ``more``: another host, faster links and a repaired host, asked alone, together and solved;
- ``lost``: a lost host, asked alone, with others, planned again and solved;
- ``exported``: launches read back;
- ``runs``: two and three unlike runs leave one factor.

The exit code is 1 after any broken contract. ``--jobs 1 --seed 17 --only pins`` checks a contract of a job again.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pipette_opt as po
from benchmarks.hardening import contract_checks as checks
from benchmarks.hardening.contract_checks import Case
from benchmarks.hardening.soak import made_instance
from pipette_opt.base.errors import InfeasibleError, PipetteError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.plans.plan import Plan

PINNED = ("tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_pipeline", "micro_batch_size")
"""Dimensions of which random pins take one to three."""

NOMINAL = (("h100", "8x400"), ("a100-80gb", "4x200"), ("b200", "8x400"))
"""GPU types and NICs of jobs without measured links."""

RATIOS = (1.0, 1.27, 0.83)
"""Measured over predicted time of runs; chosen as unlike as two stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    Result of one job.

    Parameters
    ----------
    outcome
        Status of the certificate, ``infeasible`` or ``refused``.
    problems
        Broken contracts: name of the contract, and a sentence.
    """

    outcome: str
    problems: tuple[tuple[str, str], ...] = ()


def random_case(seed: int, folder: Path, seconds: float) -> Case:
    """Return a random job, equal for equal seeds."""
    rng = np.random.default_rng((seed, 7))
    small, regions, domains = rng.random(3) < (0.7, 0.25, 0.2)
    instance = made_instance(seed, bool(small), bool(regions), bool(domains))
    job: dict[str, Any] = {
        "model": instance.model,
        "training": instance.training,
        "launcher": str(rng.choice(["torchrun", "slurm"])),
        "prefer": str(rng.choice(["simple", "fastest"])),
    }
    gpu, nics = NOMINAL[rng.integers(len(NOMINAL))]
    if rng.random() < 0.25:
        num, gpus = str(rng.choice([1, 2, 4])), int(rng.choice([2, 4, 8]))
        job |= {"nodes": num, "gpu": gpu, "nics": nics, "gpus_per_node": gpus}
    else:
        po.write_cluster(instance.cluster, folder / "cluster.yaml")
        job["cluster"] = folder / "cluster.yaml"
    return Case(folder=folder, job=job, limits={"time_limit_s": seconds, "workers": 1, "seed": seed})


def random_pins(case: Case, plan: Plan, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yield pins that some configuration of the space has, and the degrees of the plan's first alternatives."""
    listed = enumerate_candidates(case.instance(), SearchSpace(num_gpus=plan.config.world_size))
    for config in [listed[index] for index in rng.integers(len(listed), size=3)]:
        yield checks.pins_of(config, rng.choice(PINNED, size=int(rng.integers(1, 4)), replace=False).tolist())
    for other in plan.alternatives[:2]:
        yield checks.pins_of(other.config, ("tensor_parallel", "pipeline_parallel", "context_parallel"))


def pins(case: Case, plan: Plan, rng: np.random.Generator) -> Iterator[str]:
    """Yield contradictions with pinned answers."""
    for pinned in random_pins(case, plan, rng):
        yield from checks.pins_never_beat(case, plan, pinned)


def measured(case: Case, plan: Plan, rng: np.random.Generator) -> Iterator[str]:
    """Yield contradictions after a measured run of the plan."""
    for factor in (1.0, 1.27):
        yield from checks.measured_as_predicted(case, plan, factor)


def runs(case: Case, plan: Plan, rng: np.random.Generator) -> Iterator[str]:
    """Yield contradictions after two or three runs."""
    number = int(rng.integers(2, 4))
    if len(plan.alternatives) >= number - 1:
        yield from checks.runs_keep_one_ratio(case, plan, rng.permutation(RATIOS)[:number].tolist())


CONTRACTS: Mapping[str, Callable[[Case, Plan, np.random.Generator], Iterator[str]]] = {
    "pins": pins,
    "one-time": lambda case, plan, _: checks.one_time(case, plan),
    "explained": lambda case, plan, _: checks.explained_as_proven(case, plan),
    "measured": measured,
    "more": lambda case, plan, _: checks.more_is_not_worse(case, plan),
    "lost": lambda case, plan, _: checks.a_lost_host_agrees(case, plan),
    "exported": lambda case, plan, _: checks.exported_is_the_plan(case, plan),
    "runs": runs,
}
"""Contracts by name."""


def broken(case: Case, seed: int, names: list[str]) -> Found:
    """Return the contracts that a job breaks."""
    try:
        plan = case.solve("plan")
    except InfeasibleError:
        return Found(outcome="infeasible")
    except PipetteError as error:
        return Found(outcome="refused", problems=(("solve", str(error)),))
    problems: list[tuple[str, str]] = []
    for name in names:
        try:
            problems += [(name, problem) for problem in CONTRACTS[name](case, plan, np.random.default_rng((seed, 8)))]
        except Exception as error:
            problems.append((name, f"{type(error).__name__}: {error}"))
    return Found(outcome=plan.certificate.status, problems=tuple(problems))


def again(seed: int, seconds: float, contract: str) -> str:
    """Return the command that checks a contract of a job again."""
    only = f" --only {contract}" if contract in CONTRACTS else ""
    return f"python -m benchmarks.hardening.contracts --jobs 1 --seed {seed} --time-limit {seconds:g}{only} --keep job"


def main() -> None:
    """Parse the arguments, check the jobs, and print what is broken, and a line for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first job")
    parser.add_argument("--time-limit", type=float, default=4.0, help="time limit of each search, seconds")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no job after this number of minutes")
    parser.add_argument("--only", action="append", choices=list(CONTRACTS), help="a contract; may be repeated")
    parser.add_argument("--keep", type=Path, help="folder that keeps the files of each job")
    given = parser.parse_args()
    names, begin = given.only or list(CONTRACTS), time.monotonic()
    outcomes: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    failed = 0
    for seed in range(given.seed, given.seed + given.jobs):
        if time.monotonic() - begin > 60 * given.minutes:
            break
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if given.keep is None else given.keep / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            found = broken(random_case(seed, folder, given.time_limit), seed, names)
        outcomes[found.outcome] += 1
        failed += bool(found.problems)
        wrong.update({name for name, _ in found.problems})
        for name, problem in found.problems:
            print(f"seed {seed}, {name}: {problem}\n    {again(seed, given.time_limit, name)}", flush=True)
        print(f"job {seed}: {found.outcome}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    results = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    of_names = ", ".join(f"{name} {count}" for name, count in wrong.items())
    print(f"{failed} of {outcomes.total()} jobs break a contract{f' ({of_names})' if of_names else ''}; {results}.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
