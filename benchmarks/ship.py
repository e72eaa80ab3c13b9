"""Put a trained model into the package, as the default model of every installation.

    python benchmarks/ship.py runs/wikipedia-pgm
    python benchmarks/report.py

The weights are rounded to bfloat16, and the recipe gets the default sampling settings. The model
card, README.md, is made from measurements by `report.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from partita.config.sampling import SamplingOptions
from partita.models.default import WEIGHTS
from partita.models.text_model import TextModel

MOST = 25_000_000  # the most bytes of the folder, which every clone contains
SAMPLING = SamplingOptions(sampler="ordered", temperature=0.8, options={"order": "strided"})
"""Default sampling: one token after the other from left to right, which a judge finds far better
than random order, at a lower temperature, for less variety and fewer errors. In fewer steps it
still draws no neighbors together."""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run folder or a model")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where it goes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Replace the model in the package."""
    chosen = parsed(words)
    model = TextModel.from_pretrained(chosen.model, device="cpu")
    model.method.to(torch.bfloat16)
    model.recipe = dataclasses.replace(model.recipe, sampling=SAMPLING)
    made = chosen.out.with_name(f"{chosen.out.name}.new")
    model.save(made)
    size = sum(file.stat().st_size for file in made.iterdir())
    if size > MOST:
        shutil.rmtree(made)
        raise SystemExit(f"{chosen.model}: {size:,} bytes, of {MOST:,} at most; ship a smaller one")
    if chosen.out.exists():
        shutil.rmtree(chosen.out)
    made.rename(chosen.out)
    print(f"Written: {chosen.out}, {size:,} bytes")


if __name__ == "__main__":
    main()
