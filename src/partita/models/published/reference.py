"""State dicts of the reference networks under our names, and the configurations that fit them.

The DIT (MDLM, Duo, SDTT and PGM's baselines share its names):

theirs                                ours
vocab_embed.embedding                 embed.weight
sigma_map.mlp.{0,2}.*                 conditioning.time_{in,out}.*
blocks.i.norm{1,2}.weight             blocks.i.norm_{attention,mlp}.weight
blocks.i.attn_{qkv,out}.weight        blocks.i.attention.{qkv,out}.weight
blocks.i.mlp.{0,2}.*                  blocks.i.mlp.{up,down}.*
blocks.i.adaLN_modulation.*           blocks.i.modulation.*
output_layer.norm_final.weight        norm_out.weight
output_layer.adaLN_modulation.*       modulation_out.*
output_layer.linear.*                 head.*
rotary_emb.inv_freq                   (not stored: it follows from the width)

The PartitionDIT of PGM has `encoder.blocks.i` for `encoder.i`, and besides

decoder.group_swap.base_embedding     swap.base
decoder.group_swap.pre_query_norm     swap.norm
decoder.group_swap.query_processor    swap.process
decoder.group_swap.hidden_to_key_value, output_linear     swap.key_value, swap.out
decoder.layers.i.{q_norm1,kv_norm1,norm2}.weight          decoder.i.norm_{query,memory,mlp}.weight
decoder.layers.i.attn_{q,kv,out}.weight                   decoder.i.attention.{query,key_value,out}
decoder.layers.i.{mlp.{0,2},adaLN_modulation}.*           decoder.i.{mlp.{up,down},modulation}.*

The network of FlexMDM is a DIT with one of two heads for what is missing:

len_pred.{norm,norm_final}.weight     gap_head.norm.weight
len_pred.{adaLN,adaLN_modulation}.*   gap_head.modulation.*
len_pred.{proj1,proj2}.*              gap_head.{inner,out}.*, of an expectation
len_pred.linear.*                     gap_head.out.*, of a distribution
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from partita.errors import InputError, require
from partita.networks.causal import CausalTransformer
from partita.networks.flexible import FlexibleTransformer
from partita.networks.options import TransformerConfig
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer

DERIVED = "rotary_emb.inv_freq"
EMBEDDING = "vocab_embed.embedding"
SWAP = "decoder.group_swap."
_SHOWN = 3
_PREFIX = re.compile(r"((backbone|module|_orig_mod)\.)+")
_PARAMETERS = "(weight|bias)"
_SHARED = {
    r"vocab_embed\.embedding": "embed.weight",
    rf"sigma_map\.mlp\.0\.{_PARAMETERS}": r"conditioning.time_in.\1",
    rf"sigma_map\.mlp\.2\.{_PARAMETERS}": r"conditioning.time_out.\1",
    r"output_layer\.norm_final\.weight": "norm_out.weight",
    rf"output_layer\.adaLN_modulation\.{_PARAMETERS}": r"modulation_out.\1",
    rf"output_layer\.linear\.{_PARAMETERS}": r"head.\1",
}


def _block(theirs: str, ours: str, attention: Mapping[str, str]) -> dict[str, str]:
    """The names in a block; `attention` are those of what differs between kinds of blocks."""
    parts = {
        **attention,
        r"norm2\.weight": "norm_mlp.weight",
        rf"mlp\.0\.{_PARAMETERS}": r"mlp.up.\2",
        rf"mlp\.2\.{_PARAMETERS}": r"mlp.down.\2",
        rf"adaLN_modulation\.{_PARAMETERS}": r"modulation.\2",
    }
    return {rf"{theirs}\.(\d+)\.{part}": rf"{ours}.\1.{name}" for part, name in parts.items()}


_SELF = {
    r"norm1\.weight": "norm_attention.weight",
    r"attn_(qkv|out)\.weight": r"attention.\2.weight",
}
_CROSS = {
    r"q_norm1\.weight": "norm_query.weight",
    r"kv_norm1\.weight": "norm_memory.weight",
    r"attn_q\.weight": "attention.query.weight",
    r"attn_kv\.weight": "attention.key_value.weight",
    r"attn_out\.weight": "attention.out.weight",
}
_SWAP = {
    r"base_embedding": "base",
    rf"pre_query_norm\.{_PARAMETERS}": r"norm.\1",
    rf"query_processor\.((?:[02]\.)?){_PARAMETERS}": r"process.\1\2",
    rf"hidden_to_key_value\.{_PARAMETERS}": r"key_value.\1",
    rf"output_linear\.{_PARAMETERS}": r"out.\1",
}
_DIT = _SHARED | _block("blocks", "blocks", _SELF)
_FLEXIBLE = _DIT | {
    r"len_pred\.norm(?:_final)?\.weight": "gap_head.norm.weight",
    rf"len_pred\.adaLN(?:_modulation)?\.{_PARAMETERS}": r"gap_head.modulation.\1",
    rf"len_pred\.proj1\.{_PARAMETERS}": r"gap_head.inner.\1",
    rf"len_pred\.(?:proj2|linear)\.{_PARAMETERS}": r"gap_head.out.\1",
}
_PARTITION = {
    **_SHARED,
    **_block(r"encoder\.blocks", "encoder", _SELF),
    **_block(r"decoder\.layers", "decoder", _CROSS),
    **{re.escape(SWAP) + part: f"swap.{name}" for part, name in _SWAP.items()},
}


def without_prefix(key: str) -> str:
    """A key without the prefixes that wrappers of the network add."""
    found = _PREFIX.match(key)
    return key[found.end() :] if found else key


# The DIT -----------------------------------------------------------------------------------------


def load_dit(
    state: Mapping[str, Tensor], heads: int, length: int, causal: bool = False
) -> Transformer:
    """A network with the weights of a reference DIT (a `backbone.` before its names is dropped)."""
    network = (CausalTransformer if causal else Transformer)(dit_config(state, heads, length))
    fill(network, rename_dit(state))
    return network


def rename_dit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names. Keys that no rule knows are an error."""
    return _renamed(state, _DIT, "DIT")


