"""Documents that share a row: each is read, learned and scored as if it were alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, DenseLayout, PackedLayout
from partita.errors import InputError
from partita.methods import AR, MD4, MDLM
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from partita.networks.attention import attend
from partita.processes.corruption import Corrupted
from partita.randomness import Noise

VOCAB, LENGTH, WIDTH = 10, 12, 16
ROWS = [[5, 3, 4], [12], [1, 10, 1], [7, 5]]  # the lengths of each row's documents
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def ends_of(rows):
    """True at the last token of each document."""
    ends = torch.zeros(len(rows), LENGTH, dtype=torch.bool)
    for row, lengths in enumerate(rows):
        ends[row, torch.tensor(lengths).cumsum(0) - 1] = True
    return ends


def spans():
    """(row, slice) of each document."""
    for row, lengths in enumerate(ROWS):
        start = 0
        for length in lengths:
            yield row, slice(start, start + length)
            start += length


def mask_of(ends):
    """The definition: true where two tokens of a row have as many ends before them."""
    mask = torch.zeros(*ends.shape, LENGTH, dtype=torch.bool)
    for row in range(len(ends)):
        for query in range(LENGTH):
            for key in range(LENGTH):
                low, high = sorted((query, key))
                mask[row, query, key] = not ends[row, low:high].any()
    return mask


def build(kind, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB + 1, "length": LENGTH, "width": WIDTH, "depth": 2, "heads": 2}
    config = TransformerConfig(**sizes, time=kind is MD4, **options)
    method = kind({AR: CausalTransformer}.get(kind, Transformer)(config))
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return method.eval()


@pytest.fixture
def tokens():
    return torch.randint(0, VOCAB, (len(ROWS), LENGTH), generator=torch.Generator().manual_seed(1))


def corruption():
    """Half of the tokens hidden, under times and weights that differ by row."""
    generator = torch.Generator().manual_seed(2)
    masked = torch.rand(len(ROWS), LENGTH, generator=generator) < 0.5
    times = torch.rand(len(ROWS), generator=generator)
    weights = (1 + times)[:, None].expand(masked.shape)
    return Corrupted(masked, weights, times)


def part(drawn, row, span):
    rows = slice(row, row + 1)
    times = None if drawn.times is None else drawn.times[rows]
    return Corrupted(drawn.masked[rows, span], drawn.weights[rows, span], times)


def loss_of(method, tokens, drawn, layout=DENSE, label=None):
    """The loss of a batch; masked methods hide the tokens that `drawn` says."""
    if isinstance(method, AR):
        return method.loss(Batch.of(tokens, label=label, layout=layout))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    return method.loss_given(Batch.of(tokens, is_token=valid, label=label, layout=layout), drawn)


def test_offsets_count_over_the_batch():
    layout = PackedLayout.of_documents(ends_of(ROWS))
    assert layout.cu_seqlens_q.tolist() == [0, 5, 8, 12, 24, 25, 35, 36, 43, 48]
    assert layout.cu_seqlens_q.dtype == torch.int32
    assert (layout.max_seqlen_q, layout.max_seqlen_k) == (12, 12)


def test_a_row_ends_its_last_document():
    ends = ends_of(ROWS)
    ends[:, -1] = False
    layout = PackedLayout.of_documents(ends)
    assert torch.equal(layout.cu_seqlens_q, PackedLayout.of_documents(ends_of(ROWS)).cu_seqlens_q)
    assert not ends[:, -1].any()  # the caller's tensor is left as it was
    none = PackedLayout.of_documents(torch.zeros(3, LENGTH, dtype=torch.bool))
    assert none.cu_seqlens_q.tolist() == [0, 12, 24, 36]


def test_the_longest_document_may_be_bounded(tokens):
    ends = ends_of([[5, 3, 4], [4, 4, 4], [1, 5, 6], [6, 6]])
    tight, loose = PackedLayout.of_documents(ends), PackedLayout.of_documents(ends, longest=LENGTH)
    assert (tight.max_seqlen_q, loose.max_seqlen_q) == (6, LENGTH)
    network = build(MDLM).network
    for within_rows in (True, False):
        ours, theirs = (replace(layout, within_rows=within_rows) for layout in (loose, tight))
        torch.testing.assert_close(network(tokens, layout=ours), network(tokens, layout=theirs))
    with pytest.raises(InputError, match="longest"):
        PackedLayout.of_documents(ends, longest=5)


def test_a_layout_moves_to_a_device():
    layout = replace(PackedLayout.of_documents(ends_of(ROWS)), causal=True).to("meta")
    assert layout.cu_seqlens_q.is_meta
    assert layout.cu_seqlens_k.is_meta
    assert (layout.causal, layout.within_rows, layout.max_seqlen_k) == (True, True, 12)


@pytest.mark.parametrize("within_rows", [True, False])  # as a mask, and packed
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_a_dense_mask(causal, within_rows):
    torch.manual_seed(0)
    inputs = torch.randn(3, len(ROWS), LENGTH, 2, 4, requires_grad=True)
    layout = PackedLayout.of_documents(ends_of(ROWS))
    layout = replace(layout, causal=causal, within_rows=within_rows)
    mask = mask_of(ends_of(ROWS))
    oracle = attend(*inputs, DenseLayout(mask.tril() if causal else mask))
    ours = attend(*inputs, layout)
    torch.testing.assert_close(ours, oracle)
    toward = torch.randn_like(ours)
    gradients = [torch.autograd.grad((out * toward).sum(), inputs)[0] for out in (ours, oracle)]
    torch.testing.assert_close(*gradients)


def test_segments_may_cross_rows():
    """Offsets of any kind count over the flattened batch."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 6, 2, 4)
    layout = PackedLayout.of_lengths(torch.tensor([4, 5, 3]))
    packed = attend(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), layout)
    assert torch.equal(attend(query, key, value, layout).flatten(0, 1), packed)


