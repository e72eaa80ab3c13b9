"""What is different on a GPU: variable-length kernels, and tensors that live there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from partita.config.training import TrainingOptions
from partita.contracts.batch import Batch
from partita.contracts.layouts import DenseLayout, PackedLayout
from partita.data.ahead import Ahead
from partita.data.batches import InMemory, Order, Packed
from partita.likelihood.bounds import nelbo
from partita.methods import AR, MDLM, METHODS, PGM
from partita.methods.inference import queries_everywhere
from partita.networks import (
    CausalTransformer,
    PartitionTransformer,
    Transformer,
    TransformerConfig,
    TransformerOptions,
)
from partita.networks.attention import attend
from partita.randomness import Noise, Purpose
from partita.samplers import SAMPLERS, Prompt, sample
from partita.training.loop import fit
from tests.support import partition_oracle

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENGTH, VOCAB = 16, 9


def build(kind=MDLM):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=VOCAB + 1, length=LENGTH + 1, width=64, depth=2, heads=2)
    model = kind({AR: CausalTransformer}.get(kind, Transformer)(config))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("causal", [False, True])
def test_variable_length_kernel_equals_the_padded_path(causal):
    torch.manual_seed(0)
    lengths = torch.tensor([5, 1, 9, 32], device="cuda")
    query, key, value = torch.randn(3, int(lengths.sum()), 4, 64, device="cuda").bfloat16()
    layout = PackedLayout.of_lengths(lengths, causal)
    oracle = attend(query.float(), key.float(), value.float(), layout)
    torch.testing.assert_close(
        attend(query, key, value, layout).float(), oracle, atol=2e-2, rtol=2e-2
    )


def test_swapped_keys_read_the_other_segment():
    torch.manual_seed(0)
    lengths = torch.tensor([6, 10], device="cuda")
    query, key, value = torch.randn(3, 16, 4, 64, device="cuda").bfloat16()
    own = PackedLayout.of_lengths(lengths)
    key_parts, value_parts = (torch.cat([x[6:], x[:6]]) for x in (key, value))
    other = PackedLayout(
        own.cu_seqlens_q, PackedLayout.of_lengths(lengths.flip(0)).cu_seqlens_q, 10, 10
    )
    oracle = attend(query.float(), key_parts.float(), value_parts.float(), other)
    ours = attend(query, key_parts, value_parts, other).float()
    torch.testing.assert_close(ours, oracle, atol=2e-2, rtol=2e-2)


def partition_network(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "length": 96, "width": 128, "depth": 4, "heads": 2}
    network = PartitionTransformer(TransformerConfig(**sizes | options)).cuda()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return network


def partition(rows=6, length=96):
    """Tokens and groups of all shares, an empty group among them."""
    torch.manual_seed(1)
    tokens = torch.randint(VOCAB, (rows, length), device="cuda")
    share = torch.linspace(0, 1, rows, device="cuda")[:, None]
    return tokens, torch.rand(rows, length, device="cuda") < share


def both_in_rows(network, tokens, groups, **options):
    logits, queries = partition_oracle.both(network, tokens, groups, **options)
    return logits.new_zeros(*tokens.shape, VOCAB).index_put(tuple(queries), logits).float()


@pytest.mark.parametrize("queries", ["positions", "logsumexp"])
def test_packed_partitions_equal_masked_ones(queries):
    """In float32 by padding; in bfloat16 by the variable-length kernel, with its rounding."""
    network = partition_network(options={"queries": queries})
    tokens, groups = partition()
    oracle = both_in_rows(network, tokens, groups, packed=False)
    exact = both_in_rows(network, tokens, groups)
    torch.testing.assert_close(exact, oracle, atol=2e-4, rtol=1e-3)  # sums in another order
    with torch.autocast("cuda", torch.bfloat16):
        rounded = both_in_rows(network, tokens, groups)
    torch.testing.assert_close(rounded, oracle, atol=0.05 * float(oracle.abs().max()), rtol=0.05)


def test_partition_gradients_in_bfloat16():
    network = partition_network()
    tokens, groups = partition()
    gradients = {}
    for packed in (True, False):
        network.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits, queries = partition_oracle.both(network, tokens, groups, packed=packed)
            target = tokens[queries.rows, queries.positions]
        torch.nn.functional.cross_entropy(logits.float(), target).backward()
        gradients[packed] = {name: p.grad.clone() for name, p in network.named_parameters()}
    for name, gradient in gradients[True].items():
        scale = float(gradients[False][name].norm())
        assert float((gradient - gradients[False][name]).norm()) <= 0.05 * scale, name


@pytest.mark.parametrize("sampler", ["ancestral", "ordered", "confidence", "first-hitting"])
def test_partition_samples_without_a_prompt(sampler):
    model = PGM(partition_network(length=LENGTH))
    options = {} if sampler == "first-hitting" else {"steps": 5}
    with torch.autocast("cuda", torch.bfloat16):
        drawn = sample(model, 3, sampler=sampler, seed=1, **options)
    assert drawn.is_cuda
    assert drawn.shape == (3, LENGTH)
    assert int(drawn.max()) < VOCAB


def documents(rows, length):
    """Ends of random documents, on the GPU, and the mask that they make."""
    ends = torch.rand(rows, length, device="cuda") < 0.1
    number = ends.cumsum(1) - ends.long()  # how many documents have ended before a token
    return ends, number[:, :, None] == number[:, None, :]


@pytest.mark.parametrize("longest", [None, 96])
@pytest.mark.parametrize("causal", [False, True])
def test_documents_in_rows_equal_the_masked_batch(causal, longest):
    """The kernel for packed tokens on a rectangular batch, with its gradients."""
    torch.manual_seed(0)
    ends, mask = documents(5, 96)
    layout = replace(PackedLayout.of_documents(ends, longest), causal=causal)
    inputs = torch.randn(3, 5, 96, 4, 64, device="cuda").bfloat16().requires_grad_()
    toward = torch.randn(5, 96, 4, 64, device="cuda")

    def outcome(inputs, layout):
        result = attend(*inputs, layout).float()
        return result, torch.autograd.grad((result * toward).sum(), inputs)[0].float()

    ours = outcome(inputs, layout)
    oracle = outcome(inputs.detach().float().requires_grad_(), DenseLayout(mask, causal))
    for result, expected in zip(ours, oracle, strict=True):
        torch.testing.assert_close(result, expected, atol=3e-2, rtol=3e-2)


def test_layouts_are_the_same_on_every_device():
    ends, _ = documents(5, 96)
    here, there = PackedLayout.of_documents(ends.cpu()), PackedLayout.of_documents(ends)
    assert torch.equal(here.to("cuda").cu_seqlens_q, there.cu_seqlens_q)
    assert here.max_seqlen_q == there.max_seqlen_q


@pytest.mark.parametrize("kind", [MDLM, AR])
def test_the_loss_of_documents_in_half_precision(kind):
    model, tokens = build(kind).cuda(), torch.randint(0, VOCAB, (64, LENGTH), device="cuda")
    ends, mask = documents(64, LENGTH)
    layout, noise = PackedLayout.of_documents(ends), Noise.for_batch(0, 64, device="cuda")
    exact = model.loss(Batch.of(tokens, layout=layout), noise)
    with torch.autocast("cuda", torch.bfloat16):
        half = model.loss(Batch.of(tokens, layout=layout), noise)
        half.objective.backward()
    torch.testing.assert_close(half.objective, exact.objective, atol=0.0, rtol=2e-2)
    if kind is MDLM:  # under a mask, AR would not begin documents with its start token
        oracle = model.loss(Batch.of(tokens, layout=DenseLayout(mask)), noise)
        torch.testing.assert_close(exact.per_token, oracle.per_token, atol=1e-4, rtol=1e-4)
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())


def test_noise_is_the_same_on_every_device():
    positions = torch.arange(100)[None]
    here = Noise.for_batch(5, 8).uniform(Purpose.TOKEN, 3, positions)
    there = Noise.for_batch(5, 8, device="cuda").uniform(Purpose.TOKEN, 3, positions.cuda())
    assert torch.equal(here, there.cpu())


def of_every_kind(name):
    """A method by name, small, with random weights."""
    torch.manual_seed(0)
    sizes = TransformerOptions(length=LENGTH, width=64, depth=2, heads=2)
    model = METHODS[name].build(sizes, VOCAB)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("name", list(METHODS))
def test_losses_are_the_same_on_every_device(name):
    """The noise is the same, so all that differs is how sums are rounded."""
    model = of_every_kind(name)
    tokens = torch.randint(0, VOCAB, (8, LENGTH))
    results = {}
    for device in ("cpu", "cuda"):
        model.zero_grad()
        noise = Noise.for_batch(0, 8, device=device)
        loss = model.to(device).loss(Batch.of(tokens.to(device)), noise)
        loss.objective.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results[device] = loss.per_token.detach().cpu(), gradients
    here, there = results["cpu"], results["cuda"]
    torch.testing.assert_close(there[0], here[0], atol=1e-3, rtol=1e-3)
    for ours, oracle in zip(there[1], here[1], strict=True):
        assert float((ours - oracle).norm()) <= 1e-3 * float(oracle.norm()) + 1e-5


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_every_sampler_runs_and_keeps_its_prompt(name):
    family = SAMPLERS[name].family
    options = {"block_length": 4} if name == "blocks" else {}
    tokens = torch.randint(0, VOCAB, (3, LENGTH), device="cuda")
    known = torch.arange(LENGTH, device="cuda").expand(3, -1) < 5
    for method in METHODS:
        if METHODS[method].family != family:
            continue
        model = of_every_kind(method).cuda()
        drawn = sample(model, prompt=Prompt(tokens, known), sampler=name, **options)
        assert drawn.is_cuda
        assert torch.equal(drawn[known], tokens[known])
        assert int(drawn.max()) < VOCAB
        assert sample(model, 2, length=LENGTH, sampler=name, **options).is_cuda


def test_batches_that_are_read_ahead():
    """They come out of pinned memory, and the ends of documents stay where layouts are made."""
    order = Order(Packed(InMemory(torch.arange(400)), 8, document_attention=True), 4, seed=0)
    assert order.batch(0).pinned().tokens.is_pinned()
    with Ahead(order, slice(1, 4), torch.device("cuda")) as ahead:
        for step in (0, 1, 2, 9):
            found, plain = ahead.batch(step), order.batch(step, slice(1, 4))
            assert found.tokens.is_cuda
            assert torch.equal(found.tokens.cpu(), plain.tokens)
            assert torch.equal(found.ends.cpu(), plain.ends)


def test_small_heads_are_asked_everywhere():
    """Then nothing in a loss waits for the GPU."""
    method = build().cuda()
    tokens = torch.randint(VOCAB, (3, LENGTH), device="cuda")
    assert queries_everywhere(method, tokens)
    noise = Noise.for_batch(0, 3, device="cuda")
    method.loss(Batch.of(tokens), noise)  # what is compiled first may wait
    torch.cuda.synchronize()
    with sync_debug():
        method.loss(Batch.of(tokens), noise, 1).objective.backward()
    sizes = {"length": LENGTH, "width": 64, "depth": 2, "heads": 2}
    large = METHODS["mdlm"].build(TransformerOptions(**sizes), 400).cuda()  # of 2 x 12 x 64^2
    assert not queries_everywhere(large, tokens)


@contextmanager
def sync_debug():
    """Waiting for the GPU is an error inside."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_training_and_likelihood():
    model = build().cuda()
    stream = torch.tensor([0, 1, 2, 3] * 100)
    before = nelbo(model, stream[:160].reshape(-1, LENGTH).cuda()).nats
    fit(
        model,
        stream,
        TrainingOptions(steps=60, length=LENGTH, optimizer="muon", learning_rate=0.02),
    )
    assert nelbo(model, stream[:160].reshape(-1, LENGTH).cuda()).nats < before / 2
