"""Which tokens should be drawn together? Texts of the packaged model, judged by 5-grams.

    python benchmarks/strides.py wiki-train.txt

In equally many steps, the tokens that are revealed together are chosen at random (the sampler
`ancestral`) or lie far apart (`ordered`, order "strided"). Measured are the bits per character
under the 5-grams of the text, and the entropy of a text's tokens. Half an hour without a GPU;
results go to benchmarks/results/strides-cpu.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verbs import keep

from partita.data.documents import Corpus
from partita.data.scored_rows import token_stream
from partita.errors import InputError
from partita.evaluation.quality import entropy_nats, written
from partita.files import format
from partita.likelihood.bounds import standard_error
from partita.models.default import WEIGHTS
from partita.models.text_model import TextModel
from partita.provenance import environment
from partita.studies.ngram import NGram

RESULTS = Path(__file__).parent / "results"
TOKENS_OF_A_GRAM = 5
SEED = 0
SETTINGS: dict[str, dict[str, Any]] = {
    "ancestral": {"sampler": "ancestral"},
    "strided": {"sampler": "ordered", "order": "strided"},
}


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", help="a text whose 5-grams are counted")
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--samples", type=int, default=64, help="texts for each measurement")
    parser.add_argument("--length", type=int, help="tokens of a text; the model's unless given")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "strides-cpu.json")
    chosen = parser.parse_args(words)
    if min(chosen.steps) < 1 or chosen.samples < 2:
        parser.error("--steps must be 1 or more, --samples 2 or more")
    return chosen


def grams_of(model: TextModel, text: str) -> NGram:
    """The n-gram model of a text in the model's tokens."""
    corpus = Corpus(text, model.recipe.data.field, model.recipe.data.documents)
    tokens = token_stream(corpus, model.tokenizer).tokens
    return NGram.train(tokens, model.tokenizer.vocab_size, TOKENS_OF_A_GRAM)


def texts_of(model: TextModel, samples: int, length: int | None, how: dict[str, Any]) -> list[str]:
    """`samples` texts, written in batches."""

    def write(count: int, first: int) -> list[str]:
        return model.sample(count, length=length, seed=SEED, first=first, **how)

    return written(samples, write)


def judged(grams: NGram, model: TextModel, texts: list[str]) -> dict[str, float]:
    """The bits of texts under the n-gram model, and their entropy."""
    ids = [np.array(model.tokenizer.encode(text)) for text in texts]
    nats = [grams.stream_nats(row) / len(text) for row, text in zip(ids, texts, strict=True)]
    bits = torch.tensor(nats, dtype=torch.float64) / math.log(2)
    entropy, error = entropy_nats([row.tolist() for row in ids])
    return {
        "bits": float(bits.mean()),
        "bits_error": standard_error(bits),
        "entropy_nats": entropy,
        "entropy_nats_error": error,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure both orders in every number of steps."""
    chosen = parsed(words)
    model = TextModel.from_pretrained("default", device="cpu")
    try:
        grams = grams_of(model, chosen.text)
    except InputError as error:
        raise SystemExit(str(error)) from None
    rows: list[dict[str, Any]] = []
    for steps, (name, settings) in itertools.product(chosen.steps, SETTINGS.items()):
        how = settings | {"steps": steps, "temperature": chosen.temperature}
        found = judged(grams, model, texts_of(model, chosen.samples, chosen.length, how))
        rows.append({"sampling": name, "steps": steps} | found)
        print(f"{name}, {steps} steps: {found['bits']:.3f} ± {found['bits_error']:.3f}", flush=True)
    about = {
        "model": {"sha256": format.verify(WEIGHTS)[format.WEIGHTS]},
        "grams": Path(chosen.text).name,
        "samples": chosen.samples,
        "length": chosen.length or model.length,
        "temperature": chosen.temperature,
        "seed": SEED,
    }
    keep({"environment": environment(model.device)} | about | {"rows": rows}, chosen.out)


if __name__ == "__main__":
    main()
