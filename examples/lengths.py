"""How long are the texts that a model writes? Histograms against those of a text's own lines.

    python examples/lengths.py lines.txt lengths.png --flexible runs/lines-flexmdm
    python examples/lengths.py lines.txt lengths.png --flexible runs/flex --padded runs/mdlm

A model of flexible length ends its texts by itself. One of fixed length can be taught to, by lines
that were filled up with a character of their own before training: its texts end at the first one.
The total variation between samples and data is printed beside that of as many lines of the data
themselves, which is what chance alone makes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from matplotlib.figure import Figure

from partita.errors import InputError
from partita.hub.text_model import TextModel, load

WIDTH = 4  # characters of a bar
BATCH = 100


def variation(ours: list[int], theirs: list[int], width: int = WIDTH) -> float:
    """Total variation of two samples of lengths, in bins of so many characters."""
    a, b = (Counter(length // width for length in lengths) for lengths in (ours, theirs))
    return sum(abs(a[bin] / len(ours) - b[bin] / len(theirs)) for bin in {*a, *b}) / 2


def written(model: TextModel, count: int, steps: int, pad: str | None) -> list[int]:
    """Lengths of texts that a model writes."""
    lengths: list[int] = []
    while len(lengths) < count:
        few = min(BATCH, count - len(lengths))
        texts = model.sample(few, steps=steps, seed=1, first=len(lengths))
        lengths += [len(text if pad is None else text.split(pad)[0]) for text in texts]
        print(f"\r{len(lengths)} of {count} texts", end="", flush=True)
    print()
    return lengths


def draw(path: Path, groups: dict[str, list[int]]) -> None:
    """Histograms as lines, one for each group."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    longest = max(max(lengths) for lengths in groups.values())
    edges = list(range(0, longest + WIDTH + 1, WIDTH))
    for name, lengths in groups.items():
        shares = [1 / len(lengths)] * len(lengths)
        axes.hist(lengths, bins=edges, weights=shares, histtype="step", linewidth=1.5, label=name)
    axes.set_xlabel("characters of a text")
    axes.set_ylabel("share of the texts")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, format="png")


def main() -> None:
    """Read, sample, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", type=Path, help="a text with one document on each line")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--flexible", required=True, help="a model of flexible length")
    parser.add_argument("--padded", help="a model of fixed length, taught to fill up")
    parser.add_argument("--pad", default="|", help="what it fills up with")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=128)
    options = parser.parse_args()
    if not options.picture.parent.is_dir():
        parser.error(f"{options.picture.parent} is no folder")
    data = [len(line) for line in options.lines.read_text().splitlines() if line]
    if len(data) <= options.count:
        parser.error(f"{options.lines} must have more than {options.count} lines")
    chance, data = data[: options.count], data[options.count :]
    groups = {"data": data}
    try:
        flexible = load(options.flexible)
        groups["flexible length"] = written(flexible, options.count, options.steps, None)
        if options.padded:
            padded = load(options.padded)
            groups["padding"] = written(padded, options.count, options.steps, options.pad)
    except InputError as refused:
        parser.error(str(refused))
    print(f"as many lines of the data: total variation {variation(chance, data):.3f}")
    for name, lengths in list(groups.items())[1:]:
        mean = sum(lengths) / len(lengths)
        print(f"{name}: total variation {variation(lengths, data):.3f}, mean length {mean:.1f}")
    print(f"data: mean length {sum(data) / len(data):.1f}")
    draw(options.picture, groups)
    print(f"{options.picture}: histograms")


if __name__ == "__main__":
    main()
