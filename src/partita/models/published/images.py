"""State dicts of the reference networks for images, exactly as functions, in our networks.

MaskGIT's transformer (the open reproduction, and PGM's baseline) has a bias b in its last norm,
before the modulation. b (1 + scale) + shift is another shift, which is linear in the condition as
well. The weights of its head are those of its embedding.

PGM's PartitionDIT for images reads [register of group 1, register of group 0, start, codes] at
positions of a line. Registers are tokens like others there, so they become two more ids. Its adaLN
layers take the label's embedding e as it is, where ours take silu(e): as silu(e) - silu(-e) = e,
the embedding [e, -e] under the weights [W, -W] is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from partita.errors import require
from partita.models.published.reference import (
    filled,
    partition_config,
    rename_partition,
    without_prefix,
)
from partita.networks.options import TransformerConfig
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer

LABELS, REGISTERS = "cls_embed.embedding_table.weight", "reg_tokens.weight"


def load_maskgit(state: Mapping[str, Tensor], heads: int) -> Transformer:
    """A network with the weights of a reference MaskGIT transformer; its last id is the mask."""
    state = {without_prefix(key): tensor for key, tensor in state.items()}
    for key in ("tok_emb.weight", "pos_emb.weight", "cls_emb.weight"):
        require(key in state, "state dict", f"has no {key!r}: not a MaskGIT transformer")
    config = _maskgit_config(state, heads)
    return filled(Transformer(config), _rename_maskgit(state, config.depth))


def _maskgit_config(state: Mapping[str, Tensor], heads: int) -> TransformerConfig:
    """The configuration that fits; the grid is taken to be square."""
    vocab_size, width = state["tok_emb.weight"].shape
    length, hidden = len(state["pos_emb.weight"]), len(state["transformer.layers.0.ff.w1.weight"])
    columns = round(length**0.5)
    return TransformerConfig(
        vocab_size=vocab_size,
        length=length,
        grid=columns if columns**2 == length else 0,
        width=width,
        depth=len({key.split(".")[2] for key in state if key.startswith("transformer.")}),
        heads=heads,
        mlp_ratio=1.5 * hidden / width,  # SwiGLU has 2/3 of the channels of other MLPs
        qk_norm_over="width",
        qk_scale=1.0,
        head_bias=True,
        classes=len(state["cls_emb.weight"]) - 1,
        condition_width=width,
        options={"positions": "learned"},
        registers=len(state.get(REGISTERS, ())),
    )


def _rename_maskgit(state: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    ours = {
        "embed.weight": state["tok_emb.weight"],
        "places": state["pos_emb.weight"],
        "conditioning.label.weight": state["cls_emb.weight"],
        "norm_out.weight": state["last_norm.norm_final.weight"],
        "head.weight": state["tok_emb.weight"],
        "head.bias": state["head.bias"],
    }
    if REGISTERS in state:
        ours["registers"] = state[REGISTERS]
    bias = state["last_norm.norm_final.bias"]
    for name in ("weight", "bias"):
        shift, scale = state[f"last_norm.mlp.1.{name}"].chunk(2)
        moved = bias[:, None] * scale if name == "weight" else bias * (1 + scale)
        ours[f"modulation_out.{name}"] = torch.cat([shift + moved, scale])
    for index in range(depth):
        theirs, block = f"transformer.layers.{index}", f"blocks.{index}"
        part = {name: state[f"{theirs}.attn.w{name}.weight"] for name in "qkvo"}
        ours[f"{block}.attention.qkv.weight"] = torch.cat([part["q"], part["k"], part["v"]])
        ours[f"{block}.attention.out.weight"] = part["o"]
        gate, down, up = (state[f"{theirs}.ff.w{n}.weight"] for n in (1, 2, 3))
        ours[f"{block}.mlp.up.weight"] = torch.cat([gate, up])
        ours[f"{block}.mlp.down.weight"] = down
        for name in ("weight", "bias"):
            ours[f"{block}.modulation.{name}"] = state[f"{theirs}.mlp.1.{name}"]
        for number, norm in ((1, "attention"), (2, "mlp")):
            ours[f"{block}.norm_{norm}.weight"] = state[f"{theirs}.ln{number}.weight"]
    return ours


def load_image_partition(
    state: Mapping[str, Tensor], heads: int, length: int
) -> PartitionTransformer:
    """A network with the weights of a reference PartitionDIT for images.

    `length` counts the start and the codes. Ids are those of the reference, and after them the
    registers, those of group 1 first; a row begins with them. Only ids of the reference have
    logits, the mask's and the start's included.
    """
    state = {without_prefix(key): tensor for key, tensor in state.items()}
    for key in (LABELS, "vocab_embed.embedding"):
        require(key in state, "state dict", f"has no {key!r}: not a PartitionDIT for images")
    labels, registers = state.pop(LABELS), state.pop(REGISTERS, None)
    added = 0 if registers is None else len(registers)
    plain = partition_config(state, heads, length + added)
    ids = plain.vocab_size + 1  # the text's last id is the mask; here it is the start
    config = replace(
        plain,
        vocab_size=ids + added,
        output_size=ids,
        classes=len(labels) - 1,
        condition_width=2 * labels.shape[1],
    )
    weights = rename_partition(state)
    for name, tensor in weights.items():
        if "modulation" in name and name.endswith("weight"):
            weights[name] = torch.cat([tensor, -tensor], 1)
    weights["conditioning.label.weight"] = torch.cat([labels, -labels], 1)
    if registers is not None:
        weights["embed.weight"] = torch.cat([weights["embed.weight"], registers])
    return filled(PartitionTransformer(config), weights)
