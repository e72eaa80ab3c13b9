"""Partition networks: nothing leaks, packed is masked, inference is training, and what it costs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.contracts.layouts import DENSE, Layout, PackedLayout, Queries
from partita.errors import InputError
from partita.methods import AR, MD4, MDLM, PGM, ComplementaryMDLM
from partita.networks import (
    PartitionTransformer,
    Transformer,
    TransformerConfig,
    TransformerOptions,
    attention,
)
from partita.networks.attention import attend
from partita.networks.kind_options import PROCESSES, QUERIES, PartitionOptions
from partita.processes.corruption import Corrupted, Corruption
from partita.randomness import Noise
from partita.samplers import sample
from partita.samplers.counts import even_counts
from partita.studies.speed import count_flops_of
from tests.support import partition_oracle

ROWS, LENGTH, WIDTH, CLASSES = 3, 9, 16, 3
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)  # of group 1: empty groups are as likely as others

every_mode = pytest.mark.parametrize("queries", QUERIES)
every_process = pytest.mark.parametrize("process", PROCESSES)
packed_or_masked = pytest.mark.parametrize("packed", [True, False])
quickly = partial(settings, derandomize=True, deadline=None, database=None)


# What the tests are about ------------------------------------------------------------------------


@lru_cache
def build(queries="positions", process="linear", width=None, classes=0, **options):
    """A network in which every parameter is random: none of its branches is silent."""
    config = TransformerConfig(
        vocab_size=ROWS * LENGTH,
        length=LENGTH,
        width=WIDTH,
        depth=3,
        heads=2,
        classes=classes,
        options={
            "decoder_depth": 2,
            "decoder_width": width,
            "queries": queries,
            "process": process,
        },
        **options,
    )
    network = PartitionTransformer(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network.eval()


@dataclass(frozen=True)
class Batch:
    """Tokens with a partition, and all else that a network may be told of them.

    Every token has an id of its own, so that the gradient of its embedding is its own as well.
    """

    groups: torch.Tensor
    real: torch.Tensor | None
    document: torch.Tensor
    layout: Layout
    label: torch.Tensor | None
    width: int | None
    seed: int
    grid: int = 0
    registers: int = 0

    @property
    def tokens(self):
        return torch.arange(self.groups.numel()).view(self.groups.shape)

    @property
    def readable(self):
        return torch.ones_like(self.groups) if self.real is None else self.real

    @property
    def told(self):
        return {"label": self.label, "layout": self.layout}

    def network(self, queries, process="linear"):
        classes = 0 if self.label is None else CLASSES
        options = {"grid": self.grid, "registers": self.registers}
        return build(queries, process, self.width, classes, **options)

    def random(self, *shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(self.seed + 1))


@st.composite
def batches(draw):
    rows, length = draw(st.integers(1, ROWS)), draw(st.integers(1, LENGTH))
    shares = draw(st.lists(st.sampled_from(SHARES), min_size=rows, max_size=rows))
    seed = draw(st.integers(0, 2**16))
    groups, real, ends = torch.rand(
        3, rows, length, generator=torch.Generator().manual_seed(seed)
    ).unbind()
    cut, padded, labelled = (draw(st.booleans()) for _ in range(3))
    ends = (ends < 0.3) & cut
    before = torch.nn.functional.pad(ends.long().cumsum(1)[:, :-1], (1, 0))
    return Batch(
        groups < torch.tensor(shares)[:, None],
        (real < 0.7) if padded else None,
        before + length * torch.arange(rows)[:, None],
        PackedLayout.of_documents(ends) if cut else DENSE,
        torch.arange(rows) % (CLASSES + 1) if labelled else None,
        draw(st.sampled_from([None, 8, 24])),
        seed,
        draw(st.sampled_from([0, 3])),
        draw(st.sampled_from([0, 2])),
    )


def both(network, batch, packed=True, tokens=None, groups=None):
    return partition_oracle.both(
        network,
        batch.tokens if tokens is None else tokens,
        batch.groups if groups is None else groups,
        real=batch.real,
        packed=packed,
        **batch.told,
    )


def table(logits, queries, batch):
    """Logits [B, L, V]: each real token has been answered once, and no other one."""
    result = logits.new_zeros(*batch.groups.shape, logits.shape[-1])
    count = torch.zeros(batch.groups.shape, dtype=torch.long)
    count.index_put_(tuple(queries), torch.ones_like(queries.rows), accumulate=True)
    assert torch.equal(count, batch.readable.long())
    return result.index_put(tuple(queries), logits)


# No leak -----------------------------------------------------------------------------------------


@every_mode
@every_process
@packed_or_masked
@quickly(max_examples=8)
@given(batch=batches())
def test_a_group_never_sees_itself(queries, process, packed, batch):
    network = batch.network(queries, process)
    logits, asked = both(network, batch, packed)
    toward = batch.random(*logits.shape)
    of_group = batch.groups[asked.rows, asked.positions]
    for group in (False, True):
        answers = (logits * toward)[of_group == group].sum()
        (gradient,) = torch.autograd.grad(answers, network.embed.weight, retain_graph=True)
        gradient = gradient[: batch.groups.numel()].view(*batch.groups.shape, -1)
        own, other = (batch.readable & (batch.groups == side) for side in (group, not group))
        assert torch.equal(gradient[own], torch.zeros_like(gradient[own]))
        assert not gradient[~batch.readable].any()
        for document in batch.document[own].unique():  # what is asked reads what there is to read
            read = other & (batch.document == document)
            assert bool(gradient[read].any()) == bool(read.any())


@every_mode
@every_process
@quickly(max_examples=8)
@given(batch=batches())
def test_packed_equals_masked(queries, process, batch):
    """In values, and in the gradients of all parameters."""
    network, outcomes = batch.network(queries, process), []
    for packed in (True, False):
        network.zero_grad()
        answers = table(*both(network, batch, packed), batch)
        toward = batch.random(*answers.shape)
        ((answers * toward).sum() / max(1, int(batch.readable.sum()))).backward()
        gradients = {name: p.grad for name, p in network.named_parameters()}
        assert [name for name, gradient in gradients.items() if gradient is None] == []
        outcomes.append({"logits": answers.detach()} | gradients)
    for name, ours in outcomes[0].items():
        torch.testing.assert_close(
            ours, outcomes[1][name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("scale", [1.0, 1e4])  # whose exponentials overflow
@pytest.mark.parametrize("queries", ["mean", "logsumexp"])
def test_aggregates_are_those_of_each_segment(queries, scale):
    """An empty one has 0, as in the reference; a single token is its own aggregate."""
    segments = torch.tensor([3, 1, 3, 5, 3, 5])
    memory = scale * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    memory.requires_grad_()
    ours = build(queries).swap.aggregates(memory, segments, 7)
    parts = [memory[segments == segment] for segment in range(7)]
    if queries == "mean":
        expected = [part.mean(0) if len(part) else part.sum(0) for part in parts]
    else:
        expected = [part.logsumexp(0) if len(part) else part.sum(0) for part in parts]
    torch.testing.assert_close(ours, torch.stack(expected), **TOLERANCE)
    gradients = [
        torch.autograd.grad(x.square().sum() / scale, memory)[0]
        for x in (ours, torch.stack(expected))
    ]
    torch.testing.assert_close(*gradients, **TOLERANCE)


# Inference ---------------------------------------------------------------------------------------


@every_mode
@every_process
@quickly(max_examples=10)
@given(batch=batches(), more=st.integers(0, 3))
def test_inference_is_the_training_pass_at_the_queries(queries, process, batch, more):
    """Group 0 is revealed. Queries come in any order, some twice, and not for every row."""
    network, expected = (
        batch.network(queries, process),
        table(*both(batch.network(queries, process), batch), batch),
    )
    rows, positions = (batch.groups & batch.readable).nonzero(as_tuple=True)
    generator = torch.Generator().manual_seed(batch.seed)
    order = torch.randperm(len(rows), generator=generator)
    order = torch.cat([order[: len(order) - more], order[: more // 2]])
    asked = Queries(rows[order], positions[order])
    revealed = ~batch.groups & batch.readable
    ours = network(batch.tokens, revealed, queries=asked, **batch.told)
    torch.testing.assert_close(ours, expected[asked.rows, asked.positions], **TOLERANCE)
    # What is hidden is not even an id.
    again = network(batch.tokens.where(revealed, -1), revealed, queries=asked, **batch.told)
    assert torch.equal(again, ours)


@pytest.mark.parametrize(("registers", "alike"), [(0, True), (1, True), (2, False), (4, False)])
def test_one_register_tells_no_place_from_another(registers, alike):
    """Attention has no choice then, and no residual brings the position of the query along."""
    network = build(registers=registers)
    tokens, nothing = torch.zeros(1, LENGTH, dtype=torch.long), torch.zeros(1, LENGTH) > 0
    places = Queries(torch.zeros(LENGTH, dtype=torch.long), torch.arange(LENGTH))
    logits = network(tokens, nothing, queries=places)
    assert torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-5) == alike


@every_mode
@pytest.mark.parametrize("grid", [0, 3])
def test_registers_are_read_where_there_is_nothing_else(queries, grid):
    """The same ones by both groups, in training as when sampling."""
    network = build(queries, registers=2, grid=grid)
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    everywhere = Queries(*torch.ones_like(tokens).nonzero(as_tuple=True))
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    logits = network(tokens, nothing, queries=everywhere)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), network.registers)
    assert gradient.any(1).all()
    assert not torch.allclose(
        logits, build(queries, grid=grid)(tokens, nothing, queries=everywhere)
    )
    for packed, training in itertools.product((True, False), (True, False)):
        network.train(training)
        for side in (False, True):  # one group has all tokens, and the other one only registers
            answers, _ = partition_oracle.both(network, tokens, nothing | side, packed=packed)
            (gradient,) = torch.autograd.grad(answers[:, 0].sum(), network.registers)
            assert gradient.any(1).all()


@pytest.mark.parametrize("packed", [True, False])
def test_both_groups_are_asked_as_one_is_when_the_model_writes(packed):
    """So that a likelihood by both of them is that of what samplers draw."""
    network = build(registers=2)
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    groups = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.5
    answers, places = partition_oracle.both(network, tokens, groups, packed=packed)
    for side in (False, True):
        asked = groups[places.rows, places.positions] == side
        queries = Queries(places.rows[asked], places.positions[asked])
        alone = network(tokens, groups != side, queries=queries)
        torch.testing.assert_close(answers[asked], alone, **TOLERANCE)


@every_mode
def test_rows_of_all_kinds_in_one_pass(queries):
    """Nothing revealed, no queries, everything revealed, and a row like any other."""
    network = build(queries)
    tokens = torch.arange(3 * LENGTH).view(3, LENGTH)[[0, 1, 2, 0]]
    revealed = torch.rand(4, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.5
    revealed[0], revealed[2] = False, True
    asked = Queries(torch.tensor([3, 0, 0, 2, 3]), torch.tensor([4, 8, 1, 1, 0]))
    ours = network(tokens, revealed, queries=asked)
    for answer, row, position in zip(ours, *asked, strict=True):
        one = Queries(torch.tensor([0]), position[None])
        alone = network(tokens[row][None], revealed[row][None], queries=one)
        torch.testing.assert_close(answer, alone[0], **TOLERANCE)
    nobody = Queries(*torch.zeros(2, 0, dtype=torch.long))
    assert network(tokens, revealed, queries=nobody).shape == (0, ROWS * LENGTH)
    nothing = network(tokens, torch.zeros_like(revealed), queries=asked)
    assert nothing.isfinite().all()
    if queries == "learned":  # the same vector for each position, with nothing to read
        torch.testing.assert_close(nothing, nothing[:1].expand_as(nothing))


def test_a_method_reveals_no_mask():
    """Samplers and padding write the mask where there is no token; no network reads it."""
    method, tokens = PGM(build()), torch.arange(LENGTH)[None]
    revealed = torch.arange(LENGTH)[None] % 2 == 0
    rows, positions = (~revealed).nonzero(as_tuple=True)
    ours = method.predict(tokens.where(revealed, method.mask_id), revealed, rows, positions)
    told_all = method.predict(
        tokens.where(revealed, method.mask_id), torch.ones_like(revealed), rows, positions
    )
    assert torch.equal(ours, told_all)
    logits = method.network(tokens, revealed, queries=Queries(rows, positions))
    torch.testing.assert_close(ours, logits.log_softmax(-1))


# Documents and padding ---------------------------------------------------------------------------

CUT = [[4, 3, 2], [9], [1, 7, 1]]  # the lengths of each row's documents


def documents(grid=0, registers=0):
    ends = torch.zeros(len(CUT), LENGTH, dtype=torch.bool)
    for row, lengths in enumerate(CUT):
        ends[row, torch.tensor(lengths).cumsum(0) - 1] = True
    document = torch.nn.functional.pad(ends.flatten().long().cumsum(0)[:-1], (1, 0))
    groups = torch.rand(ends.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    layout = PackedLayout.of_documents(ends)
    document = document.view(ends.shape)
    return Batch(groups, None, document, layout, None, None, 0, grid, registers)


@every_mode
@packed_or_masked
@pytest.mark.parametrize("grid", [0, 3])
@pytest.mark.parametrize("registers", [0, 2])
def test_a_document_knows_nothing_of_its_neighbours(queries, packed, grid, registers):
    batch = documents(grid, registers)
    network = batch.network(queries)
    before = table(*both(network, batch, packed), batch)
    for document in batch.document.unique():
        inside = batch.document == document
        tokens = batch.tokens.where(inside, batch.tokens.flip(0, 1))
        again = table(*both(network, batch, packed, tokens), batch)
        assert torch.equal(again[inside], before[inside])
        assert not torch.equal(again, before)
        groups = batch.groups.where(inside, ~batch.groups)
        again = table(*both(network, batch, packed, tokens, groups), batch)
        torch.testing.assert_close(again[inside], before[inside], **TOLERANCE)


@pytest.mark.parametrize("grid", [0, 3])
@pytest.mark.parametrize("registers", [0, 2])
def test_a_document_alone(grid, registers):
    """Nothing tells where in its row a document stands, and it has registers of its own."""
    batch = documents(grid, registers)
    network = batch.network("positions")
    together = table(*both(network, batch), batch)
    for document in batch.document.unique():
        rows, positions = (batch.document == document).nonzero(as_tuple=True)
        tokens, groups = (x[rows, positions][None] for x in (batch.tokens, batch.groups))
        logits, asked = network.both(tokens, groups)
        alone = torch.empty_like(logits).index_copy(0, asked.positions, logits)
        torch.testing.assert_close(together[rows, positions], alone, **TOLERANCE)


@every_mode
@packed_or_masked
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("registers", [0, 2])
def test_padding_never_matters(queries, packed, cut, registers):
    """Neither what it holds, nor which group it is in, nor that it is there."""
    batch, size = documents(3 if cut else 0, registers), LENGTH - 2
    network = batch.network(queries)
    real = torch.ones_like(batch.groups)
    real[:, size:] = False
    batch = replace(batch, real=real, layout=batch.layout if cut else DENSE)
    before = table(*both(network, batch, packed), batch)
    tokens, groups = batch.tokens.where(real, -7), batch.groups.where(real, ~batch.groups)
    assert torch.equal(table(*both(network, batch, packed, tokens), batch), before)
    again = table(*both(network, batch, packed, tokens, groups), batch)
    torch.testing.assert_close(again, before, **TOLERANCE)
    layout = DENSE
    if cut:
        starts = batch.document[:, 1:size] != batch.document[:, : size - 1]
        layout = PackedLayout.of_documents(torch.nn.functional.pad(starts, (0, 1)))
    short = replace(batch, groups=batch.groups[:, :size], real=None, layout=layout)
    logits = table(*both(network, short, packed, batch.tokens[:, :size]), short)
    torch.testing.assert_close(before[:, :size], logits, **TOLERANCE)


# Training ----------------------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("classes", [0, CLASSES])
def test_recomputed_activations_give_the_same_gradients(queries, dropout, classes):
    network, batch = build(queries, classes=classes, dropout=dropout), documents()
    batch = replace(batch, label=torch.arange(len(CUT)) if classes else None)

    def outcome(recompute):
        network.recompute = recompute
        network.zero_grad()
        torch.manual_seed(5)
        logits, _ = both(network, batch)
        after_forward = torch.rand(())
        logits.log_softmax(-1)[:, 0].mean().backward()
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        return [logits.detach(), after_forward, torch.rand(()), *gradients]

    network.train()
    try:
        plain, again = outcome(recompute=False), outcome(recompute=True)
    finally:
        network.recompute = False
        network.eval()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, plain, strict=True))


def test_dropout_is_for_training_only():
    network, batch = build(dropout=0.5), documents()
    plain = build().both(batch.tokens, batch.groups)[0]
    assert torch.equal(network.both(batch.tokens, batch.groups)[0], plain)
    network.train()
    try:
        first, second = (network.both(batch.tokens, batch.groups)[0] for _ in range(2))
    finally:
        network.eval()
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("queries", "process"), list(zip(QUERIES, itertools.cycle(PROCESSES), strict=False))
)
def test_a_partition_network_learns(queries, process):
    """Uniform at first; then a sequence is known from any of its tokens."""
    torch.manual_seed(0)
    own = {"queries": queries, "process": process}
    options = TransformerOptions(length=6, width=16, depth=2, heads=2, options=own)
    method = PGM.build(options, 8)
    tokens = torch.stack([torch.randperm(8)[:6] for _ in range(2)])
    optimiser, losses = torch.optim.Adam(method.parameters(), 1e-2), []
    groups = torch.tensor([[True, False, True, False, False, True]]).expand_as(tokens)
    for step in range(60):
        log_probs, asked = partition_oracle.predict_both(
            method, partita.Batch.of(tokens), groups ^ bool(step % 2)
        )
        loss = -log_probs.gather(1, tokens[asked.rows, asked.positions][:, None]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(8))
    assert losses[-1] < 0.1
    assert all(parameter.grad is not None for parameter in method.parameters())


# Attention over segments on a CPU ----------------------------------------------------------------

LENGTHS = [  # of the queries and the keys of each segment
    ([3, 3, 3], [3, 3, 3]),
    ([2, 2], [5, 5]),
    ([3, 5], [5, 3]),
    ([1, 4, 2], [6, 1, 3]),
    ([2, 0, 3], [2, 4, 1]),
    ([2, 3, 0], [0, 4, 3]),
    ([0, 4], [4, 0]),
    ([7], [2]),
    ([1, 90, 2], [3, 70, 1]),
]


FREE = 10**9  # where one more call costs so much, padding is free


def offsets(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def ids(lengths):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def by_the_definition(query, key, value, q_lengths, k_lengths, causal):
    """One table of all queries and keys, with a mask; a query without keys gets zeros."""
    reads = ids(q_lengths)[:, None] == ids(k_lengths)
    if causal:
        reads = reads & (torch.arange(len(query))[:, None] >= torch.arange(len(key)))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    shares = scores.masked_fill(~reads, -1e30).softmax(-1) * reads
    return torch.einsum("hqk,khd->qhd", shares, value)


def inputs(q_lengths, k_lengths):
    generator = torch.Generator().manual_seed(1)
    sizes = sum(q_lengths), sum(k_lengths), sum(k_lengths)
    return [torch.randn(n, 2, 4, generator=generator, requires_grad=True) for n in sizes]


@pytest.mark.parametrize("call_pairs", [attention.CALL_PAIRS, 0, FREE])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q_lengths", "k_lengths"), LENGTHS)
def test_every_way_to_attend_is_the_dense_one(
    q_lengths, k_lengths, causal, call_pairs, monkeypatch
):
    """No padding where lengths are equal; else padding, or a call for each, by what calls cost."""
    if causal:
        k_lengths = q_lengths  # causal order is that of one sequence
    ways = []
    for name in ("_attend_padded", "_attend_sequence"):
        way = getattr(attention, name)
        monkeypatch.setattr(
            attention, name, lambda *args, name=name, way=way: ways.append(name) or way(*args)
        )
    monkeypatch.setattr(attention, "CALL_PAIRS", call_pairs)
    tensors = inputs(q_lengths, k_lengths)
    layout = PackedLayout(
        offsets(q_lengths), offsets(k_lengths), max(q_lengths), max(k_lengths), causal
    )
    ours = attend(*tensors, layout)
    equal = len(set(q_lengths)) == len(set(k_lengths)) == 1
    forced = {0: {"_attend_sequence"}, FREE: {"_attend_padded"}}.get(call_pairs, set(ways))
    assert set(ways) == (set() if equal else forced)
    oracle = by_the_definition(*tensors, q_lengths, k_lengths, causal)
    torch.testing.assert_close(ours, oracle, **TOLERANCE)
    toward = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    gradients = [
        torch.autograd.grad((x * toward).sum(), tensors, materialize_grads=True)
        for x in (ours, oracle)
    ]
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, **TOLERANCE)


@pytest.mark.parametrize("call_pairs", [0, FREE])
@pytest.mark.parametrize(
    ("q_lengths", "k_lengths"),
    [
        ([3, 2], [0, 0]),
        ([0, 0], [3, 2]),
        ([0, 4], [4, 0]),
        ([0, 0], [0, 0]),
        ([2, 3, 0], [0, 0, 3]),
        ([2, 3, 0], [0, 4, 3]),
    ],
)
def test_what_reads_nothing_is_zero_with_zero_gradients(
    q_lengths, k_lengths, call_pairs, monkeypatch
):
    """Not None either: processes that learn together must agree on which gradients there are."""
    monkeypatch.setattr(attention, "CALL_PAIRS", call_pairs)
    tensors = inputs(q_lengths, k_lengths)
    layout = PackedLayout(offsets(q_lengths), offsets(k_lengths), max(q_lengths), max(k_lengths))
    result = attend(*tensors, layout)
    starving = torch.tensor(k_lengths)[ids(q_lengths)] == 0
    assert torch.equal(result[starving], torch.zeros_like(result[starving]))
    result.square().sum().backward()
    gradients = [x.grad for x in tensors]
    assert [g is None for g in gradients] == [False] * 3
    assert all(bool(g.isfinite().all()) for g in gradients)
    unread = torch.tensor(q_lengths)[ids(k_lengths)] == 0
    assert not gradients[0][starving].any()
    assert not any(g[unread].any() for g in gradients[1:])


def without_gradient(network, logits):
    network.zero_grad()
    logits.square().sum().backward()
    return [name for name, parameter in network.named_parameters() if parameter.grad is None]


@every_mode
@pytest.mark.parametrize("length", [LENGTH, 80])  # short segments are padded, long ones are not
def test_every_parameter_has_a_gradient_whatever_is_empty(queries, length):
    network = PartitionTransformer(replace(build(queries).config, length=length))
    tokens = torch.zeros(1, length, dtype=torch.long)
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    for groups in (nothing, ~nothing):
        for packed in (True, False):
            logits, _ = partition_oracle.both(network, tokens, groups, packed=packed)
            assert without_gradient(network, logits) == []
    asked = Queries(torch.tensor([0]), torch.tensor([1]))
    assert without_gradient(network, network(tokens, nothing, queries=asked)) == []


@every_mode
def test_every_parameter_has_a_gradient_where_nothing_is_asked(queries):
    """A law may hide none of a small batch's tokens: its loss is 0 then, and so are gradients."""
    method = PGM(build(queries))
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    nothing, valid = torch.zeros(1, LENGTH, dtype=torch.bool), torch.ones(1, LENGTH).bool()
    loss = method.loss_given(
        partita.Batch.of(tokens, is_token=valid), Corrupted(nothing, torch.ones(1, LENGTH), None)
    )
    assert loss.objective == 0
    assert without_gradient(method.network, loss.objective) == []
    assert not any(parameter.grad.any() for parameter in method.parameters())


