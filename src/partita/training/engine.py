"""The training engine: one method, trained step by step on one process or many.

    batch -> parts -> summed loss / tokens of the global batch -> gradients, averaged -> clipped
          -> optimizer -> moving average

Every random draw is addressed by the seed, the step and the row's number in the global batch, so
the same options give the same run on any number of processes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.batch import Batch
from partita.contracts.estimate import Estimate
from partita.contracts.loss import Loss
from partita.data.batches import Order
from partita.errors import InputError, require
from partita.execution.captured_pass import CapturedPass
from partita.execution.compilation import compile_parts
from partita.methods.contracts import TextMethod
from partita.methods.inference import can_be_recorded
from partita.optim.optimizers import OPTIMIZERS, take_step
from partita.parallel import World, like, release, spread, synchronising, whole
from partita.randomness import Noise
from partita.training.ema import MovingAverage
from partita.training.objective import Objective

VALIDATION_STREAM = 1  # a random stream that training never uses
REPLICATES = 2  # passes over the validation rows: the fewest that give a standard error


def state_prefix(number: int) -> str:
    """Prefix of an optimizer's tensors in a checkpoint; the same in every version."""
    return f"optimiser.{number}."


@dataclass(frozen=True)
class Advance:
    """Results of one step; its tensors stay on the device, since reading them waits for it."""

    step: int
    loss: Float[Tensor, ""]
    """This process' share of the global batch's nats per token."""
    norm: Float[Tensor, ""]
    """Norm of the gradient before clipping, over all processes."""
    rate: float