@pytest.mark.parametrize("kind", [MDLM, MD4, AR])
def test_a_network_under_segments_is_one_under_a_mask(kind, tokens):
    network = build(kind, classes=2).network
    told = {"label": torch.tensor([0, 1, 2, 0])}
    if kind is MD4:
        told["scalar"] = 100 * torch.rand(len(ROWS))
    ends = ends_of(ROWS)
    segments = network(tokens, layout=PackedLayout.of_documents(ends), **told)
    masked = network(tokens, layout=DenseLayout(mask_of(ends)), **told)
    torch.testing.assert_close(segments, masked, **TOLERANCE)


@pytest.mark.parametrize("within_rows", [True, False])
@pytest.mark.parametrize("kind", [MDLM, MD4, AR])
def test_a_packed_document_is_scored_as_if_alone(kind, within_rows, tokens):
    method, drawn = build(kind, classes=2), corruption()
    label = torch.tensor([0, 1, 2, 0])
    layout = replace(PackedLayout.of_documents(ends_of(ROWS)), within_rows=within_rows)
    packed = loss_of(method, tokens, drawn, layout, label)
    for row, span in spans():
        rows = slice(row, row + 1)
        alone = loss_of(method, tokens[rows, span], part(drawn, row, span), label=label[rows])
        torch.testing.assert_close(packed.per_token[rows, span], alone.per_token, **TOLERANCE)
    everything_reads_everything = loss_of(method, tokens, drawn, label=label).per_token
    assert not torch.allclose(packed.per_token, everything_reads_everything, atol=1e-2)


@pytest.mark.parametrize("kind", [MDLM, MD4])
def test_a_packed_document_gets_the_logits_it_gets_alone(kind, tokens):
    network = build(kind).network
    scalar = 100 * torch.rand(len(ROWS)) if kind is MD4 else None
    packed = network(tokens, layout=PackedLayout.of_documents(ends_of(ROWS)), scalar=scalar)
    for row, span in spans():
        rows = slice(row, row + 1)
        alone = network(tokens[rows, span], scalar=None if scalar is None else scalar[rows])
        torch.testing.assert_close(packed[rows, span], alone, **TOLERANCE)


