"""`partita score`: the number of bits that a model needs for given texts."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from partita.commands.parsing import MODEL, add_options, flags_of, make_parser, parse
from partita.commands.terminal import Terminal, print_json
from partita.data.blanks import require_text
from partita.errors import InputError, naming, require, require_int, require_seed
from partita.files.reading import reading
from partita.models.default import NAME
from partita.models.score import Score
from partita.models.text_model import TextModel

SHOWN = 48  # characters of a text in the table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita score`."""

    model: str
    texts: list[str]
    file: str | None = None
    """A file with a text on each line; - for standard input."""
    label: str | None = None
    """The name of the class of the texts, for models trained with classes."""
    replicates: int = 8
    """Number of independent estimates; their spread gives the error."""
    seed: int = 0
    """Seed of the random numbers."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        require_int(self.replicates, "--replicates", 2)
        require_seed(self.seed, "--seed")
        require(
            not self.texts or self.file is None,
            "--file",
            "texts are given as arguments too",
            "give one of the two",
        )
        for text in self.texts:
            require_text(text, "texts")


def options(words: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = make_parser(
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
    )
    add_options(parser, Options, model=MODEL, texts="*texts to score")
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Parse the command line and run the verb."""
    score_texts(options(words))


def score_texts(chosen: Options) -> None:
    """Load, score, print."""
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
    if any(windows_of(model, score) > 1 for score in scores):
        console.print(
            f"A text of more than {model.length} tokens is cut into windows of so many, each "
            "scored without what stands before it.",
            soft_wrap=True,
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
    bound = score.bound
    numbers = {
        "bits": score.bits,
        "bits_error": score.bits_error,
        "bits_per_character": score.bits_per_character,
        "bits_per_character_error": score.bits_per_character_error,
        "perplexity": bound.perplexity,
        "perplexity_error": bound.perplexity_error,
    }
    given = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {
        "text": text,
        "exact": model.exact,
        "windows": windows_of(model, score),
        "tokens": bound.tokens,
        "characters": score.characters,
        **given,
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
