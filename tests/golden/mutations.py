"""Another folder of golden cases, made of this package's by what changes no number.

Parts of cases are renamed, left out and stored twice, rows of batches are left out, keys come in
another order, and seeds are others: `python -m tests.golden.mutations FOLDER`. Tests that read all
that they say from the files pass on it as they do on their own, and run what it has.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tests.golden.cases import OWN, own

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]
"""What is done to the facts and the tensors of a case."""


@dataclass(frozen=True)
class Parts:
    """Where a case names its parts, in forms such as "out.{}." of which {} is the name.

    `tensors` are what the names of a part's tensors begin with (or are, where that ends with no
    mark). `facts` are the dictionaries that tell something of a part, by their paths, with the form
    of a part's key in them; `lists` are the lists of names, or of names that "+" joins elsewhere.
    """

    tensors: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    lists: Sequence[str] = ()

    def copied(self, old: Any, new: Any) -> Change:
        """The same part once more, under another name."""

        def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
            for form in self.tensors:
                for key in _keys(tensors, form.format(old)):
                    other = form.format(new) + key.removeprefix(form.format(old))
                    tensors[other] = tensors[key].clone()
                    facts["tensors"][other] = facts["tensors"][key]
            for path, form in self.facts:
                table = _at(facts, path)
                if form.format(old) in table:
                    table[form.format(new)] = table[form.format(old)]
            for names in (_at(facts, path) for path in self.lists):
                names.append(_listed(names, new))

        return change

    def without(self, *gone: Any) -> Change:
        """Everything but those parts."""

        def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
            for name in gone:
                for form in self.tensors:
                    for key in _keys(tensors, form.format(name)):
                        del tensors[key], facts["tensors"][key]
                for path, form in self.facts:
                    _at(facts, path).pop(form.format(name), None)
                for names in (_at(facts, path) for path in self.lists):
                    names.remove(_listed(names, name))

        return change

    def renamed(self, old: Any, new: Any) -> Change:
        """The same part under another name alone."""
        return both(self.copied(old, new), self.without(old))


def _keys(tensors: dict[str, Tensor], start: str) -> list[str]:
    whole = start[-1].isalnum()
    return [key for key in tensors if key == start or (key.startswith(start) and not whole)]


def _at(facts: dict[str, Any], path: str) -> Any:
    for name in path.split("."):
        facts = facts[name]
    return facts


def _listed(names: list[Any], name: Any) -> Any:
    """A name as a list has it: "lin+sin" may be two."""
    return name.split("+") if names and isinstance(names[0], list) else name


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for one in changes:
            one(facts, tensors)

    return change


def fewer_rows(*axes: tuple[int, str]) -> Change:
    """All but the last row of the batch, which is an axis of the tensors whose names match."""

    def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for axis, names in axes or [(0, "")]:
            for key, tensor in tensors.items():
                if re.match(names, key) and tensor.ndim > axis:
                    tensors[key] = tensor.narrow(axis, 0, tensor.shape[axis] - 1).contiguous()
        if "B" in facts["config"]:
            facts["config"]["B"] -= 1

    return change


def without_steps(steps: int) -> Change:
    """A toy's bounds and laws of all other numbers of steps."""

    def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        facts["config"]["T_values"].remove(steps)
        for key in [key for key in tensors if f"T{steps}" in key.split("/")]:
            del tensors[key], facts["tensors"][key]

    return change