# What it costs -----------------------------------------------------------------------------------


def mlp_weights(width, config):
    """SwiGLU: two matrices up, one down, of about 2/3 of the width."""
    return 3 * width * 8 * math.ceil(2 * config.mlp_ratio * width / 3 / 8)


def pairs(queries, keys):
    """Pairs of a query and a key that attention is computed for, with what padding adds."""
    if sum(queries) == 0 or sum(keys) == 0:
        return 0
    exact = sum(q * k for q, k in zip(queries, keys, strict=True))
    padded = len(queries) * max(queries) * max(keys)
    return padded if padded <= exact + len(queries) * attention.CALL_PAIRS else exact


def predicted_flops(config, revealed, queried):
    """PGM's cost of a prediction, from the numbers of revealed and queried tokens of each row.

    With N tokens revealed and Q queried in all, widths W and D of the encoder and the decoder, E
    and K their blocks, m(.) the weights of an MLP, C channels of a condition of R rows, V logits:

        encoder   E (2N (4 W^2 + m(W)) [+ 2R 6CW] + 4W pairs(n, n))
        swap      2 min(Q, longest sequence) D^2 + 2N 2WD + 2Q D^2 + 4D pairs(q, n)
        decoder   K (2Q (2 D^2 + m(D)) [+ 2R 6CD] + 2N 2WD + 4D pairs(q, n))
        head      2Q DV [+ 2R 2CD]

    pairs(q, n) is the sum over the rows of q_i n_i where the rows are alike, and what padding the
    rows makes of it otherwise. An aggregate takes Q in place of min(Q, ...) and 2Q WD more where
    the widths differ; queries made by an MLP take 8 D^2 instead of D^2.
    """
    n, q, w = sum(revealed), sum(queried), config.width
    own = PartitionOptions.of(config)
    k, d, _ = own.decoder(config)
    c = config.condition_width * len(revealed) if config.classes else 0
    crossing = 4 * d * pairs(queried, revealed)
    memory = 2 * n * 2 * w * d
    encoder = 2 * n * (4 * w * w + mlp_weights(w, config)) + 2 * 6 * c * w
    encoder += 4 * w * pairs(revealed, revealed)
    aggregates = own.queries in ("mean", "logsumexp")
    starts = q if aggregates else min(q, config.length)
    swap = 2 * starts * d * d * (8 if own.process == "mlp" else 1)
    swap += 2 * q * w * d if aggregates and d != w else 0
    swap += memory + 2 * q * d * d + crossing
    decoder = 2 * q * (2 * d * d + mlp_weights(d, config)) + 2 * 6 * c * d + memory + crossing
    head = 2 * q * d * config.outputs + 2 * 2 * c * d
    return (config.depth - k) * encoder + swap + k * decoder + head


