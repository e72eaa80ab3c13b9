"""Measure the quality of the packaged model's texts under a judge, by sampling settings.

    python benchmarks/sampling_settings.py --judge runs/wikipedia-ar --grams wiki-train.txt \
        --test wiki-test.txt

Several orders and numbers of steps, at three temperatures and with the least probable tokens left
out. For comparison: texts of 5-grams, drawn likewise; the judge's bits for real text, and its
entropy in rows of the same length; the model's bits for real text from left to right. Results go to
benchmarks/results/wikipedia-sampling-settings.json, setting by setting, and to wikipedia-pgm-
order.json. Some minutes on a GPU, and minutes more for counting n-grams.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verbs import asked, keep

from partita.data.documents import Corpus
from partita.data.scored_rows import corpus_rows
from partita.evaluation.quality import entropy_nats
from partita.models.text_model import TextModel

RESULTS = Path(__file__).parent / "results"
MODEL = "default"
SETTINGS = {  # sampling settings, and numbers of steps (with `blocks`: for each block)
    "--sampler ancestral": "[64,256]",
    "--sampler ordered --options.order left-to-right": "[64,128,256]",
    "--sampler ordered --options.order strided": "[16,32,64,128]",
    "--sampler confidence --options.confidence margin": "[64,256]",
    "--sampler blocks --options.block_length 32 --options.inner ancestral": "[8,32]",
    "--sampler blocks --options.block_length 8 --options.inner ancestral": "[2,8]",
    "--sampler blocks --options.block_length 32 --options.inner confidence "
    "--options.confidence margin": "[32]",
}
DRAWN = ("--temperature 1", "--temperature 0.9", "--temperature 0.8", "--temperature 1 --top_p 0.9")
WORTH = ("judge_bits", "judge_bits_error", "entropy_nats", "entropy_nats_error")


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", required=True, help="an autoregressive model")
    parser.add_argument("--grams", required=True, help="a text whose 5-grams are counted")
    parser.add_argument("--test", required=True, help="real text")
    parser.add_argument("--samples", type=int, default=256, help="texts for each setting")
    parser.add_argument("--limit", type=int, default=100_000, help="tokens of real text to measure")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results go")
    return parser.parse_args(words)


def rows_of(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of `partita compare` for one sampling setting."""
    about = {"writer": MODEL, "sampling": said["sampling"]}
    worth = [{key: row[key] for key in ("steps", *WORTH)} for row in said["rows"]]
    return [about | row for row in worth]


def row_of_grams(said: dict[str, Any]) -> dict[str, Any]:
    """The results of `partita ngram` for texts of n-grams, under the same keys."""
    texts, nats = said["samples"], math.log(2)
    given = {key: texts[key] for key in ("temperature", "top_p") if texts[key] is not None}
    about = {"writer": "5-grams", "sampling": given, "steps": None}
    verdict = [texts["judge"][f"bits_per_character{end}"] for end in ("", "_error")]
    worth = *verdict, texts["unigram_entropy_bits"] * nats, None
    return about | dict(zip(WORTH, worth, strict=True))


def entropy_of(text: str, rows: int) -> dict[str, float]:
    """The entropy of real text in as many rows as the models write."""
    model = TextModel.from_pretrained(MODEL, device="cpu")
    corpus, length = Corpus(text, "text", "paragraph"), model.length
    found = corpus_rows(corpus, model.tokenizer, length, apart=False, limit=rows * length).tokens
    return dict(zip(WORTH[2:], entropy_nats(found.tolist()), strict=True))


def main(words: Sequence[str] | None = None) -> None:
    """Measure all sampling settings, one after the other."""
    chosen = parsed(words)
    judging = "--judge", chosen.judge, "--samples", str(chosen.samples)
    real: dict[str, Any] = entropy_of(chosen.test, chosen.samples)
    real |= asked("eval", chosen.judge, chosen.test, "--samples", "0")["likelihood"]
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"samples": chosen.samples, "test": real, "rows": rows}
    for drawn, (settings, steps) in itertools.product(DRAWN, SETTINGS.items()):
        how = *settings.split(), *drawn.split(), "--steps", steps
        said = asked("compare", MODEL, *judging, *how)
        rows += rows_of(said)
        found |= {key: said[key] for key in ("environment", "judge", "models", "seed")}
        keep(found, chosen.out / "wikipedia-sampling-settings.json")
    for drawn in DRAWN:
        how = "--tokenizer", MODEL, *drawn.split()
        rows.append(row_of_grams(asked("ngram", chosen.grams, *how, *judging)))
        keep(found, chosen.out / "wikipedia-sampling-settings.json")
    few = "--limit", str(chosen.limit), "--samples", "0", "--order", "left-to-right"
    keep(asked("eval", MODEL, chosen.test, *few), chosen.out / "wikipedia-pgm-order.json")


if __name__ == "__main__":
    main()
