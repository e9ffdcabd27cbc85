"""Memory of every GPU that others use, from ``--reserve-memory 20GiB``."""

import re
from dataclasses import replace

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import GB, GIB
from pipette_opt.specs import ClusterSpec

OPTION = "--reserve-memory"
"""Option of the size, for errors."""

_SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(GiB|GB|)", re.IGNORECASE)


def with_reserved(cluster: ClusterSpec, size: object, where: str = OPTION) -> ClusterSpec:
    """
    Return the cluster with less memory on every GPU; unchanged for ``None``.

    Parameters
    ----------
    size
        Text such as ``20GiB`` or ``20GB``; a number alone is in GiB.

    Raises
    ------
    InputError
        For any other text, and for as much memory as a GPU has.
    """
    if size is None:
        return cluster
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if found is None:
        raise InputError(where, f"must be a size such as 20GiB, got {shown(size)}.")
    taken = int(float(found[1]) * (GB if found[2].lower() == "gb" else GIB))
    smallest = min(cluster.gpu_kinds, key=lambda gpu: gpu.memory_bytes)
    if taken >= smallest.memory_bytes:
        problem = f"is {found[0]}, but {smallest.name} has {smallest.memory_bytes / GIB:.3g} GiB; give less."
        raise InputError(where, problem)
    nodes = (replace(node, gpu=replace(node.gpu, memory_bytes=node.gpu.memory_bytes - taken)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))
