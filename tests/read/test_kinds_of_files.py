"""Files of other programs are told by what they contain, and readers say so."""

import time
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read import kinds_of_files
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.kinds_of_files import LAUNCH_SCRIPT, binary_looks_like, file_kinds, kind_of, looks_like
from pipette_opt.read.model import read_model
from pipette_opt.read.runs import read_runs


@pytest.mark.parametrize(
    ("text", "name", "reader"),
    [
        ('{"tokenizer_class": "LlamaTokenizer"}', "a tokenizer's settings", ""),
        ("63:   num_layers ...................... 32\n", "arguments of Megatron-LM, as it prints them", "import runs"),
        (" iteration 1/ 9 | elapsed time per iteration (ms): 5.1 |\n", "a log of Megatron-LM", "import runs"),
        (" 0: # nThread 1 nGpus 1\n", "output of nccl-tests or rccl-tests", "import links"),
        ("SwitchName=a Nodes=n[1-2]\n", "Slurm's list of switches", "import links"),
        ('{"model_type": "llama"}', "a config.json of Hugging Face", "import model"),
        ("nodes:\n  - {hosts: a, gpu: h100}\n", "a cluster file of pipette-opt", "solve --cluster"),
        ('{"schema_version": 1, "parallel": {}, "placement": []}', "a plan of pipette-opt", "verify"),
        ("#!/bin/bash\nset -e\n", "a shell script", "estimate --args"),
        ('A="--bf16"\neval torchrun $A\n', "a shell script", "estimate --args"),
        ("--num-layers 4\n", "arguments of Megatron-LM, as they are typed", "estimate --args"),
    ],
)
def test_kinds_by_their_contents(text: str, name: str, reader: str) -> None:
    """Words that a program always prints tell its files; tags before lines do not matter."""
    kind = kind_of(text)
    assert kind is not None
    assert name in kind.name
    assert kind.reader.startswith(reader)
    assert bool(kind.reader) == bool(reader)


def test_a_text_of_nobody() -> None:
    """Prose and numbers are like nothing."""
    assert kind_of("Some notes about a run.\n1 2 3\n") is None
    assert looks_like("") == ""
    assert looks_like("#!/bin/sh\n", but=(LAUNCH_SCRIPT,)) == ""


def test_readers_say_what_a_file_looks_like(tmp_path: Path) -> None:
    """Each names the kind of a file of another program, and not its own kind."""
    other = tmp_path / "tokenizer_config.json"
    other.write_text('{"tokenizer_class": "LlamaTokenizer"}')
    for reader in (read_cluster, read_model, read_runs):
        with pytest.raises(InputError, match=r"It looks like a tokenizer's settings, which no command reads"):
            reader(other)
    own = tmp_path / "cluster.yaml"
    own.write_text("nodes:\n  - {hosts: a, gpu: none-such}\n")
    with pytest.raises(InputError) as caught:
        read_cluster(own)
    assert "looks like" not in str(caught.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    """Their first bytes say what they are."""
    assert binary_looks_like(b"\x89HDF\r\n") == " It looks like an HDF5 file."
    file = tmp_path / "runs.csv"
    file.write_bytes(b"%PDF-1.7\n\xff\xfe")
    with pytest.raises(InputError, match=r"UTF-8 text file .* It looks like a PDF"):
        read_runs(file)


@pytest.mark.search
@pytest.mark.parametrize("part", ["failed: ", "\n", " ", "GPU0 ", "[Rank 0] ", "a: b\n", "[a]\n", "step: 1 ", "\x1b["])
def test_hostile_texts_take_no_time(part: str) -> None:
    """Repeated words that kinds start with do not slow the search down."""
    start = time.process_time()
    kind_of(part * (100_000 // len(part)))
    assert time.process_time() - start < 3


def test_names_of_kinds_begin_with_what_they_are() -> None:
    """They stand behind 'It looks like'."""
    assert all(kind.name and not kind.name.endswith(".") for kind in file_kinds())


def test_kinds_that_readers_accept_are_known() -> None:
    """A reader names its kinds by constants; each is in the table."""
    accepted = {value for name, value in vars(kinds_of_files).items() if name.isupper() and isinstance(value, str)}
    assert LAUNCH_SCRIPT in accepted
    assert accepted <= {kind.name for kind in file_kinds()}


def test_scripts_are_scripts_whatever_they_write() -> None:
    """A script that lists hosts and writes a config of DeepSpeed is a script."""
    text = '#!/bin/bash\nHOSTS=$(scontrol show hostnames $L)\ncat <<E >ds.json\n{"zero_optimization": 1}\nE\n'
    assert LAUNCH_SCRIPT in looks_like(text)