def mdlm_flops(config, rows, length, queried):
    """Every position goes through every block; the head is for the queries alone."""
    w, tokens = config.width, rows * length
    block = 2 * tokens * (4 * w * w + mlp_weights(w, config)) + 4 * w * rows * length**2
    return config.depth * block + 2 * queried * w * config.outputs


def scattered(counts, length, seed):
    """A table that is true at so many random places of each row."""
    keys = torch.rand(len(counts), length, generator=torch.Generator().manual_seed(seed))
    return keys.argsort(-1).argsort(-1) < torch.tensor(counts)[:, None]


NUMBERS = [  # of revealed and queried tokens in each row
    ([3, 3], [2, 2]),
    ([4, 1, 2], [1, 3, 2]),
    ([0, 0], [3, 3]),
    ([0, 5], [4, 1]),
    ([4, 4, 4], [4, 4, 4]),  # more queries than a sequence has positions
]


@every_mode
@pytest.mark.parametrize(
    ("process", "width", "classes"), [("linear", None, 0), ("linear", 24, 0), ("mlp", 24, CLASSES)]
)
def test_cost_of_a_prediction(queries, process, width, classes):
    """It depends on how many tokens are revealed and asked for: not on where, not on the rest."""
    method = PGM(build(queries, process, width, classes))
    for revealed, queried in NUMBERS:
        costs = set()
        for length, seed in ((LENGTH, 0), (LENGTH - 2, 1)):
            tokens = torch.randint(0, 5, (len(revealed), length))
            known = scattered(revealed, length, seed)
            asked = scattered(queried, length, seed + 10).nonzero(as_tuple=True)
            costs.add(count_flops_of(lambda: method.predict(tokens, known, *asked)))  # noqa: B023
        assert costs == {predicted_flops(method.network.config, revealed, queried)}


