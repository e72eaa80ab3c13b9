"""`partita compare`: quality of models' texts against the number of sampling steps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from partita.commands.parsing import reader
from partita.commands.sample import SamplingFlags
from partita.commands.terminal import Terminal, passing_bar, print_json, save_json
from partita.errors import naming, require, require_int, require_ints, require_once
from partita.evaluation.quality import (
    BATCH,
    Identified,
    entropy_nats,
    judged,
    load_identified,
    load_judge,
    written,
)
from partita.execution.choice import check_speed
from partita.files.atomic import check_file
from partita.models.saved import tokenizer_files
from partita.models.text_model import TextModel
from partita.plotting import require_plots
from partita.provenance import environment
from partita.samplers.front import options_of
from partita.schedules import make_schedule
from partita.studies.steps import EqualQuality, Quality, draw_comparison, equal_quality, revealed


@dataclass(frozen=True, kw_only=True)
class Options(SamplingFlags):
    """Options of `partita compare`."""

    models: list[str]
    judge: str
    """An autoregressive model that judges the texts."""
    steps: list[int] = field(default_factory=lambda: [4, 8, 16, 32, 64, 128])
    """Numbers of sampling steps."""
    schedules: list[str] | None = None
    """Schedules of sampling, for example [linear,cosine]: how many tokens each step reveals. By
    default each model's own."""
    samples: int = 64
    """Texts for each model and number of steps."""
    length: int | None = None
    """Tokens of a text; the model's length unless given."""
    batch_size: int = BATCH
    """Number of texts written at a time. It changes tokens per second, but not the texts."""
    speed: str = "auto"
    """eager, cudagraph, compile or auto: as for partita sample."""
    picture: str | None = None
    """A PNG file to draw the curves in."""
    out: str | None = None
    """A JSON file to write the results to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.models), "models", "none is given", "name one or more")
        require_once(self.models, "models")
        require(bool(self.steps), "--steps", "is empty", "give a list such as [8,64]")
        for steps in self.steps:
            require_int(steps, "--steps")
        require(self.schedules != [], "--schedules", "is empty", "give a list such as [cosine]")
        with naming({"schedule": "--schedules"}):
            for schedule in self.schedules or ():
                make_schedule(schedule)
        require_once(self.schedules or [], "--schedules")
        require_ints(self, "--", samples=2, length=1, batch_size=1)
        check_speed(self.speed, "--speed")
        same = self.picture is not None and self.picture == self.out
        require(not same, "--picture", "is the same file as --out", "name another")
        require_once(self.steps, "--steps")
        check_file(self.picture, "--picture", ".png")
        check_file(self.out, "--out")
        if self.picture is not None:
            require_plots("--picture")


options = reader(
    "compare",
    "Let models write texts in few steps and in many, and score them with a judge (an\n"
    "autoregressive model of yours, trained on the same kind of text). Texts that repeat\n"
    "themselves need few bits under a judge too: look at the entropy of their tokens as well.\n"
    "\n"
    "tokens/s are those of the median batch, without the first, which may compile its steps.\n"
    "With several models, the speed of the others at the quality of the first is printed\n"
    "below the table. Bits between two numbers of steps are interpolated, so give several\n"
    "numbers of steps, and many --samples.",
    [
        "partita compare runs/notes-mdlm runs/notes-mdlm-sdtt --judge runs/judge",
        "partita compare runs/a runs/b --judge runs/judge --steps '[8,64]' --samples 256",
        "partita compare runs/a --judge runs/judge --picture steps.png --out steps.json",
        "partita compare runs/a --judge runs/judge --schedules '[linear,cosine]'",
        "partita compare runs/a runs/b --judge runs/judge --temperature 0.8",
    ],
    Options,
    models="*run folders, checkpoints, exported models or hf:OWNER/NAME",
)


def run(words: Sequence[str]) -> None:
    """Load the models, write and judge texts, print the results."""
    chosen = options(words)
    with naming({"device": "--device"}):
        models = {name: load_identified(name, chosen.device) for name in chosen.models}
        for name, (model, _) in models.items():
            known = "steps" in options_of(model.method)  # type: ignore[arg-type]
            problem = f"{name} has no sampler with a number of steps"
            require(known, "models", problem, "leave it out")
    examiner = load_judge(chosen.judge, chosen.device)
    console = Terminal(stderr=chosen.json)
    bar = passing_bar(console)
    rows: list[Quality] = []
    schedules: list[str | None] = [None] if chosen.schedules is None else [*chosen.schedules]
    settings = [*itertools.product(models, schedules, chosen.steps)]
    with bar, naming(chosen.names() | {"schedule": "--schedules"}):
        task = bar.add_task("", total=len(settings) * chosen.samples)
        for name, schedule, steps in settings:
            called = name if schedule is None else f"{name}, {schedule}"
            bar.update(task, description=f"{called}, {steps} steps")
            if not console.animates:
                console.say(f"{called}, {steps} steps")
            how = chosen.given() | {"steps": steps}
            how |= {} if schedule is None else {"schedule": schedule}
            rows.append(_quality(called, models[name][0], examiner, how, chosen, bar))
    first, *others = [[*own] for _, own in itertools.groupby(rows, attrgetter("model"))]
    beside = [found for other in others for found in equal_quality(other, first)]
    tokenizers = [model.tokenizer for model, _ in models.values()]
    if len({(each.vocab_size, repr(tokenizer_files(each))) for each in tokenizers}) > 1:
        console.print(
            "The models have different tokenizers: their entropies and tokens/s cannot be compared."
        )
    results = {
        "environment": environment(next(iter(models.values()))[0].device),
        "models": {name: identity for name, (_, identity) in models.items()},
        "judge": examiner[1],
        "samples": chosen.samples,
        "batch_size": chosen.batch_size,
        "speed": chosen.speed,
        "seed": chosen.seed,
        "sampling": chosen.given(),
        "revealed": {
            schedule: {steps: revealed(schedule, steps) for steps in chosen.steps}
            for schedule in chosen.schedules or ()
        },
        "rows": [vars(row) for row in rows],
        "equal_quality": [vars(found) for found in beside],
    }
    if chosen.json:
        print_json(results)
    else:
        console.print(_table(rows))
        for line in _sentences(beside):
            console.say(line)
    if chosen.out is not None:
        save_json(results, chosen.out)
        console.say(f"Written to {chosen.out}")
    if chosen.picture is not None:
        draw_comparison(rows, Path(chosen.picture))
        console.say(f"{chosen.picture}: the same as a picture")


def _quality(
    name: str,
    model: TextModel,
    examiner: Identified,
    how: dict[str, Any],
    chosen: Options,
    bar: Progress,
) -> Quality:
    """The quality of a model's texts at one number of steps."""

    seconds: list[float] = []  # per text, for each batch

    def write(count: int, first: int) -> list[str]:
        began = time.monotonic()
        more = how | {"seed": chosen.seed, "first": first, "speed": chosen.speed}
        texts = model.sample(count, length=chosen.length, **more)
        seconds.append((time.monotonic() - began) / count)
        return texts

    def advance(count: int) -> None:
        bar.advance(bar.task_ids[0], count)

    texts = written(chosen.samples, write, advance, chosen.batch_size)
    warm = seconds[1:] or seconds  # the first batch includes capture and compilation
    ids = [model.tokenizer.encode(text) for text in texts]
    entropy, error = entropy_nats(ids)
    verdict = judged(*examiner, texts)
    return Quality(
        model=name,
        steps=how["steps"],
        judge_bits=verdict["bits_per_character"],
        judge_bits_error=verdict["bits_per_character_error"],
        entropy_nats=entropy,
        entropy_nats_error=error,
        tokens_per_second=statistics.fmean(map(len, ids)) / statistics.median(warm),
    )


