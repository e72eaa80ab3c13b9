"""DDPM on digits: two minutes of a CPU for scikit-learn's, or MNIST.

    python examples/digits.py digits.png --seconds 120
    python examples/digits.py mnist.png --mnist FOLDER --steps 200 --width 64 --device cuda

It trains a small U-Net with the simple loss, prints the bound on held-out images, and writes a
picture of samples, one column for each digit. scikit-learn's 1,797 digits have 8 x 8 pixels and
need that package; MNIST's have 28 x 28 and need its four files in a folder.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partita.data.images import Images, digits, mnist
from partita.data.images.pictures import grid_png
from partita.errors import InputError
from partita.methods.ddpm import DDPM, bits_per_dimension
from partita.networks.unet import UNet
from partita.processes.gaussian import make_process
from partita.randomness import Noise
from partita.samplers.gaussian import sample_ddpm
from partita.training.ema import MovingAverage

HELD_OUT = 197  # of scikit-learn's digits; MNIST has a test set


def data(folder: str | None) -> tuple[Images, Images]:
    """Training images and test images: MNIST's from a folder, or scikit-learn's digits."""
    if folder is not None:
        return mnist(folder), mnist(folder, train=False)
    every = digits()
    order = torch.randperm(len(every.pixels), generator=torch.Generator().manual_seed(0))
    parts = order[HELD_OUT:], order[:HELD_OUT]
    fit, rest = (Images(every.pixels[at], every.labels[at], every.levels) for at in parts)
    return fit, rest


def train(model: DDPM, images: Images, seconds: float, batch: int, rate: float) -> int:
    """Train on L_simple for so many seconds, and average the weights; returns the steps taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    average = MovingAverage(model, 0.999)
    draw = torch.Generator().manual_seed(1)
    device = next(model.parameters()).device
    pixels, labels = images.scaled().to(device), images.labels.to(device)
    began, step = time.monotonic(), 0
    while (done := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:  # warm up, then down to 0 as the time runs out
            group["lr"] = rate * min(1, (step + 1) / 50) * (1 - done)
        rows = torch.randint(len(pixels), (batch,), generator=draw).to(device)
        noise = Noise.for_batch(0, batch, device=device)
        loss = model.loss(pixels[rows], noise, step, label=labels[rows]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        average.update(model)
        step += 1
        if step % 200 == 0:
            print(f"step {step}, {done:.0%}: loss {loss.item():.4f}", flush=True)
    average.copy_to(model)
    return step


@torch.no_grad()
def bits(model: DDPM, images: Images, replicates: int = 8, batch: int = 500) -> tuple[float, float]:
    """The bound in bits per dimension, with its standard error."""
    device, means = next(model.parameters()).device, []
    pixels, labels = images.scaled().to(device), images.labels.to(device)
    for replicate in range(replicates):
        found = []
        for rows in torch.split(torch.arange(len(pixels), device=device), batch):
            noise, size = Noise(2, rows), len(pixels)
            nats = model.bound(pixels[rows], noise, replicate, batch=size, label=labels[rows])
            found.append(bits_per_dimension(nats, pixels[rows]))
        means.append(float(torch.cat(found).mean()))
    return float(np.mean(means)), float(np.std(means, ddof=1)) / math.sqrt(replicates)


def shades(images: Tensor) -> Tensor:
    """Pixels from -1 to 1 as bytes, black on white."""
    return ((1 - images.clamp(-1, 1)) * 127.5).round().to(torch.uint8)


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--mnist", help="the folder of MNIST's files; scikit-learn's digits if not")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=100, help="steps of the process")
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if not options.picture.parent.is_dir():  # checked before training, not after
        parser.error(f"{options.picture.parent} is no folder")
    try:
        fit, rest = data(options.mnist)
    except InputError as refused:
        parser.error(str(refused))

    torch.manual_seed(0)
    network = UNet(width=options.width, classes=10)
    # The first step's noise is a little less than the distance of two levels: less would leave
    # nothing to learn, more would hide which level it was.
    process = make_process("cosine", options.steps, offset=0.03 if fit.levels < 256 else 0.008)
    model = DDPM(network, schedule=process, levels=fit.levels).to(options.device)
    weights = sum(parameter.numel() for parameter in model.parameters())
    taken = train(model, fit, options.seconds, options.batch, options.rate)
    bound, error = bits(model.eval(), rest)
    print(
        f"{weights:,} weights, {taken} steps; {bound:.3f} ± {error:.3f} bits per dimension at most"
    )
    wanted = torch.arange(10).repeat(options.rows).to(options.device)
    shape = tuple(fit.pixels.shape[1:])
    drawn = sample_ddpm(
        model, shape, len(wanted), clip=1.0, label=wanted, seed=3, device=options.device
    )
    grid_png(shades(drawn.cpu()), 10, options.picture, scale=max(1, 32 // shape[1]))
    print(f"{options.picture}: samples, one column for each digit")


if __name__ == "__main__":
    main()