@pytest.mark.parametrize("steps", [4, 11])  # the second leaves a remainder
def test_cost_of_a_sampling_run(steps):
    """The sum of its steps, against MDLM's, whose every step takes every position."""
    rows, options = 2, TransformerOptions(length=16, width=32, depth=4, heads=2)
    counts = even_counts(torch.tensor([options.length]), steps)[0]
    revealed = (counts.cumsum(0) - counts).tolist()
    methods = {kind: kind.build(options, 10).eval() for kind in (PGM, MDLM)}
    ours, theirs = (
        count_flops_of(lambda m=method: sample(m, rows, sampler="ordered", steps=steps))
        for method in methods.values()
    )
    config = methods[PGM].network.config
    assert ours == sum(
        predicted_flops(config, [n] * rows, [q] * rows)
        for n, q in zip(revealed, counts.tolist(), strict=True)
    )
    config = methods[MDLM].network.config
    assert theirs == sum(
        mdlm_flops(config, rows, options.length, rows * q) for q in counts.tolist()
    )
    assert theirs > 2 * ours


# Refusals ----------------------------------------------------------------------------------------


def options(**own):
    return TransformerOptions(length=LENGTH, width=WIDTH, depth=2, heads=2, options=own)


@pytest.mark.parametrize("kind", [MDLM, MD4, ComplementaryMDLM])
def test_a_method_with_masks_takes_no_partition_network(kind):
    network = PGM.build(options(), 5).network
    with pytest.raises(
        InputError, match="network: PartitionTransformer reads groups, not noisy tokens"
    ):
        kind(network, conditioning="none", corruption="subset")


