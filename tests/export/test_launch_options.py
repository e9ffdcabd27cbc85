"""Options of ``export``: each one changes the files, or is refused."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from factories import make_plan

from pipette_opt.base.errors import InputError
from pipette_opt.export.launch_options import ExportOptions, parse_resource
from pipette_opt.export.targets import TARGETS, export

GIVEN: dict[str, Any] = {
    "image": "image:1",
    "job_name": "llama",
    "account": "ours",
    "partition": "gpu",
    "time": "1-00:00:00",
    "segment": 2,
    "container_mounts": ["/data:/data"],
    "rdma_resource": ["rdma/hca_shared_devices_a=8"],
    "host_network": True,
    "host_ipc": True,
    "shm_size": "64Gi",
}


@pytest.mark.search
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("target", TARGETS)
def test_no_option_is_dropped(target: str, name: str) -> None:
    """With every target an option changes what is written, or its name is in the error."""
    plan = make_plan("torchrun")
    needs_image = TARGETS[target].needs_image or name == "container_mounts"
    base = {"image": "image:0"} if needs_image else {}
    options = ExportOptions(**{**base, name: GIVEN[name]})
    if name in TARGETS[target].takes:
        assert export(plan, target, options) != export(plan, target, ExportOptions(**base))
    else:
        with pytest.raises(InputError, match="has no effect with --format"):
            export(plan, target, options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image", "two words"),
        ("account", "a;b"),
        ("partition", "$(touch pwned)"),
        ("time", "1\n#SBATCH --x"),
        ("job_name", "Llama"),
        ("job_name", "a" * 41),
        ("segment", 0),
        ("container_mounts", ["/data"]),
        ("container_mounts", ["/a:/b,/c:/d"]),
        ("rdma_resource", ["hca=8"]),
        ("rdma_resource", ["rdma/hca=0"]),
        ("shm_size", "64"),
    ],
)
def test_values_that_a_launcher_would_misread(name: str, value: object) -> None:
    """Refused by the name of the option."""
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')}: "):
        ExportOptions(**{name: value})


@pytest.mark.parametrize("text", ["rdma/hca", "rdma/hca=", "rdma/hca=x", "rdma/hca=-1"])
def test_a_resource_has_a_number(text: str) -> None:
    """Name and number, as Kubernetes counts devices."""
    assert parse_resource("rdma/hca=8") == ("rdma/hca", 8)
    with pytest.raises(InputError, match="--rdma-resource: must be DOMAIN/NAME=COUNT"):
        parse_resource(text)


def test_slurm_directives() -> None:
    """Given ones are there; what every site asks for is a comment until it is given; memory of an exclusive host."""
    bare = export(make_plan(), "slurm")["job.sbatch"].splitlines()
    assert {"##SBATCH --account=...", "##SBATCH --partition=...", "##SBATCH --time=..."} <= set(bare)
    assert "#SBATCH --mem=0" in bare
    options = ExportOptions(job_name="llama", account="ours", partition="gpu", time="4:00:00", segment=2)
    lines = export(make_plan(), "slurm", options)["job.sbatch"].splitlines()
    given = ("job-name=llama", "account=ours", "partition=gpu", "time=4:00:00", "segment=2")
    assert {f"#SBATCH --{one}" for one in given} <= set(lines)
    assert not [line for line in lines if line.startswith("##SBATCH")]
    with pytest.raises(InputError, match="--segment: must divide 4, the number of hosts"):
        export(make_plan(), "slurm", ExportOptions(segment=3))


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        (["n[0-1]", "n[2-4]"], ["#SBATCH --segment=2"]),  # n0, n1 and n3, n4 are used
        (["n[0-4]"], ["#SBATCH --segment=4"]),
        (["n0", "n[1-4]"], []),
        (["n0", "n1", "n3", "n4"], []),
        (None, []),
    ],
)
def test_slurm_segments_are_what_a_plan_uses_of_domains(domains: list[str] | None, expected: list[str]) -> None:
    """Equally many hosts of each NVLink domain, unless another number is given."""
    plan = make_plan()
    plan = replace(plan, inputs={**plan.inputs, "domains": domains})

    def segments(options: ExportOptions) -> list[str]:
        return [line for line in export(plan, "slurm", options)["job.sbatch"].splitlines() if "--segment" in line]

    assert segments(ExportOptions()) == expected
    assert segments(ExportOptions(segment=1)) == ["#SBATCH --segment=1"]


def test_slurm_container() -> None:
    """The options of pyxis: image, mounts, folder, and the job's variables before the image's own."""
    options = ExportOptions(image="nvcr.io#nvidia/nemo:25.09", container_mounts=["/data:/data", "/home:/home:ro"])
    text = export(make_plan(), "slurm", options)["job.sbatch"]
    assert "'--container-image=nvcr.io#nvidia/nemo:25.09'" in text
    assert '--container-mounts="$PWD:$PWD,/data:/data,/home:/home:ro"' in text
    assert '--container-env="CUDA_DEVICE_MAX_CONNECTIONS,CUDA_DEVICE_ORDER,NCCL_ALGO"' in text
    assert "CONTAINER" not in export(make_plan(), "slurm")["job.sbatch"]
    with pytest.raises(InputError, match="--container-mounts: has no effect without --image"):
        export(make_plan(), "slurm", ExportOptions(container_mounts=["/data:/data"]))


@pytest.mark.parametrize("target", ["kubernetes", "pytorchjob"])
def test_pods(target: str) -> None:
    """Devices, rights, network, shared memory; none of them without its option."""
    plain, full = (
        yaml.dump(list(yaml.safe_load_all("".join(export(make_plan(), target, options).values()))))
        for options in (
            ExportOptions(image="image:1"),
            ExportOptions(**{name: GIVEN[name] for name in TARGETS[target].takes}),
        )
    )
    for text in ("rdma/hca_shared_devices_a", "IPC_LOCK", "hostNetwork: true", "hostIPC: true", "sizeLimit: 64Gi"):
        assert text in full
        assert text not in plain
    assert "dnsPolicy: ClusterFirstWithHostNet" in full
    assert "name: llama-plan" in full


@pytest.mark.parametrize("target", ["torchrun", "slurm", "mpi", "deepspeed", "megatron", "nemo"])
def test_no_empty_branches(target: str) -> None:
    """A script has no line that does nothing."""
    for text in export(make_plan("torchrun"), target).values():
        assert not [line for line in text.splitlines() if line.strip() in (":", "") or ") : ;;" in line]


@pytest.mark.parametrize("host", ["12e4", "0o17", "1e3", "y", "true", "7"])
def test_hosts_that_look_like_numbers_stay_names_in_manifests(host: str) -> None:
    """Other readers of YAML than Python's take 12e4 for a number."""
    plan = replace(make_plan("torchrun"), hosts=(host, "n1", "n2", "n3", "n4"))
    text = export(plan, "kubernetes", ExportOptions(image="image:1"))["jobset.yaml"]
    assert f"- '{host}'\n" in text
    assert f"- {host}\n" not in text