class Engine:
    """A method, its optimizers and its moving average."""

    def __init__(
        self,
        method: nn.Module,
        options: TrainingOptions,
        run: RunOptions,
        world: World,
        distillation_loss: Callable[..., Loss] | None = None,
    ) -> None:
        """`distillation_loss` replaces the method's own loss."""
        trainable = isinstance(method, nn.Module) and callable(getattr(method, "loss", None))
        problem = f"{type(method).__name__} has no loss"
        require(trainable, "method", problem, "wrap a network in a method such as MDLM")
        self.method, self.options, self.run, self.world = method, options, run, world
        method.to(world.device)
        network = getattr(method, "network", method)
        network.recompute = run.activation_checkpointing
        if run.compile:
            compile_parts(network)
        self.distils = distillation_loss is not None
        self.drops = isinstance(method, TextMethod) and method.sizes.dropout > 0
        objective = Objective(method, distillation_loss, options.label_dropout)
        self.objective = spread(objective, network, run.parallel, world)
        make = OPTIMIZERS[options.optimizer]
        self.optimizers = make(method, options.learning_rate, options.weight_decay)
        self.average = MovingAverage(method, options.ema_decay)
        self.captured: CapturedPass | None = None
        self.step = 0
        self.seconds = 0.0
        """Time spent training, over all resumes."""

    def advance(self, batch: Batch, rate: float) -> Advance:
        """One step of the optimizers on this process' rows of a global batch."""
        self.method.train()
        parts = batch.split(self.run.micro_batch)
        total = self._replayed(batch) if self._repeats(parts) else self._gradients(parts)
        parameters, most = self.method.parameters(), self.options.max_grad_norm
        norm = take_step(self.optimizers, parameters, rate, most)
        self.average.update(self.method)
        self.step += 1
        return Advance(self.step - 1, total, whole(norm), rate)

    def _gradients(self, parts: list[Batch]) -> Tensor:
        """Accumulate the gradients of all parts; return this process' share of nats per token."""
        self.method.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        for index, part in enumerate(parts):
            self._seed_dropout(index)
            with synchronising(self.objective, last=index == len(parts) - 1):
                total += self._differentiate(part, self.step)
        return total

    def _differentiate(self, part: Batch, step: int, since: Tensor | None = None) -> Tensor:
        objective, nats = self._loss(part, step, since=since)
        # Gradients are averaged over processes, but their sum is needed.
        (objective * (self.world.size / part.count)).backward()  # type: ignore[no-untyped-call]
        return nats / part.count

    def _repeats(self, parts: list[Batch]) -> bool:
        """Whether all steps run the same kernels, so that a CUDA graph can capture them."""
        alike = len(parts) == 1 and parts[0].tokens.is_cuda and CapturedPass.fits(parts[0])
        alone = self.world.size == 1 and not self.distils and not self.drops
        wanted = self.run.cuda_graph and alike and alone
        if not (wanted and can_be_recorded(self.method, parts[0].tokens)):
            return False
        return self.captured is None or self.captured.takes(parts[0])

    def rest(self) -> None:
        """Free the working memory of training steps."""
        self.captured = None
        self.method.zero_grad(set_to_none=True)

    def _replayed(self, batch: Batch) -> Tensor:
        """`_gradients` of a batch in one part, by replaying a CUDA graph."""
        if self.captured is None:

            def work(batch: Batch, step: Tensor) -> Tensor:
                return self._differentiate(batch, 0, since=step)

            self.captured = CapturedPass(work, self.method, batch)
        return self.captured.run(batch, self.step)

    def _loss(
        self, part: Batch, step: int, bound: bool = False, since: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        noise = Noise(self.options.seed, part.rows, VALIDATION_STREAM if bound else 0, since)
        half = self.options.precision == "bfloat16"
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=half):
            found: tuple[Tensor, Tensor] = self.objective(part, noise, step, bound)
        return found

    def _seed_dropout(self, part: int) -> None:
        """Seed torch's generator, which dropout draws from, by the step."""
        if not self.drops:
            return
        address = f"{self.options.seed} {self.step} {self.world.rank} {part}"
        digest = hashlib.blake2b(address.encode(), digest_size=7).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))

    @torch.no_grad()
    def validate(self, order: Order, rows: int) -> Estimate | None:
        """The bound (or distillation loss) of the first `rows` rows under the averaged weights.

        None if there are fewer rows than processes.
        """
        count = self._shareable(min(rows, len(order.rows)))
        if count == 0:
            return None
        batch = order.first(count, self.world.share(count, "validation_rows"))
        parts = batch.to(self.world.device).split(self.run.micro_batch or order.batch_size)
        method = self.method if isinstance(self.method, TextMethod) else None
        exact = method is not None and method.exact
        totals = torch.zeros(1 if exact else REPLICATES, dtype=torch.float64)
        self.method.eval()
        with self.average.applied_to(self.method):
            for replicate in range(len(totals)):
                for part in parts:
                    totals[replicate] += float(self._loss(part, replicate, bound=True)[1])
            release(self.objective)
        ends = 0.0 if method is None or self.distils else method.bound_ends()
        per_token = self.world.total(totals) / batch.count + ends
        error = 0.0 if exact else float(per_token.std()) / math.sqrt(len(totals))
        return Estimate(float(per_token.mean()), error, batch.count)

    def _shareable(self, rows: int) -> int:
        """The most rows that can be shared out evenly; the same for 1, 2, 4 or 8 processes."""
        usual = math.lcm(8, self.world.size)
        return rows - rows % (usual if rows >= usual else self.world.size)

    # State ---------------------------------------------------------------------------------------
    #
    # By hand: torch.distributed.checkpoint.state_dict creates the optimizer's state by taking a
    # step. It does so for parameters without gradients too, and cannot tell the two apart.

    def averaged(self) -> dict[str, Tensor]:
        """The averaged weights, unsharded, on the CPU. All processes must call this."""
        state = self.method.state_dict() | self.average.shadow
        return {name: self._keep(tensor) for name, tensor in state.items()}

    def state(self) -> dict[str, Tensor]:
        """What resuming needs besides: weights and optimizer states. All processes must call it."""
        tensors: dict[str, Tensor] = {
            f"weights.{name}": parameter for name, parameter in self.method.named_parameters()
        }
        for number, name, parameter in self.optimized():
            kept, prefix = self.optimizers[number].state[parameter], state_prefix(number)
            tensors |= {f"{prefix}{key}.{name}": value for key, value in kept.items()}
        return {name: self._keep(tensor) for name, tensor in tensors.items()}

    def _keep(self, tensor: Tensor) -> Tensor:
        everything = whole(tensor.detach())
        return everything.to("cpu", copy=True).contiguous() if self.world.first else torch.empty(0)

    def optimized(self) -> Iterator[tuple[int, str, nn.Parameter]]:
        """All parameters with the numbers of their optimizers and with their names."""
        names = {parameter: name for name, parameter in self.method.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield number, names[parameter], parameter

    @torch.no_grad()
    def restore(
        self, averaged: dict[str, Tensor], state: dict[str, Tensor], step: int, seconds: float
    ) -> None:
        """Restore what `averaged` and `state` returned, on any number of processes."""
        self.step, self.seconds, self.average.updates = step, seconds, step
        left = dict(state)
        try:
            for name, parameter in self.method.named_parameters():
                self._fill(parameter, left.pop(f"weights.{name}"))
                self._fill(self.average.shadow[name], averaged[name])
            for number, name, parameter in self.optimized():
                prefix, suffix = state_prefix(number), f".{name}"
                for key in [k for k in left if k.startswith(prefix) and k.endswith(suffix)]:
                    short = key[len(prefix) : -len(suffix)]
                    self.optimizers[number].state[parameter][short] = like(left.pop(key), parameter)
        except KeyError as error:
            raise InputError("checkpoint", f"lacks the tensor {error}") from error
        require(not left, "checkpoint", f"holds unknown tensors such as {next(iter(left), '')!r}")

    @staticmethod
    def _fill(tensor: Tensor, value: Tensor) -> None:
        shapes = f"shape {list(value.shape)} stands where {list(tensor.shape)} is expected"
        require(tensor.shape == value.shape, "checkpoint", f"a tensor of {shapes}")
        tensor.copy_(like(value, tensor))
