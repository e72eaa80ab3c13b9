"""Options of a run: those that shape its result (`training`), and the others (`run`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from partita.config.renames import renamed_keys
from partita.errors import (
    naming,
    require,
    require_ints,
    require_known,
    require_number,
    require_positive,
    require_seed,
)
from partita.optim.optimizers import OPTIMIZERS
from partita.registry import Registry

DEFAULT_STEPS = 1000
LARGEST_RATE = 1e30  # optimizers multiply it, in float32
LR_SCHEDULES: Registry[Callable[[float, float], float]] = Registry("training.lr_schedule")
DECAY = 0.2  # share of a warmup-stable-decay run over which the rate falls


@LR_SCHEDULES.register("cosine")
def cosine(share: float, warmup: float) -> float:
    """After the warm-up, half a cosine down to 0."""
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


@LR_SCHEDULES.register("wsd")
def warmup_stable_decay(share: float, warmup: float) -> float:  # noqa: ARG001 - one signature
    """Constant after the warm-up; over the last fifth of the run a straight line down to 0."""
    return min(1.0, (1 - share) / DECAY)


@LR_SCHEDULES.register("constant")
def constant(share: float, warmup: float) -> float:  # noqa: ARG001 - one signature
    """Constant after the warm-up."""
    return 1.0


def learning_rate(highest: float, schedule: str, warmup: float, share: float) -> float:
    """The learning rate at a share of a run: a straight line up during the warm-up, then as named.

    All trainers use it.
    """
    if share < warmup:
        return highest * share / warmup
    return highest * LR_SCHEDULES[schedule](share, warmup)


@renamed_keys("training")
@dataclass(frozen=True)
class TrainingOptions:
    """Training: everything that shapes the weights."""

    steps: int | None = None
    """Length of the run in steps; 1,000 if neither steps nor seconds are given."""
    seconds: float | None = None
    """Length of the run in seconds; the learning rate then follows the elapsed share of them."""
    batch_size: int = 32
    """Number of rows in a training step, over all processes together."""
    length: int | None = None
    """Tokens of a row; by default the network's length."""
    optimizer: str = "adamw"
    """adamw, or muon (muon for the matrices inside blocks, and adamw for all other weights)."""
    learning_rate: float = 1e-3
    """The highest learning rate of the run."""
    lr_schedule: str = "cosine"
    """The learning rate after the warm-up: cosine, wsd (warmup-stable-decay), constant."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises from 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient: a longer one is scaled down to it."""
    ema_decay: float = 0.999
    """Decay of the moving average of the weights; trained models use these averages."""
    precision: str = "float32"
    """float32, or bfloat16 for the matrix products (weights and losses stay float32)."""
    label_dropout: float = 0.1
    """Share of the labels that training hides, so that the model also learns to predict without a
    label; guidance needs both predictions."""
    seed: int = 0
    """Seed of the initial weights and of all random numbers."""
    start_from: str | None = None
    """A model or checkpoint whose weights and tokenizer to start from (`--from` for short)."""

    def __post_init__(self) -> None:
        one, keys = self.steps is None or self.seconds is None, "training.steps, training.seconds"
        require(one, keys, "both say how long the run is", "give one of them")
        require_ints(self, "training.", steps=1, batch_size=1, length=1)
        for name in ("seconds", "learning_rate"):
            if getattr(self, name) is not None:
                require_positive(getattr(self, name), f"training.{name}")
        largest = f"must be at most {LARGEST_RATE:g}, got {self.learning_rate:g}"
        require(self.learning_rate <= LARGEST_RATE, "training.learning_rate", largest)
        require_positive(self.max_grad_norm, "training.max_grad_norm", finite=False)
        require_number(self.weight_decay, "training.weight_decay")
        finite = math.isfinite(self.weight_decay)
        require(finite, "training.weight_decay", "must be finite, got inf")
        require_seed(self.seed, "training.seed")
        warmup = f"is a share of the run from 0 up to, but without, 1, got {self.warmup}"
        require(0 <= self.warmup < 1, "training.warmup", warmup)
        decay = f"must lie in [0, 1), got {self.ema_decay}"
        require(0 <= self.ema_decay < 1, "training.ema_decay", decay)
        dropped = f"is a share of the labels, got {self.label_dropout}"
        require(0 <= self.label_dropout <= 1, "training.label_dropout", dropped)
        require_known(self.precision, "training.precision", ("bfloat16", "float32"))
        _ = LR_SCHEDULES[self.lr_schedule]
        with naming({"optimizer": "training.optimizer"}):
            _ = OPTIMIZERS[self.optimizer]

    @property
    def budget(self) -> float:
        """The length of the run, in steps or in seconds."""
        if self.seconds is not None:
            return self.seconds
        return DEFAULT_STEPS if self.steps is None else self.steps

    def share(self, step: int, seconds: float) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(1.0, (step if self.seconds is None else seconds) / self.budget)

    def rate_at(self, share: float) -> float:
        """The learning rate at a share of the run."""
        return learning_rate(self.learning_rate, self.lr_schedule, self.warmup, share)


@renamed_keys("run")
@dataclass(frozen=True)
class RunOptions:
    """Run: where and how the work is done. These options may change when a run is resumed."""

    device: str = "auto"
    """cpu, cuda, or auto for a GPU if there is one."""
    parallel: str = "ddp"
    """With several processes: ddp (each has all weights) or fsdp (the weights are split)."""
    micro_batch: int | None = None
    """Number of rows that a process computes at once, to save memory; gradients are added up."""
    activation_checkpointing: bool = False
    """Save memory: recompute activations in the backward pass."""
    compile: bool = False
    """Compile the network's blocks (needs a C++ compiler on CPUs)."""
    cuda_graph: bool = True
    """On a GPU: record a training step as a CUDA graph, where possible (one process, no
    micro_batch, packed rows without document attention, no dropout, a method whose loss never
    waits for the GPU). The graph holds the memory of a step: give false if memory runs out."""
    log_every: int = 10
    """Steps between two lines of the metrics file."""
    validate_every: int = 100
    """Steps between two validations."""
    validation_rows: int = 64
    """Rows of validation text that are scored each time."""
    checkpoint_every: int = 200
    """Steps between two checkpoints; the end of the run always leaves one."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints are kept; the best one is kept as well."""
    previews: int = 2
    """Samples written with each validation; 0 for none."""
    tensorboard: bool = False
    """Write TensorBoard files too (pip install 'partita[tensorboard]')."""
    wandb: str | None = None
    """Name of a Weights & Biases project to report to (pip install 'partita[wandb]')."""

    def __post_init__(self) -> None:
        require_ints(self, "run.", log_every=1, validate_every=1, validation_rows=1)
        require_ints(self, "run.", checkpoint_every=1, keep_checkpoints=1, previews=0)
        require_ints(self, "run.", micro_batch=1)
        require_known(self.parallel, "run.parallel", ("ddp", "fsdp"))
