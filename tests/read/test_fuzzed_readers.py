"""Nearly right files: a reader takes them or says what is wrong, and nothing else happens."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from benchmark_modules import loaded
from link_logs import nccl_json, nccl_text

from pipette_opt.base.errors import InputError, PipetteError
from pipette_opt.read.hosts import expand_hosts, natural_key
from pipette_opt.read.link_formats.nccl_tests import parse_nccl_json, parse_nccl_text
from pipette_opt.read.log_lines import Log
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.nics import parse_nics
from pipette_opt.read.profile import read_profile
from pipette_opt.read.runs import read_rows

READERS = ("cluster", "matrix", "model", "hugging-face", "megatron", "links", "runs", "stack", "profile", "plan")


@pytest.mark.search
def test_every_reader_is_fuzzed() -> None:
    """The names above are those of the benchmark, and each has files to start from that it takes."""
    readers = loaded("readers", "hardening").readers()
    assert tuple(readers) == READERS
    for reader in readers.values():
        assert reader.seeds
        for path in reader.seeds:
            reader.read(path)


@pytest.mark.search
@pytest.mark.parametrize("name", READERS)
def test_nearly_right_files_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    """Forty files with one to four changes each; ``benchmarks/hardening/fuzz.py`` tries as many as one has time for."""
    module = loaded("readers", "hardening")
    reader = module.readers()[name]
    path = tmp_path / f"{module.STEM}{reader.suffix}"
    for content in module.mutants(tuple(seed.read_bytes() for seed in reader.seeds), 40, seed=1):
        path.write_bytes(content)
        with suppress(PipetteError):
            reader.read(path)


NUMBER = "9" * 5000
"""Python refuses to read whole numbers of more than 4,300 digits."""


def test_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    """Of hosts, and in a profile: named, shortened, refused."""
    with pytest.raises(InputError, match="has more than 100000 names") as error:
        expand_hosts(f"gpu[1-{NUMBER}]")
    assert len(str(error.value)) < 300
    assert natural_key(f"gpu{NUMBER}") == [(1, "gpu"), (1, NUMBER)]
    path = tmp_path / "layers.csv"
    header = "gpu,tensor_model_parallel_size,micro_batch_size,seq_length,forward_s,backward_s"
    path.write_text(f"{header}\na,{NUMBER},1,4096,1,1\n")
    with pytest.raises(InputError, match="must be a whole number >= 1") as error:
        read_profile(path)
    assert len(str(error.value)) < 300


def test_ranks_and_sizes_of_thousands_of_digits_in_logs() -> None:
    """The log is damaged, and says where; a number of NICs is refused."""
    text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 20.0)
    for pattern, said in (
        (r"(Rank\s+)0", "lists 1 of 2 ranks"),
        (r"(?m)^(\s*)33554432", "a size that no message"),
    ):
        damaged = re.sub(pattern, rf"\g<1>{NUMBER}", text, count=1)
        assert damaged != text
        assert said in parse_nccl_text(Log(damaged), "a.log")[0].problem
    with pytest.raises(InputError, match="must be NICs x Gbit/s"):
        parse_nics(f"{NUMBER}x400", "nics")


def test_a_word_of_a_script_that_holds_options() -> None:
    """A default of several words is one word, not a list that is taken apart for ever."""
    text = "TYPE=${KIND:-one --two}\n--num-layers 2 --hidden-size 8 --num-attention-heads 2 --max-position-embeddings 8"
    assert parse_megatron_args(f"{text} --vocab-size 64 --micro-batch-size 1 --global-batch-size 1 --seq-length 8")


@pytest.mark.parametrize(("field", "value"), [("ngpus", 10**12), ("nthreads", -1), ("ngpus", [1])])
def test_a_process_of_more_gpus_than_any_host_has(field: str, value: object) -> None:
    """A list of so many ranks would fill the memory."""
    content = json.loads(nccl_json("sendrecv", {"n1": 1, "n2": 1}, 20.0))
    content["config"][field] = value
    with pytest.raises(InputError, match=rf"config\.{field} must be a whole number in \[1, 1024\]"):
        parse_nccl_json(json.dumps(content), "a.json")


def test_a_row_of_results_without_any() -> None:
    """Neither out of place nor in place."""
    content = json.loads(nccl_json("sendrecv", {"n1": 1, "n2": 1}, 20.0))
    content["results"][0] |= {"out_of_place": None, "in_place": None}
    assert parse_nccl_json(json.dumps(content), "a.json").problem == "a row of results is incomplete"


def test_a_size_that_is_no_number() -> None:
    """1e999 is infinite for Python's JSON, and refused as no number."""
    content = json.loads(nccl_json("sendrecv", {"n1": 1, "n2": 1}, 20.0))
    content["results"][0]["size"] = "SIZE"
    text = json.dumps(content).replace('"SIZE"', "1e999")
    with pytest.raises(InputError, match="'1e999' is too large for a number"):
        parse_nccl_json(text, "a.json")


def test_a_quote_of_the_header_that_is_not_closed(tmp_path: Path) -> None:
    """The whole file is one field then."""
    path = tmp_path / "runs.csv"
    path.write_text('source,"gpu\na,b\n')
    with pytest.raises(InputError, match="is not valid CSV: unexpected end of data"):
        read_rows(path)
