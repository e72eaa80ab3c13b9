"""SDTT: self-distillation through time (Deschenaux and Gulcehre, 2024).

A student that starts as a copy of its teacher learns to predict in one step what the teacher
predicts in k of them. From a text hidden at time t the teacher takes k ancestral steps of size dt,

    t_0 = t,  t_1 = t - dt,  ...,  t_k = t - k dt    (none below 0).

The target of a hidden token is the teacher's prediction at the step in which the token is
revealed, given the tokens revealed before it; a token that is still hidden at t_k has the
prediction of the last step. The student reads only the text at t and minimizes

    E [ sum over hidden tokens of D(student(z_t), target) ]

without a weight. KL(teacher || student) leads to the mean of a state's targets, KL(student ||
teacher) to their normalised geometric mean. In the next round the student is the teacher, and dt
is k times as large: a round divides the number of sampling steps by k.

The teacher is queried once for each hidden token: when a token is revealed does not depend on its
value, so every step queries only its own tokens, and the last one all that are left. That is the
paper's procedure at less cost, wherever t_k lies.

Any method of the masked family can be distilled if its network is not conditioned on the time. (A
network that is would need two times at once: the student's step is longer than its teacher's.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from partita.categorical import sample_categorical
from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.distillation.divergences import DIVERGENCES
from partita.distillation.options import DistillationOptions
from partita.errors import InputError, require
from partita.methods.base import check_batch
from partita.methods.masked_method import MaskedMethod
from partita.processes.draws import even_times, hide_independently, positive_time
from partita.randomness import Noise, Purpose
from partita.schedules import Schedule


def reveal_plan(
    t: Float64[Tensor, "B"],
    options: DistillationOptions,
    schedule: Schedule,
    v: Float64[Tensor, "B L"],
) -> Int64[Tensor, "B L"]:
    """In which of the teacher's k steps from t each hidden token is queried, by uniform numbers.

    A token that is hidden at t is revealed at an alpha that is uniform between alpha_t and 1, as in
    ancestral sampling (`samplers/planned.py`).
    """
    jump = schedule.alpha(t)[:, None] + schedule.one_minus_alpha(t)[:, None] * v
    plan = torch.zeros_like(v, dtype=torch.int64)
    for passed in range(1, options.substeps):
        time = (t - passed * options.step_size).clamp(min=0)
        plan += (jump >= schedule.alpha(time)[:, None]).long()
    return plan


@torch.inference_mode()
def teacher_targets(
    teacher: MaskedMethod,
    tokens: Int64[Tensor, "B L"],
    hidden: Bool[Tensor, "B L"],
    plan: Int64[Tensor, "B L"],
    u: Float64[Tensor, "B L"],
    label: Int64[Tensor, "B"] | None = None,
    *,
    substeps: int,
    layout: Layout = DENSE,
) -> Float[Tensor, "N V"]:
    """The teacher's prediction of each hidden token (row by row) in the step that queries it.

    `u` are the uniform numbers with which it draws the tokens of all steps but the last.
    """
    tokens, revealed = tokens.clone(), ~hidden
    number = (hidden.flatten().cumsum(0) - 1).view_as(plan)  # a hidden token's row in the result
    predictions, indices = list[Tensor](), list[Tensor]()
    for step in range(substeps):
        rows, positions = (hidden & (plan == step)).nonzero(as_tuple=True)
        if rows.numel() == 0:
            continue
        prediction = teacher.predict(tokens, revealed, rows, positions, None, label, layout=layout)
        predictions.append(prediction)
        indices.append(number[rows, positions])
        if step < substeps - 1:
            tokens[rows, positions] = sample_categorical(prediction, u[rows, positions])
            revealed[rows, positions] = True
    together = torch.cat(predictions)
    return torch.empty_like(together).index_copy_(0, torch.cat(indices), together)


class Planned(NamedTuple):
    """Hidden tokens, and the teacher's step in which each is queried."""

    hidden: Bool[Tensor, "B L"]
    plan: Int64[Tensor, "B L"]
    u: Float64[Tensor, "B L"]
    """The uniform numbers with which the teacher draws tokens."""


@dataclass(frozen=True)
class SDTT:
    """One round: a student learns to predict in one step what its teacher does in several."""

    student: MaskedMethod
    teacher: MaskedMethod
    options: DistillationOptions

    def __post_init__(self) -> None:
        check_student(self.student)
        counted = self.options.round >= 1
        require(counted, "round", "must be at least 1: there is a teacher", "the first is 1")
        apart = self.student is not self.teacher
        require(apart, "teacher", "is the student itself", "give a copy of it")
        self.teacher.eval().requires_grad_(False)

    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """The divergence at hidden tokens, with the arguments of a method's own loss."""
        batch = check_batch(batch, self.student).padded_with(self.student.mask_id)
        schedule = self.teacher.schedule
        t = positive_time(even_times(noise, step, batch.size))
        hidden = hide_independently(schedule.one_minus_alpha(t), batch.real, noise, step)
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        v = noise.uniform(Purpose.ORDER, step, positions)
        plan = reveal_plan(t, self.options, schedule, v)
        u = noise.uniform(Purpose.TOKEN, step, positions)
        return self.loss_given(batch, Planned(hidden, plan, u))

    def loss_given(self, batch: Batch, drawn: Planned) -> Loss:
        """The divergence for given hidden tokens and a given plan."""
        (hidden, plan, u), layout = drawn, batch.layout()
        queries = Queries(*hidden.nonzero(as_tuple=True))
        seen = batch.tokens, ~hidden, *queries, None, batch.label
        guess = self.student.predict(*seen, layout=layout)
        target = guess.detach()
        if queries.rows.numel():  # with nothing hidden, the student's gradient is 0 all the same
            read = batch.tokens, hidden, plan, u, batch.label
            target = teacher_targets(
                self.teacher, *read, substeps=self.options.substeps, layout=layout
            ).clone()  # a copy outside of inference mode, which autograd needs
        found = DIVERGENCES[self.options.divergence](guess, target)
        nats = found.new_zeros(hidden.shape).index_put(queries, found)
        count = batch.real.sum()
        return Loss(nats.sum() / count, nats, nats, hidden, count)


def check_student(method: object) -> None:
    """Raise an InputError for a method that cannot be distilled."""
    name = type(method).__name__
    known = "distil one of mdlm, md4 (with method.conditioning none), mdlm-complementary, pgm"
    if not isinstance(method, MaskedMethod):
        problem = f"{name} is no masked model of texts of given length"
        raise InputError("teacher", problem, known)
    problem = (
        f"the network of this {name} takes the time as an input, and a student's steps are longer"
    )
    require(not method.timed, "teacher", problem, known)
