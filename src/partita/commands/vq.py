"""`partita vq`: train a tokenizer for images on a set of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from partita.commands.parsing import flags_of, reader
from partita.commands.terminal import Terminal, bar
from partita.data.images import ImageOptions, read_images
from partita.data.images.pictures import grid_png
from partita.data.saved_tokenizers import save_image_tokenizer
from partita.devices import choose_device
from partita.errors import naming
from partita.files.atomic import check_new
from partita.networks.vq import VQConfig
from partita.provenance import environment
from partita.training.vq import VQOptions, VQProgress, measure_vq, train_vq

SHOWN = 16  # images beside their reconstructions
PICTURE = "reconstructions.png"
# The flags of a tokenizer's options.
_INSIDE = {name: f"vq.{name}" for name in vars(VQOptions())}
_INSIDE |= {name: f"vq.network.{name}" for name in vars(VQConfig())}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita vq`."""

    images: str
    out: str
    size: int | None = None
    """Rows and columns of an image: its shorter side is resized to this, the longer one cropped."""
    color: bool | None = None
    """true for color (three channels), false for gray; by default as in the files."""
    vq: VQOptions = field(default_factory=VQOptions)


options = reader(
    "vq",
    "Train a VQ tokenizer: images become grids of codes, each of which stands for a square of\n"
    "pixels. To use the tokenizer: partita train IMAGES --tokenizer.name FOLDER.\n"
    f"FOLDER-{PICTURE} shows test images (above) and their reconstructions (below).",
    [
        "partita vq mnist/ vq-mnist --vq.network.factor 2 --vq.network.codes 128",
        "partita vq cifar10.tar.xz vq-cifar --vq.network.quantiser fsq --vq.steps 5000",
        "partita vq digits vq-digits --vq.steps 200 --vq.network.codes 64",
    ],
    Options,
    images="a set of images: any that partita train reads",
    out="the folder to write; it must not exist yet",
)


def run(words: Sequence[str]) -> None:
    """Read, train, measure, save."""
    with naming(_INSIDE):
        chosen = options(words)
    out = Path(chosen.out)
    check_new(out, "out")
    names = flags_of(Options, "images", "out") | {"path": "images", "split": "images"}
    with naming(_INSIDE | names):
        how = {"size": chosen.size, "color": chosen.color}
        train, test = (
            read_images(chosen.images, ImageOptions(split=split, **how))  # type: ignore[arg-type]
            for split in ("train", "test")
        )
        console = Terminal()
        with bar(console, "step {task.completed:.0f}", "{task.fields[numbers]}") as shown_bar:
            task = shown_bar.add_task("", total=chosen.vq.steps, numbers="")

            def seen(report: VQProgress) -> None:
                quality = report.quality
                numbers = f"error {quality.error:.5f}  codes {quality.used} of {quality.size}"
                shown_bar.update(task, completed=report.step, numbers=numbers)

            tokenizer = train_vq(train, chosen.vq, seen)
    quality = measure_vq(tokenizer, test)
    facts = {"images": chosen.images, "error": quality.error, "perplexity": quality.perplexity}
    some = test.bytes()[:SHOWN]
    shown = [some, tokenizer.decode(tokenizer.encode(some).cpu())]
    picture = out.with_name(f"{out.name}-{PICTURE}")
    grid_png(torch.cat(shown), len(some), picture)
    # The folder is written last: if it exists, all is complete and the command does not restart.
    device = choose_device(chosen.vq.device)
    save_image_tokenizer(tokenizer, out, facts | environment(device))
    console.say(
        f"{out}: {quality.used} of {quality.size} codes used, perplexity "
        f"{quality.perplexity:.1f}, mean squared error {quality.error:.5f} on {len(test)} test "
        f"images (pixels from 0 to 1)\n{picture}: test images, and what is left of them"
    )
