"""Description of an export format: its writer, its files and what it can start."""

from collections.abc import Callable
from typing import NamedTuple


class Target(NamedTuple):
    """
    A format of ``export``.

    Parameters
    ----------
    write
        Function that returns the texts of the files, by file name, from a plan and, if ``takes`` is not empty, options.
        It raises ``InputError`` if the format cannot express the plan.
    files
        Names of all files, with commas.
    takes
        Fields of ``ExportOptions`` that have an effect.
    needs_image
        Whether a container image must be given.
    any_count
        Whether hosts may have different numbers of ranks.
    programs
        Programs that start the files, which people may give as the name of the format.
    is_map
        Whether the files only say which GPU has which rank, whatever runs there.
    """

    write: Callable[..., dict[str, str]]
    files: str
    takes: tuple[str, ...] = ()
    needs_image: bool = False
    any_count: bool = False
    is_map: bool = False
    programs: tuple[str, ...] = ()


OF_PODS = ("job_name", "image", "rdma_resource", "host_network", "host_ipc", "shm_size")
"""Fields of ``ExportOptions`` that describe a pod."""
