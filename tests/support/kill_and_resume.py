"""Kill a training run at random moments, resume it each time, compare with an uninterrupted run.

    python -m tests.support.kill_and_resume --kills 20
    python -m tests.support.kill_and_resume --kills 20 --signal TERM

Every second kill comes in the middle of writing a checkpoint, every fourth at any time, even before
the first step. The last checkpoints of both runs, weights and optimizer states, must agree in every
bit, and so must every loss in their metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

STEPS_PER_KILL = 40
CHECKPOINT_EVERY = 5
MOMENTS = ("after progress", "in a write", "any time", "in a write")
PATIENCE = 120  # seconds that a process may take to write its first checkpoint


@dataclass
class Outcome:
    """The outcome of an interrupted run."""

    kills: int = 0
    during_a_write: int = 0
    exit_codes: list[int] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def corpus(folder: Path) -> Path:
    """A text that a small model can learn something from."""
    words = ["the", "cat", "dog", "sat", "ran", "on", "to", "a", "mat", "door", "and", "then"]
    chance = random.Random(0)
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(" ".join(chance.choices(words, k=20)) for _ in range(200)))
    return path


def command(text: Path, out: Path, steps: int, extra: list[str]) -> list[str]:
    sizes = ["--network.width", "64", "--network.depth", "2", "--network.length", "32"]
    pace = ["--run.checkpoint_every", str(CHECKPOINT_EVERY), "--run.validate_every", "20"]
    rest = ["--run.log_every", "1", "--run.previews", "0", "--data.cache", str(out.parent / "t")]
    words = ["train", str(text), "--out", str(out), "--training.steps", str(steps)]
    return [sys.executable, "-m", "partita", *words, *sizes, *pace, *rest, *extra]


def start(words: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, stdout=quiet, stderr=subprocess.PIPE, env=environment)


def checkpoints(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("step-*")}


def wait_for(condition, process: subprocess.Popen[bytes]) -> bool:
    """Whether the condition came true while the process ran."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.0005)
    return False


def disturb(words: list[str], out: Path, how: signal.Signals, when: str, chance) -> int:
    """Start, wait for a random moment, kill; the exit code, 0 if the run finished."""
    process = start(words)
    if when == "any time":
        time.sleep(chance.uniform(0, 6))
    else:
        before = checkpoints(out)
        wait_for(lambda: checkpoints(out) - before, process)
        time.sleep(chance.uniform(0, 0.6))
    if when == "in a write":
        wait_for(lambda: any("partial" in name for name in checkpoints(out)), process)
        time.sleep(chance.uniform(0, 0.004))
    process.send_signal(how)
    _, errors = process.communicate(timeout=PATIENCE)
    if process.returncode not in (0, -how, 128 + how):
        raise RuntimeError(errors.decode())
    return process.returncode


def last(out: Path) -> Path:
    return max(path for path in (out / "checkpoints").glob("step-*") if "partial" not in path.name)


def losses(out: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line.get("loss", line.get("valid_bits"))) for line in lines]


def compare(calm: Path, disturbed: Path) -> list[str]:
    """The files in which two finished runs differ."""
    names = ("model.safetensors", "training.safetensors", "tokenizer.json")
    pairs = [(last(calm) / name, last(disturbed) / name) for name in names]
    found = [str(one) for one, other in pairs if one.read_bytes() != other.read_bytes()]
    return found + (["metrics.jsonl"] if losses(calm) != losses(disturbed) else [])


def experiment(
    place: Path, kills: int, *how: signal.Signals, seed: int = 0, extra: list[str] | None = None
) -> Outcome:
    """One uninterrupted run, and one that is killed so many times, by each signal in turn."""
    chance, outcome = random.Random(seed), Outcome()
    text, steps = corpus(place), STEPS_PER_KILL * (kills + 1)
    extra = extra or []
    calm, disturbed = place / "calm", place / "disturbed"
    reference = start(command(text, calm, steps, extra))
    words = command(text, disturbed, steps, extra)
    while outcome.kills < kills:
        when = MOMENTS[outcome.kills % len(MOMENTS)]
        signal_now = how[outcome.kills % len(how)]
        code = disturb(words, disturbed, signal_now, when, chance)
        if code == 0:
            break  # the run finished first; the kills so far count
        outcome.kills += 1
        outcome.exit_codes.append(code)
        outcome.during_a_write += any("partial" in name for name in checkpoints(disturbed))
        complete = [name for name in checkpoints(disturbed) if "partial" not in name]
        outcome.resumed_at.append(max((int(name[5:]) for name in complete), default=0))
    for process in (start(words), reference):
        _, errors = process.communicate(timeout=600)
        if process.returncode:
            raise RuntimeError(errors.decode())
    outcome.differences = compare(calm, disturbed)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--signal", choices=("KILL", "TERM", "INT"), default="KILL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        how = signal.Signals[f"SIG{options.signal}"]
        outcome = experiment(Path(place), options.kills, how, seed=options.seed)
    print(
        f"{outcome.kills} kills ({outcome.during_a_write} while a checkpoint was being written), "
        f"resumed at steps {outcome.resumed_at}"
    )
    print("differences:", ", ".join(outcome.differences) or "none, every bit is equal")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