def _sentences(found: Sequence[EqualQuality]) -> list[str]:
    """The comparison in words, a line for each."""
    lines = []
    for e in found:
        beside = f"{e.other} in {e.steps} steps"
        if e.times is None:
            lines.append(f"{e.model} does not get as good as {beside}.")
        elif e.better:
            lines.append(
                f"{e.model} is better in its fewest steps than {beside}: at least {e.times:.2f} "
                "times as fast."
            )
        else:
            between = ""
            if e.low is not None and e.high is not None:
                between = f" ({e.low:.2f} to {e.high:.2f} within the errors of the bits)"
            lines.append(f"As good as {beside}, {e.model} is {e.times:.2f} times as fast{between}.")
    return lines


def _table(rows: list[Quality]) -> Table:
    table = Table()
    table.add_column("model", overflow="fold")  # truncated names may look alike
    for column in ("steps", "judge's bits per character", "entropy in nats", "tokens/s"):
        table.add_column(column, justify="right")
    for before, row in zip([None, *rows], rows, strict=False):
        new = before is None or before.model != row.model
        table.add_row(
            row.model if new else "",
            str(row.steps),
            f"{row.judge_bits:.3f} ± {row.judge_bits_error:.3f}",
            f"{row.entropy_nats:.3f} ± {row.entropy_nats_error:.3f}",
            f"{row.tokens_per_second:,.0f}",
            end_section=row.steps == rows[-1].steps and row is not rows[-1],
        )
    return table
