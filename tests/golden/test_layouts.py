"""Checkpoints in the layouts that the reference implementations publish, by their own code.

Each is a folder in `image/layouts`: the weights, and the configuration beside them if there is one.
MDLM's and the autoregressive baseline's give the numbers that their own code gave; the others are
refused with the reason, whatever `--method` says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from partita import load
from partita.commands import main
from partita.methods.mdlm import subs
from partita.models.text_model import TextModel
from tests.golden import cases
from tests.golden.cases import Case, rule_of
from tests.support.checkpoints import write_tokenizer

LAYOUTS = "image/layouts"
WEIGHTS = {".ckpt", ".pth", ".pt", ".bin", ".safetensors"}
IMPORTED = ("mdlm", "blockgen_baseline_ar", "blockgen_baseline_mdlm")
REFUSED = {
    "sedd": "by the config.json beside it (graph.type 'absorb') it is a model of SEDD",
    "sedd_local": "holds no state_dict (it holds: optimizer, model, ema, step)",
    "duo": "by its hyper-parameters (algo.name 'duo_base') it is a model of Duo",
    "bd3lm": "by its buffers (sampling_eps_max, sampling_eps_min) it is a model of BD3-LM",
    "blockgen": "by the config.json beside it (type 'block-dit') it is a model of BlockGen",
    "flexmdm": "no key of the reference DIT",
    "halton_maskgit": "holds no state_dict",
    "llamagen_vq": "holds no state_dict",
    "pgm_image": "holds no state_dict",
}
RULES = [*IMPORTED, *REFUSED]


def layouts(*rules: str) -> list[str]:
    """The layouts of some kinds, of `tests/golden/data` and of the folder that is given."""
    folders = [each / LAYOUTS for each in (cases.OWN, cases.FOLDER)]
    names = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return sorted(name for name in names if rule_of(name, RULES) in rules)


def checkpoints(name: str) -> list[Path]:
    """The files of weights in a layout."""
    folder = cases.FOLDER / LAYOUTS / name
    found = (path for path in folder.rglob("*") if path.suffix in WEIGHTS)
    return sorted(path for path in found if path.name != "expected.safetensors")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(name: str, case: Case, key: str, *words: str) -> TextModel:
    """The model that the one checkpoint of a layout becomes."""
    write_tokenizer(Path("tokenizer.json"), case[key].shape[-1] - 1)
    (file,) = checkpoints(name)
    usual = ["--tokenizer", "tokenizer.json", "--length", str(case[key].shape[1])]
    assert main(["import", str(file), key, *usual, *words]) == 0
    return load(key, device="cpu")


def log_probabilities(model: TextModel, tokens: Tensor, mask: int) -> Tensor:
    """Of an MDLM, at every position, without the mask."""
    rows, positions = torch.ones_like(tokens).nonzero(as_tuple=True)
    with torch.no_grad():
        found = model.method.predict(tokens, tokens != mask, rows, positions)
    return found[:, :mask].unflatten(0, tokens.shape)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("name", layouts("mdlm"))
def test_mdlm(name: str) -> None:
    case = cases.load(f"{LAYOUTS}/{name}/expected")
    keys = case.keys("out.logits")
    assert keys
    for key in keys:
        kind = key.removeprefix("out.logits").removeprefix("_")
        model = imported(name, case, key, *(["--weights", kind] if kind else []))
        tokens, mask = case["in.tokens"], case[key].shape[-1] - 1
        ours = log_probabilities(model, tokens, mask)
        close(ours, subs(case[key], mask)[..., :mask])
        if kind:
            hidden = tokens == mask
            close(ours[hidden], case[f"out.log_probs_{kind}"][hidden][:, :mask])


@pytest.mark.parametrize("name", layouts("blockgen_baseline_mdlm"))
def test_mdlm_that_nothing_says_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its config.json has sizes alone, and Duo's baseline has the same."""
    case = cases.load(f"{LAYOUTS}/{name}/expected")
    (file,) = checkpoints(name)
    model = imported(name, case, "out.logits", "--method", "mdlm")
    mask = case["out.logits"].shape[-1] - 1
    close(log_probabilities(model, case["in.xt"], mask), subs(case["out.logits"], mask)[..., :mask])
    capsys.readouterr()
    assert main(["import", str(file), "new", "--tokenizer", "tokenizer.json"]) == 2
    assert capsys.readouterr().err == (
        f"partita: file: {file}: its tensors fit MDLM, SEDD and Duo alike, and nothing says which "
        "it is (it holds no hyper-parameters, and the config.json beside it names no method that "
        "is known here (type 'dit')); give --method mdlm if it is a model of MDLM or one of its "
        "students by SDTT\n"
    )
    assert not Path("new").exists()


@pytest.mark.parametrize("name", layouts("blockgen_baseline_ar"))
def test_the_autoregressive_baseline(name: str) -> None:
    case = cases.load(f"{LAYOUTS}/{name}/expected")
    model = imported(name, case, "out.logits")
    with torch.no_grad():
        close(model.method.network(case["in.xt"]), case["out.logits"])


@pytest.mark.parametrize("words", [[], ["--method", "mdlm"]])
@pytest.mark.parametrize("name", layouts(*REFUSED))
def test_others_are_refused(
    name: str, words: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = REFUSED[rule_of(name, REFUSED)]
    write_tokenizer(place / "tokenizer.json")
    files = checkpoints(name)
    assert files
    for file in files:
        assert main(["import", str(file), "new", "--tokenizer", "tokenizer.json", *words]) == 2
        err = capsys.readouterr().err
        if words and " it is a model of " in reason:
            assert err.startswith("partita: --method: is 'mdlm', but by "), err
            assert reason.replace(" it is ", " the file is ") in err
        else:
            assert err.startswith(f"partita: file: {file}"), err
            assert reason in err
        assert err.count("\n") == 1
        assert [path.name for path in place.iterdir()] == ["tokenizer.json"]
