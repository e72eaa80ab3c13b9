"""DDPM on the digits of scikit-learn: 1,797 images of 8 x 8 pixels, about two minutes on a CPU.

    python examples/digits.py digits.png --seconds 120

It trains a small U-Net by the simple loss, says what the bound is on images that it did not train
on, and writes a picture of samples, one column for each digit. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.image import imsave
from numpy.typing import NDArray
from torch import Tensor

from partita.methods.ddpm import DDPM, bits_per_dimension
from partita.methods.gaussian import make_process
from partita.networks.unet import UNet
from partita.randomness import Noise
from partita.samplers.gaussian import generate
from partita.training.ema import MovingAverage

LEVELS = 17  # a pixel is a whole number from 0 to 16
HELD_OUT = 197


def digits() -> tuple[Tensor, Tensor]:
    """Images [N, 1, 8, 8] in [-1, 1] and the digits that they show, in a fixed random order."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    scaled = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    return scaled[order], torch.tensor(labels)[order].long()


def train(
    model: DDPM, images: Tensor, labels: Tensor, seconds: float, batch: int, rate: float
) -> int:
    """Adam on L_simple with a moving average of the weights; how many steps there was time for."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    average = MovingAverage(model, 0.999)
    draw = torch.Generator().manual_seed(1)
    began, step = time.monotonic(), 0
    while (done := (time.monotonic() - began) / seconds) < 1:
        for group in optimiser.param_groups:  # warm up, then down to 0 as the time runs out
            group["lr"] = rate * min(1, (step + 1) / 50) * (1 - done)
        rows = torch.randint(len(images), (batch,), generator=draw)
        loss = model.loss(images[rows], Noise.for_batch(0, batch), step, label=labels[rows]).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        average.update(model)
        step += 1
        if step % 200 == 0:
            print(f"step {step}, {done:.0%}: loss {loss.item():.4f}", flush=True)
    average.copy_to(model)
    return step


def picture(images: Tensor, columns: int, scale: int = 4) -> NDArray[np.uint8]:
    """Images [N, 1, H, W] side by side, black on white, with a line of white between them."""
    framed = torch.nn.functional.pad(images[:, 0].clamp(-1, 1), (1, 1, 1, 1), value=-1.0)
    height, width = framed.shape[1:]
    rows = framed.view(-1, columns, height, width).transpose(1, 2)
    grid = rows.reshape(-1, columns * width)
    shade = ((1 - grid) * 127.5).round().to(torch.uint8)
    return shade.repeat_interleave(scale, 0).repeat_interleave(scale, 1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=100, help="steps of the process")
    parser.add_argument("--rows", type=int, default=6)
    options = parser.parse_args()

    torch.manual_seed(0)
    images, labels = digits()
    network = UNet(width=options.width, classes=10)
    # The first step's noise is not far below the distance of two levels: with less there would be
    # nothing to learn from, with more they could not be told apart.
    process = make_process("cosine", options.steps, offset=0.03)
    model = DDPM(network, schedule=process, levels=LEVELS)
    fit, rest = slice(HELD_OUT, None), slice(HELD_OUT)
    weights = sum(parameter.numel() for parameter in model.parameters())
    taken = train(model, images[fit], labels[fit], options.seconds, options.batch, options.rate)
    model.eval()
    with torch.no_grad():
        nats = torch.stack(
            [
                model.bound(images[rest], Noise.for_batch(2, HELD_OUT), i, label=labels[rest])
                for i in range(8)
            ]
        ).mean(0)
    bits = float(bits_per_dimension(nats, images[rest]).mean())
    print(f"{weights:,} weights, {taken} steps; at most {bits:.3f} bits per dimension")
    wanted = torch.arange(10).repeat(options.rows)
    drawn = generate(model, (1, 8, 8), len(wanted), clip=1.0, label=wanted, seed=3)
    imsave(options.picture, picture(drawn, 10), cmap="gray", vmin=0, vmax=255)
    print(f"{options.picture}: samples, one column for each digit")


if __name__ == "__main__":
    main()
