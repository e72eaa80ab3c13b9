"""What network a published checkpoint holds: by its keys and shapes, before any numbers are read.

A group swap is PGM's, blocks without time layers are the autoregressive baseline's, and a DIT with
time layers is MDLM's (SDTT's students are MDLMs too) or of one of the methods that name their
tensors in the same way (see `identity.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from partita.config.method import MethodOptions
from partita.data.tokenizers import Tokenizer
from partita.devices import in_outline
from partita.errors import naming, require
from partita.models.published import reference
from partita.models.published.reference import DERIVED, EMBEDDING, SWAP, listed
from partita.models.published.stored import Stored
from partita.networks import CausalTransformer, Transformer
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.networks.partition import PartitionTransformer

CONDITIONINGS = ("none", "sigma")
HEAD_WIDTH = 64  # of every published model
_NAMES = {
    "network.heads": "--heads",
    "network.length": "--length",
    "network.options.queries": "--queries",
}
NETWORKS: dict[str, tuple[str, type[nn.Module]]] = {
    "pgm": ("PartitionDIT", PartitionTransformer),
    "mdlm": ("DIT", Transformer),
    "ar": ("causal DIT", CausalTransformer),
}


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What a file does not say about its model."""

    heads: int | None = None
    length: int = 1024
    queries: str = "positions"
    weights: str = "auto"
    conditioning: str = "none"
    method: str | None = None
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A network of theirs, and the one of ours that it becomes."""

    method: MethodOptions
    config: TransformerConfig
    """As the weights are in the file, under our names."""
    folded: bool
    """Whether the time layers become part of the others."""

    @property
    def network(self) -> TransformerOptions:
        """The network of ours as a recipe has it."""
        names = [field.name for field in dataclasses.fields(TransformerOptions)]
        options = TransformerOptions(**{name: getattr(self.config, name) for name in names})
        if self.config.time and not self.folded:
            return options
        usual = TransformerOptions.condition_width  # there is no condition
        norm = "affine" if self.folded else options.norm
        return dataclasses.replace(options, norm=norm, condition_width=usual)


def make_plan(state: Mapping[str, Stored], options: ImportOptions) -> Plan:
    """The network and its sizes, by keys and shapes."""
    outline = {key: stored.outline for key, stored in state.items()}
    partition = any(key.startswith(SWAP) for key in outline)
    timed = any(key.startswith("sigma_map.") for key in outline)
    name = "pgm" if partition else "mdlm" if timed else "ar"
    given, known = options.conditioning, f"known: {', '.join(CONDITIONINGS)}"
    require(given in CONDITIONINGS, "conditioning", f"unknown name {given!r}", known)
    problem = f"is {given!r}, but a model of {name} never takes the time as an input"
    require(given == "none" or name == "mdlm", "conditioning", problem, "leave it out")
    # Unknown keys before anything else: they say best what a file really is.
    (reference.rename_partition if partition else reference.rename_dit)(outline)
    heads = _heads(outline, options.heads)
    with naming(_NAMES):
        if partition:
            config = reference.partition_config(outline, heads, options.length, options.queries)
        else:
            config = reference.dit_config(outline, heads, options.length)
    if given == "none":
        return Plan(MethodOptions(name), config, folded=config.time)
    method = MethodOptions(name, "mdlm:loglinear", corruption="continuous", conditioning="sigma")
    return Plan(method, config, folded=False)


def _heads(outline: Mapping[str, Tensor], given: int | None) -> int:
    """The number of heads: the rotary frequencies have half their width, if the file has them."""
    embedding, frequencies = outline.get(EMBEDDING), outline.get(DERIVED)
    width = 0 if embedding is None else embedding.shape[-1]
    if frequencies is not None:
        heads, rest = divmod(width, 2 * frequencies.numel())
        require(rest == 0, "file", f"its rotary frequencies do not fit its width {width}")
        problem = f"is {given}, but the rotary frequencies in the file are those of {heads}"
        require(given in (None, heads), "heads", problem, "leave it out")
        return heads
    if given is not None:
        return given
    problem = f"cannot be determined: the width {width} is no multiple of {HEAD_WIDTH}"
    require(width % HEAD_WIDTH == 0, "heads", problem, "give --heads")
    return width // HEAD_WIDTH


def check_numbers(state: Mapping[str, Stored], file_size: int) -> None:
    """Weights are fractions; and tensors that share theirs must not fill the memory."""
    for key, stored in state.items():
        floating = stored.dtype.is_floating_point
        require(floating, "file", f"{key:.100} is of {stored.dtype}, which is no type of weights")
    claimed = sum(stored.outline.nbytes for stored in state.values())
    require(claimed <= file_size, "file", "its tensors claim more bytes than the file has")


def check_tensors(state: Mapping[str, Stored], plan: Plan) -> None:
    """Every tensor must be there, with the shape that its network has."""
    found = renamed_by({key: stored.outline for key, stored in state.items()}, plan)
    with in_outline():
        expected = NETWORKS[plan.method.name][1](plan.config).state_dict()
    missing = [name for name in expected if name not in found]
    require(not missing, "file", f"lacks what we call {listed(missing)}")
    for name, tensor in found.items():
        require(name in expected, "file", f"holds {name:.100}, which the rest has no use for")
        shapes = list(tensor.shape), list(expected[name].shape)
        problem = f"what we call {name:.100} has the shape {shapes[0]}, expected {shapes[1]}"
        require(shapes[0] == shapes[1], "file", problem)


def check_tokenizer(state: Mapping[str, Stored], tokenizer: Tokenizer, name: str) -> None:
    ids, tokens = state[EMBEDDING].shape[0], tokenizer.vocab_size
    problem = f"{name} has {tokens} tokens, but the model has {ids} ids: {ids - 1} and a mask"
    remedy = "give the tokenizer that the model was trained with"
    if tokens == ids:
        remedy = "a mask that is one of the tokenizer's own tokens is not supported"
    require(tokens == ids - 1, "tokenizer", problem, remedy)


def renamed_by(state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
    """Tensors of theirs under the names of ours."""
    if plan.method.name != "pgm":
        return reference.rename_dit(state)
    return reference.without_mask(reference.rename_partition(state))
