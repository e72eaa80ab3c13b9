"""Models whose weights or outputs are no numbers: refused by every verb, and never scored."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

import partita
from partita.commands import main
from partita.data.saved_tokenizers import load_image_tokenizer
from partita.errors import InputError
from partita.evaluation.classifier import ImageClassifier
from partita.evaluation.cloze import Blank, answered
from partita.evaluation.quality import judge
from partita.files import format
from partita.likelihood.bounds import nelbo
from partita.likelihood.orders import order_likelihood
from partita.likelihood.profile import profile
from partita.methods import METHODS
from partita.networks.classifier import ClassifierNetwork
from partita.networks.options import TransformerOptions
from partita.samplers import sample
from tests.support.models import edit, seal, tiny
from tests.support.runs import TRAIN

VERBS = [
    "score broken 'a text'",
    "sample broken",
    "infill broken 'a __'",
    "eval broken notes.txt --samples 0",
    "eval mdlm --samples 2 --judge broken",
    "accuracy broken notes.txt --task infill --count 2",
    "compare mdlm broken --judge ar --samples 2",
    "compare mdlm --judge broken --samples 2",
    "ngram notes.txt --samples 2 --judge broken",
    "report broken",
    "export broken new",
    f"{TRAIN} --from broken --out new",
    "distill --teacher broken --out new",
]
REMEDY = "use an earlier checkpoint, or train again with a lower training.learning_rate"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("notes.txt").write_text("a note is short and says little\n\n" * 20)
        for method in ("mdlm", "ar"):
            words = f"{TRAIN} --method.name {method} --out {method} --run.previews 0"
            assert main(words.split()) == 0
    return folder


def broken(value, folder="broken", name="network.head.weight"):
    """A saved model of which one weight is no number."""
    shutil.rmtree(folder, ignore_errors=True)
    model = partita.load("mdlm", device="cpu")
    with torch.no_grad():
        model.method.get_parameter(name).view(-1)[7] = value
    model.save(folder)
    return folder


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", VERBS, ids=lambda words: words.split()[0])
def test_verbs_refuse_weights_that_are_no_numbers(words, capsys):
    broken(math.nan)
    capsys.readouterr()
    before = sorted(Path().rglob("*"))
    words = words.replace("'a text'", "text").replace("'a __'", "__")
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    tensor = "broken/model.safetensors: the tensor network.head.weight holds a NaN"
    assert tensor in err
    assert err.endswith(f"; {REMEDY}\n")
    assert (out, err.count("\n")) == ("", 1)
    made = {*Path().rglob("*")} - {*before, Path("new"), Path("new/run.lock")}
    assert not made


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_any_number_that_is_none_is_named(value):
    held = "a NaN" if math.isnan(value) else "an infinite number"
    with pytest.raises(InputError, match=rf"network.blocks.0.* holds {held}; {REMEDY}"):
        partita.load(broken(value, name="network.blocks.0.attention.qkv.weight"))


@pytest.mark.usefixtures("here")
def test_half_precision_is_looked_at_as_well(tmp_path):
    model = partita.load("mdlm", device="cpu")
    for precision in (torch.bfloat16, torch.float16, torch.float64):
        folder = tmp_path / str(precision)
        model.method.to(precision)
        model.save(folder)
        assert partita.load(folder, device="cpu").sample(1)
        with torch.no_grad():
            next(model.method.parameters()).view(-1)[0] = math.nan
        model.save(folder)
        with pytest.raises(InputError, match="holds a NaN"):
            partita.load(folder, device="cpu")
        model = partita.load("mdlm", device="cpu")


def spoil(path, kind, required):
    """Write a folder of the format anew, with one number that is none."""
    tensors = {name: t.clone() for name, t in format.read_tensors(path / format.WEIGHTS).items()}
    next(t for t in tensors.values() if t.is_floating_point()).view(-1)[0] = math.nan
    names = [name for name in required if name != format.WEIGHTS]
    contents = {name: format.read_json(path / name) for name in names} | {format.WEIGHTS: tensors}
    shutil.rmtree(path)
    format.write(path, contents, kind=kind)


@pytest.mark.usefixtures("here")
def test_image_tokenizers_are_looked_at_as_well(tmp_path):
    out = tmp_path / "codes"
    assert main(["vq", "digits", str(out), "--vq.steps", "1", "--vq.network.codes", "8"]) == 0
    assert load_image_tokenizer(out)
    spoil(out, format.IMAGE_TOKENIZER, (format.CONFIG, format.TOKENIZER, format.WEIGHTS))
    with pytest.raises(InputError, match=r"model.safetensors: the tensor .* holds a NaN"):
        load_image_tokenizer(out)


def test_classifiers_are_looked_at_as_well(tmp_path):
    network = ClassifierNetwork(1, (8, 8), 2, width=8, dimension=4)
    ImageClassifier(network, ("0", "1"), "digits").save(tmp_path / "good")
    assert ImageClassifier.load(tmp_path / "good")
    spoil(tmp_path / "good", format.IMAGE_CLASSIFIER, (format.CONFIG, format.WEIGHTS))
    with pytest.raises(InputError, match=r"model.safetensors: the tensor .* holds a NaN"):
        ImageClassifier.load(tmp_path / "good")


# Outputs -----------------------------------------------------------------------------------------


def overflowing(name, scale=1e30, vocab_size=30):
    """A model whose weights are numbers, and whose outputs are none."""
    torch.manual_seed(0)
    model = METHODS[name].build(
        TransformerOptions(length=8, width=16, depth=1, heads=2), vocab_size
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return model.eval()


TOKENS = torch.arange(16).view(2, 8)
SAYS = {
    "a bound": lambda model: nelbo(model, TOKENS),
    "an order": lambda model: order_likelihood(model, TOKENS, "left-to-right"),
    "a profile": lambda model: profile(model, TOKENS, torch.ones_like(TOKENS, dtype=torch.bool)),
    "hidden words": lambda model: answered(model, [Blank([*range(8)], 2, 4)] * 2, fill=False),
}


@pytest.mark.parametrize("what", SAYS)
def test_what_overflows_is_no_likelihood(what):
    with pytest.raises(InputError, match=r"model: it needs nan nats .* since its outputs overflow"):
        SAYS[what](overflowing("md4"))


@pytest.mark.parametrize("name", ["d3pm", "ddpm", "flexmdm", "genmd4", "pgm", "sedd"])
def test_what_overflows_is_no_likelihood_in_any_family(name):
    with pytest.raises(InputError, match="model: it needs nan nats"):
        nelbo(overflowing(name), TOKENS)


def test_a_judge_that_overflows_does_not_judge():
    model = overflowing("ar", math.nan, vocab_size=256)
    with pytest.raises(InputError, match="model: it needs nan nats"):
        judge(model, partita.ByteTokenizer(), ["a text", "and another"])


@pytest.mark.parametrize("name", list(METHODS))
def test_no_sampler_draws_from_what_is_no_number(name):
    with pytest.raises(InputError, match=r"logits: .*the network's weights or inputs are broken"):
        sample(overflowing(name, math.nan), 2, length=8)


@pytest.mark.usefixtures("here")
def test_a_run_that_broke_is_not_validated(capsys):
    """The loss explains itself; what the model that it left behind says does not."""
    pace = "--run.log_every 50 --run.checkpoint_every 50 --run.validate_every 3 --run.previews 1"
    words = f"{TRAIN} {pace} --out broke --method.name md4 --training.learning_rate 1e30"
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert "partita: training: the gradient's norm is inf at step 2" in err
    assert "step 3" not in out


@pytest.mark.parametrize("options", [{"options": {}}, {"hops": 3}])
def test_sampling_settings_that_no_sampler_takes_are_named_with_their_file(options, place, capsys):
    folder = place / "settings"
    shutil.rmtree(folder, ignore_errors=True)
    tiny().save(folder)
    edit(
        folder / format.CONFIG,
        lambda content: content["recipe"]["sampling"].update(options=options),
    )
    seal(folder)
    assert main(["sample", str(folder)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{format.CONFIG}: " in said
    assert f"sampling.options.{next(iter(options))}" in said