def dit_config(state: Mapping[str, Tensor], heads: int, length: int) -> TransformerConfig:
    """The configuration that fits a reference DIT; `heads` is not recorded in its weights."""
    state = _plain(state)
    sizes = _sizes(state, "blocks.0.", "DIT")
    depth = _count(state, "blocks.")
    return TransformerConfig(**sizes, depth=depth, heads=heads, length=length)


# The network of FlexMDM --------------------------------------------------------------------------


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
    network = FlexibleTransformer(config, gaps)
    fill(network, weights)
    return network


# The PartitionDIT --------------------------------------------------------------------------------


def load_partition(
    state: Mapping[str, Tensor], heads: int, length: int, queries: str = "positions"
) -> PartitionTransformer:
    """A network with the weights of a reference PartitionDIT, less the mask, which it never reads.

    What its queries start from is not recorded: "learned" is their learn, "positions" learn+freqs,
    "mean" and "logsumexp" are learn+freqs+mean and learn+freqs+logsumexp.
    """
    network = PartitionTransformer(partition_config(state, heads, length, queries))
    fill(network, without_mask(rename_partition(state)))
    return network


def rename_partition(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names. Keys that no rule knows are an error."""
    renamed = _renamed(state, _PARTITION, "PartitionDIT")
    return {
        name: tensor.flatten() if name == "swap.base" else tensor
        for name, tensor in renamed.items()
    }


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


# What both share ---------------------------------------------------------------------------------


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {without_prefix(key): tensor for key, tensor in state.items()}


def _renamed(
    state: Mapping[str, Tensor], rules: Mapping[str, str], network: str
) -> dict[str, Tensor]:
    plain = _plain(state)
    names = {key: _rename(key, rules) for key in plain if key != DERIVED}
    unknown = [key for key, name in names.items() if name is None]
    if unknown:
        problem = f"{listed(unknown)}: no key of the reference {network}"
        raise InputError("state dict", problem, "leave out what belongs to something else")
    return {name: plain[key] for key, name in names.items() if name is not None}


def _rename(key: str, rules: Mapping[str, str]) -> str | None:
    for pattern, replacement in rules.items():
        match = re.fullmatch(pattern, key)
        if match:
            return match.expand(replacement)
    return None


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


def fill(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a network weights under our names; what is missing is an error."""
    missing = sorted(set(network.state_dict()) - set(weights))
    require(not missing, "state dict", f"lacks what we call {listed(missing)}")
    network.load_state_dict(dict(weights))
