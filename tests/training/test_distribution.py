"""How do I use more GPUs? Two processes do what one does, with all weights or with shares."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from partita.commands import main
from tests.support.kill_and_resume import corpus
from tests.support.runs import FAST, SMALL

STEPS = 20
TOLERANCE = {"adamw": 1e-5, "muon": 1e-3}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(place, name, processes, *flags, launcher="forks"):
    """A run of 20 steps by some processes; its folder."""
    out = place / name
    words = ["-m", "partita", "train", str(place / "corpus.txt"), "--out", str(out)]
    sizes = ["--network.width", "32", "--network.depth", "2", "--network.length", "16"]
    pace = ["--training.steps", str(STEPS), "--run.checkpoint_every", "10", "--run.log_every", "1"]
    rest = ["--run.validate_every", "10", "--run.previews", "1", "--data.cache", str(place / "t")]
    words += [*sizes, *pace, *rest, *flags]
    if processes == 1:
        with one_thread():  # as each of several processes has
            assert main(words[2:]) == 0
    elif launcher == "torchrun":
        by_torchrun(words, processes)
    else:
        by_forks(words, processes, place)
    return out


def by_torchrun(words, processes):
    many = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    result = subprocess.run(
        [sys.executable, *many, "--master-port", str(free_port()), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


def by_forks(words, processes, place, target=None):
    """What torchrun does, by a server that has loaded torch already: seconds less for each run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["partita.commands.train", "partita.training.runner"])
    port, log = free_port(), place / "log.txt"
    log.write_text("")
    ranks = [
        context.Process(target=target or run_rank, args=(rank, processes, port, words[2:], log))
        for rank in range(processes)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0] * processes, log.read_text()


def run_rank(rank, processes, port, words, log):
    """One of the processes: what torchrun tells it, and where it writes."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in place.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1), os.dup2(written, 2)
    torch.set_num_threads(1)
    code = main(words)
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recorded(out, key="loss"):
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return torch.tensor([line[key] for line in lines if key in line], dtype=torch.float64)


def rewind(out, copy):
    """A copy of a run as it was after ten steps."""
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000020")
    return copy


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distribution")
    corpus(folder)
    return folder


def rate(optimiser):
    return ["--training.optimizer", optimiser, "--training.learning_rate", "0.01"]


@pytest.fixture(scope="module")
def alone(place):
    """One process, for each optimiser."""
    return {name: train(place, f"alone-{name}", 1, *rate(name)) for name in TOLERANCE}


@pytest.mark.parametrize("distribution", ["ddp", "fsdp"])
@pytest.mark.parametrize("optimiser", list(TOLERANCE))
def test_two_processes_equal_one_and_resume_as_one(place, alone, optimiser, distribution):
    flags = [*rate(optimiser), "--run.parallel", distribution]
    two = train(place, f"two-{optimiser}-{distribution}", 2, *flags)
    one = alone[optimiser]
    close = {"rtol": 0, "atol": TOLERANCE[optimiser]}
    assert len(recorded(two)) == STEPS
    torch.testing.assert_close(recorded(two), recorded(one), **close)
    assert recorded(one)[-1] < recorded(one)[0] - 1  # something was learned
    for key in ("valid_bits", "norm") if optimiser == "adamw" else ("valid_bits",):
        torch.testing.assert_close(recorded(two, key), recorded(one, key), rtol=1e-3, atol=1e-3)

    # The second half of the two-process run, by one process; and the other way round.
    name = f"{optimiser}-{distribution}"
    rewind(two, place / f"two-then-one-{name}")
    down = train(place, f"two-then-one-{name}", 1, *rate(optimiser))
    torch.testing.assert_close(recorded(down), recorded(one), **close)
    rewind(one, place / f"one-then-two-{name}")
    up = train(place, f"one-then-two-{name}", 2, *flags)
    torch.testing.assert_close(recorded(up), recorded(one), **close)
    last = "checkpoints/step-00000020/model.safetensors"
    ours, theirs = load_file(up / last), load_file(one / last)
    assert ours.keys() == theirs.keys()
    assert all(ours[key].shape == theirs[key].shape for key in ours)


def test_gradients_of_parts_add_up(place, alone):
    """Parts of a batch, and shares of parts by two processes, give the same steps."""
    parts = train(place, "parts", 1, *rate("adamw"), "--run.micro_batch", "5")
    torch.testing.assert_close(recorded(parts), recorded(alone["adamw"]), rtol=0, atol=1e-5)
    five = "--run.micro_batch", "5"
    both = train(place, "both", 2, *rate("adamw"), *five, launcher="torchrun")
    torch.testing.assert_close(recorded(both), recorded(alone["adamw"]), rtol=0, atol=1e-5)


def test_recomputed_activations_change_nothing(place, alone):
    less = train(place, "recompute", 1, *rate("adamw"), "--run.activation_checkpointing", "true")
    assert torch.equal(recorded(less), recorded(alone["adamw"]))


def test_padded_rows_are_divided_by_the_tokens_of_the_whole_batch(place):
    """Two processes hold different numbers of real tokens; the loss is still the batch's."""
    flags = [*rate("adamw"), "--data.rows", "padded", "--data.documents", "line"]
    one, two = train(place, "padded-1", 1, *flags), train(place, "padded-2", 2, *flags)
    torch.testing.assert_close(recorded(two), recorded(one), rtol=0, atol=1e-5)


