"""`partita bench`: the speed of sampling and training on this machine, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from partita.commands import NOTHING_SAVED
from partita.commands.parsing import reader
from partita.commands.terminal import Terminal, print_json, save_json, telling
from partita.devices import choose_device
from partita.errors import (
    leaves,
    naming,
    require,
    require_int,
    require_ints,
    require_known,
    require_once,
)
from partita.execution.choice import check_speed
from partita.files.atomic import check_file
from partita.networks.kind_options import KindOptions
from partita.networks.kinds import options_for
from partita.networks.options import TransformerOptions
from partita.plotting import require_plots
from partita.provenance import environment
from partita.studies.contestants import sampling_contestants, training_contestants
from partita.studies.growth import AXES, draw_growth, grown
from partita.studies.speed import Speed, race

SUBJECTS = ("sampling", "training", "growth")
USUAL = SUBJECTS[:2]
SPEEDS = ("eager", "cudagraph", "compile")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita bench`."""

    subjects: list[str]
    network: TransformerOptions = TransformerOptions(  # noqa: RUF009 - frozen
        length=512, width=256, depth=12, heads=4
    )
    vocabulary: int = 8192
    """Number of tokens."""
    batch_size: int = 8
    """Number of sequences in a batch; when training, for rows of network.length."""
    steps: int = 64
    """Steps of each sampler."""
    lengths: list[int] = field(default_factory=lambda: [512, 2048])
    """Row lengths to train with; every batch has as many tokens as one at network.length."""
    speeds: list[str] | None = None
    """Some of eager, cudagraph, compile. By default eager on a CPU, and all of them on a GPU
    (for growth, only compile)."""
    growth_lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048, 4096, 8192])
    """Lengths to sample at; batch size and steps as above. An empty list leaves an axis out."""
    growth_batches: list[int] = field(default_factory=lambda: [1, 4, 16, 64, 256])
    """Batch sizes to sample with; length and steps as above."""
    growth_steps: list[int] = field(default_factory=lambda: [16, 64, 256, 1024])
    """Numbers of steps; length and batch size as above."""
    turns: int = 3
    """How often each entry is timed; the median is reported."""
    flops: bool = False
    """Count floating-point operations too (one more turn for each)."""
    threads: int | None = None
    """Number of CPU threads; by default all."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: str | None = None
    """A JSON file to write the results to, table by table."""
    picture: str | None = None
    """A PNG file to draw growth in."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        for subject in self.subjects:
            require_known(subject, "subjects", SUBJECTS)
        require_ints(self, "--", batch_size=1, steps=1, turns=1, vocabulary=2, threads=1)
        for name in ("lengths", *(f"growth_{axis}" for axis in AXES)):
            numbers: list[int] = getattr(self, name)
            optional = name.startswith("growth")
            require(optional or bool(numbers), f"--{name}", "is empty", "give at least one")
            for number in numbers:
                require_int(number, f"--{name}")
        require(self.speeds != [], "--speeds", "is empty", f"known: {', '.join(SPEEDS)}")
        for speed in self.speeds or ():
            check_speed(speed, "--speeds", SPEEDS)
        require_once(self.subjects, "subjects")
        require_once(self.speeds or [], "--speeds")
        grows = "growth" in self.subjects
        some = any(getattr(self, f"growth_{axis}") for axis in AXES)
        require(some or not grows, "subjects", "growth has no axis left", "give one some numbers")
        problem = "draws growth, which is not measured"
        require(self.picture is None or grows, "--picture", problem, "add the subject growth")
        self.partition.check(self.network)
        check_file(self.out, "--out")
        check_file(self.picture, "--picture", ".png")
        if self.picture is not None:
            require_plots("--picture")

    @property
    def partition(self) -> KindOptions:
        """PGM's network options; MDLM's network ignores those that it does not have."""
        return options_for(self.network, "groups")


options = reader(
    "bench",
    "Time sampling and training with random weights on this machine. MDLM and PGM of equal\n"
    "depth take turns, so that whatever else the machine does slows all of them alike.\n\n"
    "sampling  MDLM's ancestral sampler, which predicts only tokens that are revealed,\n"
    "          against PGM's ancestral one and its fixed-count one (the paper's algorithm 1)\n"
    "training  steps of MDLM, MDLM with complementary masking and PGM, at each of\n"
    "          --lengths\n"
    "growth    how the time to sample grows with length, batch and steps, one at a time (the\n"
    "          largest of the default numbers need a GPU, or a night)\n\n"
    "Speeds: eager runs step by step; cudagraph replays recorded steps (in training: only on\n"
    "a GPU, and only if the loss does not wait for it); compile also compiles the network's\n"
    "blocks (in training: it also uses a loss that never holds all logits).\n"
    "Numbers are bfloat16 on a GPU and float32 on a CPU.\n\n"
    "The column relative is the speed divided by that of the table's first line. The first\n"
    "run includes compiling, which needs a C++ compiler, and recording. On a GPU, the table\n"
    "has the peak memory of tensors and of the process, including the first run. On a known\n"
    "GPU, it also has the least work that is needed, as a share of the peak rates in its data\n"
    "sheet.",
    [
        "partita bench",
        "partita bench sampling --steps 16 --flops true",
        "partita bench sampling --speeds '[eager,cudagraph]'",
        "partita bench training --lengths '[1024]' --network.width 512 --network.heads 8",
        "partita bench --device cuda --network.width 768 --network.heads 12 --out speed.json",
        "partita bench growth --growth_lengths '[64,128,256]' --growth_batches '[]' "
        "--growth_steps '[]' --picture growth.png",
    ],
    Options,
    subjects="*sampling, training, growth; by default the first two",
)


