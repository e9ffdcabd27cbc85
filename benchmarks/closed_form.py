"""
Error of the analytical 1F1B model: ``python -m benchmarks.closed_form [--pipelines N] [--out PAGE]``.

Each case is N random pipelines of 2 to 16 stages. A backward pass takes about twice a forward pass. A transfer takes up
to a tenth of an average stage's forward and backward pass, with slow links up to half of it. The two directions of a
link differ by up to 25 %. The table gives the percentage by which the model is above the critical path's time, mean and
worst. ``too small``: number of pipelines for which the model is below the critical path.

The second table has all candidates without interleaving of each shipped example, on hosts in listed order. The model is
compared with the simulator's iteration time, reductions and optimizer included. Gradients and parameters are sent after
compute (``beside``: no) or during compute (yes).
"""

import argparse
import contextlib
import io
import platform
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np

from pipette_opt import __version__
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import identity_placement, microbatches_of
from pipette_opt.read.example import list_examples, read_example
from pipette_opt.simulate.analytical import analytical_s
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.specs import Instance

STAGES = {"nearly equal": (0.97, 1.03), "30 % apart": (0.85, 1.15), "fivefold": (0.33, 1.67)}
LINKS = {"fast links": 0.1, "slow links": 0.5}
MICROBATCHES = {"m = pp": 1, "m = 4 pp": 4, "m = 16 pp": 16}
MODES: tuple[P2PMode, ...] = ("blocking", "async")


def random_times(
    rng: np.random.Generator,
    stages: tuple[float, float],
    link: float,
    num_stages: int,
    *,
    chunks: int = 1,
    replicas: int,
) -> PlacedTimes:
    """
    Return the times of ``replicas`` random pipelines of ``num_stages`` stages, as one job.

    Parameters
    ----------
    stages
        Range of a stage's forward and backward pass, relative to the mean.
    link
        Maximum time of a transfer, in the unit of ``stages``.
    chunks
        Model chunks of each stage.
    """
    work = rng.uniform(*stages, (chunks, num_stages, replicas)) / chunks
    ratio = rng.uniform(1.9, 2.1, work.shape)
    send = rng.uniform(0, link, (num_stages, replicas))
    return PlacedTimes(
        forward_s=work / (1 + ratio),
        backward_s=work * ratio / (1 + ratio),
        tensor_forward_s=np.zeros_like(work),
        tensor_backward_s=np.zeros_like(work),
        send_forward_s=send,
        send_backward_s=send * rng.uniform(0.8, 1.25, send.shape),
        reduction_s=np.zeros(num_stages),
        optimizer_s=0.0,
    )


def example_instance(name: str, p2p: P2PMode) -> Instance:
    """Return a shipped example as an instance."""
    example = read_example(name)
    return Instance(model=example.model, cluster=example.cluster, training=example.training, p2p=p2p)


def candidate_times(name: str, p2p: P2PMode, *, overlap: bool = False) -> list[tuple[PlacedTimes, int]]:
    """
    Return times and micro-batches of all candidates of an example, on hosts in listed order.

    Candidates without interleaving or context parallelism that use all GPUs are included. ``overlap`` sends gradients
    and parameters during compute.
    """
    example, instance = read_example(name), example_instance(name, p2p)
    gpus = instance.cluster.gpus_per_node
    num_gpus = example.num_gpus or instance.cluster.num_nodes * gpus
    found = []
    space = SearchSpace(
        num_gpus=num_gpus,
        context_parallel=(1,),
        virtual_pipeline=(1,),
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
    )
    for config in enumerate_candidates(instance, space):
        placement = identity_placement(config, gpus, np.arange(-(-num_gpus // gpus)), "tp-cp-ep-dp-pp")
        try:
            found.append((placed_times(instance, config, placement), microbatches_of(instance.training, config)))
        except MissingLinkError:
            continue
    return found


def report_examples() -> None:
    """Print the table of errors over the candidates of the shipped examples."""
    print()
    print(f"{'example':13}{'sends':10}{'beside':8}{'plans':>6}{'form % mean, worst':>20}{'too small':>11}")
    for name, p2p, overlap in product(list_examples(), MODES, (False, True)):
        given = candidate_times(name, p2p, overlap=overlap)
        if not given:
            continue
        simulated = [simulate_times(times, m, p2p).iteration_time_s for times, m in given]
        rows = [analytical_s(times, m, p2p) / time - 1 for (times, m), time in zip(given, simulated, strict=True)]
        form = _percent(np.array(rows))
        worst = form[np.abs(form).argmax()]
        small = int((form < 0).sum())
        beside = "yes" if overlap else "no"
        print(f"{name:13}{p2p:10}{beside:8}{len(rows):6}{form.mean():13.3f}{worst:7.2f}{small:11}")


def differences(
    rng: np.random.Generator, stages: tuple[float, float], link: float, groups: int, p2p: P2PMode, pipelines: int
) -> FloatArray:
    """Return the relative error of the analytical model on random pipelines; negative if it is below the simulator."""
    found = []
    for _ in range(pipelines):
        num_stages = int(rng.integers(2, 17))
        times, m = random_times(rng, stages, link, num_stages, replicas=1), groups * num_stages
        found.append(analytical_s(times, m, p2p) / critical_path(times, m, p2p)[0, 0] - 1)
    return np.array(found)


def main() -> None:
    """Print the tables, or write them to a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--pipelines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the page; by default the tables are printed")
    arguments = parser.parse_args()
    if arguments.out is None:
        report(arguments.seed, arguments.pipelines)
        return
    with contextlib.redirect_stdout(io.StringIO()) as text:
        report(arguments.seed, arguments.pipelines)
    about = f"pipette-opt {__version__}, Python {platform.python_version()}, numpy {np.__version__}."
    title = f"# The closed form against the simulator, {datetime.now(UTC).date().isoformat()}"
    explanation = str(__doc__).split("Each case", 1)[1]
    head = f"{title}\n\n{about} Made by `python -m benchmarks.closed_form`."
    page = f"{head}\n\nEach case{explanation}\n```\n{text.getvalue()}```\n"
    write_atomically(arguments.out, page)


def report(seed: int, pipelines: int) -> None:
    """Print both tables; the first only if ``pipelines`` is not 0."""
    if pipelines:
        report_random(np.random.default_rng(seed), pipelines)
    report_examples()


def report_random(rng: np.random.Generator, pipelines: int) -> None:
    """Print the table of errors on random pipelines, by case."""
    print(f"{'stages':14}{'links':12}{'micro-b.':11}{'sends':10}{'form % mean, worst':>21}{'too small':>11}")
    for (stages, link), (groups, p2p) in product(product(STAGES, LINKS), product(MICROBATCHES, MODES)):
        form = differences(rng, STAGES[stages], LINKS[link], MICROBATCHES[groups], p2p, pipelines)
        percent = _percent(form)
        print(
            f"{stages:14}{link:12}{groups:11}{p2p:10}{percent.mean():13.2f}{percent.max():8.2f}"
            f"{int((form < -1e-9).sum()):11}"
        )


def _percent(fractions: FloatArray) -> FloatArray:
    """Return fractions as percentages, without minus signs from rounding."""
    percent: FloatArray = np.round(100 * fractions, 7) + 0.0
    return percent


if __name__ == "__main__":
    main()
