"""Networks: layouts agree, options run, conditioning conditions, nothing leaks."""

from __future__ import annotations

import itertools

import pytest
import torch

from partita.contracts.layouts import DenseLayout, PackedLayout, Queries
from partita.errors import InputError
from partita.networks import (
    CausalTransformer,
    PartitionTransformer,
    Transformer,
    TransformerConfig,
    TransformerOptions,
)
from partita.networks.attention import attend
from partita.networks.layers import QKNorm


def randomise(module, std=0.3):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return module.eval()


def tiny(kind=Transformer, **options):
    config = {"vocab_size": 11, "length": 16, "width": 16, "depth": 2, "heads": 2} | options
    return randomise(kind(TransformerConfig(**config)))


def dense_oracle(query, key, value, q_lengths, k_lengths, causal=False):
    """PackedLayout one by one, by the definition of attention."""
    result = []
    q_start = k_start = 0
    for q_size, k_size in zip(q_lengths, k_lengths, strict=True):
        q = query[q_start : q_start + q_size]
        k, v = (x[k_start : k_start + k_size] for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        if causal:
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        result.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        q_start, k_start = q_start + q_size, k_start + k_size
    return torch.cat(result)


def offsets(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths"),
    [([3, 5], [3, 5]), ([3, 5], [5, 3]), ([1, 4, 2], [6, 1, 3]), ([2, 0, 3], [2, 4, 1])],
)
def test_segments_read_their_own_keys(q_lengths, k_lengths):
    torch.manual_seed(1)
    query = torch.randn(sum(q_lengths), 2, 4)
    key, value = torch.randn(2, sum(k_lengths), 2, 4)
    layout = PackedLayout(offsets(q_lengths), offsets(k_lengths), max(q_lengths), max(k_lengths))
    torch.testing.assert_close(
        attend(query, key, value, layout), dense_oracle(query, key, value, q_lengths, k_lengths)
    )


def test_causal_segments():
    lengths = [3, 1, 5]
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 9, 2, 4)
    layout = PackedLayout.of_lengths(torch.tensor(lengths), causal=True)
    torch.testing.assert_close(
        attend(query, key, value, layout),
        dense_oracle(query, key, value, lengths, lengths, causal=True),
    )


def test_a_query_without_keys_gets_zeros_and_finite_gradients():
    query, key, value = (torch.randn(n, 2, 4, requires_grad=True) for n in (5, 3, 3))
    layout = PackedLayout(offsets([2, 3]), offsets([3, 0]), 3, 3)
    result = attend(query, key, value, layout)
    assert torch.equal(result[2:], torch.zeros(3, 2, 4))
    result.sum().backward()
    assert all(bool(torch.isfinite(x.grad).all()) for x in (query, key, value))
    mask = torch.tensor([[[True, False], [False, False]]])
    q, k = torch.randn(1, 2, 2, 4), torch.randn(1, 2, 2, 4)
    assert torch.equal(attend(q, k, k, DenseLayout(mask))[:, 1], torch.zeros(1, 2, 4))


@pytest.mark.parametrize("kind", [Transformer, CausalTransformer])
def test_packed_equals_padded(kind):
    network = tiny(kind, time=True, classes=3)
    lengths, scalar, label = [7, 3, 5], torch.rand(3), torch.tensor([0, 3, 2])
    texts = [torch.randint(0, 11, (n,)) for n in lengths]
    layout = PackedLayout.of_lengths(torch.tensor(lengths), causal=kind.causal)
    packed = network(torch.cat(texts), layout=layout, scalar=scalar, label=label)
    alone = [
        network(text[None], scalar=scalar[i : i + 1], label=label[i : i + 1])[0]
        for i, text in enumerate(texts)
    ]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_no_information_crosses_segments():
    network = tiny()
    embedded = []
    network.embed.register_forward_hook(lambda *hook: embedded.append(hook[2]))
    layout = PackedLayout.of_lengths(torch.tensor([4, 6]))
    logits = network(torch.randint(0, 11, (10,)), layout=layout)
    (gradient,) = torch.autograd.grad(logits[:4].sum(), embedded)
    assert torch.equal(gradient[4:], torch.zeros(6, 16))
    assert float(gradient[:4].abs().sum()) > 0


