"""The reference DIT, bidirectional and causal, with its own weights."""

from __future__ import annotations

import torch

from partita.contracts.batch import Batch
from partita.methods import AR, MDLM
from partita.models.published.reference import rename_dit
from partita.networks import CausalTransformer, Transformer
from partita.networks.layers import sinusoid
from partita.processes.corruption import Corrupted
from tests.golden.cases import load
from tests.support.references import build


def test_dit_logits_and_hidden_states():
    case = load("text/mdlm_dit")
    network = build(case, Transformer)
    tokens, sigma = case["in.tokens"], case["in.sigma"]
    hidden: dict[str, torch.Tensor] = {}
    for index, block in enumerate(network.blocks):
        block.register_forward_hook(
            lambda _module, _inputs, output, name=f"out.block{index}": hidden.update({name: output})
        )
    case.close(network(tokens, scalar=sigma), "out.logits")
    for name in case.keys("out.block"):
        case.close(hidden[name], name)
    case.close(network.embed(tokens), "out.embed")
    case.close(sinusoid(sigma, case["out.t_freq"].shape[1]), "out.t_freq")
    case.close(network.conditioning(sigma, None, len(sigma)), "out.c")
    case.close(network(tokens), "out.logits_sigma0")
    case.close(network(case["in.tokens_short"]), "out.logits_short")


def test_mdlm_log_probabilities_with_and_without_time():
    case = load("text/mdlm_dit")
    network, mask_id = build(case, Transformer), case.facts["info"]["mask_index"]
    for conditioning, key in (("sigma", "out.logp_time_cond"), ("none", "out.logp_no_time_cond")):
        method = MDLM(
            network,
            mask_id=mask_id,
            schedule=f"mdlm:{case.config['noise']['type']}",
            corruption="continuous",
            conditioning=conditioning,
        )
        hidden = case["in.xt"] == mask_id
        rows, positions = hidden.nonzero(as_tuple=True)
        ours = method.predict(case["in.xt"], ~hidden, rows, positions, case["in.t"])
        theirs = case[key][rows, positions]
        # They write about -1e6 where we write -inf, and copy visible tokens (never asked here).
        torch.testing.assert_close(ours.exp(), theirs.exp(), atol=2e-5, rtol=1e-4)


def test_mdlm_loss_and_gradient_norms():
    case = load("text/mdlm_dit")
    network, mask_id = build(case, Transformer), case.facts["info"]["mask_index"]
    schedule = f"mdlm:{case.config['noise']['type']}"
    method = MDLM(network, mask_id=mask_id, schedule=schedule, corruption="continuous")
    masked = case["in.xt"] == mask_id
    weights = method.schedule.weight(case["in.t"])[:, None].expand(masked.shape)
    loss = method.loss_given(
        Batch.of(case["in.x0"], is_token=torch.ones_like(masked)),
        Corrupted(masked, weights, case["in.t"]),
    )
    case.close(loss.per_token, "out.loss_tokens")
    case.close(loss.objective, "out.loss")
    loss.objective.backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    for theirs, norm in case.facts["info"]["grad_l2"].items():
        (ours,) = rename_dit({theirs: torch.empty(0)})
        torch.testing.assert_close(gradients[ours].norm().item(), norm, rtol=1e-3, atol=1e-6)


def test_causal_dit_and_ar_loss():
    case = load("text/pgm_ar_dit")
    network, mask_id = build(case, CausalTransformer), case.facts["info"]["mask_index"]
    case.close(network(case["in.tokens"]), "out.logits")
    # The reference gives the first token for free; ours prepends a start token, so it is fed
    # their first token as start and scores the rest.
    x0 = case["in.x0"]
    method = AR(network, start_id=mask_id)
    log_probs = method.log_probabilities(network(x0[:, :-1]))
    case.close(-log_probs.gather(-1, x0[:, 1:, None])[..., 0], "out.nll")


def test_key_value_cache_equals_the_full_pass():
    case = load("text/pgm_ar_dit")
    network, tokens = build(case, CausalTransformer), case["in.tokens"]
    caches = network.new_caches(tokens.shape[0])
    first = tokens.shape[1] // 3
    steps = [network.extend(tokens[:, :first], caches)]
    steps += [network.extend(tokens[:, i : i + 1], caches) for i in range(first, tokens.shape[1])]
    torch.testing.assert_close(
        torch.stack(steps, 1), case["out.logits"][:, first - 1 :], atol=2e-5, rtol=1e-4
    )
