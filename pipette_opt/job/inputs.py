"""The files that a plan was made from: where they are now, and whether they are still the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from pipette_opt.base.errors import InputError

if TYPE_CHECKING:
    from pipette_opt.plans.plan import Plan
    from pipette_opt.specs import ClusterSpec


def cluster_record(path: Path) -> dict[str, Any]:
    """Return paths and hashes of a cluster file and of the link matrices beside it, as a plan records them."""
    from pipette_opt.read.cluster import matrix_files
    from pipette_opt.read.files import sha256_of

    matrices = {name: sha256_of(path.parent / name) for name in matrix_files(path)}
    inside = {name: sha256_of(path.parent / name) for name in matrix_files(path, "intra_node")}
    record = {"path": str(path), "sha256": sha256_of(path), "matrices": matrices}
    return {**record, "inside_matrices": inside} if inside else record


def described_cluster(cluster: "ClusterSpec | Path") -> "tuple[ClusterSpec, dict[str, Any] | None]":
    """Return a cluster, read if it is a file, and what a plan records of it: nothing without a file."""
    from pipette_opt.read.cluster import read_cluster

    return (read_cluster(cluster), cluster_record(cluster)) if isinstance(cluster, Path) else (cluster, None)


def is_nominal_record(recorded: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a plan records its cluster by value, not as a file."""
    return isinstance(recorded, Mapping) and "document" in recorded


def cluster_of(plan: "Plan", path: Path, given: Path | None) -> "tuple[ClusterSpec, dict[str, Any]]":
    """
    The cluster that a plan was made for, all its hosts, and what another plan for it records of it.

    Parameters
    ----------
    path
        Path of the plan; its cluster file is also looked for beside it.
    given
        Path of the cluster file now, if it has moved.

    Raises
    ------
    InputError
        If the file is not there, or is not the one that the plan was made from.
    """
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.nominal import recorded_cluster

    recorded = plan.inputs.get("cluster")
    if is_nominal_record(recorded):
        if given is not None:
            raise InputError("--cluster", f"contradicts {path}, which was made for --nodes, without a cluster file.")
        return recorded_cluster(recorded, f"{path}, inputs.cluster"), dict(recorded)
    if not is_file_record(recorded):
        raise InputError(str(path), "inputs.cluster must name the cluster file by path and sha256, or hold a document.")
    found = given or find_input(Path(recorded["path"]), path, plan.inputs.get("example"))
    if found is None:
        raise InputError(str(path), f"its cluster file {recorded['path']} is not there; say where with --cluster.")
    check_file(found, recorded["sha256"], path, "cluster")
    check_matrices(found, recorded, path)
    return read_cluster(found), cluster_record(found)


def has_cluster(plan: "Plan", path: Path) -> bool:
    """Return whether the cluster of a plan is known: recorded in it, or in a file that is still there."""
    recorded = plan.inputs.get("cluster")
    if not is_file_record(recorded):
        return True  # with its document, or wrong, which its reader says
    return find_input(Path(recorded["path"]), path, plan.inputs.get("example")) is not None


def is_file_record(recorded: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether an entry of a plan's inputs names a file by path and hash."""
    return isinstance(recorded, Mapping) and all(isinstance(recorded.get(key), str) for key in ("path", "sha256"))


def check_inputs(plan: "Plan", path: Path, cluster: Path | None = None) -> list[str]:
    """
    Compare every file that the plan records with its hash.

    Parameters
    ----------
    path
        Path of the plan; its files are also looked for beside it.
    cluster
        Path of the cluster file now, if it has moved.

    Returns
    -------
    list
        Files that are nowhere to be found, hence not compared.

    Raises
    ------
    InputError
        If a file is there and is not the one that the plan was made from.
    """
    missing = []
    for name in ("cluster", "profile"):
        recorded = plan.inputs.get(name)
        if recorded is None:
            continue
        if name == "cluster" and is_nominal_record(recorded):
            if cluster is not None:
                raise InputError("--cluster", f"contradicts {path}, which was made without a cluster file.")
            continue
        if not is_file_record(recorded):
            raise InputError(str(path), f"inputs.{name} must name a file by path and sha256, or be null.")
        given = cluster if name == "cluster" else None
        found = given or find_input(Path(recorded["path"]), path, plan.inputs.get("example"))
        if found is None:
            missing.append(str(recorded["path"]))
            continue
        check_file(found, recorded["sha256"], path, name)
        missing += check_matrices(found, recorded, path)
    return missing


def check_matrices(cluster: Path, recorded: Mapping[str, Any], plan: Path) -> list[str]:
    """Check the link matrices that a plan records, beside its cluster file; return those that are not there."""
    missing, both = [], []
    for field in ("matrices", "inside_matrices"):
        matrices = recorded.get(field) or {}
        if not isinstance(matrices, Mapping):
            raise InputError(str(plan), f"inputs.cluster.{field} must be a mapping of file names to hashes.")
        both += list(matrices.items())
    for name, sha256 in both:
        matrix = cluster.parent / name
        if matrix.is_file():
            check_file(matrix, sha256, plan, "cluster")
        else:
            missing.append(str(matrix))
    return missing


def check_file(found: Path, sha256: str, plan: Path, option: str) -> None:
    """Raise ``InputError`` if a file is not the one with the hash."""
    from pipette_opt.read.files import sha256_of

    now = sha256_of(found)
    if now != sha256:
        other = f"give the right one with --{option}, or " if option == "cluster" else ""
        raise InputError(
            str(found),
            f"is not the file that {plan} was made from (sha256 {now[:12]}, the plan has {str(sha256)[:12]}); "
            f"{other}solve again.",
        )


def find_input(recorded: Path, plan: Path, example: object) -> Path | None:
    """A file where it was, beside the plan, or among the shipped examples."""
    candidates = [recorded, plan.parent / recorded.name]
    if example:
        from pipette_opt.base.shipped import shipped_path

        candidates.append(shipped_path("data", "clusters", recorded.name))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