def test_a_causal_network_does_not_look_ahead():
    network, tokens = tiny(CausalTransformer), torch.randint(0, 11, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    ours, theirs = network(tokens), network(changed)
    assert torch.equal(ours[:, :5], theirs[:, :5])
    assert not torch.allclose(ours[:, 5:], theirs[:, 5:])


@pytest.mark.parametrize("options", [{}, {"time": True}, {"classes": 4}])
def test_queries_are_rows_of_the_full_answer(options):
    network, tokens = tiny(**options), torch.randint(0, 11, (3, 9))
    rows, positions = torch.tensor([2, 0, 0]), torch.tensor([8, 1, 3])
    picked = network(tokens, queries=Queries(rows, positions))
    torch.testing.assert_close(picked, network(tokens)[rows, positions])


@pytest.mark.parametrize("mlp", ["gelu", "swiglu", "relu2"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_every_option_learns(mlp, norm, qk_norm):
    """One batch is fitted: gradients reach everything that they should."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=5, length=6, width=16, depth=2, heads=2, mlp=mlp, norm=norm, qk_norm=qk_norm
    )
    network, tokens = Transformer(config), torch.randint(0, 5, (4, 6))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(5.0).log().item())  # uniform at the start
    assert losses[-1] < 0.05
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_scale_and_root_times_the_cosine():
    """What a logit of attention is between normalised queries and keys."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 2, 8, dtype=torch.float64)
    cosines = torch.cosine_similarity(query, key, dim=-1)
    for scale in (1.0, 2.5):
        normal_query, normal_key = QKNorm("head", scale)(query, key)
        logits = (normal_query * normal_key).sum(-1) / 8**0.5
        torch.testing.assert_close(logits, scale * 8**0.5 * cosines, rtol=1e-4, atol=1e-5)
    plain, sharp = (QKNorm("width", s)(query, key) for s in (1.0, 3.0))
    torch.testing.assert_close(sharp[0], plain[0] * 3)
    assert torch.equal(sharp[1], plain[1])


@pytest.mark.parametrize("kind", [Transformer, CausalTransformer, PartitionTransformer])
def test_the_scale_reaches_every_kind_of_attention(kind):
    tokens, groups = torch.randint(0, 11, (2, 9)), torch.arange(18).view(2, 9) % 2 == 0

    def answer(scale):
        network = tiny(kind, qk_scale=scale)
        if kind is PartitionTransformer:
            return network.both(tokens, groups)[0]
        return network(tokens)

    assert not torch.allclose(answer(1.0), answer(4.0), atol=1e-2)


def test_time_and_label_change_the_answer():
    network, tokens = tiny(time=True, classes=2), torch.randint(0, 11, (1, 5))

    def answer(time, label):
        return network(tokens, scalar=torch.tensor([time]), label=torch.tensor([label]))

    assert not torch.allclose(answer(1.0, 0), answer(900.0, 0))
    assert not torch.allclose(answer(1.0, 0), answer(1.0, 1))
    no_label = network(tokens, scalar=torch.tensor([1.0]))
    torch.testing.assert_close(no_label, answer(1.0, 2))  # one past the last class: none


def test_dropout_is_for_training_only():
    network, tokens = tiny(dropout=0.5), torch.randint(0, 11, (2, 5))
    assert torch.equal(network(tokens), network(tokens))
    network.train()
    assert not torch.equal(network(tokens), network(tokens))


@pytest.mark.parametrize("kind", [Transformer, CausalTransformer])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("conditions", [{}, {"time": True, "classes": 2}])
def test_recomputed_activations_give_the_same_gradients(kind, dropout, conditions):
    network = tiny(kind, dropout=dropout, **conditions).train()
    tokens, told = torch.randint(0, 11, (2, 9)), {}
    if conditions:
        told = {"scalar": torch.rand(2), "label": torch.tensor([0, 2])}

    def outcome(recompute):
        network.recompute = recompute
        network.zero_grad()
        torch.manual_seed(5)
        loss = network(tokens, **told).log_softmax(-1)[..., 0].mean()
        after_forward = torch.rand(())
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        return [loss.detach(), after_forward, torch.rand(()), *gradients]

    plain, again = outcome(recompute=False), outcome(recompute=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, plain, strict=True))


def test_recompute_runs_blocks_twice_in_training_alone():
    network, tokens = tiny(), torch.randint(0, 11, (2, 5))
    names, runs = set(network.state_dict()), []
    network.recompute = True
    network.blocks[0].attention.register_forward_hook(lambda *_: runs.append(None))
    network(tokens).sum().backward()
    assert len(runs) == 1
    network.train()(tokens).sum().backward()
    assert len(runs) == 3
    with torch.no_grad():
        network(tokens)
    assert len(runs) == 4
    assert set(network.state_dict()) == names


def test_a_mask_and_causal_order_hold_together():
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 5, 2, 4)
    mask = torch.rand(2, 5, 5) < 0.6
    torch.testing.assert_close(
        attend(query, key, value, DenseLayout(mask, causal=True)),
        attend(query, key, value, DenseLayout(mask.tril())),
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"width": 18, "heads": 4}, "network.heads"),
        ({"depth": 0}, "network.depth"),
        ({"dropout": 1.0}, "network.dropout"),
        ({"classes": -1}, "network.classes"),
        ({"vocab_size": 1}, "network.vocab_size"),
        ({"output_size": 12}, "network.output_size"),
        ({"mlp": "gleu"}, "network.mlp"),
        ({"norm": "batch"}, "network.norm"),
    ],
)
def test_bad_configurations_name_the_option(options, word):
    with pytest.raises(InputError, match=word):
        tiny(**options)


def test_options_are_checked_before_the_vocabulary_is_known():
    with pytest.raises(InputError, match="network\\.heads"):
        TransformerOptions(width=18, heads=4)
    chosen = TransformerOptions(width=16, heads=2, classes=3)
    config = TransformerConfig(**vars(chosen), vocab_size=11, time=True)
    assert (config.width, config.classes, config.outputs) == (16, 3, 11)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ({"scalar": torch.zeros(1)}, "time"),
        ({"label": torch.zeros(1, dtype=torch.long)}, "label"),
    ],
)
def test_a_network_refuses_what_it_cannot_use(call, word):
    with pytest.raises(InputError, match=word):
        tiny()(torch.zeros(1, 3, dtype=torch.long), **call)


def test_a_label_must_exist():
    with pytest.raises(InputError, match="label"):
        tiny(classes=2)(torch.zeros(1, 3, dtype=torch.long), label=torch.tensor([3]))
