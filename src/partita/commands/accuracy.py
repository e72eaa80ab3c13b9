"""`partita accuracy`: how often a model predicts hidden words, and the bits of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from partita.commands.parsing import MODEL, Shared, reader
from partita.commands.terminal import Terminal, deliver, passing_bar
from partita.data.documents import Corpus
from partita.errors import naming, require, require_ints, require_known
from partita.evaluation.cloze import answered, require_answering
from partita.evaluation.quality import load_identified
from partita.evaluation.questions import (
    Choices,
    Questions,
    blank_results,
    choice_results,
    choices,
    last_words,
    words_inside,
)
from partita.files.atomic import check_file
from partita.modalities.base import heading, spread
from partita.models.text_model import TextModel
from partita.provenance import environment

TASKS = ("last-word", "choices", "infill")
BLANKS = 1000  # the default number for infill
LEFT_ALONE = "left side alone: ar cannot see what follows"


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """Options of `partita accuracy`."""

    model: str
    file: str
    task: str
    """last-word, choices or infill."""
    count: int | None = None
    """Number of questions: the first ones of the file, by default all. infill: number of words, by
    default 1000."""
    length: int | None = None
    """Tokens of a window (infill), or of the longest passage; by default the model's length."""
    replicates: int = 8
    """Number of independent estimates of a masked model's bound."""
    batch_size: int = 32
    """Number of texts computed at a time; the results do not depend on it."""
    out: str | None = None
    """A JSON file to write the results to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known(self.task, "--task", TASKS)
        require_ints(self, "--", count=2, length=3, replicates=2, batch_size=1)
        check_file(self.out, "--out")


options = reader(
    "accuracy",
    "Measure how often a model predicts what is hidden, and the bits it needs for the answer.\n"
    "Masked models and pgm fill a blank of as many tokens as the answer has, the most certain\n"
    "first; ar predicts each token from the true ones before it. An answer is right if all of\n"
    "its tokens are. Bits are exact for ar, and upper bounds for the others.\n"
    "last-word: each line of the file is a passage, whose last word is hidden (LAMBADA).\n"
    'choices: each line is {"context": "...", "choices": ["...", "..."], "answer": 0}; the\n'
    "model chooses the one with the fewest bits, once per token and once in total.\n"
    "infill: words inside a text are hidden; the model sees both sides (ar: only the left).\n"
    "Texts longer than the model are cut at the left; answers longer than it are left out.",
    [
        "partita accuracy runs/notes-mdlm passages.txt --task last-word",
        "partita accuracy runs/notes-mdlm quiz.jsonl --task choices --json",
        "partita accuracy runs/notes-mdlm test.txt --task infill --count 500 --out infill.json",
    ],
    Options,
    model=MODEL,
    file="passages, questions, or a text",
)


def run(words: Sequence[str]) -> None:
    """Load the model, ask the questions, print the results."""
    chosen = options(words)
    with naming({"device": "--device"}):
        model, identity = load_identified(chosen.model, chosen.device)
    require_answering(model.method)
    length = chosen.length or model.length
    problem = f"{length} tokens are more than the model's {model.length}"
    require(length <= model.length, "--length", problem, "shorten it")
    console = Terminal(stderr=chosen.json)
    bar = passing_bar(console)
    with naming({"path": "file", "field": "file", "text": "file"}):
        questions = _questions(model, chosen, length)
    with bar:
        found = _answers(model, questions, chosen, bar)
    results = {
        "model": identity,
        "environment": environment(model.device),
        "seed": chosen.seed,
        "task": chosen.task,
        "file": chosen.file,
        "length": length,
        "exact": model.exact,
        **found,
    }
    deliver(console, results, _table, chosen.out, as_json=chosen.json)


def _questions(model: TextModel, chosen: Options, length: int) -> Questions | Choices:
    if chosen.task == "choices":
        return choices(Path(chosen.file), model.tokenizer, length, chosen.count)
    data = model.recipe.data
    corpus = Corpus(chosen.file, data.field, data.documents)
    if chosen.task == "last-word":
        return last_words(corpus, model.tokenizer, length, chosen.count)
    return words_inside(corpus, model.tokenizer, length, chosen.count or BLANKS, chosen.seed)


def _answers(
    model: TextModel, questions: Questions | Choices, chosen: Options, bar: Progress
) -> dict[str, Any]:
    fill = isinstance(questions, Questions)
    blanks = questions.blanks
    task = bar.add_task(chosen.task, total=len(blanks) * (2 if fill else 1))
    answers = answered(
        model.method,
        blanks,
        fill=fill,
        replicates=chosen.replicates,
        batch_size=chosen.batch_size,
        seed=chosen.seed,
        progress=lambda count: bar.advance(task, count),
    )
    if isinstance(questions, Choices):
        results = choice_results(answers, questions)
    else:
        results = blank_results(answers, blanks)
    both = chosen.task == "infill" and not model.exact
    return {
        "cut": questions.cut,
        "left_out": questions.left_out,
        "sees": "both sides" if both else "left side",
        **results,
    }


def _table(results: dict[str, Any]) -> Table:
    shown = Table("", "", show_header=False)
    cut = f", {results['cut']} texts cut at the left" if results["cut"] else ""
    cut += f", {results['left_out']} too long and left out" if results["left_out"] else ""
    shown.add_row(heading(results["task"]), results["file"])
    shown.add_row("questions", f"{results['count']}{cut}")
    if results["task"] == "infill" and results["exact"]:
        shown.add_row("in view", LEFT_ALONE)
    if results["task"] == "choices":
        shown.add_row("chance", f"{results['chance']:.1%}")
        for name, key in (("by bits per token", "accuracy"), ("by all bits", "accuracy_raw")):
            shown.add_row(f"accuracy {name}", spread(results, key, ".1%"))
    else:
        shown.add_row("accuracy", spread(results, "accuracy", ".1%"))
    add_bits(shown, results, "" if results["exact"] else "at most ")
    return shown


def add_bits(shown: Table, results: dict[str, Any], how: str = "", where: str = "") -> None:
    """Add the bits of the true answers to the table."""
    bits, draws = spread(results, "bits_per_answer", ".3f"), results["bits_per_answer_draws_error"]
    drawn = f" (± {draws:.3f} by the draws)" if draws else ""
    shown.add_row(f"bits per answer{where}", f"{how}{bits}{drawn}")
    shown.add_row("tokens per answer", f"{results['tokens_per_answer']:.2f}")
    shown.add_row(f"bits per token{where}", f"{how}{results['bits_per_token']:.3f}")