def test_a_batch_that_cannot_be_shared_is_refused(place):
    with pytest.raises(AssertionError, match="31 rows cannot be shared evenly by 2 processes"):
        train(place, "odd", 2, "--training.batch_size", "31", launcher="torchrun")
    assert not (place / "odd" / "recipe.json").exists()


PARTITIONS = [*rate("adamw"), "--method.name", "pgm", "--training.batch_size", "2"]


@pytest.fixture(scope="module")
def alone_with_partitions(place):
    return train(place, "alone-pgm", 1, *PARTITIONS)


@pytest.mark.parametrize("distribution", ["ddp", "fsdp"])
def test_partitions_over_two_processes(place, alone_with_partitions, distribution):
    """Each process packs its own rows; one of them may have a group that is empty in all."""
    one, way = alone_with_partitions, ["--run.parallel", distribution]
    two = train(place, f"two-pgm-{distribution}", 2, *PARTITIONS, *way)
    close = {"rtol": 0, "atol": TOLERANCE["adamw"]}
    torch.testing.assert_close(recorded(two), recorded(one), **close)
    torch.testing.assert_close(recorded(two, "norm"), recorded(one, "norm"), rtol=1e-4, atol=1e-6)


def run_rank_that_counts(rank, processes, port, words, log):
    """One of the processes, with a line for every look at all of the text or the tokens."""
    from partita.data import documents, prepared

    def counted(function, what):
        def call(*arguments):
            with log.open("a") as stream:
                stream.write(f"{what} by {rank}\n")
            return function(*arguments)

        return call

    prepared.check_contents = counted(prepared.check_contents, "checked")
    documents.content_hash = counted(documents.content_hash, "read")
    run_rank(rank, processes, port, words, log)


def test_one_process_checks_for_all_and_if_it_refuses_nobody_goes_on(tmp_path):
    text, cache = corpus(tmp_path), tmp_path / "cache"
    assert main(["prepare", str(text), "--data.cache", str(cache)]) == 0
    words = ["-m", "partita", "train", str(text), "--data.cache", str(cache), *SMALL.split()]
    words += [*FAST.split(), "--training.steps", "1", "--out", str(tmp_path / "run")]
    by_forks(words, 2, tmp_path, run_rank_that_counts)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    looks = [line for line in lines if line.startswith(("checked by", "read by"))]
    assert looks == ["read by 0", "checked by 0", "checked by 0"]  # small files, then tokens

    [folder] = cache.iterdir()
    tokens = folder / "train" / "tokens-00000.bin"
    tokens.write_bytes(bytes(tokens.stat().st_size))
    with pytest.raises(AssertionError, match=r"tokens-00000\.bin was changed"):
        by_forks(words, 2, tmp_path, run_rank_that_counts)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("partita: ") == 1
    assert f"remove {folder}, and it is made anew" in log
