"""The reference PartitionDIT with its own weights, and the losses and samplers around it.

The reference keeps a mask as its last id: an embedding that it never reads, and a logit that it
sets to -inf. Our network has neither, so the stored logits are compared without that column.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from partita.categorical import PLAIN, Decoding, weights
from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.contracts.prompt import Prompt
from partita.methods import MDLM, PGM, ComplementaryMDLM
from partita.models.published.reference import (
    load_dit,
    load_partition,
    partition_config,
    rename_partition,
)
from partita.networks import PartitionTransformer, TransformerConfig
from partita.networks.base import Network, PartitionNetwork
from partita.networks.layers import sinusoid
from partita.processes.corruption import Continuous, Corrupted, Discrete, Rate, weighed
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.planned import NEVER, ordered, reveal_as_planned
from partita.samplers.state import SamplerState
from partita.schedules import discretize, make_schedule
from tests.golden.cases import Case, load, named, parts, rule_of
from tests.support import partition_oracle
from tests.support.references import LAST_TIME, QUERIES, agree, gumbel_argmax

networks = pytest.mark.parametrize("name", named("text/pgm_text_*"))
packed_or_masked = pytest.mark.parametrize("packed", [True, False])


def modes(case: Case):
    """What the queries of a case start from, by the reference's names."""
    found = case.stems(".train", "out.")
    assert found
    return found


def queries_of(case: Case, mode=None):
    """Our name for a mode; the end-to-end losses and the samplers are of the configuration's."""
    return QUERIES[mode or case.config["model"]["swap"]["pre_query_mode"]]


def build(case: Case, mode=None):
    model, queries = case.config["model"], queries_of(case, mode)
    return load_partition(case.state_dict(), model["n_heads"], model["length"], queries).eval()


def build_with_mask(case: Case, mode=None):
    """The same with the mask's embedding and logit, as the reference keeps them."""
    state, model = case.state_dict(), case.config["model"]
    config = partition_config(state, model["n_heads"], model["length"], queries_of(case, mode))
    network = PartitionTransformer(replace(config, vocab_size=config.vocab_size + 1))
    network.load_state_dict(rename_partition(state))
    return network.eval()


def spread(answers, queries, like):
    """Answers [N, ...] as a table [B, L, ...]; every position must have been answered once."""
    table = answers.new_full((*like.shape, *answers.shape[1:]), torch.nan)
    table[queries.rows, queries.positions] = answers
    assert len(answers) == like.numel()
    return table


def all_logits(network, tokens, groups, packed, **told):
    return spread(
        *partition_oracle.both(network, tokens, groups.bool(), packed=packed, **told), tokens
    )


def close_without_mask(case: Case, ours, key):
    agree(case, ours, case[key][..., :-1], key)


# The network -------------------------------------------------------------------------------------


@networks
@packed_or_masked
def test_logits_of_both_groups(name, packed):
    case = load(name)
    tokens, groups, told = case["in.tokens"], case["in.group_idxs"], {"scalar": case["in.sigma"]}
    short = case["in.tokens_short"], case["in.group_short"]
    for mode in modes(case):
        network = build(case, mode)
        out = f"out.{mode}.train"
        close_without_mask(case, all_logits(network, tokens, groups, packed), out)
        close_without_mask(case, all_logits(network, *short, packed), f"{out}_short")
        timed = all_logits(network, tokens, groups, packed, **told)
        close_without_mask(case, timed, f"{out}_sigma")


@networks
@packed_or_masked
def test_a_network_with_a_mask_has_its_logit(name, packed):
    """What the others leave out: the last column, and that it changes none of the rest."""
    case = load(name)
    for mode in modes(case):
        ours = all_logits(
            build_with_mask(case, mode), case["in.tokens"], case["in.group_idxs"], packed
        )
        case.close(ours, f"out.{mode}.train")


@networks
def test_logits_given_the_revealed_tokens(name):
    """Inference: clean tokens and noisy positions, in any order, as many as each row has."""
    case = load(name)
    clean, noisy = case["in.inf.clean_positions"], case["in.inf.noisy_positions"]
    real_clean = torch.arange(clean.shape[1]) < case["in.inf.concrete_lengths"][:, None]
    real_noisy = torch.arange(noisy.shape[1]) < case["in.n_noisy"][:, None]
    rows, places = real_clean.nonzero(as_tuple=True)
    tokens = torch.full_like(case["in.tokens"], -1)  # no id at all where nothing is revealed
    tokens[rows, clean[rows, places]] = case["in.inf.tokens"][rows, places]
    asked, order = real_noisy.nonzero(as_tuple=True)
    queries = Queries(asked, noisy[asked, order])
    for mode in modes(case):
        ours = build(case, mode)(tokens, tokens >= 0, queries=queries)
        key = f"out.{mode}.inference"
        agree(case, ours, case[key][asked, order][:, :-1], key)