def run(words: Sequence[str]) -> None:
    """Measure, print, save."""
    chosen = options(words)
    with naming({"device": "--device"}):
        device = choose_device(chosen.device)
    alone = chosen.speeds == ["cudagraph"] and "training" in (chosen.subjects or USUAL)
    problem, remedy = "steps of training are captured on a GPU alone", "add eager or compile"
    require(device.type == "cuda" or not alone, "--speeds", problem, f"{remedy}, or name subjects")
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    console = Terminal(stderr=chosen.json)
    facts = environment(device)
    results: dict[str, Any] = {"environment": facts, "options": asdict(chosen)}
    console.print(f"{facts['device']}, torch {facts['torch']}, {facts['date']}")
    try:
        _measure(chosen, device, console, results)
    except KeyboardInterrupt as error:
        measured = any(results.get(subject) for subject in chosen.subjects or USUAL)
        kept = chosen.out is not None and measured
        leaves(error, f"the tables until now are in {chosen.out}" if kept else NOTHING_SAVED)
        raise
    if chosen.picture is not None:
        draw_growth(results, Path(chosen.picture))
        console.say(f"{chosen.picture}: growth as curves")
    if chosen.json:
        print_json(results, indent=1)
    if chosen.out is not None:
        console.say(f"Written to {chosen.out}")


def _measure(
    chosen: Options, device: torch.device, console: Terminal, results: dict[str, Any]
) -> None:
    """Fill in the results, and show each table when it is ready."""
    for subject in chosen.subjects or USUAL:
        with telling(console, subject) as tell:
            results[subject] = {}
            for title, speeds in _measured(subject, chosen, device, tell):
                results[subject][title] = [speed.to_dict() for speed in speeds]
                console.print(_table(title, speeds))
                save_json(results, chosen.out)  # so that finished tables survive a stop


def _measured(
    subject: str, chosen: Options, device: torch.device, tell: Callable[[str], None]
) -> Iterator[tuple[str, list[Speed]]]:
    """Yield the tables of one subject, each when it is ready."""
    network, rows = chosen.network, chosen.batch_size
    slow = device.type == "cpu" or chosen.partition.aggregates
    usual = ["eager"] if slow else [*SPEEDS]
    speeds = tuple(chosen.speeds or usual)
    race_options: dict[str, Any] = {
        "turns": chosen.turns,
        "count_flops": chosen.flops,
        "progress": lambda text: tell(f"{subject}: {text}"),
    }
    if subject == "sampling":
        sizes: dict[str, Any] = {"batch_size": rows, "steps": chosen.steps, "speeds": speeds}
        entrants = sampling_contestants(network, chosen.vocabulary, device, **sizes)
        title = f"Sampling {rows} x {network.length} tokens in {chosen.steps} steps"
        yield title, race(entrants, device, **race_options)
    elif subject == "growth":
        for axis in AXES:
            numbers = getattr(chosen, f"growth_{axis}")
            fixed = {"batches": rows, "steps": chosen.steps}
            measured = tuple(chosen.speeds or usual[-1:])
            setting = network, chosen.vocabulary, device, fixed, measured
            yield from grown(axis, numbers, *setting, **race_options)
    else:
        trained = tuple(x for x in speeds if device.type == "cuda" or x != "cudagraph")
        for length in chosen.lengths:
            batch = max(1, rows * network.length // length)
            longer = replace(network, length=length)
            entrants = training_contestants(
                longer, chosen.vocabulary, device, batch_size=batch, speeds=trained
            )
            yield f"Training on {batch} x {length} tokens", race(entrants, device, **race_options)


def _table(title: str, speeds: list[Speed]) -> Table:
    """A table of speeds, relative to the first one."""
    optional = {
        "GFLOP": [_shown(s.flops, 1e-9, ",.3g") for s in speeds],
        "first run, s": [_shown(s.first, 1, ",.1f") for s in speeds],
        "peak, GB": [_shown(s.peak_bytes, 1e-9, ",.1f") for s in speeds],
        "reserved, GB": [_shown(s.reserved_bytes, 1e-9, ",.1f") for s in speeds],
        "of matrix rate": [_shown(s.shares.get("of_matrix_rate"), 1, ".0%") for s in speeds],
        "of bandwidth": [_shown(s.shares.get("of_bandwidth"), 1, ".0%") for s in speeds],
    }
    columns = {name: cells for name, cells in optional.items() if any(cells)}
    table = Table(title=title)
    table.add_column("")
    for column in ("tokens/s", "relative", *columns):
        table.add_column(column, justify="right")
    for index, speed in enumerate(speeds):
        rate, first = speed.tokens_per_second, speeds[0].tokens_per_second
        more = [cells[index] for cells in columns.values()]
        table.add_row(speed.name, f"{rate:,.0f}", f"{rate / first:.2f}", *more)
    return table


def _shown(value: float | None, unit: float, style: str) -> str:
    return f"{value * unit:{style}}" if value else ""
