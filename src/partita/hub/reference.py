"""State dicts of the reference DIT (MDLM, Duo and PGM's baseline share its names) for our networks.

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
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from partita.errors import InputError, require
from partita.networks.causal import CausalTransformer
from partita.networks.transformer import Transformer, TransformerConfig

_DERIVED = "rotary_emb.inv_freq"
_NAMES = (
    (r"vocab_embed\.embedding", "embed.weight"),
    (r"sigma_map\.mlp\.0\.(weight|bias)", r"conditioning.time_in.\1"),
    (r"sigma_map\.mlp\.2\.(weight|bias)", r"conditioning.time_out.\1"),
    (r"blocks\.(\d+)\.norm1\.weight", r"blocks.\1.norm_attention.weight"),
    (r"blocks\.(\d+)\.norm2\.weight", r"blocks.\1.norm_mlp.weight"),
    (r"blocks\.(\d+)\.attn_(qkv|out)\.weight", r"blocks.\1.attention.\2.weight"),
    (r"blocks\.(\d+)\.mlp\.0\.(weight|bias)", r"blocks.\1.mlp.up.\2"),
    (r"blocks\.(\d+)\.mlp\.2\.(weight|bias)", r"blocks.\1.mlp.down.\2"),
    (r"blocks\.(\d+)\.adaLN_modulation\.(weight|bias)", r"blocks.\1.modulation.\2"),
    (r"output_layer\.norm_final\.weight", "norm_out.weight"),
    (r"output_layer\.adaLN_modulation\.(weight|bias)", r"modulation_out.\1"),
    (r"output_layer\.linear\.(weight|bias)", r"head.\1"),
)


def load_dit(
    state: Mapping[str, Tensor], heads: int, length: int, causal: bool = False
) -> Transformer:
    """A network with the weights of a reference DIT (a `backbone.` before its names is dropped)."""
    network = (CausalTransformer if causal else Transformer)(dit_config(state, heads, length))
    ours = rename_dit(state)
    missing = sorted(set(network.state_dict()) - set(ours))
    require(not missing, "state dict", f"lacks what we call {', '.join(missing[:3])}")
    network.load_state_dict(ours)
    return network


def _without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("backbone."): tensor for key, tensor in state.items()}


def rename_dit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names. A key that no rule knows is an error."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in _without_prefix(state).items():
        if key == _DERIVED:
            continue
        renamed[_rename(key)] = tensor
    return renamed


def _rename(key: str) -> str:
    for pattern, replacement in _NAMES:
        match = re.fullmatch(pattern, key)
        if match:
            return match.expand(replacement)
    raise InputError("state dict", f"{key!r} is not a key of the reference DIT")


def dit_config(state: Mapping[str, Tensor], heads: int, length: int) -> TransformerConfig:
    """The configuration that fits a reference DIT; `heads` is not recorded in its weights."""
    state = _without_prefix(state)
    require(
        "vocab_embed.embedding" in state, "state dict", "has no 'vocab_embed.embedding': not a DIT"
    )
    vocab_size, width = state["vocab_embed.embedding"].shape
    conditioned = "sigma_map.mlp.0.weight" in state
    return TransformerConfig(
        vocab_size=vocab_size,
        length=length,
        width=width,
        depth=len({key.split(".")[1] for key in state if key.startswith("blocks.")}),
        heads=heads,
        mlp="gelu",
        mlp_ratio=state["blocks.0.mlp.0.weight"].shape[0] / width,
        norm="layer",
        qk_norm=False,
        head_bias=True,
        time=conditioned,
        condition_width=state["sigma_map.mlp.0.weight"].shape[0] if conditioned else 1,
    )
