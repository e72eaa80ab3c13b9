"""Is this checkout faster or slower than another one? Both do the same work, turn by turn.

    git worktree add ../before COMMIT
    python benchmarks/against.py ../before
    python benchmarks/against.py ../before --turns 21 --only "sample pgm"
    python benchmarks/against.py ../before --device cuda

Each tree has its own process for the whole comparison, so that turns do not include its start;
shell commands start a new process each time. The order within a turn changes from turn to turn.
Printed are the median time of each tree, the median over the turns of (time there / time here),
above 1 if this checkout is faster, and a 95 % confidence interval of that median. The operator
calls of a step are counted too. Results go to benchmarks/results/against.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "benchmarks" / "results"
TOKENS = 4096
FEW = 6  # optimizer steps in a training turn
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""Freed memory stays in the process. By default glibc gives it back and takes it again or keeps it,
by what happened to run before: the same work then takes 2.1 or 2.8 seconds in either tree."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the timed work for a device."""

    width: int
    depth: int
    heads: int
    length: int
    steps: int
    """Of a sample."""
    batch: int
    """Of the larger samples, and of training."""
    precision: str


SIZES = {
    "cpu": Sizes(256, 6, 4, 128, 32, 8, "float32"),
    "cuda": Sizes(512, 8, 8, 1024, 64, 32, "bfloat16"),
}
COLD = {
    "cold --help": ["--help"],
    "cold sample": ["sample", "default", "--length", "16", "--steps", "4"],
}


# In the process of a tree -------------------------------------------------------------------------


def works(device: str) -> dict[str, Callable[[], object]]:
    """The work that is timed inside the process; it uses only names that all versions have."""
    import torch

    import partita

    torch.manual_seed(0)
    size = SIZES[device]
    options = partita.TransformerOptions(
        length=size.length, width=size.width, depth=size.depth, heads=size.heads
    )
    text = torch.randint(TOKENS, (64 * size.length,))
    found: dict[str, Callable[[], object]] = {}
    for name, method in (("mdlm", partita.MDLM), ("pgm", partita.PGM)):
        model: Any = method.build(options, TOKENS).eval()
        torch.nn.init.normal_(model.network.head.weight, std=0.02)
        for batch in (1, size.batch):
            found[f"sample {name}, batch {batch}"] = _sampling(model.to(device), batch, size)
        found[f"train {name}"] = _training(method.build(options, TOKENS).to(device), text, size)
    return found


def _sampling(model: Any, batch: int, size: Sizes) -> Callable[[], object]:  # noqa: ANN401 - of any version
    import torch

    import partita

    half = size.precision == "bfloat16"

    def work() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            partita.sample(model, batch, sampler="ordered", steps=size.steps, seed=1).cpu()

    return work


def _training(model: Any, text: Any, size: Sizes) -> Callable[[], object]:  # noqa: ANN401
    import partita

    options = partita.TrainingOptions(steps=FEW, batch_size=size.batch, precision=size.precision)
    return lambda: partita.fit(model, text, options)


