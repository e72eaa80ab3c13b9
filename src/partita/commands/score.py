"""`partita score`: the number of bits that a model needs for given texts."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from partita.commands.parsing import MODEL, Shared, flags_of, reader
from partita.commands.terminal import Terminal, print_json
from partita.data.blanks import require_text
from partita.errors import InputError, naming, require, require_int
from partita.files.reading import reading
from partita.models.default import NAME
from partita.models.score import Score
from partita.models.text_model import TextModel

SHOWN = 48  # characters of a text in the table


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """Options of `partita score`."""

    model: str
    texts: list[str]
    file: str | None = None
    """A file with a text on each line; - for standard input."""
    label: str | None = None
    """The name of the class of the texts, for models trained with classes."""
    replicates: int = 8
    """Number of independent estimates; their spread gives the error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.replicates, "--replicates", 2)
        one = not self.texts or self.file is None
        require(one, "--file", "texts are given as arguments too", "give one of the two")
        for text in self.texts:
            require_text(text, "texts")


options = reader(
    "score",
    "Print an upper bound of the number of bits that a model needs for each text. For an\n"
    "autoregressive model the number is exact. Texts are arguments, or the lines of a file\n"
    "(- for standard input). A text longer than the model is cut into windows, each scored\n"
    "without the text before it. For a model that decides where texts end (flexmdm), an empty\n"
    "text has bits too, but none per character or token.",
    [
        "partita score default 'It flows into the North Sea.' 'It sea flows the into North.'",
        "partita score runs/notes-mdlm 'a likely text' 'xq zzv'",
        "partita score runs/notes-mdlm --file candidates.txt --json",
    ],
    Options,
    model=MODEL,
    texts="*texts to score",
)


def run(words: Sequence[str]) -> None:
    """Load, score, print."""
    chosen = options(words)
    texts = chosen.texts if chosen.file is None else read_lines(chosen.file)
    remedy = f"give some after the model (partita score {NAME} 'a text'), or --file"
    problem = f"there are none beside {chosen.model!r}, which is taken for the model"
    require(bool(texts), "texts", problem, remedy)
    source = "texts" if chosen.file is None else "--file"
    with naming(flags_of(Options, "model", "texts") | {"text": source}):
        model = TextModel.from_pretrained(chosen.model, device=chosen.device)
        full = model.flexible or all(texts)
        require(full, "texts", "one of them is empty", "leave it out")
        scores = model.score(
            texts, label=chosen.label, replicates=chosen.replicates, seed=chosen.seed
        )
    if chosen.json:
        print_json([as_json(model, *pair) for pair in zip(texts, scores, strict=True)])
        return
    console = Terminal()
    console.print(table(texts, scores, exact=model.exact))
    if not model.exact:
        console.say("± is the standard error of the estimate; more --replicates make it smaller.")
    if any(windows_of(model, score) > 1 for score in scores):
        console.say(
            f"A text of more than {model.length} tokens is cut into windows of so many, each "
            "scored without what stands before it."
        )


def read_lines(name: str) -> list[str]:
    """The lines of a file that are not empty."""
    path = Path(name)
    shown = "standard input" if name == "-" else name
    with reading(path, "--file"):
        if name != "-":
            require(path.exists(), "--file", f"{path} does not exist", "name a text file")
        try:
            text = sys.stdin.read() if name == "-" else path.read_text(encoding="utf-8")
            text.encode()  # standard input may contain surrogates
        except UnicodeError as error:
            raise InputError("--file", f"{shown} is not UTF-8 text", "convert it first") from error
    lines = [line for line in text.splitlines() if line]
    require(bool(lines), "--file", f"{shown} holds no text", "write a text on each line")
    return lines


def windows_of(model: TextModel, score: Score) -> int:
    """Number of windows in which a text was scored."""
    return max(math.ceil(score.bound.tokens / model.length), 1)


def as_json(model: TextModel, text: str, score: Score) -> dict[str, object]:
    """One score as JSON; null for what an empty text does not have."""
    owners = {"bits": score, "bits_per_character": score, "perplexity": score.bound}
    numbers = {
        name: getattr(owner, name)
        for number, owner in owners.items()
        for name in (number, f"{number}_error")
    }
    return {
        "text": text,
        "exact": model.exact,
        "windows": windows_of(model, score),
        "tokens": score.bound.tokens,
        "characters": score.characters,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
    }


def table(texts: list[str], scores: list[Score], *, exact: bool) -> Table:
    """The scores as a table."""
    bits = f"bits ({'exact' if exact else 'at most'})"
    result = Table("text", bits, "bits per character", "perplexity per token")
    for text, score in zip(texts, scores, strict=True):
        bound = score.bound
        shown = text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
        result.add_row(
            shown,
            f"{score.bits:.1f} ± {score.bits_error:.1f}",
            _spread(score.bits_per_character, score.bits_per_character_error, 3),
            _spread(bound.perplexity, bound.perplexity_error, 2),
        )
    return result


def _spread(value: float, error: float, digits: int) -> str:
    return "none" if math.isnan(value) else f"{value:.{digits}f} ± {error:.{digits}f}"
