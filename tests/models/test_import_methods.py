"""Which method a published file is of: SEDD, Duo and MDLM give their tensors the same names.

The weights are one DIT's throughout: what a file becomes follows from what is said of it. Files as
the reference implementations' own code writes them are in `tests/golden/test_layouts.py`.
"""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
from torch import Tensor

from partita import load
from partita.commands import main
from partita.errors import InputError
from partita.models.published import pickles
from partita.models.published.identity import FOREIGN, IMPORTED
from partita.models.published.importing import import_model
from partita.models.published.pickled_values import entry
from partita.models.published.planning import ImportOptions
from tests.golden import cases
from tests.support.checkpoints import lightning, parameters, pickled, state_of, write_tokenizer
from tests.support.small_hub import outcome, serving

USUAL = ["--tokenizer", "tokenizer.json", "--length", "16"]
READ = "partita import reads MDLM, PGM, their students by SDTT, and the autoregressive baseline"
FITS = "its tensors fit MDLM, SEDD and Duo alike, and nothing says which it is"
GIVE = "give --method mdlm if it is a model of MDLM or one of its students by SDTT"

SEDD = {"graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "tokens": 36, "model": {}}
DUO = {"algo": {"name": "duo", "parameterization": "mean", "time_conditioning": True}}
DUO_HUB = {"model_type": "DUO", "architectures": ["DUO"], "vocab_size": 37}
BD3LM = {"model_type": "bd3lm", "block_size": 4, "time_conditioning": False}
OTHERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "SEDD": (SEDD, "graph.type 'absorb'", "sedd"),
    "SEDD in MDLM's code": ({"parameterization": "sedd"}, "parameterization 'sedd'", "sedd"),
    "SEDD in Duo's code": ({"algo": {"name": "sedd"}}, "algo.name 'sedd'", "sedd"),
    "Duo": (DUO, "algo.name 'duo'", "duo"),
    "Duo on the hub": (DUO_HUB, "model_type 'DUO'", "duo"),
    "Duo's first stage": ({"algo": {"name": "duo_base"}}, "algo.name 'duo_base'", "duo"),
    "Duo's students": ({"algo": {"name": "distillation"}}, "algo.name 'distillation'", "duo"),
    "Duo's loss under another name": (
        {"algo": {"name": "mine", "parameterization": "mean"}},
        "algo.parameterization 'mean'",
        "duo",
    ),
    "BD3-LM": (BD3LM, "model_type 'bd3lm'", "bd3lm"),
    "BD3-LM in training": ({"algo": {"name": "bd3lm"}}, "algo.name 'bd3lm'", "bd3lm"),
    "BlockGen": ({"type": "block-dit"}, "type 'block-dit'", "blockgen"),
    "BlockGen in training": (
        {"algo": {"name": "blockgen-absorb"}},
        "algo.name 'blockgen-absorb'",
        "blockgen",
    ),
    "D3PM": ({"parameterization": "d3pm", "backbone": "dit"}, "parameterization 'd3pm'", "d3pm"),
    "Duo that calls itself MDLM": (
        {"model_type": "mdlm", "architectures": ["DUO"]},
        "architectures 'DUO'",
        "duo",
    ),
    "uniform diffusion by its type": (
        {"model_type": "mdlm", "diffusion": {"type": "uniform"}},
        "diffusion.type 'uniform'",
        "uniform",
    ),
    "uniform diffusion": (
        {"parameterization": "subs", "diffusion": "uniform"},
        "diffusion 'uniform'",
        "uniform",
    ),
}
MDLMS: dict[str, dict[str, Any]] = {
    "MDLM": {"parameterization": "subs", "backbone": "dit", "time_conditioning": False},
    "MDLM on the hub": {"model_type": "mdlm", "time_conditioning": False, "vocab_size": 37},
    "MDLM in PGM's code": {"algo": {"name": "mdlm", "parameterization": "subs"}},
    "complementary masking": {"algo": {"name": "complement-mdlm", "parameterization": "subs"}},
    "a student by SDTT": {"parameterization": {"name": "multi-round-sdtt"}},
    "a teacher of SDTT": {"parameterization": {"name": "x", "num_distill_steps": 2}},
}
UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, ""),
    "sizes": ({"hidden_size": 32, "n_blocks": 2}, ""),
    "another model": ({"model_type": "gpt2"}, " that is known here (model_type 'gpt2')"),
    "another method": (
        {"algo": {"name": "mine", "parameterization": "subs"}},
        " that is known here (algo.name 'mine')",
    ),
    "a baseline of BlockGen": ({"type": "dit"}, " that is known here (type 'dit')"),
    "numbers": ({"model_type": 3, "algo": [1], "parameterization": None}, ""),
}
UNREADABLE = {
    "no JSON": b"{",
    "a list": b"[]",
    "no text": b"\xff\xfe{}",
    "deep": b'{"a":' * 5000,
    "large": b'{"a": "' + bytes([97]) * (1 << 20) + b'"}',
}


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return state_of(cases.own("text/mdlm_dit"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def write_plain(
    state: dict[str, Tensor], config: object = None, name: str = "model.safetensors"
) -> None:
    """Weights by themselves, and what is said of them beside them."""
    if name.endswith(".safetensors"):
        safetensors.torch.save_file(state, name)
    else:
        torch.save(state, name)
    if config is not None:
        Path("config.json").write_text(json.dumps(config))


def write_lightning(state: dict[str, Tensor], settings: object) -> None:
    """A checkpoint with these hyper-parameters."""
    average = [state[name] for name in parameters(state)]
    torch.save(lightning(state, average, hyper_parameters=settings), "model.ckpt")


def listing() -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def refused(capsys: pytest.CaptureFixture[str], message: str, file: str, *words: str) -> None:
    """Exit code 2, this one line, and nothing written."""
    before = listing()
    assert main(["import", file, "new", *USUAL, *words]) == 2
    assert capsys.readouterr().err == f"partita: {message}\n"
    assert listing() == before


def imported(file: str, *words: str) -> dict[str, Tensor]:
    """The weights that a file becomes."""
    shutil.rmtree("model", ignore_errors=True)
    assert main(["import", file, "model", *USUAL, *words]) == 0
    model = load("model", device="cpu")
    assert model.recipe.method.name == "mdlm"
    return dict(model.method.state_dict())


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return list(ours) == list(theirs) and all(ours[name].equal(theirs[name]) for name in ours)


# Files of other methods --------------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_config_beside_the_weights_says_so(
    name: str, file: str, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    config, words, method = OTHERS[name]
    write_plain(state, config, file)
    by, which = f"by the config.json beside it ({words})", f"a model of {FOREIGN[method]}"
    refused(capsys, f"file: {file}: {by} it is {which}; {READ}", file)
    contradicted = f"--method: is 'mdlm', but {by} the file is {which}; {READ}"
    refused(capsys, contradicted, file, "--method", "mdlm")


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("nested", [True, False])
def test_hyper_parameters_say_so(
    name: str, nested: bool, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    config, words, method = OTHERS[name]
    write_lightning(state, {"config": config, "tokenizer": None} if nested else config)
    Path("config.json").write_text(json.dumps(MDLMS["MDLM on the hub"]))  # of another file
    by, which = f"by its hyper-parameters ({words})", f"a model of {FOREIGN[method]}"
    refused(capsys, f"file: model.ckpt: {by} it is {which}; {READ}", "model.ckpt")
    contradicted = f"--method: is 'mdlm', but {by} the file is {which}; {READ}"
    refused(capsys, contradicted, "model.ckpt", "--method", "mdlm")


def test_a_config_says_what_hyper_parameters_do_not(
    state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    write_lightning(state, {"learning_rate": 3e-4})
    Path("config.json").write_text(json.dumps(SEDD))
    by, which = "by the config.json beside it (graph.type 'absorb')", FOREIGN["sedd"]
    message = f"file: model.ckpt: {by} it is a model of {which}; {READ}"
    refused(capsys, message, "model.ckpt")


@pytest.mark.parametrize("prefix", ["", "module."])
def test_buffers_of_bd3lm(
    prefix: str, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a word about them; and left out on purpose they still show what the rest is."""
    weights = {f"backbone.{name}": tensor for name, tensor in state.items()}
    buffers = {f"{prefix}sampling_eps_max": torch.ones(()), f"{prefix}sampling_eps_min": 0.1}
    both = weights | {name: torch.as_tensor(value) for name, value in buffers.items()}
    safetensors.torch.save_file(both, "model.safetensors")
    by, which = f"by its buffers ({', '.join(buffers)})", f"a model of {FOREIGN['bd3lm']}"
    message = f"file: model.safetensors: {by} it is {which}; {READ}"
    refused(capsys, message, "model.safetensors")
    refused(capsys, message, "model.safetensors", "--skip", f"{prefix}sampling_eps_")
    Path("config.json").write_text(json.dumps(MDLMS["MDLM on the hub"]))
    refused(capsys, message, "model.safetensors")
    contradicted = f"--method: is 'mdlm', but {by} the file is {which}; {READ}"
    refused(capsys, contradicted, "model.safetensors", "--method", "mdlm")


def test_buffers_of_bd3lm_in_training(
    state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    average = [state[name] for name in parameters(state)]
    content = lightning(state, average)
    content["state_dict"]["sampling_eps_min"] = torch.tensor(0.1)
    torch.save(content, "model.ckpt")
    which = FOREIGN["bd3lm"]
    message = f"by its buffers (sampling_eps_min) it is a model of {which}; {READ}"
    refused(capsys, f"file: model.ckpt: {message}", "model.ckpt")


# Files of which nothing is said ------------------------------------------------------------------


def test_names_alone_do_not_decide(
    state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    found = "it holds no hyper-parameters, and there is no config.json beside it"
    for file in ("model.safetensors", "model.pt"):
        write_plain(state, None, file)
        refused(capsys, f"file: {file}: {FITS} ({found}); {GIVE}", file)
    torch.save({"state_dict": state}, "model.ckpt")
    refused(capsys, f"file: model.ckpt: {FITS} ({found}); {GIVE}", "model.ckpt")


@pytest.mark.parametrize("name", UNKNOWN)
def test_configurations_that_decide_nothing(
    name: str, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    config, found = UNKNOWN[name]
    write_lightning(state, {"config": config})
    found = f"its hyper-parameters name no method{found}"
    nowhere = f"{found}, and there is no config.json beside it"
    refused(capsys, f"file: model.ckpt: {FITS} ({nowhere}); {GIVE}", "model.ckpt")
    write_plain(state, config)
    beside = found.replace("its hyper-parameters name", "the config.json beside it names")
    both = f"it holds no hyper-parameters, and {beside}"
    refused(capsys, f"file: model.safetensors: {FITS} ({both}); {GIVE}", "model.safetensors")
    decided = imported("model.safetensors", "--method", "mdlm")
    assert same(decided, imported("model.ckpt", "--method", "mdlm"))


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_config_that_cannot_be_read(
    name: str, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    write_plain(state)
    Path("config.json").write_bytes(UNREADABLE[name])
    found = "it holds no hyper-parameters, and the config.json beside it cannot be read"
    refused(capsys, f"file: model.safetensors: {FITS} ({found}); {GIVE}", "model.safetensors")
    imported("model.safetensors", "--method", "mdlm")


def test_long_names_are_cut(state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]) -> None:
    write_plain(state, {"model_type": "x" * 1000})
    found = f"names no method that is known here (model_type '{'x' * 60}')"
    both = f"it holds no hyper-parameters, and the config.json beside it {found}"
    refused(capsys, f"file: model.safetensors: {FITS} ({both}); {GIVE}", "model.safetensors")


# Files of methods that are read ------------------------------------------------------------------


@pytest.mark.parametrize("name", MDLMS)
def test_mdlm_however_it_is_said(name: str, state: dict[str, Tensor]) -> None:
    """One model, from a config.json, from hyper-parameters, and with `--method` besides."""
    write_plain(state)
    expected = imported("model.safetensors", "--method", "mdlm")
    Path("config.json").write_text(json.dumps(MDLMS[name]))
    assert same(imported("model.safetensors"), expected)
    assert same(imported("model.safetensors", "--method", "mdlm"), expected)
    Path("config.json").write_text(json.dumps(SEDD))  # of another file
    write_lightning(state, {"config": MDLMS[name]})
    assert same(imported("model.ckpt"), expected)


@pytest.mark.parametrize(("name", "method"), [("pgm_text_linear", "pgm"), ("pgm_ar_dit", "ar")])
def test_names_that_are_one_methods_own(
    name: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group swap is PGM's, and nobody else has a DIT without time layers."""
    write_plain(state_of(cases.own(f"text/{name}")))
    assert main(["import", "model.safetensors", "plain", *USUAL]) == 0
    assert main(["import", "model.safetensors", "named", *USUAL, "--method", method]) == 0
    assert load("plain", device="cpu").recipe.method.name == method
    Path("config.json").write_text(json.dumps(BD3LM))  # of a BD3-LM without time layers
    capsys.readouterr()
    by, which = "by the config.json beside it (model_type 'bd3lm')", FOREIGN["bd3lm"]
    message = f"file: model.safetensors: {by} it is a model of {which}; {READ}"
    refused(capsys, message, "model.safetensors")


@pytest.mark.parametrize("name", ["partition-mdlm", "mdlm"])
def test_pgm_by_its_own_code(name: str) -> None:
    settings = {"config": {"algo": {"name": name, "parameterization": "subs"}}}
    write_lightning(state_of(cases.own("text/pgm_text_linear")), settings)
    assert main(["import", "model.ckpt", "model", *USUAL]) == 0


def test_what_is_said_has_to_fit_the_tensors(
    state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    write_lightning(state, {"config": {"algo": {"name": "partition-mdlm"}}})
    tensors = "its tensors are those of a DIT with time layers, as MDLM, SEDD and Duo have it"
    by = "by its hyper-parameters (algo.name 'partition-mdlm')"
    message = f"file: model.ckpt: {by} it is a model of PGM, but {tensors}"
    refused(capsys, message, "model.ckpt")
    refused(capsys, message, "model.ckpt", "--method", "mdlm")
    given = f"--method: is 'pgm', but {tensors}; leave it out"
    refused(capsys, given, "model.ckpt", "--method", "pgm")


@pytest.mark.parametrize("where", [(), ("algo",)])
def test_the_time_is_kept_if_and_only_if_it_was_used(
    where: tuple[str, ...], state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    for timed in (True, False):
        config: dict[str, Any] = {"time_conditioning": timed}
        for name in where:
            config = {name: config | {"name": "mdlm"}}
        write_plain(state, config if where else config | {"model_type": "mdlm"})
        wrong, right = ("none", "sigma") if timed else ("sigma", "none")
        trained = f"trained {'with' if timed else 'without'} the time"
        by = "by the config.json beside it (time_conditioning)"
        remedy = "give --conditioning sigma" if timed else "leave it out"
        message = f"--conditioning: is '{wrong}', but {by} the model was {trained}; {remedy}"
        refused(capsys, message, "model.safetensors", "--conditioning", wrong)
        weights = imported("model.safetensors", "--conditioning", right)
        assert any("modulation" in name for name in weights) is timed


def test_from_python(state: dict[str, Tensor]) -> None:
    from partita.commands.import_model import find_tokenizer

    write_plain(state)
    tokenizer = find_tokenizer("tokenizer.json")
    with pytest.raises(InputError, match="nothing says which it is"):
        import_model(Path("model.safetensors"), tokenizer, ImportOptions(length=16))
    with pytest.raises(InputError, match=r"method: models of Duo, .* cannot be imported"):
        import_model(Path("model.safetensors"), tokenizer, ImportOptions(method="duo"))
    model = import_model(
        Path("model.safetensors"), tokenizer, ImportOptions(length=16, method="mdlm")
    )
    assert model.recipe.method.name == "mdlm"
    assert not FOREIGN.keys() & IMPORTED.keys()


# Configurations of omegaconf in a pickle ---------------------------------------------------------


@pytest.fixture
def omegaconf(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Classes under the names of omegaconf's, whose pickles are like theirs."""
    for name in ("omegaconf", "omegaconf.dictconfig", "omegaconf.nodes"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    found = types.ModuleType("found")
    for module, name in (("dictconfig", "DictConfig"), ("nodes", "AnyNode")):
        kind = type(name, (), {"__module__": f"omegaconf.{module}"})
        setattr(sys.modules[f"omegaconf.{module}"], name, kind)
        setattr(found, name, kind)
    return found


def wrapped(omegaconf: types.ModuleType, value: object, parent: object = None) -> Any:
    """A configuration as omegaconf holds it, in which every part knows the one around it."""
    node = omegaconf.DictConfig() if isinstance(value, dict) else omegaconf.AnyNode()
    node._parent = parent
    if isinstance(value, dict):
        node._content = {name: wrapped(omegaconf, inner, node) for name, inner in value.items()}
    else:
        node._val = value
    return node


@pytest.mark.parametrize("protocol", range(2, 6))
def test_configurations_in_a_pickle(omegaconf: types.ModuleType, protocol: int) -> None:
    config = {"algo": {"name": "duo", "time_conditioning": True}, "T": 0, "none": None}
    held = pickles.loads(pickled({"config": wrapped(omegaconf, config)}, protocol))
    assert entry(held, "config", "algo", "name") == "duo"
    assert entry(held, "config", "algo", "time_conditioning") is True
    assert entry(held, "config", "T") == 0
    for path in (["config", "none"], ["config", "x"], ["config", "algo", "name", "x"], ["x", "y"]):
        assert entry(held, *path) is None


def test_configurations_that_make_no_sense(
    omegaconf: types.ModuleType, state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """They decide nothing, and nothing waits for them."""
    circle, odd, empty = (omegaconf.DictConfig() for _ in range(3))
    circle._content = circle
    odd._content = {"algo": [odd], "model_type": {"a": odd}, "parameterization": odd}
    found = "its hyper-parameters name no method, and there is no config.json beside it"
    for config in (circle, odd, empty, [odd], "mdlm", 3):
        write_lightning(state, {"config": config})
        refused(capsys, f"file: model.ckpt: {FITS} ({found}); {GIVE}", "model.ckpt")


# On the hub --------------------------------------------------------------------------------------


def test_the_hub_is_asked_for_the_config_too(state: dict[str, Tensor], place: Path) -> None:
    """First: what it refuses is not fetched. Then all is there without a network."""
    for name, config in {"sedd": SEDD, "mdlm": MDLMS["MDLM on the hub"], "bare": None}.items():
        folder = place / "served" / "owner" / name / "sub"
        folder.mkdir(parents=True)
        safetensors.torch.save_file(state, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
    average = [state[name] for name in parameters(state)]
    torch.save(lightning(state, average), place / "served" / "owner" / "bare" / "mdlm.ckpt")

    def call(name: str, out: str, *words: str) -> list[str]:
        return ["import", f"hf:owner/{name}", out, *USUAL, *words]

    calls = [
        call("sedd/sub/model.safetensors", "a"),
        call("sedd/sub/model.safetensors", "a", "--method", "mdlm"),
        call("bare/sub/model.safetensors", "a"),
        call("bare/sub/model.safetensors", "a", "--method", "mdlm"),
        call("bare/mdlm.ckpt", "b"),
        call("mdlm/sub/model.safetensors@main", "c"),
    ]
    with serving(place / "served") as hub:
        result = outcome(calls, place, hub.address)
        asked = list(hub.asked)
    assert result.stdout.splitlines()[-1] == "[2, 2, 2, 0, 0, 0]", result.stderr
    sedd, contradicted, bare = (
        line for line in result.stderr.splitlines() if line.startswith("partita: ")
    )
    by = "by the config.json beside it (graph.type 'absorb')"
    name = "sub/model.safetensors of owner/sedd"
    which = f"a model of {FOREIGN['sedd']}; {READ}"
    assert sedd == f"partita: file: {name}: {by} it is {which}"
    assert contradicted == f"partita: --method: is 'mdlm', but {by} the file is {which}"
    assert f"{FITS} (it holds no hyper-parameters, and there is no config.json beside it)" in bare
    assert not any("owner/sedd" in line and "model.safetensors" in line for line in asked)
    assert not any("owner/bare" in line and "/main/config.json" in line for line in asked)
    again = [call("mdlm/sub/model.safetensors@main", "d"), call("bare/mdlm.ckpt", "e")]
    lost = call("other/sub/model.safetensors@v1", "f")
    result = outcome([*again, lost], place, hub.address)  # where nobody listens by now
    assert result.stdout.splitlines()[-1] == "[0, 0, 2]", result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("partita: "))
    assert "the hub does not give sub/model.safetensors of owner/other: the hub cannot be" in line
    assert line.endswith(
        "where there is a network run hf download owner/other sub/model.safetensors "
        "sub/config.json --revision v1 --local-dir other, bring that folder here and give "
        "other/sub/model.safetensors instead"
    )


def test_a_hub_that_is_out_of_reach_is_asked_once(place: Path) -> None:
    with serving(place, 503) as hub:
        words = ["import", "hf:owner/name/model.safetensors", "model", *USUAL]
        result = outcome([words], place, hub.address)
        assert len(hub.asked) == 1
    assert result.stdout.splitlines()[-1] == "[2]"
    assert "hf download owner/name model.safetensors config.json --local-dir name" in result.stderr