def test_each_document_of_ar_begins_with_the_start_token(tokens):
    method = build(AR)
    read = method.shifted(tokens, PackedLayout.of_documents(ends_of(ROWS)))
    for row, span in spans():
        rows = slice(row, row + 1)
        assert torch.equal(read[rows, span], method.shifted(tokens[rows, span]))
    trailing = PackedLayout.of_lengths(torch.tensor([LENGTH, 0]))  # an empty segment starts nowhere
    assert torch.equal(method.shifted(tokens[:1], trailing), method.shifted(tokens[:1]))


@pytest.mark.parametrize("within_rows", [True, False])
@pytest.mark.parametrize("kind", [MDLM, MD4, AR])
def test_no_gradient_crosses_documents(kind, within_rows, tokens):
    method, embedded = build(kind), []
    method.network.embed.register_forward_hook(lambda *hook: embedded.append(hook[2]))
    layout = replace(PackedLayout.of_documents(ends_of(ROWS)), within_rows=within_rows)
    loss = loss_of(method, tokens, corruption(), layout)
    learned = 0
    for row, span in spans():
        nats = loss.per_token[row, span].sum()
        (gradient,) = torch.autograd.grad(nats, embedded, retain_graph=True)
        learned += int(gradient[row, span].abs().sum() > 0)
        gradient[row, span] = 0
        assert torch.equal(gradient, torch.zeros_like(gradient))
    assert learned >= 7  # a document of one token may have nothing hidden


@pytest.mark.parametrize("kind", [MDLM, MD4, AR])
def test_padding_has_no_influence(kind, tokens):
    """The last document of each row is padding: not valid, and a segment of its own."""
    method = build(kind)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    for row, lengths in enumerate(ROWS):
        valid[row, LENGTH - lengths[-1] :] = row == 1  # one row has no padding
    layout = PackedLayout.of_documents(ends_of(ROWS))
    noise = Noise.for_batch(3, len(ROWS))
    loss = method.loss(Batch.of(tokens, is_token=valid, layout=layout), noise)
    changed = torch.where(valid, tokens, (tokens + 3) % VOCAB)
    again = method.loss(Batch.of(changed, is_token=valid, layout=layout), noise)
    assert torch.equal(loss.per_token, again.per_token)
    assert not loss.per_token[~valid].any()
    # The network itself is kept apart from it too, not just the loss.
    ours, theirs = (method.network(read, layout=layout)[valid] for read in (tokens, changed))
    assert torch.equal(ours, theirs)
    # And a row is worth what it is without its padding.
    drawn = corruption() if kind is AR else method.corruption.draw(valid, noise, 0, len(ROWS))
    short = slice(0, LENGTH - ROWS[0][-1])
    kept = PackedLayout.of_documents(ends_of(ROWS)[:1, short])
    alone = loss_of(method, tokens[:1, short], part(drawn, 0, short), kept)
    torch.testing.assert_close(loss.per_token[:1, short], alone.per_token, **TOLERANCE)


@pytest.mark.parametrize("kind", [MDLM, MD4, AR])
def test_one_document_per_row_is_a_dense_batch(kind, tokens):
    method, noise = build(kind), Noise.for_batch(3, len(ROWS))
    layout = PackedLayout.of_documents(torch.zeros_like(tokens, dtype=torch.bool))
    for within_rows in (True, False):
        ours = method.loss(Batch.of(tokens, layout=replace(layout, within_rows=within_rows)), noise)
        torch.testing.assert_close(
            ours.per_token, method.loss(Batch.of(tokens), noise).per_token, **TOLERANCE
        )


def test_a_recomputing_network_learns_the_same(tokens):
    method, gradients = build(MDLM).train(), []
    for recompute in (False, True):
        method.network.recompute = recompute
        method.zero_grad()
        loss = loss_of(method, tokens, corruption(), PackedLayout.of_documents(ends_of(ROWS)))
        loss.objective.backward()
        gradients.append([parameter.grad.clone() for parameter in method.parameters()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


@pytest.mark.parametrize("kind", [MDLM, AR])
def test_a_layout_of_another_batch_is_refused(kind, tokens):
    layout = PackedLayout.of_documents(ends_of(ROWS))
    with pytest.raises(InputError, match="layout: its sequences hold 48 tokens"):
        build(kind).loss(Batch.of(tokens[:2], layout=layout), Noise.for_batch(0, 2))
