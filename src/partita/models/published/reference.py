"""State dicts of the reference networks under our names, and the configurations that fit them.

MDLM, Duo, SDTT and PGM's baselines share the names of a DIT, PGM has a PartitionDIT, and FlexMDM a
DIT with one of two heads for what is missing: of an expectation, or of a distribution. In a table,
`#` is a number, and `*` is `weight` or `bias`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from partita.errors import require
from partita.networks.causal import CausalTransformer
from partita.networks.flexible import FlexibleTransformer
from partita.networks.options import TransformerConfig
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer

N = TypeVar("N", bound=nn.Module)
DERIVED = "rotary_emb.inv_freq"
EMBEDDING = "vocab_embed.embedding"
SWAP = "decoder.group_swap."
_SHOWN = 3
_PREFIX = re.compile(r"((backbone|module|_orig_mod)\.)+")


def _rules(table: str) -> dict[re.Pattern[str], str]:
    """What names match, and what they become, of lines with a name of theirs and one of ours."""
    rules, names = {}, table.split()
    for theirs, ours in zip(names[::2], names[1::2], strict=True):
        pattern = re.escape(theirs).replace(r"\#", r"(\d+)").replace(r"\*", "(weight|bias)")
        groups = itertools.count(1)
        rules[re.compile(pattern)] = re.sub(r"[#*]", lambda _: rf"\{next(groups)}", ours)  # noqa: B023
    return rules


_ENDS = """
vocab_embed.embedding                       embed.weight
sigma_map.mlp.0.*                           conditioning.time_in.*
sigma_map.mlp.2.*                           conditioning.time_out.*
output_layer.norm_final.weight              norm_out.weight
output_layer.adaLN_modulation.*             modulation_out.*
output_layer.linear.*                       head.*
"""
_BLOCKS = """
blocks.#.norm1.weight                       blocks.#.norm_attention.weight
blocks.#.attn_qkv.weight                    blocks.#.attention.qkv.weight
blocks.#.attn_out.weight                    blocks.#.attention.out.weight
blocks.#.norm2.weight                       blocks.#.norm_mlp.weight
blocks.#.mlp.0.*                            blocks.#.mlp.up.*
blocks.#.mlp.2.*                            blocks.#.mlp.down.*
blocks.#.adaLN_modulation.*                 blocks.#.modulation.*
"""
_DECODER = """
decoder.layers.#.q_norm1.weight             decoder.#.norm_query.weight
decoder.layers.#.kv_norm1.weight            decoder.#.norm_memory.weight
decoder.layers.#.attn_q.weight              decoder.#.attention.query.weight
decoder.layers.#.attn_kv.weight             decoder.#.attention.key_value.weight
decoder.layers.#.attn_out.weight            decoder.#.attention.out.weight
decoder.layers.#.norm2.weight               decoder.#.norm_mlp.weight
decoder.layers.#.mlp.0.*                    decoder.#.mlp.up.*
decoder.layers.#.mlp.2.*                    decoder.#.mlp.down.*
decoder.layers.#.adaLN_modulation.*         decoder.#.modulation.*
decoder.group_swap.base_embedding           swap.base
decoder.group_swap.pre_query_norm.*         swap.norm.*
decoder.group_swap.query_processor.*        swap.process.*
decoder.group_swap.query_processor.0.*      swap.process.0.*
decoder.group_swap.query_processor.2.*      swap.process.2.*
decoder.group_swap.hidden_to_key_value.*    swap.key_value.*
decoder.group_swap.output_linear.*          swap.out.*
"""
_GAPS = """
len_pred.norm.weight                        gap_head.norm.weight
len_pred.norm_final.weight                  gap_head.norm.weight
len_pred.adaLN.*                            gap_head.modulation.*
len_pred.adaLN_modulation.*                 gap_head.modulation.*
len_pred.proj1.*                            gap_head.inner.*
len_pred.proj2.*                            gap_head.out.*
len_pred.linear.*                           gap_head.out.*
"""
_DIT = _rules(_ENDS + _BLOCKS)
_FLEXIBLE = _DIT | _rules(_GAPS)
_ENCODER = _BLOCKS.replace("\nblocks", "\nencoder.blocks").replace(" blocks", " encoder")
_PARTITION = _rules(_ENDS + _ENCODER + _DECODER)


def without_prefix(key: str) -> str:
    """A key without the prefixes that wrappers of the network add."""
    found = _PREFIX.match(key)
    return key[found.end() :] if found else key


def load_dit(
    state: Mapping[str, Tensor], heads: int, length: int, causal: bool = False
) -> Transformer:
    """A network with the weights of a reference DIT (a `backbone.` before its names is dropped)."""
    network = (CausalTransformer if causal else Transformer)(dit_config(state, heads, length))
    return filled(network, rename_dit(state))


def rename_dit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names. Keys that no rule knows are an error."""
    return _renamed(state, _DIT, "DIT")


