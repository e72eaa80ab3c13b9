"""FlexMDM's schedules, states, rates, losses and networks.

Their time runs from the empty text to the data, ours the other way: t here is 1 - theirs. Their
vocabularies have the mask and a pad as last ids, and the softmax of their tokens runs over both;
where our formulas are compared, these are two tokens like others, and our own mask and end marker
come after them. Where a stored value is not the one to have, the corrected one is compared, and
the test says what is corrected.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from partita.contracts.batch import Batch
from partita.contracts.packed import PackedTokens
from partita.errors import InputError
from partita.methods import MDLM
from partita.methods.flexmdm import Thinned
from partita.methods.masked_method import TIME_SCALE
from partita.models.published.reference import EMBEDDING, load_dit, load_flexible
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.networks.flexible import mean_count
from partita.networks.layers import sinusoid
from partita.processes.corruption import Corrupted
from partita.processes.draws import low_discrepancy
from partita.processes.insertion import Interpolant, bregman
from partita.schedules import make_schedule
from tests.golden.cases import Case, Tensors, load, named, parts, stated
from tests.support.flexible_references import (
    GEOMETRIC,
    agree,
    model_of,
    packed,
    pairs,
    process_of,
    schedule_of,
)

HEAD = "output_layer.linear"  # of tokens, as they call it
EPS = 1e-6  # how far their insertion times stay away from the empty text, and their clamp of phi


def with_ids_last(case: Case, tokens=(), rows=(), columns=()):
    """The same case with mask and pad as its last ids, where our networks have them.

    `tokens` hold ids, `rows` and `columns` are tables whose first or last axis counts ids.
    """
    special = [case.config[key] for key in ("mask_token", "pad_token")]
    order = [i for i in range(case.config["vocab"]) if i not in special] + special
    order, number = torch.tensor(order), torch.tensor(order).argsort()
    changed = (
        {key: number[case[key]] for key in tokens}
        | {key: case[key][order] for key in rows}
        | {key: case[key][..., order] for key in columns}
    )
    ids = {"mask_token": len(order) - 2, "pad_token": len(order) - 1}
    return replace(
        case,
        facts=case.facts | {"config": case.config | ids},
        tensors=Tensors(case.name, case.tensors | changed),
    )


def state_of(case: Case, t, gone, masked, kept=None):
    real = case["x1"] != case.config["pad_token"]
    mask = case.config["mask_token"]
    return Interpolant.state(case["x1"], real, 1 - t, gone, masked, mask, kept)


def same_state(case: Case, state, prefix):
    """The text, where its tokens come from, and what is missing, exactly."""
    stored, lengths = case[f"{prefix}xt"], state.text.lengths
    width = stored.shape[1]
    assert torch.equal(state.text.padded(case.config["pad_token"], width), stored)
    assert torch.equal(state.source, packed(case[f"{prefix}st"], lengths))
    gaps = PackedTokens.of_texts(state.gaps, lengths + 1)
    assert torch.equal(gaps.padded(0, width + 1), case[f"{prefix}gaps"])
    there = PackedTokens.of_texts(torch.ones_like(state.gaps), gaps.lengths).padded(0, width + 1)
    assert torch.equal(there.bool(), case[f"{prefix}gaps_mask"])


def same_in_full(case: Case, state, prefix):
    """The same, and what follows from it."""
    same_state(case, state, prefix)
    lengths = case[f"{prefix}xt_length"]
    assert torch.equal(state.text.lengths, lengths)
    assert torch.equal(state.hidden, packed(case[f"{prefix}mask_indices"], lengths))
    targets = case["x1"][state.text.sequence_ids, state.source]
    assert torch.equal(targets, packed(case[f"{prefix}unmasked"], lengths))
    whole = lengths + PackedTokens.of_texts(state.gaps, lengths + 1).padded(0).sum(-1)
    assert torch.equal(whole, case["x1_length"])


# The process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"), parts("flex/flex_schedules", lambda case: case.config["schedules"])
)
def test_schedules(file, name):
    """Where the inverse of the unscaled geometric one leaves [0, 1], ours stays at its end."""
    case = load(file)
    facts = case.config["schedules"][name]
    schedule, t, u = schedule_of(facts), 1 - case["t"], case["u"]
    limits = {} if facts["type"] != GEOMETRIC else {"rtol": 1e-6, "atol": 1e-8}
    case.close(schedule.alpha(t), f"{name}.at", **limits)
    case.close(-schedule.derivative(t), f"{name}.derivative", **limits)
    case.close(schedule.weight(t), f"{name}.rate_scale", **limits)
    limits = {key: case.facts["tolerance"][key] for key in ("rtol", "atol")} | limits
    for key in ("inverse", "sample"):
        stored = case[f"{name}.{key}"].clamp(0, 1)
        agree(1 - schedule.inverse(u), stored, f"{name}.{key}", **limits)
    # A linear insertion schedule has the thresholds themselves as times.
    process = Interpolant(make_schedule("linear"), schedule)
    gone, masked = process.times(case["threshold_time"][None], u[None])
    agree(1 - gone[0], case["threshold_time"], "threshold_time", **limits)
    stored = case[f"{name}.sample_truncated"].clamp(0, 1)
    agree(1 - masked[0], stored, f"{name}.sample_truncated", **limits)


def drawn_times(case: Case, process, prefix):
    """Our times, which agree with the stored ones.

    Theirs are eps + (1 - eps) times what the schedule says; a token that is never inserted has a
    time beyond 1, at which ours stays.
    """
    u_gone, u_mask = case["u_insert"].double(), case["u_unmask"].double()
    gone, masked = process.times(u_gone, u_mask)
    limits = {"rtol": 1e-5, "atol": 1e-6}
    stored = case[f"{prefix}insertion_time"].clamp(0, 1)
    agree(EPS + (1 - EPS) * (1 - gone), stored, f"{prefix}insertion_time", **limits)
    stored = case[f"{prefix}unmasking_time"].clamp(0, 1)
    agree(1 - masked, stored, f"{prefix}unmasking_time", **limits)
    return gone, masked


@pytest.mark.parametrize(("file", "pair"), parts("flex/flex_interpolant", pairs))
def test_states_and_weights(file, pair):
    case = load(file)
    process, prefix = process_of(case, pair), f"{pair}."
    same_in_full(case, state_of(case, case["t"], *drawn_times(case, process, prefix)), prefix)
    t = 1 - case["t"].double()
    for key, schedule in (("unmask", process.unmasking), ("insert", process.insertion)):
        stored = case[f"{prefix}{key}_weight"]
        ours = schedule.weight(t)[:, None].expand(stored.shape)
        agree(ours, stored, f"{prefix}{key}_weight", rtol=1e-5, atol=0)


def test_a_token_is_there_and_clean_at_its_very_time():
    case = load("flex/flex_interpolant")
    t, gone = case["boundary.t"], 1 - case["boundary.insertion_time"]
    same_in_full(case, state_of(case, t, gone, 1 - case["boundary.unmasking_time"]), "boundary.")


@pytest.mark.parametrize(
    ("file", "name"),
    parts("flex/flex_interpolant_prompt", lambda case: case.stems(".insertion_time")),
)
def test_prompts_stay(file, name):
    """Their unmasking weight has eps in its denominator, ours has none."""
    case, prefix = load(file), f"{name}."
    process = Interpolant(*(schedule_of(case.config[key]) for key in ("insertion", "unmask")))
    kept = case["prompt_indices"]
    assert bool(kept.any())
    state = state_of(case, case["t"], *drawn_times(case, process, prefix), kept)
    same_in_full(case, state, prefix)
    t = 1 - case["t"].double()
    stored = case[f"{prefix}insert_weight"]
    ours = process.insertion.weight(t)[:, None].expand(stored.shape)
    agree(ours, stored, "insert_weight", rtol=1e-5, atol=0)
    stored = case[f"{prefix}unmask_weight"]
    ours = 1 / (1 / process.unmasking.weight(t)[:, None].expand(stored.shape) + EPS)
    agree(ours, stored, "unmask_weight", rtol=1e-5, atol=0)


@pytest.mark.parametrize(("file", "pair"), parts("flex/flex_rates", pairs))
def test_rates(file, pair):
    case = load(file)
    t, probs = 1 - case["t"].double(), case["token_logits"].softmax(-1)
    process, prefix = process_of(case, pair), f"{pair}."
    rate_b, rate_a = process.unmasking.weight(t), process.insertion.weight(t)
    case.close(rate_b[:, None, None] * probs, f"{prefix}unmask_rate")
    case.close(rate_a[:, None] * case["expected_gaps"], f"{prefix}length_rate")
    mean = mean_count(case["length_posterior_logits"])
    case.close(rate_a[:, None] * mean, f"{prefix}length_rate_from_posterior")


# The loss ----------------------------------------------------------------------------------------


def phi_of_a_clamped_zero(count, expected):
    """What their phi has more than ours: a count of 0 is eps to them."""
    more = EPS * (math.log(EPS) - 1 - expected.double().clamp(min=EPS).log())
    return torch.where(count == 0, more, 0)


def terms_of(case: Case, method, state, t):
    """What each slot [B, L] and each gap [B, L + 1] adds to the loss, before any division.

    Both times: cross-entropies of masks, divergences of gaps and cross-entropies of counts.
    """
    queries = state.hidden.nonzero()[:, 0]
    log_probs, answer = method.ask(state.text, t, queries)
    rows, shape = state.text.sequence_ids[queries], case["x1"].shape
    target = case["x1"][rows, state.source[queries]]
    terms = method.terms(log_probs, target, state, answer)
    masks = torch.zeros(shape).index_put((rows, state.text.position_ids[queries]), terms.masks)
    gaps = PackedTokens.of_texts(state.gaps, state.text.lengths + 1)
    table = torch.zeros(shape[0], shape[1] + 1)
    weight_b, weight_a = (
        schedule.weight(t)[:, None]
        for schedule in (method.process.unmasking, method.process.insertion)
    )
    return weight_b * masks, *(
        None
        if part is None
        else weight_a * table.index_put((gaps.sequence_ids, gaps.position_ids), part)
        for part in (terms.gaps, terms.counts)
    )


def loss_of(case: Case, method, state, t):
    """The loss, its unmasking part and the rest of the objective, before any division.

    They divide by rows times the longest length, and leave the order of insertion in; ours divides
    by the number of tokens and takes it off.
    """
    valid = case["x1"] != case.config["pad_token"]
    loss = method.loss_given(Batch.of(case["x1"], is_token=valid), Thinned(state, t))
    assert loss.tokens == valid.sum()
    unmask = (method.process.unmasking.weight(t)[:, None] * loss.cross_entropy).sum()
    order = method.order_nats[valid.sum(-1)].sum()
    bound = loss.per_token.double().sum() + order - unmask
    return loss, unmask, loss.objective.double() * loss.tokens + order - unmask, bound


def drawn_state(case: Case, process, t, kept=None):
    u_gone, u_mask = case["u_insert"].double(), case["u_unmask"].double()
    return state_of(case, t, *process.times(u_gone, u_mask), kept)


def gradients(case: Case):
    return stated(case.facts["tolerance"]["grads"])


def losses_of_expectations(case: Case, process, prefix):
    """They divide by rows times the longest length; counts and predictions are eps at least.

    Ours takes predictions as they are (down to 1e-12), so that they are given as theirs takes them.
    """
    t, size = 1 - case[f"{prefix}t"].double(), case.config["B"] * case.config["max_length"]
    state = drawn_state(case, process, case[f"{prefix}t"])
    shift, rows = case["u_time"].double() / len(t), torch.arange(len(t))  # theirs: one for each row
    case.close((1 - EPS) * low_discrepancy(shift, rows, len(t)), f"{prefix}t")
    logits, gaps = (case[key].clone().requires_grad_() for key in ("token_logits", "expected_gaps"))
    method = model_of(process, logits, gaps.clamp(min=EPS))

    masks, divergences, counts = terms_of(case, method, state, t)
    assert counts is None
    same_state(case, state, prefix)
    case.close(method.network.told[0] / TIME_SCALE, f"{prefix}t_embedded")
    case.close(masks, f"{prefix}unmask_terms")
    more = phi_of_a_clamped_zero(case[f"{prefix}gaps"], case["expected_gaps"])
    more = process.insertion.weight(t)[:, None] * more * case[f"{prefix}gaps_mask"]
    case.close(divergences + more, f"{prefix}insertion_terms")

    loss, unmask, insert, bound = loss_of(case, method, state, t)
    torch.testing.assert_close(insert, bound)
    case.close(unmask / size, f"{prefix}unmask_loss")
    case.close((insert + more.sum()) / size, f"{prefix}insertion_loss")
    case.close((unmask + insert + more.sum()) / size, f"{prefix}total_loss")
    (loss.objective * loss.tokens / size).backward()
    case.close(logits.grad, f"{prefix}grad_token_logits", **gradients(case))
    case.close(gaps.grad, f"{prefix}grad_expected_gaps", **gradients(case))


def losses_of_distributions(case: Case, process, prefix):
    """Each count's cross-entropy has its own weight.

    They multiply the mean of all cross-entropies by the sum of all weights. The intended sum is
    stored too; the stored gradient becomes that of the intended sum when each gap's part is
    multiplied by its weight over the mean weight.
    """
    t, size = 1 - case[f"{prefix}t"].double(), case.config["B"] * case.config["max_length"]
    state = drawn_state(case, process, case[f"{prefix}t"])
    logits, counts = (
        case[key].clone().requires_grad_() for key in ("token_logits", "length_posterior_logits")
    )
    case.close(mean_count(counts), f"{prefix}expected_gaps_from_posterior")
    method = model_of(process, logits, mean_count(counts), counts)

    masks, divergences, entropies = terms_of(case, method, state, t)
    same_state(case, state, prefix)
    case.close(method.network.told[0] / TIME_SCALE, f"{prefix}t_embedded")
    case.close(masks, f"{prefix}unmask_terms")
    case.close(entropies, f"{prefix}insertion_terms")
    there = case[f"{prefix}gaps_mask"]
    weight = process.insertion.weight(t)[:, None] * there
    mean = entropies[there].div(weight[there]).mean()
    case.close(mean * weight.sum() / size, f"{prefix}insertion_loss")

    loss, unmask, insert, bound = loss_of(case, method, state, t)
    torch.testing.assert_close(bound, divergences.sum())
    case.close(unmask / size, f"{prefix}unmask_loss")
    case.close(insert / size, f"{prefix}insertion_loss_intended")
    total = case[f"{prefix}insertion_loss"] + unmask / size
    case.close(total, f"{prefix}total_loss")
    (loss.objective * loss.tokens / size).backward()
    case.close(logits.grad, f"{prefix}grad_token_logits", **gradients(case))
    intended = case[f"{prefix}grad_length_posterior"] * (weight / weight[there].mean())[..., None]
    torch.testing.assert_close(counts.grad, intended.float(), **gradients(case))


LOSSES = {"expectation": losses_of_expectations, "distribution": losses_of_distributions}


def heads(case: Case):
    """The parts of a case of losses: "insertion+unmasking.head"."""
    return [f"{pair}.{head}" for pair in pairs(case) for head in case.config["heads"]]


losses = pytest.mark.parametrize(("file", "name"), parts("flex/flex_loss", heads))


@losses
def test_losses(file, name):
    case, (pair, head) = load(file), name.rsplit(".", 1)
    LOSSES[head](case, process_of(case, pair), f"{name}.")


@losses
def test_tokens_without_mask_and_pad(file, name):
    """Ours has no logits for those two ids: cross-entropies are less by what they weigh."""
    case, prefix = with_ids_last(load(file), ["x1"], columns=["token_logits"]), f"{name}."
    process = process_of(case, name.rsplit(".", 1)[0])
    t = 1 - case[f"{prefix}t"].double()
    state = drawn_state(case, process, case[f"{prefix}t"])
    logits = case["token_logits"]
    method = model_of(process, logits[..., :-2], case["expected_gaps"])
    assert (method.mask_id, method.end_id) == tuple(
        case.config[key] for key in ("mask_token", "pad_token")
    )
    nats = -logits.softmax(-1)[..., :-2].sum(-1).log() * (case[f"{prefix}unmask_terms"] > 0)
    masks, _, _ = terms_of(case, method, state, t)
    case.close(masks + process.unmasking.weight(t)[:, None] * nats, f"{prefix}unmask_terms")


def test_loss_with_prompts():
    """Gaps inside a prompt count as well. Corrected: eps in the weight, and a count of 0 as eps.

    They divide by rows times the longest length there is, and by the number of accumulated steps.
    """
    case = load("flex/flex_loss_8b")
    process = Interpolant(*(schedule_of(case.config[key]) for key in ("insertion", "unmask")))
    t, longest = 1 - case["t"].double(), re.search(r"B\*(\d+)", case.config["normaliser"])
    state = drawn_state(case, process, case["t"], case["prompt_indices"])
    width, pad = case["xt"].shape[1], case.config["pad_token"]
    assert torch.equal(state.text.padded(pad, width), case["xt"])
    method = model_of(process, case["token_logits"], case["length"])
    masks, divergences, _ = terms_of(case, method, state, t)
    _, unmask, insert, _ = loss_of(case, method, state, t)
    torch.testing.assert_close(unmask, masks.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(insert, divergences.sum(), rtol=1e-6, atol=0)
    size = case.config["B"] * int(longest[1])
    stored = (masks / (1 + EPS * process.unmasking.weight(t)[:, None])).sum() / size
    case.close(stored, "unmask_loss")
    counts = PackedTokens.of_texts(state.gaps, state.text.lengths + 1)
    more = phi_of_a_clamped_zero(
        state.gaps, case["length"][counts.sequence_ids, counts.position_ids]
    )
    insert = (insert + (process.insertion.weight(t)[counts.sequence_ids] * more).sum()) / size
    case.close(insert, "insertion_loss")
    case.close((stored + insert) / case.config["gradient_accumulation_steps"], "loss")


def test_divergence():
    case = load("flex/flex_loss")
    count, expected = case["phi.x"], case["phi.y"].double().clamp(min=EPS)
    ours = bregman(count.double(), expected) + phi_of_a_clamped_zero(count, expected)
    case.close(ours, "phi.value", **stated(case.facts["tolerance"]["phi"]))


class Plain(torch.nn.Module, Network):
    """A network of fixed length whose logits are given."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        length, size = logits.shape[1:]
        self.config = TransformerConfig(vocab_size=size + 1, output_size=size, length=length)

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        return self.logits[queries.rows, queries.positions]


