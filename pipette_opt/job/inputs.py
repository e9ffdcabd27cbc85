"""Input files of a plan: where they are now, and whether their content is unchanged."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from pipette_opt.base.errors import InputError

if TYPE_CHECKING:
    from pipette_opt.plans.plan import Plan
    from pipette_opt.specs import ClusterSpec


def cluster_record(path: Path) -> dict[str, Any]:
    """Return paths and SHA-256 hashes of a cluster file and its link matrices, as ``plan.json`` records them."""
    from pipette_opt.read.cluster import matrix_files
    from pipette_opt.read.files import sha256_of

    matrices = {name: sha256_of(path.parent / name) for name in matrix_files(path)}
    inside = {name: sha256_of(path.parent / name) for name in matrix_files(path, "intra_node")}
    record = {"path": str(path), "sha256": sha256_of(path), "matrices": matrices}
    return {**record, "inside_matrices": inside} if inside else record


def described_cluster(cluster: "ClusterSpec | Path") -> "tuple[ClusterSpec, dict[str, Any] | None]":
    """Return the cluster, read first if it is a path, and its record for ``plan.json``: ``None`` without a file."""
    from pipette_opt.read.cluster import read_cluster

    return (read_cluster(cluster), cluster_record(cluster)) if isinstance(cluster, Path) else (cluster, None)


def is_nominal_record(recorded: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether ``plan.json`` holds its whole cluster as a document (``--nodes``), not the path of a file."""
    return isinstance(recorded, Mapping) and "document" in recorded


def cluster_of(plan: "Plan", path: Path, given: Path | None) -> "tuple[ClusterSpec, dict[str, Any]]":
    """
    Return the cluster that a plan was made for, with all its hosts, and its record for another ``plan.json``.

    Parameters
    ----------
    path
        Path of the plan; the cluster file is also looked for beside the plan.
    given
        Present path of the cluster file, if it was moved after the plan was made.

    Raises
    ------
    InputError
        If the cluster file is missing, or if its content has changed since the plan was made.
    """
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.nominal import recorded_cluster

    recorded = plan.inputs.get("cluster")
    if is_nominal_record(recorded):
        if given is not None:
            raise InputError(
                "--cluster",
                f"has no effect: {path} was made with --nodes, without a cluster file. Leave --cluster out.",
            )
        return recorded_cluster(recorded, f"{path}, inputs.cluster"), dict(recorded)
    if not is_file_record(recorded):
        raise InputError(
            str(path), "inputs.cluster must contain path and sha256 of the cluster file, or a cluster document."
        )
    found = given or find_input(Path(recorded["path"]), path, plan.inputs.get("example"))
    if found is None:
        raise InputError(
            str(path), f"the plan's cluster file {recorded['path']} does not exist; give its path with --cluster."
        )
    check_file(found, recorded["sha256"], path, "cluster")
    check_matrices(found, recorded, path)
    return read_cluster(found), cluster_record(found)


def has_cluster(plan: "Plan", path: Path) -> bool:
    """Return whether the cluster of a plan is available: recorded in the plan, or in a file that still exists."""
    recorded = plan.inputs.get("cluster")
    if not is_file_record(recorded):
        return True  # with its document, or wrong, which its reader says
    return find_input(Path(recorded["path"]), path, plan.inputs.get("example")) is not None


def is_file_record(recorded: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether an entry of a plan's ``inputs`` names a file by path and SHA-256 hash."""
    return isinstance(recorded, Mapping) and all(isinstance(recorded.get(key), str) for key in ("path", "sha256"))


def check_inputs(plan: "Plan", path: Path, cluster: Path | None = None) -> list[str]:
    """
    Compare every input file that a plan records with its recorded hash.

    Parameters
    ----------
    path
        Path of the plan; input files are also looked for beside the plan.
    cluster
        Present path of the cluster file, if it was moved after the plan was made.

    Returns
    -------
    list
        Paths of the recorded files that were not found, hence not compared.

    Raises
    ------
    InputError
        If the content of a file has changed since the plan was made.
    """
    missing = []
    for name in ("cluster", "profile"):
        recorded = plan.inputs.get(name)
        if recorded is None:
            continue
        if name == "cluster" and is_nominal_record(recorded):
            if cluster is not None:
                raise InputError(
                    "--cluster", f"has no effect: {path} was made without a cluster file. Leave --cluster out."
                )
            continue
        if not is_file_record(recorded):
            raise InputError(str(path), f"inputs.{name} must contain path and sha256 of a file, or be null.")
        given = cluster if name == "cluster" else None
        found = given or find_input(Path(recorded["path"]), path, plan.inputs.get("example"))
        if found is None:
            missing.append(str(recorded["path"]))
            continue
        check_file(found, recorded["sha256"], path, name)
        missing += check_matrices(found, recorded, path)
    return missing


def check_matrices(cluster: Path, recorded: Mapping[str, Any], plan: Path) -> list[str]:
    """Compare the link matrices beside a cluster file with the plan's hashes; return paths of missing ones."""
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
    """Raise ``InputError`` if the SHA-256 hash of a file differs from the hash in the plan."""
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
    """Return the present path of an input file: as recorded, beside the plan, or a shipped example; else ``None``."""
    candidates = [recorded, plan.parent / recorded.name]
    if example:
        from pipette_opt.base.shipped import shipped_path

        candidates.append(shipped_path("data", "clusters", recorded.name))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
