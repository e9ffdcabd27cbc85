"""Best public MFU of a plan's kind of job, beside the MFU of its expected time."""

from collections.abc import Mapping

from pipette_opt.base.typed import typed
from pipette_opt.base.units import counted, percent
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec
from pipette_opt.worlds.best_mfu import BestRun, best_run
from pipette_opt.worlds.jobs import generation_of


def best_of_job(instance: Instance) -> BestRun | None:
    """Return the public run with the highest MFU of a job's kind, ``None`` without one."""
    return best_run(instance.model, instance.training, map(generation_of, instance.cluster.gpu_kinds))


def best_of_plan(plan: Plan) -> BestRun | None:
    """
    Return the public run with the highest MFU of the kind of job that a plan records.

    ``None`` if the plan does not record its model, training and GPUs, or has a GPU that is not in the catalogue.
    """
    model, training, gpus = (plan.inputs.get(name) for name in ("model", "training", "gpus"))
    if not (isinstance(model, Mapping) and isinstance(training, Mapping) and isinstance(gpus, Mapping)):
        return None
    catalogue = read_gpu_catalogue()
    entries = [catalogue.get(str(name).partition("@")[0].lower()) for name in gpus]
    generations = ["" if entry is None else entry.gpu.generation for entry in entries]
    specs = typed(ModelSpec, model, "inputs.model"), typed(TrainingSpec, training, "inputs.training")
    return best_run(*specs, generations)


def mfu_words(estimate: IterationTime, best: BestRun | None) -> str:
    """Return the MFU at the expected time, with the best of public runs in brackets unless it is lower."""
    return " ".join(filter(None, (f"MFU {percent(estimate.expected_mfu)}", best_words(estimate, best))))


def best_words(estimate: IterationTime, best: BestRun | None) -> str:
    """Return the best MFU of public runs in brackets; empty without one, or if the estimate's MFU is above it."""
    if best is None or estimate.expected_mfu > best.mfu:
        return ""
    return f"({_best_of(best)} {percent(best.mfu)})"


def above_best_words(estimate: IterationTime, best: BestRun | None) -> str:
    """Return a sentence on an MFU that no public run of its kind attained, with the best run; otherwise empty."""
    if best is None or estimate.expected_mfu <= best.mfu:
        return ""
    return (
        f"MFU {percent(estimate.expected_mfu)} is above the {_best_of(best)}: {percent(best.mfu)}, {best.model} on "
        f"{best.num_gpus:,} {best.gpu}, from {best.publisher}"
    )


def _best_of(best: BestRun) -> str:
    return f"best of {counted(best.runs, 'public run')} of this kind"
