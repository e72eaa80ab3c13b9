"""`partita report`: what a trained genmd4 or sedd has learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.commands.parsing import MODEL, Shared, flags_of, reader
from partita.commands.terminal import Terminal, print_json
from partita.data.documents import Corpus
from partita.data.scored_rows import corpus_rows
from partita.errors import InputError, naming, require, require_ints
from partita.files.atomic import check_file
from partita.methods import SEDD, GenMD4
from partita.models.text_model import TextModel
from partita.plotting import NO_PLOTS, can_plot, require_plots
from partita.studies.consistency import consistency_table, plot_consistency, score_consistency
from partita.studies.schedules import draw_schedules, extremes, schedule_table

SCHEDULES, CONSISTENCY = "schedules.png", "consistency.png"


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """Options of `partita report`."""

    model: str
    file: str | None = None
    count: int = 10
    """genmd4: how many of the first and of the last tokens to list."""
    limit: int = 20_000
    """Read at most about this many tokens of the file."""
    out: str | None = None
    """A PNG file for the picture. By default schedules.png or consistency.png in this folder, or,
    without matplotlib, no picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_ints(self, "--", count=1, limit=1)
        check_file(self.out, "--out")
        if self.out is not None:
            require_plots("--out")


options = reader(
    "report",
    "Report what a trained method has learned, as a table and a picture.\n"
    "genmd4: the learned schedules of the tokens that are revealed first and last. Give the\n"
    "training text to list only its tokens: the schedules of others were not trained.\n"
    "sedd: how much the sums of its scores on a text differ from those of a distribution.",
    [
        "partita report runs/notes-genmd4 notes.txt",
        "partita report runs/notes-sedd test.txt --out sums.png",
    ],
    Options,
    model=MODEL,
    file="?a text: required for sedd; for genmd4, only tokens of this text are listed",
)


def run(words: Sequence[str]) -> None:
    """Load the model, compute its report, draw it, print it."""
    chosen = options(words)
    with naming(flags_of(Options, "model", "file")):
        model = TextModel.from_pretrained(chosen.model, device=chosen.device)
    method = model.method
    if isinstance(method, GenMD4):
        facts, shown = _schedules(method, model, chosen), SCHEDULES
    elif isinstance(method, SEDD):
        facts, shown = _consistency(method, model, chosen), CONSISTENCY
    else:
        name = model.recipe.method.name
        raise InputError("model", f"{name} has nothing to report", "genmd4 and sedd have")
    if chosen.json:
        print_json(facts)
    console = Terminal(stderr=chosen.json or not can_plot())
    if not can_plot():
        console.say(f"No {shown} is drawn: {NO_PLOTS}")
    elif not chosen.json:
        console.say(f"Wrote {chosen.out or shown}")


def _schedules(method: GenMD4, model: TextModel, chosen: Options) -> dict[str, Any]:
    """The smallest and largest exponents as a table; alpha(t) of some of them as a picture."""
    among = None if chosen.file is None else set(_tokens(model, chosen)[0].flatten().tolist())
    found = extremes(method, model.tokenizer, chosen.count, among)
    if not chosen.json:
        console = Terminal()
        console.print("alpha(t) = 1 - t^w: a large w is revealed early, a small one late")
        console.print(schedule_table(found))
    if can_plot():
        draw_schedules(method, found, chosen.out or SCHEDULES)
    return asdict(found)


def _tokens(model: TextModel, chosen: Options) -> tuple[Tensor, Tensor]:
    """The text's tokens as rows, and which of them are not padding."""
    if chosen.file is None:
        raise InputError("file", "sedd's report needs a text to mask", "give one")
    data = model.recipe.data
    with naming({"path": "file", "field": "file", "text": "file"}):
        corpus = Corpus(chosen.file, data.field, data.documents)
        tokens, real, *_ = corpus_rows(
            corpus, model.tokenizer, model.length, apart=False, limit=chosen.limit
        )
    return tokens, real


def _consistency(method: SEDD, model: TextModel, chosen: Options) -> dict[str, Any]:
    """Sums of scores against alpha / (1 - alpha), at every time."""
    problem = "its noise is uniform: there are no masks whose scores have a known sum"
    require(method.graph.mask_id is not None, "model", problem, "sedd's is absorbing")
    tokens, real = _tokens(model, chosen)
    rows = score_consistency(
        method, tokens.to(model.device), is_token=real.to(model.device), seed=chosen.seed
    )
    if not chosen.json:
        print("sums of scores at masks, divided by alpha / (1 - alpha): 1 for any distribution")
        print(consistency_table(rows))
    if can_plot():
        plot_consistency(rows, Path(chosen.out or CONSISTENCY))
    return {"consistency": [asdict(row) for row in rows]}