def dit_config(state: Mapping[str, Tensor], heads: int, length: int) -> TransformerConfig:
    """The configuration that fits a reference DIT; `heads` is not recorded in its weights."""
    state = _plain(state)
    sizes = _sizes(state, "blocks.0.", "DIT")
    depth = _count(state, "blocks.")
    return TransformerConfig(**sizes, depth=depth, heads=heads, length=length)


def load_flexible(state: Mapping[str, Tensor], heads: int, length: int) -> FlexibleTransformer:
    """A network with the weights of a reference FlexMDM, whose last two ids are mask and pad.

    Ours has no logits for those. It is conditioned on alpha(t) itself, not on `TIME_SCALE` times as
    much.
    """
    weights = _renamed(state, _FLEXIBLE, "network of FlexMDM")
    for name in ("head.weight", "head.bias"):
        if name in weights:
            weights[name] = weights[name][:-2]
    config = dit_config(state, heads, length)
    config = replace(config, output_size=config.vocab_size - 2)
    gaps = "expectation" if "gap_head.inner.weight" in weights else "distribution"
    return filled(FlexibleTransformer(config, gaps), weights)


def load_partition(
    state: Mapping[str, Tensor], heads: int, length: int, queries: str = "positions"
) -> PartitionTransformer:
    """A network with the weights of a reference PartitionDIT, less the mask, which it never reads.

    What its queries start from is not recorded: "learned" is their learn, "positions" learn+freqs,
    "mean" and "logsumexp" are learn+freqs+mean and learn+freqs+logsumexp.
    """
    network = PartitionTransformer(partition_config(state, heads, length, queries))
    return filled(network, without_mask(rename_partition(state)))


def rename_partition(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names. Keys that no rule knows are an error."""
    renamed = _renamed(state, _PARTITION, "PartitionDIT")
    if "swap.base" in renamed:
        renamed["swap.base"] = renamed["swap.base"].flatten()
    return renamed


def without_mask(renamed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights for real ids alone.

    The last id is the mask. No PartitionDIT ever reads it, and its logit is always set to -inf.
    """
    ids = ("embed.weight", "head.weight", "head.bias")
    return {name: tensor[:-1] if name in ids else tensor for name, tensor in renamed.items()}


def partition_config(
    state: Mapping[str, Tensor], heads: int, length: int, queries: str = "positions"
) -> TransformerConfig:
    """The configuration that fits a reference PartitionDIT without its mask."""
    state = _plain(state)
    sizes = _sizes(state, "encoder.blocks.0.", "PartitionDIT")
    sizes["vocab_size"] -= 1
    depth = _count(state, "decoder.layers.")
    process = "mlp" if f"{SWAP}query_processor.0.weight" in state else "linear"
    return TransformerConfig(
        **sizes,
        depth=_count(state, "encoder.blocks.") + depth,
        heads=heads,
        length=length,
        options={"decoder_depth": depth, "queries": queries, "process": process},
    )


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {without_prefix(key): tensor for key, tensor in state.items()}


def _renamed(
    state: Mapping[str, Tensor], rules: Mapping[re.Pattern[str], str], network: str
) -> dict[str, Tensor]:
    renamed, unknown = {}, []
    for key, tensor in _plain(state).items():
        found = ((pattern.fullmatch(key), ours) for pattern, ours in rules.items())
        name = next((match.expand(ours) for match, ours in found if match), None)
        if name is not None:
            renamed[name] = tensor
        elif key != DERIVED:
            unknown.append(key)
    problem = f"{listed(unknown)}: no key of the reference {network}"
    require(not unknown, "state dict", problem, "leave out what belongs to something else")
    return renamed


def listed(names: Collection[str]) -> str:
    """The first few of some names, and how many more there are."""
    shown = ", ".join(f"{name:.100}" for name in list(names)[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    parts = prefix.count(".")
    return len({key.split(".")[parts] for key in state if key.startswith(prefix)})


def _sizes(state: Mapping[str, Tensor], first: str, network: str) -> dict[str, Any]:
    """The options that the shapes tell, and those that the reference networks all have."""
    up, time = f"{first}mlp.0.weight", "sigma_map.mlp.0.weight"
    for key, ndim in ((EMBEDDING, 2), (up, 2), (time, 2)):
        flat = key in state and state[key].ndim != ndim
        require(not flat, "state dict", f"{key} has another shape than a {network}'s")
        required = key == time or key in state
        require(required, "state dict", f"has no {key!r}: not a {network}")
    vocab_size, width = state[EMBEDDING].shape
    conditioned = time in state
    return {
        "vocab_size": vocab_size,
        "width": width,
        "mlp": "gelu",
        "mlp_ratio": state[up].shape[0] / max(width, 1),
        "norm": "layer",
        "qk_norm": False,
        "head_bias": True,
        "time": conditioned,
        "condition_width": state[time].shape[0] if conditioned else 1,
    }


def filled(network: N, weights: Mapping[str, Tensor]) -> N:
    """A network with given weights under our names; what is missing is an error."""
    missing = sorted(set(network.state_dict()) - set(weights))
    require(not missing, "state dict", f"lacks what we call {listed(missing)}")
    network.load_state_dict(dict(weights))
    return network