@networks
@packed_or_masked
def test_hidden_states(name, packed):
    case = load(name)
    tokens, groups = case["in.tokens"], case["in.group_idxs"].bool()
    case.close(
        sinusoid(torch.arange(len(case["out.pos_freqs"])).float(), case["out.pos_freqs"].shape[1]),
        "out.pos_freqs",
    )
    for mode in modes(case):
        network, hidden = build(case, mode), []
        for module in (network.encoder[-1], network.swap):
            module.register_forward_hook(lambda *hook, hidden=hidden: hidden.append(hook[2]))
        _, queries = partition_oracle.both(network, tokens, groups, packed=packed)
        encoded, swapped = hidden
        if packed:
            # Tokens are encoded sorted by row and group; they are asked for in the other order.
            rows = torch.arange(len(tokens))[:, None]
            flat = (2 * rows + groups.long()).flatten().argsort(stable=True)
            sorted_places = Queries(flat // tokens.shape[1], flat % tokens.shape[1])
            encoded = spread(encoded, sorted_places, tokens)
            swapped = spread(swapped, queries, tokens)
        case.close(encoded, "out.enc")
        case.close(swapped, f"out.{mode}.group_swap")


@packed_or_masked
def test_an_empty_group(packed):
    """Queries without keys read zeros, and all gradients stay finite."""
    case = load("text/pgm_edge_empty_group")
    tokens, groups = case["in.tokens"], case["in.group_idxs"]
    sizes = groups.sum(-1)
    assert int(sizes.min()) == 0
    assert int(sizes.max()) == groups.shape[1]
    for mode in modes(case):
        assert case.facts["info"]["finite"][mode]
        assert case.facts["info"]["grad_finite"][mode]
        network = build(case, mode)
        logits = all_logits(network, tokens, groups, packed)
        close_without_mask(case, logits, f"out.{mode}.train")
        logits.square().mean().backward()
        assert all(bool(p.grad.isfinite().all()) for p in network.parameters())


@networks
@packed_or_masked
def test_end_to_end_losses_and_gradient_norms(name, packed):
    case = load(name)
    tokens, groups, t = case["in.tokens"], case["in.group_idxs"].bool(), case["in.t"]
    network = build(case)
    if not packed:
        network.both = functools.partial(partition_oracle.both_by_masks, network)
    method, everything = PGM(network), torch.ones_like(groups)
    law = Continuous(make_schedule("log-linear"))
    loss = method.loss_of_groups(Batch.of(tokens), weighed(groups, *law.weights(t), everything))
    case.close(loss.per_token, "out.e2e_train_nll")
    loss.objective.backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    norms = case.facts["info"]["grad_l2_of_mean_train_nll"]
    assert len(norms) == len(gradients)
    limits = {name: case.facts["tolerance"][name] for name in ("atol", "rtol")}
    for theirs, norm in norms.items():
        (ours,) = rename_partition({theirs: torch.empty(0)})
        torch.testing.assert_close(
            gradients[ours].norm().item(), norm, **limits, msg=lambda m, n=theirs: f"{n}: {m}"
        )
    # Evaluation predicts group 1 alone.
    per_row = law.weights(t)[0][:, None].expand(groups.shape)
    estimate = method.loss_given(
        Batch.of(tokens, is_token=everything), Corrupted(groups, per_row, t)
    )
    case.close(estimate.per_token, "out.e2e_eval_nll")


# Losses ------------------------------------------------------------------------------------------


class Recorded(PartitionNetwork):
    """A partition network that answers with stored logits [B, L, V], of which the mask's is one."""

    def __init__(self, case: Case):
        self.case, self.logits = case, case["in.logits"]
        self.groups = case["in.group_idxs"].bool()
        length, size = self.logits.shape[1:]
        self.config = TransformerConfig(vocab_size=size, length=length)

    def __call__(self, tokens, revealed, *, queries, scalar=None, label=None, layout=None):  # noqa: ARG002
        assert torch.equal(tokens[revealed], self.case["in.x0"][revealed])
        assert not (revealed & self.groups).any()  # group 1 is what is asked for
        return self.logits[queries.rows, queries.positions]

    def both(self, tokens, groups, *, real=None, scalar=None, label=None, layout=None):  # noqa: ARG002
        assert torch.equal(tokens, self.case["in.x0"])
        assert torch.equal(groups, self.groups)
        queries = Queries(
            *(torch.ones_like(groups) if real is None else real).nonzero(as_tuple=True)
        )
        return self.logits[queries.rows, queries.positions], queries


def loss_case():
    """The case, our method over its logits, its groups, and weights by our names."""
    case = load("text/pgm_loss")
    method = PGM(Recorded(case), mask_id=case.config["mask_index"])
    return case, method, case["in.group_idxs"].bool(), Continuous(make_schedule("log-linear"))


def train_loss(case, method, hidden, visible, valid=None):
    groups = case["in.group_idxs"].bool()
    everything = torch.ones_like(groups) if valid is None else valid
    return method.loss_of_groups(
        Batch.of(case["in.x0"], is_token=valid), weighed(groups, hidden, visible, everything)
    )


def eval_loss(case, method, t, weight, valid=None):
    """Group 1 is hidden; padding is not, but holds the mask, which is never read."""
    groups = case["in.group_idxs"].bool()
    valid = torch.ones_like(groups) if valid is None else valid
    corruption = Corrupted(groups & valid, weight[:, None].expand(groups.shape), t)
    return method.loss_given(
        Batch.of(case["in.x0"].where(valid, method.mask_id), is_token=valid), corruption
    )


def test_loss_of_both_groups():
    case, method, _, law = loss_case()
    loss = train_loss(case, method, *law.weights(case["in.t"]))
    case.close(loss.per_token, "out.train_elbo")
    assert loss.counted.all()


def test_loss_of_group_one():
    case, method, groups, law = loss_case()
    t = case["in.t"]
    loss = eval_loss(case, method, t, law.weights(t)[0])
    case.close(loss.per_token, "out.eval_elbo")
    case.close(loss.per_token, "out.eval_low_var")  # the reference evaluates the bound here too
    assert torch.equal(loss.counted, groups)


def test_unweighted_loss():
    case, method, _, law = loss_case()
    t, plain = case["in.t"], Rate(law.schedule)
    loss = train_loss(case, method, plain.weight(t), plain.weight(1 - t))
    case.close(loss.per_token, "out.train_low_var")


def test_loss_with_discrete_times():
    """The reference moves t to the end of its bin and keeps the continuous weights there.

    Under its linear schedule those are the weights of our discrete partition between the ends.
    It gives both ends the full probability, and group 0 an infinite weight at t = 1, which the
    case avoids; ours has half the probability there and no weight for an empty group.
    """
    case, method, _, law = loss_case()
    numbers = [int(steps) for steps in case.stems("", "out.train_elbo_T")]
    assert numbers
    for steps in numbers:
        t = discretize(case[f"in.t_T{steps}"], steps)
        hidden, visible = law.weights(t)
        chain = Discrete(law.schedule, steps)
        torch.testing.assert_close(chain.weights(t), hidden)
        ours = chain.partition_weights(torch.round(t * steps))
        for weight, theirs in zip(ours, (hidden, visible), strict=True):
            torch.testing.assert_close(weight, theirs.double())
        theirs = f"out.train_elbo_T{steps}"
        case.close(train_loss(case, method, hidden, visible).per_token, theirs)
        estimate = eval_loss(case, method, t, chain.weights(t))
        case.close(estimate.per_token, f"out.eval_elbo_T{steps}")


def test_batch_losses_average_over_real_tokens():
    case, method, _, law = loss_case()
    t, valid = case["in.t"], case["in.valid_tokens"].bool()
    hidden, visible = law.weights(t)
    for key, loss in (
        ("out.train_loss", train_loss(case, method, hidden, visible, valid)),
        ("out.eval_loss", eval_loss(case, method, t, hidden, valid)),
    ):
        case.close(loss.objective, key)
        assert int(loss.tokens) == int(valid.sum())
        assert not loss.per_token[~valid].any()


def test_log_probabilities():
    case, method, _, _ = loss_case()
    case.close(method.log_probabilities(case["in.logits"]), "out.logp")


def test_visible_shares():
    """The partition is drawn under their truncated schedule; the weights above have no epsilon."""
    case, schedule = load("text/pgm_loss"), make_schedule("mdlm:loglinear")
    case.close(schedule.alpha(case["in.t"]), "out.alpha_t")
    case.close(schedule.alpha(1 - case["in.t"]), "out.alpha_complement")


class RecordedHalves(Network):
    """A network with masks: it must be shown the stored states in their order."""

    def __init__(self, case: Case):
        self.states = [case["in.xt"], case["out.xt_complement"]]
        self.logits = case["in.logits_both"].chunk(len(self.states))
        length, size = self.logits[0].shape[1:]
        self.config, self.calls = TransformerConfig(vocab_size=size, length=length), 0

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        assert torch.equal(tokens, self.states[self.calls])
        self.calls += 1
        return self.logits[self.calls - 1][queries.rows, queries.positions]


def test_complementary_masking():
    case = load("text/complement_mdlm_loss")
    mask_id, tokens, t = case.config["mask_index"], case["in.x0"], case["in.t"]
    groups = case["in.xt"] == mask_id
    law, everything = Continuous(make_schedule("log-linear")), torch.ones_like(groups)
    plain = Rate(law.schedule)
    hidden, visible = law.weights(t)

    def method(kind):
        return kind(RecordedHalves(case), mask_id=mask_id, schedule=law.schedule, corruption=law)

    for key, partition in {
        "elbo": weighed(groups, hidden, visible, everything),
        "low_var": weighed(groups, plain.weight(t), plain.weight(1 - t), everything),
    }.items():
        complementary = method(ComplementaryMDLM)
        loss = complementary.loss_of_groups(Batch.of(tokens), partition)
        case.close(loss.per_token, f"out.complement_train_{key}")
        assert complementary.network.calls == 2
        assert loss.counted.all()

    # One half of it is MDLM: what both methods evaluate by, and what MDLM learns by.
    bound = Corrupted(groups, hidden[:, None].expand(groups.shape), t)
    unweighted = Corrupted(groups, torch.ones_like(bound.weights), t)
    for kind, corruption, key in (
        (ComplementaryMDLM, bound, "out.complement_eval"),
        (MDLM, bound, "out.mdlm_eval"),
        (MDLM, bound, "out.mdlm_train_elbo"),
        (MDLM, unweighted, "out.mdlm_train_low_var"),
    ):
        case.close(
            method(kind).loss_given(Batch.of(tokens, is_token=everything), corruption).per_token,
            key,
        )


# Samplers ----------------------------------------------------------------------------------------


class Keys(Noise):
    """Noise whose order is a recorded one: a key for every position but the first."""

    def __init__(self, keys):
        super().__init__(0, torch.arange(len(keys)))
        object.__setattr__(self, "keys", F.pad(keys.double(), (1, 0)))

    def uniform(self, purpose, step, positions):  # noqa: ARG002
        return self.keys.gather(1, positions.expand_as(self.keys))


class Replay(SamplingContext):
    """A context that draws tokens by the reference's rule from its recorded uniforms.

    A step has uniforms [B, n, V] for the next n positions of each row's order.
    """

    def __init__(self, model, keys, uniforms, decoding=PLAIN):
        super().__init__(model, Keys(keys), decoding)
        self.place = self.noise.keys[:, 1:].argsort(-1).argsort(-1)
        self.uniforms, self.calls = uniforms, 0
        self.drawn = torch.zeros(len(keys), dtype=torch.long)

    def draw(self, log_probs, step, rows, positions):  # noqa: ARG002
        place = self.place[rows, positions - 1] - self.drawn[rows]
        u = self.uniforms[self.calls][rows, place]
        self.drawn += torch.bincount(rows, minlength=len(self.drawn))
        self.calls += 1
        # Their mask is the last id and never drawn, whether or not our network has a logit for it.
        return gumbel_argmax(weights(log_probs, self.decoding)[:, : u.shape[-1] - 1], u[:, :-1])


class Run:
    """A recorded run: its draws, and a state that holds the first token alone."""

    def __init__(self, case: Case, name):
        self.name, self.case = name, case
        self.draws = [case[key] for key in case.keys(f"in.rand.{name}.")]
        self.mask_id = case.config["vocab_size"] - 1
        self.steps = case.config["sampling"]["steps"]
        self.tokens = case[f"out.{name}.tokens"]
        known = (torch.arange(self.tokens.shape[1]) == 0).expand_as(self.tokens)
        self.state = SamplerState.from_prompt(Prompt(self.tokens, known), self.mask_id)
        assert len(self.tokens) == case.config["num_samples"]
        assert case.facts["info"][f"{name}_mask_left"] == 0

    @property
    def top_p(self):
        """The share of a nucleus, if the run has one."""
        found = re.search(r"p_nucleus=([\d.]+)", self.case.meaning(f"out.{self.name}.tokens"))
        return float(found[1]) if found else None


def uniform(run: Run):
    """A random order, evenly split: our sampler `ordered`.

    With a nucleus, they filter before they drop the mask, so its logit takes part: here it is a
    token.
    """
    keys, *uniforms = run.draws
    if run.top_p is None:
        context = Replay(PGM(build(run.case)), keys, uniforms)
    else:
        method, decoding = PGM(build_with_mask(run.case)), Decoding(top_p=run.top_p)
        context = Replay(method, keys, uniforms, decoding)
    return ordered(context, run.state, steps=run.steps), context.calls


def non_uniform(run: Run):
    """Each row has a number of its own at each step, as far as there are positions left."""
    keys, *rest = run.draws
    counts = torch.stack([draw for draw in rest if draw.ndim == 1], 1).long()
    context = Replay(PGM(build(run.case)), keys, [draw for draw in rest if draw.ndim == 3])
    assert counts.shape[1] == run.steps
    ends = counts.cumsum(1)
    step = torch.searchsorted(ends, context.place, right=True)  # what is left over: one step more
    plan = F.pad(step, (1, 0), value=NEVER)
    visible = torch.zeros(plan.shape, dtype=torch.float64)  # the network is not told the time
    tokens = reveal_as_planned(context, run.state, plan, visible, run.steps + 1)
    return tokens, context.calls


def naive(run: Run):
    return on_a_grid_of_times(run, PGM(build(run.case)))


def mdlm(run: Run):
    model, weights = run.case.config["model"], run.case.state_dict("sd_student.")
    network = load_dit(weights, model["n_heads"], model["length"]).eval()
    return on_a_grid_of_times(run, MDLM(network, mask_id=run.mask_id))


def on_a_grid_of_times(run: Run, method):
    """A draw for every token, and whether it is revealed.

    They predict all positions and our networks the hidden ones: the rest is never looked at.
    """
    schedule, state = make_schedule("mdlm:loglinear"), run.state
    # The last step goes from the grid's end to alpha = 1.
    times = F.pad(torch.linspace(1, LAST_TIME, run.steps + 1, dtype=torch.float64), (0, 1))
    uniforms, reveals = run.draws[::2], run.draws[1::2]
    states = []
    for t, s, u, reveal in zip(times[:-1], times[1:], uniforms, reveals, strict=True):
        states.append(state.tokens.clone())
        rows, positions = (~state.revealed).nonzero(as_tuple=True)
        if len(rows) == 0:
            continue
        with torch.no_grad():
            log_probs = method.predict(state.tokens, state.revealed, rows, positions)
        probs = log_probs.double().exp()[:, : run.mask_id]
        tokens = gumbel_argmax(probs, u[rows, positions][:, : run.mask_id])
        kept = reveal[rows, positions] < schedule.reveal_probability(s, t)
        state.write(rows[kept], positions[kept], tokens[kept])
    # A prediction of theirs serves until a token changes; one call ends the run.
    visited = states[:-1]
    changed = [not torch.equal(*pair) for pair in itertools.pairwise(visited)]
    return state.tokens, 1 + sum(changed) + 1


SAMPLERS = {
    "uniform": uniform,
    "non_uniform": non_uniform,
    "naive": naive,  # PGM and
    "mdlm": mdlm,  # MDLM on a grid of times
}


@pytest.mark.parametrize(
    ("file", "name"), parts("text/pgm_samplers", lambda case: case.stems(".tokens", "out."))
)
def test_samplers(file, name):
    run = Run(load(file), name)
    tokens, calls = SAMPLERS[rule_of(name, SAMPLERS)](run)
    assert torch.equal(tokens, run.tokens)
    assert calls == run.case.facts["info"][f"{name}_backbone_calls"]