def without_first_run(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Runs that go by their numbers count from 0 again."""
    facts["config"]["runs"].pop(0)
    for key in [key for key in tensors if key.startswith("run0.")]:
        del tensors[key]
    for key in [key for key in tensors if key.startswith("run")]:
        number, name = key.removeprefix("run").split(".", 1)
        tensors[f"run{int(number) - 1}.{name}"] = tensors.pop(key)


def runs_renamed(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Runs that say what their tensors begin with: the first is gone, others have other names."""
    gone, *runs = facts["config"]["runs"]
    facts["config"]["runs"] = runs
    for key in [key for key in tensors if key.startswith(gone["prefix"])]:
        del tensors[key]
    for number, run in enumerate(runs):
        old, run["prefix"] = run["prefix"], f"number{number}."
        for key in [key for key in tensors if key.startswith(old)]:
            tensors[run["prefix"] + key.removeprefix(old)] = tensors.pop(key)


def without_batch(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The first of the recorded sizes of batches is gone."""
    gone = facts["config"]["cases"].pop(0)["batch"]
    Parts(["bs{}/"]).without(gone)(facts, tensors)


def without_side(side: int) -> Change:
    """No order and no numbers of positions of one of the grids."""

    def change(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        facts["config"]["sides"].remove(side)
        for key in [key for key in tensors if re.match(rf"out\.halton_(counts_)?{side}(_|$)", key)]:
            del tensors[key], facts["tensors"][key]

    return change


def turned(facts: Any) -> Any:
    """The same facts with the keys of every dictionary in the opposite order."""
    if isinstance(facts, dict):
        return {key: turned(facts[key]) for key in reversed(facts)}
    return [turned(fact) for fact in facts] if isinstance(facts, list) else facts


def write(folder: Path) -> None:
    """All cases of this package, changed; checkpoints among them are as they were."""
    shutil.copytree(OWN, folder, ignore=_stored_cases, dirs_exist_ok=True)
    for file in sorted(OWN.rglob("*.safetensors")):
        if not file.with_suffix(".json").exists():
            continue
        name = file.relative_to(OWN).as_posix().removesuffix(".safetensors")
        case = own(STORED_AS.get(name, name))
        facts, tensors = case.facts, dict(case.tensors)
        for pattern, change in CHANGES:
            if re.fullmatch(pattern, name):
                change(facts, tensors)
        if isinstance(facts.get("seed"), int):
            facts["seed"] += 1
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(turned(facts)))
        save_file(dict(reversed(tensors.items())), folder / f"{name}.safetensors")


def _stored_cases(_: str, names: list[str]) -> set[str]:
    """The two files of every case in a folder."""
    tensors = {name.removesuffix(".safetensors") for name in names if ".safetensors" in name}
    cases = {name for name in tensors if f"{name}.json" in names}
    return {f"{name}{suffix}" for name in cases for suffix in (".json", ".safetensors")}


_SCHEDULES = Parts(facts=[("config.schedules", "{}")])
_RUNS = Parts(["{}."], [("seed", "{}.")])
_PAIRS = Parts(["{}."], lists=["config.combos"])
_SEEDED_PAIRS = Parts(["{}."], [("seed", "{}.")], ["config.combos"])
_ORACLES = Parts(["{}."], [("results.combos", "{}")], ["config.combos"])
_LLADA = Parts(["{}."], [("config.runs", "{}")])
_QUIRKS = Parts(["{}."], [("config", "{}"), ("seed", "{}")])
_CALLS = Parts(["{}"], [("config.results", "{}")])
_PLACEMENTS = Parts(["in.{}.", "out.{}."], [("config", "mask_index_{}")])
_NOISE_ENDS = [("info", "{}_sigma_min"), ("info", "{}_sigma_max")]
_CONTINUOUS = Parts(["out.{}."], [("config.schedules", "{}"), *_NOISE_ENDS])
_SAMPLERS = Parts(
    ["in.rand.{}.", "out.{}."],
    [("info", f"{{}}_{fact}") for fact in ("mask_left", "backbone_calls", "min_log_margin")],
)
_HIDING = Parts(["in.rand.{}.", "out.mask.{}", "out.confidence_seq.{}"], lists=["config.modes"])
_DISTANCES = Parts(["out.{}", "out.grad_{}", "out.{}_clean", "out.grad_{}_clean"])
_TRAJECTORIES = Parts(["in.k{}.", "in.rand.k{}.", "out.k{}."], [("info", "k{}")])
_NOISES = Parts(["{}/"], [("config.noise", "{}")])
_NAMED_NOISES = Parts(["{}/"], lists=["config.schedules"])

DISCRETE = ("t_disc", "discrete_subs", "discrete_d3pm")
HALTON = ("in.rand.halton_w{}.", "out.halton_w{}", "out.halton_w{}_fixed")
SIZE = "small_grid16"
PROMPTS = r".*\.(prompt|prefix|suffix)$"

STORED_AS = {"md4/toy_md4_exact_long": "md4/toy_md4_exact_short"}
"""Cases in whose place another one of their kind is stored, of another size."""

CHANGES: list[tuple[str, Change]] = [
    ("text/mdlm_subs", both(fewer_rows(), _PLACEMENTS.renamed("inside", "somewhere"))),
    ("text/mdlm_posterior", fewer_rows()),
    ("text/mdlm_noise_schedules", both(fewer_rows(), _CONTINUOUS.without("cosine"))),
    ("text/mdlm_noise_schedules", _CONTINUOUS.renamed("loglinear", "loglinear_b")),
    ("text/mdlm_noise_schedules", _CONTINUOUS.copied("geometric", "geometric_b")),
    ("text/mdlm_loss", Parts(["out.cont.{}"], [("config.schedules", "{}")]).without("cosine")),
    ("text/mdlm_loss", Parts([f"out.{x}_T{{}}" for x in DISCRETE]).without(4)),
    ("text/mdlm_sampler", _SAMPLERS.renamed("ddpm", "ddpm_b")),
    ("text/pgm_samplers", _SAMPLERS.without("naive")),
    ("text/pgm_samplers", _SAMPLERS.renamed("uniform_topp", "uniform_nucleus")),
    ("text/pgm_samplers", _SAMPLERS.copied("non_uniform", "non_uniform_b")),
    ("text/pgm_text_linear", Parts(["out.{}."]).without("learn+freqs+mean")),
    ("text/.*sdtt_divergences", _DISTANCES.without("mse")),
    ("text/.*sdtt_targets", _TRAJECTORIES.without(2)),
    ("text/pgm_image_samplers", Parts(HALTON).without(0)),
    ("text/pgm_image_schedules", both(_HIDING.without("root"), without_side(8))),
    ("flex/fastdllm_decision", both(fewer_rows(), Parts(["{}."]).renamed("decision1", "other"))),
    ("flex/fastdllm_cache_generate", _CALLS.without("dual.topk.")),
    ("flex/fastdllm_cache_generate", _CALLS.renamed("nocache.topk.", "nocache_b.")),
    ("flex/llada_generate", both(_LLADA.without("temp"), Parts(["{}."]).without("transfer0"))),
    ("flex/llada_generate", _LLADA.renamed("cfg", "guided")),
    ("flex/llada_generate", _LLADA.copied("random", "random_b")),
    ("flex/llada_generate", Parts(["{}."]).renamed("transfer1", "other")),
    ("flex/flex_schedules", Parts(["{}."], [("config.schedules", "{}")]).without("sin")),
    ("flex/flex_schedules", Parts(["{}."], [("config.schedules", "{}")]).renamed("cosine", "x")),
    ("flex/flex_(interpolant|rates)", _SCHEDULES.copied("geometric_5_0.01", "y")),
    ("flex/flex_(interpolant|rates)", _PAIRS.without("linear+linear", "cosine+cosine")),
    ("flex/flex_(interpolant|rates)", _PAIRS.renamed("geometric_5_0.01+linear", "y+linear")),
    ("flex/flex_rates", fewer_rows()),
    ("flex/flex_interpolant_prompt", Parts(["{}."]).renamed("geometric_10_0.01+linear", "z")),
    ("flex/flex_loss", Parts(["{}."], lists=["config.pairs"]).without("linear+linear")),
    ("flex/flex_loss", Parts(["{}."], lists=["config.pairs"]).copied("sin+linear", "sin_b+linear")),
    ("flex/flex_oracle", _SCHEDULES.copied("sin", "half")),
    ("flex/flex_oracle", both(_SCHEDULES.without("cos"), _ORACLES.without("lin+lin"))),
    ("flex/flex_oracle", _ORACLES.renamed("sin+lin", "half+lin")),
    ("flex/(flex|maskgit)_network_?.*", fewer_rows((0, "(?!w[.])"))),
    ("flex/maskgit_network", Parts(facts=[("config.param_counts_official", "{}")]).without(SIZE)),
    ("flex/flex_sampler_(euler|tau)", _SEEDED_PAIRS.without("linear+linear")),
    ("flex/flex_sampler_(euler|tau)", _SEEDED_PAIRS.copied("sin+linear", "sin+linear_b")),
    ("flex/flex_sampler_mdm", Parts(["{}."]).renamed("tau", "tau_b")),
    ("flex/flex_sampler_confidence", _RUNS.without("entropy.window", "position.nowindow")),
    ("flex/flex_sampler_confidence_8b", _RUNS.renamed("top_prob.window", "top_prob.window.b")),
    ("flex/flex_sampler_infill_8b", _RUNS.without("prob_diff.window")),
    (
        "flex/flex_sampler_.*",
        fewer_rows((1, r".*\.(?!(t|prompt|prefix|suffix)$)[^.]*$"), (0, PROMPTS)),
    ),
    ("flex/flex_overflow_quirk", _QUIRKS.renamed("overcount", "many")),
    ("flex/halton_order", Parts(["order{}", "flat{}"], lists=["config.grids"]).without(8)),
    ("flex/halton_sampler", without_first_run),
    ("flex/maskgit_confidence_sampler", runs_renamed),
    ("flex/maskgit_schedules", Parts(["conf.{}."]).without("root.grid8.steps8")),
    ("flex/maskgit_training", Parts(["{}.mask", "{}.masked_code"]).without("root")),
    ("flex/pgm_image_samplers", Parts(["{}."]).renamed("halton", "halton_b")),
    ("md4/(md4|genmd4)_schedules?(_f32)?", fewer_rows((0, ".*(alpha|logsnr)|t$"))),
    ("md4/md4_schedules.*", _NAMED_NOISES.without("poly3", "cosine")),
    ("md4/md4_loss_.*", _NAMED_NOISES.without("cosine")),
    ("md4/md4_sampling.*", Parts(["ancestral/{}/", "topp{}/"]).without("cosine", 0.6)),
    ("md4/md4_antithetic_times", without_batch),
    ("md4/mdlm_d3pm_loss", both(fewer_rows(), Parts(["T{}/"], lists=["config.T"]).without(4))),
    ("md4/sedd_(absorb|uniform)", _NOISES.renamed("geometric", "geometric_b")),
    ("md4/sedd_(absorb|uniform)", _NOISES.without("loglinear")),
    ("md4/sedd_score_mean", fewer_rows()),
    ("md4/genmd4_reverse_step", fewer_rows((0, "(?!w_raw)"))),
    ("md4/toy_.*", both(without_steps(8), without_steps(64))),
    ("image/layouts/.*", fewer_rows()),
    ("md4/net_transformer_.*", fewer_rows((0, "(?!params/)"))),
]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
