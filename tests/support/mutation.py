"""Changes of JSON, safetensors and bytes that pass the first check."""

from __future__ import annotations

import copy
import json
import math
import struct
from pathlib import Path
from random import Random
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

# Texts that the JSON writer cannot write have names until the end.
RAW = {"<deep>": "[" * 50_000 + "]" * 50_000, "<digits>": "9" * 9_000, "<float>": "-1e99999"}
INTEGERS = [0, -1, 1, 2, 3, 4, 6, 16, 255, 257, 2**31, 2**32 - 1, 2**53, 2**63, 2**64]
INTEGERS += [10**9, 10**10, 10**12, 10**30, 10**400, -(10**400)]
FLOATS = [0.0, -0.0, -1.0, 0.5, 1.5, 1e-320, 1e12, 1e308, math.nan, math.inf, -math.inf]
TEXTS = ["", "x", "x" * 100_000, "\0", "\ud800", "☃", "../evil", "/etc/passwd", "a.yaml", "////"]
TEXTS += ["F64", "F16", "F8_E8M0", "F8_E5M2", "F4", "I64", "BOOL", "C64", "mdlm", "ar", "md4"]
TEXTS += ["polynomial", "md4:poly1e9", "geometric", "mdlm:loglinear", "discrete", "rate", "sigma"]
TEXTS += ["time", "swiglu", "layer", "muon", "antigravity.Geohash", "BPE", "Precompiled", "bytes"]
ENDS = [math.nan, math.inf, -1.0, 1e38]
KEYS = ["class_path", "init_args", "__class__", "__metadata__", "type", "steps", "schedule", "law"]
KEYS += ["mask_id", "self", "exponent", "precompiled_charsmap", "kind", "format", "step", "", "☃"]


def value(random: Random, depth: int = 0) -> Any:
    """Some JSON."""
    leaf = [
        lambda: random.choice(INTEGERS),
        lambda: random.choice(FLOATS),
        lambda: random.choice(TEXTS),
        lambda: random.choice([None, True, False]),
        lambda: random.choice(list(RAW)),
    ]
    inner = [
        lambda: [value(random, depth + 1) for _ in range(random.randrange(4))],
        lambda: {random.choice(KEYS): value(random, depth + 1) for _ in range(random.randrange(4))},
    ]
    return random.choice(leaf if depth > 3 else leaf + inner)()


def alike(random: Random, old: Any) -> Any:
    """Some JSON of the same type: it passes more checks."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return random.choice([*INTEGERS, old + 1, old - 1, 2 * old])
    if isinstance(old, float):
        return random.choice(FLOATS)
    return random.choice(TEXTS) if isinstance(old, str) else value(random)


def holders(content: Any) -> list[Any]:
    """All containers in a JSON document that are not empty."""
    inside = content.values() if isinstance(content, dict) else content
    parts = [part for item in inside if isinstance(item, dict | list) for part in holders(item)]
    return [content, *parts] if content else parts


def alter(random: Random, content: Any) -> Any:
    """A JSON document with something in it replaced, removed, added or moved."""
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        every = holders(content)
        if not every:
            break
        sizes = [len(holder) for holder in every]
        holder = random.choices(every, random.choice([None, sizes]))[0]
        key = random.choice(list(holder if isinstance(holder, dict) else range(len(holder))))
        action = random.choice(
            ["alike", "alike", "alike", "replace", "replace", "drop", "add", "move"]
        )
        if action == "alike":
            holder[key] = alike(random, holder[key])
        elif action == "replace":
            holder[key] = value(random)
        elif action == "drop":
            del holder[key]
        elif action == "move":
            holder[key] = copy.deepcopy(random.choice(every))
        elif isinstance(holder, dict):
            holder[random.choice(KEYS)] = value(random)
        else:
            holder.insert(key, value(random))
    return content


def dumped(content: Any) -> str:
    text = json.dumps(content)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def alter_json(random: Random, data: bytes) -> bytes:
    content = json.loads(data)
    if "json" in content and random.random() < 0.8:  # a tokenizer's own document
        content["json"] = dumped(alter(random, json.loads(content["json"])))
        return json.dumps(content).encode()
    return dumped(alter(random, content)).encode()


def alter_header(random: Random, data: bytes) -> bytes:
    """A safetensors file with another header and the same numbers."""
    size = struct.unpack("<Q", data[:8])[0]
    header = dumped(alter(random, json.loads(data[8 : 8 + size]))).encode()
    claimed = random.choice([len(header)] * 12 + [0, 2**40, 2**63])
    return struct.pack("<Q", claimed) + header + data[8 + size :]


def real(tensor: Tensor) -> Tensor:
    """A tensor that can hold fractions."""
    return tensor if tensor.is_floating_point() else tensor.float()


def alter_tensors(random: Random, data: bytes) -> bytes:
    """A valid safetensors file with a change to its tensors."""
    tensors = safetensors.torch.load(data)
    name, other = random.choices(sorted(tensors), k=2)  # the file's order is not always the same
    changes = [
        lambda tensor: tensor.double(),
        lambda tensor: tensor.long(),
        lambda tensor: tensor.flatten(),
        lambda tensor: tensor[None],
        lambda tensor: torch.cat([tensor[None], tensor[None]]),
        lambda tensor: torch.full_like(real(tensor), random.choice(ENDS)),
        lambda _: tensors[other],
        lambda _: torch.zeros(0),
    ]
    changed = random.choice(changes)(tensors[name]).clone().contiguous()
    if random.random() < 0.3:
        del tensors[name]
    if random.random() < 0.8:
        tensors[random.choice([name, name, name, f"{name}.x", other])] = changed
    return safetensors.torch.save(tensors)


def alter_bytes(random: Random, data: bytes) -> bytes:
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        end = at + random.choice([1, 1, 8, 64, 1000])
        replacements = [
            bytes(byte ^ random.randrange(256) for byte in data[at:end]) + data[end:],  # flipped
            b"",  # cut short
            random.randbytes(end - at) + data[at:],  # inserted
            data[end:],  # deleted
            data[random.randrange(len(data) + 1) :],  # spliced
        ]
        data = data[:at] + random.choice(replacements)
    return data


def damage(random: Random, path: Path) -> bool:
    """Change a file; returns whether its contents differ."""
    before = path.read_bytes()
    shaped = [alter_json] if path.suffix == ".json" else [alter_header, alter_tensors]
    after = random.choice([*shaped * 3, alter_bytes])(random, before)
    path.write_bytes(after)
    return after != before