def test_loss_of_fixed_length():
    """Plain masked diffusion of the same texts; pads are tokens like others."""
    case = load("flex/flex_loss")
    x, t = case["x1"], 1 - case["mdm.t"].double()
    method = MDLM(
        Plain(case["token_logits"]),
        mask_id=case.config["vocab"],
        schedule="linear",
        corruption="continuous",
    )
    masked = case["mdm.u"] >= method.schedule.alpha(t)[:, None]
    assert torch.equal(torch.where(masked, case.config["mask_token"], x), case["mdm.xt"])
    weights = method.schedule.weight(t)[:, None].expand(masked.shape)
    loss = method.loss_given(
        Batch.of(x, is_token=torch.ones_like(masked)), Corrupted(masked, weights, t)
    )
    case.close(loss.objective, "mdm.loss")


# The network -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", named("flex/flex_network_*", holding="expected_gaps"))
def test_network(name):
    """The scalar is what the network embeds: theirs is told alpha, not a thousand times that."""
    vocabulary = [f"w.{key}" for key in (EMBEDDING, f"{HEAD}.weight", f"{HEAD}.bias")]
    case = with_ids_last(load(name), ["x"], vocabulary, ["token_logits"])
    config, lengths = case.config, case["seq_len"]
    network = load_flexible(case.state_dict("w."), config["n_heads"], config["max_length"]).eval()
    assert (network.mask_id, network.end_id) == (config["mask_token"], config["pad_token"])
    assert network.gap_head.kind == config["length_head"]
    parameters = sum(p.numel() for p in network.parameters())
    assert parameters == config["params"] - 2 * (config["hidden_size"] + 1)  # two logits less
    case.close(sinusoid(case["t"], case["time_frequencies"].shape[1]), "time_frequencies")
    case.close(network.conditioning(case["t"], None, len(lengths)), "conditioning")

    text = PackedTokens.of_texts(packed(case["x"], lengths), lengths)
    answer = network(text, queries=torch.arange(len(text.tokens)), scalar=case["t"])
    limits = {key: case.facts["tolerance"][key] for key in ("rtol", "atol")}
    stored = packed(case["token_logits"], lengths)[:, :-2]
    agree(answer.logits, stored, "token_logits", **limits)
    agree(answer.gaps, packed(case["expected_gaps"], lengths + 1), "expected_gaps", **limits)
    if config["length_head"] == "distribution":
        stored = packed(case["length_logits"], lengths + 1)
        agree(answer.counts, stored, "length_logits", **limits)
    else:
        assert answer.counts is None
    some = torch.arange(0, len(text.tokens), 3)
    few = network(text, queries=some, scalar=case["t"])
    torch.testing.assert_close(few.logits, answer.logits[some])


def test_network_of_fixed_length():
    case = load("flex/flex_network_mdm")
    config = case.config
    network = load_dit(case.state_dict("w."), config["n_heads"], config["max_length"]).eval()
    assert sum(p.numel() for p in network.parameters()) == config["params"]
    case.close(sinusoid(case["t"], case["time_frequencies"].shape[1]), "time_frequencies")
    case.close(network.conditioning(case["t"], None, len(case["t"])), "conditioning")
    case.close(network(case["x"], scalar=case["t"]), "token_logits")
    with pytest.raises(InputError, match="gap_head"):  # it says nothing of what is missing
        load_flexible(case.state_dict("w."), config["n_heads"], config["max_length"])
