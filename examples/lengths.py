"""How long are the texts that models write? Histograms against those of a text's own lines.

    python examples/lengths.py lines.txt lengths.png --flexible runs/lines-flexmdm
    python examples/lengths.py lines.txt lengths.png --flexible runs/flex --padded runs/mdlm

A model of flexible length ends its texts by itself. One of fixed length learns to, if the lines of
its training text were padded with a special character: its texts end at the first one. The total
variation between samples and data is printed beside that of as many lines of the data themselves,
which is due to chance alone.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.errors import InputError, require
from partita.files.atomic import check_file, write_whole
from partita.models.text_model import TextModel
from partita.plotting import new_figure, require_plots, save_figure
from partita.provenance import environment

BATCH = 100
WIDTH = 4  # characters of a bar


def shares(lengths: Sequence[int], width: int = WIDTH) -> dict[int, float]:
    """The share of texts in each bin, by the bin's number; empty bins are left out."""
    require(len(lengths) > 0, "lengths", "there is no text")
    counts = Counter(length // width for length in lengths)
    return {number: counts[number] / len(lengths) for number in sorted(counts)}


def variation(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Total variation between two histograms."""
    return sum(abs(ours.get(k, 0.0) - theirs.get(k, 0.0)) for k in {*ours, *theirs}) / 2


def draw_lengths(groups: Mapping[str, Mapping[int, float]], path: Path, width: int = WIDTH) -> None:
    """Draw the histogram of each group as a line."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    last = max(number for histogram in groups.values() for number in histogram)
    edges = [width * number for number in range(last + 2)]
    for name, histogram in groups.items():
        heights = [histogram.get(number, 0.0) for number in range(last + 1)]
        axes.stairs(heights, edges, linewidth=1.5, label=name)
    axes.set_xlabel("characters of a text")
    axes.set_ylabel("share of the texts")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", type=Path, help="a text with one document on each line")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--flexible", nargs="+", required=True, help="models of flexible length")
    parser.add_argument("--padded", nargs="+", default=[], help="of fixed length, that fill up")
    parser.add_argument("--pad", default="|", help="what they fill up with")
    parser.add_argument("--count", type=int, default=1000, help="texts of each")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    options.refuse = parser.error
    return options


def written(model: TextModel, count: int, steps: int, pad: str | None) -> list[int]:
    """Sample texts from a model; returns their lengths in characters."""
    lengths: list[int] = []
    while len(lengths) < count:
        few = min(BATCH, count - len(lengths))
        texts = model.sample(few, steps=steps, seed=1, first=len(lengths))
        lengths += [len(text if pad is None else text.split(pad)[0]) for text in texts]
        print(f"\r{len(lengths)} of {count} texts", end="", flush=True)
    print()
    return lengths


def compared(options: argparse.Namespace, data: list[int]) -> dict[str, Any]:
    """A row for the data, one for as many lines of it as there are samples, one for each model."""
    groups = {"data": data[options.count :], "as many lines of the data": data[: options.count]}
    device = None
    for pad, names in ((None, options.flexible), (options.pad, options.padded)):
        for name in names:
            model = TextModel.from_pretrained(name)
            device = model.device
            groups[Path(name).name] = written(model, options.count, options.steps, pad)
    truth = shares(groups["data"])
    rows = [
        {
            "name": name,
            "texts": len(lengths),
            "mean_length": sum(lengths) / len(lengths),
            "variation": variation(shares(lengths), truth),
            "shares": list(shares(lengths).items()),
        }
        for name, lengths in groups.items()
    ]
    assert device is not None
    known = {"bin": WIDTH, "steps": options.steps}
    return {"environment": environment(device), "options": known, "rows": rows}


def main() -> None:
    """Read, sample, compare, draw."""
    options = parsed()
    try:
        for path, name in ((options.picture, "picture"), (options.out, "--out")):
            if path is not None:
                check_file(path, name)
        require_plots("picture")
        data = [len(line) for line in options.lines.read_text().splitlines() if line]
        if len(data) <= options.count:
            options.refuse(f"{options.lines} must have more than {options.count} lines")
        found = compared(options, data)
        draw_lengths({row["name"]: dict(row["shares"]) for row in found["rows"]}, options.picture)
    except (InputError, OSError) as refused:
        options.refuse(str(refused))
    for row in found["rows"]:
        mean = f"mean length {row['mean_length']:.1f}"
        print(f"{row['name']}: total variation {row['variation']:.3f}, {mean}")
    if options.out is not None:
        write_whole(options.out, json.dumps(found, indent=1) + "\n")
    print(f"{options.picture}: histograms")


if __name__ == "__main__":
    main()
