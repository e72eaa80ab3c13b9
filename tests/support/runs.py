"""Very short runs."""

from __future__ import annotations

SIZES = "--network.width 16 --network.depth 1 --network.heads 2 --network.length 8"
PACE = "--training.steps 6 --training.batch_size 4 --run.checkpoint_every 2 --run.log_every 1"
TRAIN = f"train notes.txt {SIZES} {PACE} --run.validate_every 3"
SMALL = "--network.width 32 --network.depth 1 --network.heads 2 --network.length 64"
FAST = "--training.steps 8 --training.batch_size 4 --run.previews 0"