@pytest.mark.parametrize("kind", [MDLM, MD4, AR, ComplementaryMDLM])
@pytest.mark.parametrize(
    "decoder",
    [
        {"decoder_depth": 1},
        {"decoder_width": 8},
        {"decoder_heads": 1},
        {"queries": "mean"},
        {"process": "mlp"},
    ],
)
def test_a_network_without_a_decoder_takes_no_options_for_one(kind, decoder):
    (name,) = decoder
    with pytest.raises(InputError, match=f"network\\.options\\.{name}: .* has no such choice"):
        kind.build(options(**decoder), 5)
    PGM.build(options(**decoder), 5)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (
            {"decoder_depth": 2},
            r"network\.options\.decoder_depth: 2 of 2 blocks leave none for the encoder",
        ),
        (
            {"decoder_depth": 7},
            r"network\.options\.decoder_depth: 7 of 2 blocks leave none for the encoder",
        ),
        ({"decoder_depth": -1}, r"network\.options\.decoder_depth"),
        ({"decoder_width": 7}, r"network\.options\.decoder_width: .* even multiple"),
        ({"decoder_width": 18}, r"network\.options\.decoder_width: .* even multiple"),
        ({"decoder_width": 0}, r"network\.options\.decoder_width"),
        ({"decoder_heads": 3}, r"network\.options\.decoder_heads: .* even multiple"),
        ({"decoder_heads": 16}, r"network\.options\.decoder_heads: .* even multiple"),
        (
            {"decoder_width": 10, "decoder_heads": 2},
            r"network\.options\.decoder_heads: .* even multiple",
        ),
        ({"queries": "median"}, r"network\.options\.queries: unknown name 'median'"),
        ({"process": "mlp4"}, r"network\.options\.process: unknown name 'mlp4'"),
    ],
)
def test_bad_decoders_name_the_option(decoder, message):
    with pytest.raises(InputError, match=message):
        PGM.build(options(**decoder), 5)