def operators(work: Callable[[], object]) -> int:
    """The number of operator calls of some work."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[object] = []

    def noted(_: object, func: Any, *given: Any) -> Any:  # noqa: ANN401
        _, args, kwargs = given
        calls.append(func)
        return func(*args, **(kwargs or {}))

    counting: Any = type("Counting", (TorchDispatchMode,), {"__torch_dispatch__": noted})
    with counting():
        work()
    return len(calls)


def serve(device: str) -> None:
    """Do the work named on each line of standard input, and print its time or operator count."""
    known = works(device)
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        what, name = json.loads(line)
        if what == "count":
            print(operators(known[name]), flush=True)
            continue
        began = time.perf_counter()
        known[name]()
        print(time.perf_counter() - began, flush=True)


# In the comparing process -------------------------------------------------------------------------


class Tree:
    """A checkout, and the process that uses its library."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder.resolve()
        paths = [str(self.folder / "src"), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | KEPT | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--device", device]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.known: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.folder}: its process has ended; see the error above")
        return line

    def asked(self, what: str, name: str) -> float:
        """The seconds that some work took, or the number of operators it called."""
        if name in COLD:
            return self._cold(COLD[name])
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, name]) + "\n")
        self.process.stdin.flush()
        return float(self._line())

    def _cold(self, words: list[str]) -> float:
        began = time.perf_counter()
        command = [sys.executable, "-m", "partita", *words]
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    def commit(self) -> str:
        """The commit that is checked out."""
        words = ["git", "-C", str(self.folder), "describe", "--always", "--dirty", "--abbrev=12"]
        found = subprocess.run(words, check=False, capture_output=True, text=True)
        return found.stdout.strip() or "unknown"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Order statistics between which the median lies in at least 95 of 100 runs (binomial)."""
    ordered, count = sorted(values), len(values)
    outside, low = 0.0, 0
    while low < count // 2:
        outside += 2 * math.comb(count, low) / 2**count
        if outside > 0.05:
            break
        low += 1
    first = max(0, low - 1)
    return ordered[first], ordered[count - 1 - first]


def compared(here: Tree, there: Tree, name: str, turns: int, *, counts: bool) -> dict[str, Any]:
    """Compare one kind of work in both trees, turn by turn."""
    found: dict[str, Any] = {}
    if counts and name not in COLD:
        found["operators"] = {
            "here": here.asked("count", name),
            "there": there.asked("count", name),
        }
    for tree in (here, there):
        tree.asked("time", name)  # warm up, untimed
    seconds: dict[Tree, list[float]] = {here: [], there: []}
    for turn in range(turns):
        for tree in (here, there) if turn % 2 else (there, here):
            seconds[tree].append(tree.asked("time", name))
    ratios = [b / a for a, b in zip(seconds[here], seconds[there], strict=True)]
    low, high = median_interval(ratios)
    return found | {
        "here": seconds[here],
        "there": seconds[there],
        "ratio": statistics.median(ratios),
        "interval": [low, high],
    }


def shown(name: str, row: dict[str, Any]) -> str:
    """One line of the printed table."""
    here, there = (statistics.median(row[key]) for key in ("here", "there"))
    low, high = row["interval"]
    counts = row.get("operators")
    calls = "" if counts is None else f"{counts['there']:>10,.0f} {counts['here']:>10,.0f}"
    spread = f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return f"{name:<22} {there:>9.3f} {here:>9.3f}  {spread:<24} {calls}"


def main(words: Sequence[str] | None = None) -> None:
    """Compare the trees, print and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="another checkout of the library")
    parser.add_argument("--turns", type=int, default=9, help="how often each kind of work is timed")
    parser.add_argument("--only", default="", help="kinds of work whose names begin with this")
    parser.add_argument(
        "--out", type=Path, default=HERE / "benchmarks" / "results" / "against.json"
    )
    help_ = "where both work; operators are counted on a CPU, where none is recorded"
    parser.add_argument("--device", default="cpu", choices=sorted(SIZES), help=help_)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if chosen.serve:
        serve(chosen.device)
        return
    if chosen.other is None or not (chosen.other / "src" / "partita").is_dir():
        parser.error("name a folder with another checkout of the library")
    here, there = (Tree(folder, chosen.device) for folder in (HERE, chosen.other))
    cold = COLD if chosen.device == "cpu" else {}
    names = [name for name in [*here.known, *cold] if name.startswith(chosen.only)]
    if not names:
        parser.error(f"--only: no work begins so; there are: {', '.join([*here.known, *COLD])}")
    print(
        f"{'seconds':<22} {'there':>9} {'here':>9}  {'there / here':<24} "
        f"{'operators':>10} {'here':>10}"
    )
    rows = {}
    for name in names:
        on_cpu = chosen.device == "cpu"
        rows[name] = compared(here, there, name, chosen.turns, counts=on_cpu)
        print(shown(name, rows[name]), flush=True)
    import torch

    sys.path.insert(0, str(HERE / "src"))
    from partita.provenance import environment  # imported late, as it takes a second

    trees = {"here": here.commit(), "there": there.commit()}
    content = {
        "trees": trees,
        "rows": rows,
        "environment": environment(torch.device(chosen.device)),
    }
    chosen.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"Written: {chosen.out}")


if __name__ == "__main__":
    main()
