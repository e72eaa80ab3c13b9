"""The model card: the README.md of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from huggingface_hub import metadata_load

from partita.config.recipe import Recipe
from partita.files.format import CARD
from partita.methods import METHODS
from partita.networks.kinds import options_for
from partita.provenance import without_root

_TAGS = {
    "masked": "masked-diffusion",
    "causal": "autoregressive",
    "chain": "discrete-diffusion",
    "score": "discrete-diffusion",
    "gaussian": "gaussian-diffusion",
    "flexible": "masked-diffusion",
}
_INFILL = '\nprint(model.infill("The capital of ____ is Paris."))'
_FLEXIBLE = '\nprint(model.infill("The capital of ____ is Paris.", flexible=True))'
_SHOWN = {"causal": "", "flexible": _FLEXIBLE}
_TERMS = ("language", "license", "license_name", "license_link")
_LARGEST = 1 << 24  # bytes; larger cards are not read

Terms = dict[str, str | list[str]]


def terms_of(folder: Path) -> Terms:
    """The language and the license that the card of a model's folder states, in the hub's keys.

    People edit cards, which therefore have no checksum: one that cannot be read states nothing.
    """
    path = folder / CARD
    try:
        readable = path.is_file() and path.stat().st_size <= _LARGEST
        stated = metadata_load(path) if readable else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        stated = None
    return {key: stated[key] for key in _TERMS if stated and _words(stated.get(key))}


def _words(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) for text in texts)


def model_card(
    recipe: Recipe,
    tokens: int,
    parameters: int,
    provenance: dict[str, Any],
    *,
    family: str,
    terms: Terms,
) -> str:
    """README.md of an exported model; `terms` are its language and its license, where known."""
    facts = {
        "method": recipe.method.name,
        "parameters": f"{parameters:,}",
        "network": network_in_words(recipe),
        "longest sequence": f"{recipe.network.length} tokens",
        "tokenizer": f"{recipe.tokenizer.name}, {tokens:,} tokens",
        "trained on": provenance.get("data", "unknown"),
        "steps": provenance.get("step", "unknown"),
        "validation": provenance.get("validation", "not measured"),
    }
    if isinstance(origin := provenance.get("started_from"), dict):
        facts["started from"] = _origin(origin)
    if chosen := recipe.method.options:
        facts["choices"] = ", ".join(f"{key} {value}" for key, value in chosen.items())
    if about := METHODS[recipe.method.name].about:
        facts["paper"] = about.paper
    cells = {
        name: " ".join(str(value).split()).replace("|", "\\|") for name, value in facts.items()
    }
    rows = "\n".join(f"| {name} | {cell} |" for name, cell in cells.items())
    stated = yaml.safe_dump(terms, sort_keys=False, allow_unicode=True) if terms else ""
    return f"""---
library_name: partita
{stated}tags:
- {_TAGS.get(family, family)}
- {recipe.method.name}
---

# {recipe.method.name.upper()}: {provenance.get("data", "a model")}

| | |
| --- | --- |
{rows}

```python
import partita

model = partita.load("THIS FOLDER OR HUB ID")
print(model.sample(2)){_SHOWN.get(family, _INFILL)}
```

The folder holds safetensors and JSON alone; loading it runs no code. The full recipe is in
`config.json`.
"""


def _origin(origin: dict[str, Any]) -> str:
    """The model that training started from, with its license. What that means for the license of
    this one, the card does not decide."""
    name, terms = without_root(str(origin.get("path", "another model"))), origin.get("terms")
    licence = terms.get("license") if isinstance(terms, dict) else None
    return f"{name}, whose licence is {licence}" if licence else name


def network_in_words(recipe: Recipe) -> str:
    """Blocks (and what they read), width and heads."""
    network, reads = recipe.network, METHODS[recipe.method.name].reads
    blocks = options_for(network, reads).blocks(network)
    return f"{blocks} of width {network.width}, {network.heads} heads"