def test_a_plain_network_has_no_groups():
    network = Transformer(TransformerConfig(vocab_size=6, length=4, width=16, depth=1, heads=2))
    with pytest.raises(InputError, match="network: Transformer does not keep the groups"):
        PGM(network)


@pytest.mark.parametrize("kind", [PGM, ComplementaryMDLM])
@pytest.mark.parametrize("conditioning", ["time", "sigma"])
def test_two_groups_have_no_time_in_common(kind, conditioning):
    with pytest.raises(InputError, match=f"conditioning: is '{conditioning}'"):
        kind.build(
            options(),
            5,
            conditioning=conditioning,
            schedule="mdlm:loglinear",
            corruption="continuous",
        )


@dataclass(frozen=True)
class OneGroup(Corruption):
    """A law for masked methods alone."""

    timed: bool = False
    bound: bool = False

    def draw(self, valid, noise, step, batch):  # noqa: ARG002
        return Corrupted(valid, torch.ones(valid.shape), None)


def test_a_law_must_weigh_both_groups():
    network = build()
    with pytest.raises(
        InputError, match="corruption: OneGroup has no weights for the second group"
    ):
        PGM(network, corruption=OneGroup())
    method, tokens, noise = PGM(network), torch.zeros(1, 4, dtype=torch.long), Noise.for_batch(0, 1)
    with pytest.raises(
        InputError, match="corruption: OneGroup has no weights for the second group"
    ):
        method.loss(partita.Batch.of(tokens), noise, corruption=OneGroup())
    # Group 1 alone needs no more than a law of masked methods.
    assert method.loss(
        partita.Batch.of(tokens), noise, groups=1, corruption=OneGroup()
    ).counted.all()
    with pytest.raises(InputError, match="groups"):
        method.loss(partita.Batch.of(tokens), noise, groups=3)
