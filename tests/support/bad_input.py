"""Calls with bad input, and the argument that each error must name.

Some have wrong types on purpose, which the type checker of the test run would refuse before the
library does. `test_bad_input.py` therefore runs this module in a process of its own.
"""

from __future__ import annotations

import json

import torch

from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.config.sampling import SamplingOptions
from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE
from partita.data.image_tokenizers import PixelTokenizer
from partita.data.images import ImageOptions
from partita.data.tokenizers import BPETokenizer, ByteTokenizer
from partita.errors import InputError
from partita.execution.choice import sample
from partita.likelihood.bounds import nelbo
from partita.likelihood.enumeration import exact_log_likelihood
from partita.methods import AR, D3PM, DDPM, MD4, MDLM
from partita.models.published.reference import dit_config, rename_dit
from partita.models.text_model import TextModel
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from partita.networks.classifier import ClassifierNetwork
from partita.networks.options import TransformerOptions
from partita.networks.unet import UNet
from partita.networks.vq import VQConfig
from partita.processes.corruption import Rate
from partita.randomness import Noise
from partita.samplers import Prompt, guided
from partita.samplers.gaussian import sample_ddpm
from partita.schedules import make_schedule
from partita.training.loop import fit
from partita.training.vq import VQOptions

LENGTH, VOCAB = 8, 5
TINY = TransformerOptions(length=LENGTH, width=8, depth=1, heads=2)
MASK = VOCAB


def network(kind=Transformer, **options):
    config = {"vocab_size": VOCAB + 1, "length": LENGTH, "width": 8, "depth": 1, "heads": 2}
    return kind(TransformerConfig(**(config | options)))


def mdlm(**options):
    return MDLM(network(), **options)


def text_model():
    recipe = Recipe(network=TINY)
    return TextModel(recipe.method.build(TINY, 256), ByteTokenizer(), recipe)


def broken():
    method = mdlm()
    torch.nn.init.constant_(method.network.head.weight, torch.nan)
    return method


def ddpm():
    return DDPM(torch.nn.Identity(), steps=10)


def labelled_ddpm():
    return DDPM(UNet(1, multipliers=(1,), classes=3), steps=10)


def prompt(tokens, known=None):
    tokens = torch.tensor(tokens, dtype=torch.long)
    known = torch.ones_like(tokens, dtype=torch.bool) if known is None else torch.tensor(known)
    return Prompt(tokens, known)


TEXT = torch.zeros(2, LENGTH, dtype=torch.long)
STREAM = torch.zeros(100, dtype=torch.long)

TABLE = {
    "empty prompt": (lambda: sample(mdlm(), prompt=prompt([[]])), "prompt"),
    "prompt too long": (lambda: sample(mdlm(), prompt=prompt([[0] * 9])), "prompt"),
    "mask in the prompt": (lambda: sample(mdlm(), prompt=prompt([[0, MASK]])), "prompt"),
    "id outside the vocabulary": (lambda: sample(mdlm(), prompt=prompt([[0, 77]])), "prompt"),
    "shapes of the prompt": (
        lambda: sample(mdlm(), prompt=prompt([[0, 1]], [[True]])),
        "prompt",
    ),
    "one-dimensional prompt": (lambda: prompt([0, 1]), "prompt"),
    "prompt of floats": (lambda: Prompt(torch.zeros(1, 2), torch.ones(1, 2).bool()), "prompt"),
    "prompt and length": (lambda: sample(mdlm(), prompt=prompt([[0]]), length=3), "length"),
    "prompt rows and count": (lambda: sample(mdlm(), 3, prompt=prompt([[0], [0]])), "count"),
    "blank before a known token": (
        lambda: sample(AR(network(CausalTransformer)), prompt=prompt([[0, 1]], [[False, True]])),
        "prompt",
    ),
    "unknown sampler": (lambda: sample(mdlm(), sampler="gibbs"), "sampler"),
    "sampler of another family": (lambda: sample(mdlm(), sampler="autoregressive"), "sampler"),
    "unknown schedule": (lambda: sample(mdlm(), schedule="square"), "schedule"),
    "unknown schedule of a method": (lambda: mdlm(schedule="square"), "schedule"),
    "unknown grid": (lambda: sample(mdlm(), grid="log"), "grid"),
    "unknown option": (lambda: sample(mdlm(), stps=3), "stps"),
    "option of another sampler": (lambda: sample(mdlm(), sampler="threshold", steps=3), "steps"),
    "unknown inner sampler": (lambda: sample(mdlm(), sampler="blocks", inner="x"), "inner"),
    "blocks of blocks": (
        lambda: sample(mdlm(), sampler="blocks", inner="blocks", block_length=2),
        "inner",
    ),
    "block too long": (lambda: sample(mdlm(), sampler="blocks", block_length=9), "block_length"),
    "no steps": (lambda: sample(mdlm(), steps=0), "steps"),
    "negative steps": (lambda: sample(mdlm(), sampler="ordered", steps=-1), "steps"),
    "no confidence steps": (lambda: sample(mdlm(), sampler="confidence", steps=0), "steps"),
    "no cosine steps": (
        lambda: sample(mdlm(), sampler="confidence", steps=0, counts="cosine"),
        "steps",
    ),
    "unknown counts": (lambda: sample(mdlm(), sampler="confidence", counts="log"), "counts"),
    "unknown confidence": (
        lambda: sample(mdlm(), sampler="confidence", confidence="hope"),
        "confidence",
    ),
    "negative noise": (
        lambda: sample(mdlm(), sampler="confidence", noise_temperature=-1.0),
        "noise_temperature",
    ),
    "unknown order": (lambda: sample(mdlm(), sampler="ordered", order="spiral"), "order"),
    "order with holes": (
        lambda: sample(mdlm(), sampler="ordered", order=torch.tensor([0, 1])),
        "order",
    ),
    "negative temperature": (lambda: sample(mdlm(), temperature=-0.5), "temperature"),
    "top_k 0": (lambda: sample(mdlm(), top_k=0), "top_k"),
    "top_p 0": (lambda: sample(mdlm(), top_p=0.0), "top_p"),
    "top_p above 1": (lambda: sample(mdlm(), top_p=1.5), "top_p"),
    "NaN in the logits": (lambda: sample(broken(), 2), "logits"),
    "unknown speed": (lambda: sample(mdlm(), speed="fast"), "speed"),
    "speed by its former name": (lambda: sample(mdlm(), speed="captured"), "speed"),
    "speed by number": (lambda: sample(mdlm(), speed=2), "speed"),
    "capture without a plan": (
        lambda: sample(mdlm(), sampler="confidence", speed="cudagraph"),
        "speed",
    ),
    "captured guidance of a causal model": (
        lambda: sample(
            AR(network(CausalTransformer, classes=3)), label=1, guidance=1.0, speed="cudagraph"
        ),
        "speed",
    ),
    "NaN in captured logits": (lambda: sample(broken(), 2, speed="cudagraph"), "logits"),
    "captured label without classes": (
        lambda: sample(mdlm(), label=1, speed="cudagraph"),
        "label",
    ),
    "no samples": (lambda: sample(mdlm(), 0), "count"),
    "no length": (lambda: sample(mdlm(), length=0), "length"),
    "longer than the model": (lambda: sample(mdlm(), length=9), "length"),
    "negative seed": (lambda: sample(mdlm(), seed=-1), "seed"),
    "label without classes": (lambda: sample(mdlm(), label=1), "label"),
    "label for other rows": (
        lambda: sample(MDLM(network(classes=3)), 2, label=torch.tensor([1, 2, 0])),
        "label",
    ),
    "guidance without a label": (lambda: sample(guided(MDLM(network(classes=3)), 1.0)), "label"),
    "guidance without classes": (lambda: guided(mdlm(), 1.0), "guidance"),
    "guidance of a causal model without a label": (
        lambda: sample(AR(network(CausalTransformer, classes=3)), guidance=1.0),
        "label",
    ),
    "guidance of a causal model without classes": (
        lambda: sample(AR(network(CausalTransformer)), label=1, guidance=1.0),
        "guidance",
    ),
    "guidance of a guided model": (
        lambda: guided(guided(MDLM(network(classes=3)), 1.0), 1.0),
        "guidance",
    ),
    "negative guidance": (lambda: guided(MDLM(network(classes=3)), -1.0), "guidance"),
    "guidance in words": (lambda: guided(MDLM(network(classes=3)), "strong"), "guidance"),
    "unknown ramp": (
        lambda: guided(MDLM(network(classes=3)), 1.0, "steep"),
        "guidance_schedule",
    ),
    "likelihood under guidance": (
        lambda: nelbo(guided(MDLM(network(classes=3)), 1.0), TEXT, label=1),
        "method",
    ),
    "no such mask": (lambda: mdlm(mask_id=6), "mask_id"),
    "causal network under a mask": (lambda: MDLM(network(CausalTransformer)), "network"),
    "AR that looks ahead": (lambda: AR(network()), "network"),
    "untold network of a timed method": (lambda: MD4(network()), "conditioning"),
    "mask in the data": (lambda: nelbo(mdlm(), torch.full((1, 4), MASK)), "tokens"),
    "id out of range": (lambda: nelbo(mdlm(), TEXT + 9), "tokens"),
    "negative id": (lambda: nelbo(mdlm(), TEXT - 1), "tokens"),
    "sequence too long": (lambda: nelbo(mdlm(), torch.zeros(1, 9).long()), "tokens"),
    "one-dimensional tokens": (lambda: nelbo(mdlm(), TEXT[0]), "tokens"),
    "float tokens": (lambda: nelbo(mdlm(), TEXT.float()), "tokens"),
    "list of tokens": (lambda: nelbo(mdlm(), [[0, 1]]), "tokens"),
    "nothing valid": (lambda: nelbo(mdlm(), TEXT, is_token=TEXT > 0), "is_token"),
    "validity of another shape": (lambda: nelbo(mdlm(), TEXT, is_token=TEXT[:1] == 0), "is_token"),
    "integer validity": (lambda: nelbo(mdlm(), TEXT, is_token=TEXT), "is_token"),
    "law of an exact model": (
        lambda: nelbo(AR(network(CausalTransformer)), TEXT, corruption="subset"),
        "corruption",
    ),
    "time-free law for a timed model": (
        lambda: nelbo(MD4(network(time=True)), TEXT, corruption="subset"),
        "corruption",
    ),
    "no batch to evaluate": (lambda: nelbo(mdlm(), TEXT, batch_size=0), "batch_size"),
    "exact value of AR": (
        lambda: exact_log_likelihood(AR(network(CausalTransformer)), TEXT[0]),
        "model",
    ),
    "a grid that falls": (
        lambda: exact_log_likelihood(
            mdlm(), TEXT[0], torch.tensor([0.0, 0.9, 0.5, 1.0], dtype=torch.float64)
        ),
        "visible",
    ),
    "a grid with a NaN": (
        lambda: exact_log_likelihood(
            mdlm(), TEXT[0], torch.tensor([0.0, torch.nan, 1.0], dtype=torch.float64)
        ),
        "visible",
    ),
    "exact value of a batch": (lambda: exact_log_likelihood(mdlm(), TEXT), "tokens"),
    "fractional steps": (lambda: sample(mdlm(), steps=2.5), "steps"),
    "fractional count": (lambda: sample(mdlm(), 1.5), "count"),
    "fractional top_k": (lambda: sample(mdlm(), top_k=2.5), "top_k"),
    "temperature in words": (lambda: sample(mdlm(), temperature="hot"), "temperature"),
    "temperature NaN": (lambda: sample(mdlm(), temperature=float("nan")), "temperature"),
    "temperature without end": (lambda: sample(mdlm(), temperature=float("inf")), "temperature"),
    "temperature beyond float32": (lambda: sample(mdlm(), temperature=1e300), "temperature"),
    "temperature next to 0": (lambda: sample(mdlm(), temperature=1e-310), "temperature"),
    "temperature next to 0, captured": (
        lambda: sample(mdlm(), temperature=1e-310, speed="cudagraph"),
        "temperature",
    ),
    "temperature of a recipe next to 0": (
        lambda: SamplingOptions(temperature=1e-310),
        "sampling.temperature",
    ),
    "noise without end": (
        lambda: sample(mdlm(), sampler="confidence", noise_temperature=float("inf")),
        "noise_temperature",
    ),
    "negative first": (lambda: sample(mdlm(), first=-1), "first"),
    "prompt as a tensor": (lambda: sample(mdlm(), prompt=TEXT), "prompt"),
    "prompt as lists": (lambda: Prompt([[0]], [[True]]), "prompt"),
    "a network is no model": (lambda: sample(network()), "model"),
    "a network is no method": (lambda: fit(network(), STREAM, TrainingOptions(steps=1)), "method"),
    "a configuration is no network": (lambda: MDLM(network().config), "network"),
    "two-dimensional stream": (lambda: fit(mdlm(), TEXT, TrainingOptions(steps=1)), "stream"),
    "stream as a list": (lambda: fit(mdlm(), [0] * 99, TrainingOptions(steps=1)), "stream"),
    "mask in the stream": (
        lambda: fit(mdlm(), torch.full((99,), MASK), TrainingOptions(steps=1)),
        "tokens",
    ),
    "window longer than the model": (
        lambda: fit(mdlm(), STREAM, TrainingOptions(steps=1, length=9)),
        "tokens",
    ),
    "warm-up of more than the run": (
        lambda: TrainingOptions(steps=1, warmup=2.0),
        "training.warmup",
    ),
    "vocabulary of one": (lambda: network(vocab_size=1), "network.vocab_size"),
    "more outputs than inputs": (lambda: network(output_size=99), "network.output_size"),
    "negative classes": (lambda: network(classes=-1), "network.classes"),
    "tiny byte-pair vocabulary": (lambda: BPETokenizer.train("text", 100), "vocab_size"),
    "byte-pair tokenizer of a text": (lambda: BPETokenizer("text"), "backend"),
    "schedule by number": (lambda: make_schedule(3), "schedule"),
    "unknown law": (lambda: mdlm(corruption="cubic"), "corruption"),
    "law option": (lambda: mdlm(corruption="subset", steps=4), "corruption"),
    "discrete law without steps": (lambda: mdlm(corruption="discrete", steps=0), "steps"),
    "time-free law, timed network": (
        lambda: MD4(network(time=True), corruption="subset"),
        "corruption",
    ),
    "rate law without a rate": (
        lambda: mdlm(corruption=Rate()).loss(Batch.of(TEXT), Noise.for_batch(0, 2)),
        "corruption",
    ),
    "a law that is no bound": (lambda: nelbo(mdlm(), TEXT, corruption=Rate()), "corruption"),
    "unknown conditioning": (lambda: mdlm(conditioning="temp"), "conditioning"),
    "infinite sigma": (
        lambda: MDLM(network(time=True), corruption="continuous", conditioning="sigma"),
        "conditioning",
    ),
    "one replicate": (lambda: nelbo(mdlm(), TEXT, replicates=1), "replicates"),
    "nothing to evaluate": (lambda: nelbo(mdlm(), TEXT[:0]), "tokens"),
    "too long to enumerate": (
        lambda: exact_log_likelihood(mdlm(), torch.zeros(17, dtype=torch.long)),
        "tokens",
    ),
    "exact value of a timed model": (
        lambda: exact_log_likelihood(MD4(network(time=True)), torch.zeros(2, dtype=torch.long)),
        "model",
    ),
    "time missing": (
        lambda: MD4(network(time=True)).predict(
            TEXT, TEXT > 0, torch.tensor([0]), torch.tensor([0])
        ),
        "time",
    ),
    "foreign state dict": (lambda: rename_dit({"lm_head.weight": TEXT}), "state dict"),
    "not a DIT": (lambda: dit_config({}, heads=2, length=8), "state dict"),
    "steps and seconds": (
        lambda: TrainingOptions(steps=1, seconds=1.0),
        "training.steps, training.seconds",
    ),
    "no batch": (lambda: TrainingOptions(steps=1, batch_size=0), "training.batch_size"),
    "endless run": (lambda: TrainingOptions(seconds=float("inf")), "training.seconds"),
    "learning rate NaN": (
        lambda: TrainingOptions(learning_rate=float("nan")),
        "training.learning_rate",
    ),
    "unknown optimiser": (lambda: TrainingOptions(optimizer="sgd"), "training.optimizer"),
    "seed beyond 64 bits": (lambda: TrainingOptions(seed=2**64), "training.seed"),
    "no checkpoints kept": (lambda: RunOptions(keep_checkpoints=0), "run.keep_checkpoints"),
    "unknown sampler of a recipe": (lambda: SamplingOptions("gibbs"), "sampling.sampler"),
    "top_k 0 of a recipe": (lambda: SamplingOptions(top_k=0), "sampling.top_k"),
    "a count among a sampler's options": (
        lambda: SamplingOptions(options={"count": 3}),
        "sampling.options.count",
    ),
    "unknown method of a recipe": (lambda: MethodOptions("mdml"), "method.name"),
    "unknown law of a recipe": (lambda: MethodOptions(corruption="cubic"), "method.corruption"),
    "law option of a recipe": (
        lambda: MethodOptions(corruption="discrete", corruption_options={"steps": 0}).build(
            TINY, VOCAB
        ),
        "method.corruption_options.steps",
    ),
    "unknown schedule of a recipe": (
        lambda: MethodOptions(schedule="square").build(TINY, VOCAB),
        "method.schedule",
    ),
    "likelihood of vectors": (lambda: nelbo(ddpm(), TEXT), "method"),
    "vectors of tokens": (lambda: sample_ddpm(mdlm(), [2]), "model"),
    "a shape that is a number": (lambda: sample_ddpm(ddpm(), 2), "shape"),
    "negative clip": (lambda: sample_ddpm(ddpm(), [2], clip=-1.0), "clip"),
    "guidance of vectors without a label": (
        lambda: sample_ddpm(labelled_ddpm(), [1, 4, 4], guidance=1.0),
        "label",
    ),
    "guidance of vectors without classes": (
        lambda: sample_ddpm(ddpm(), [2], label=1, guidance=1.0),
        "guidance",
    ),
    "negative guidance of vectors": (
        lambda: sample_ddpm(labelled_ddpm(), [1, 4, 4], label=1, guidance=-1.0),
        "guidance",
    ),
    "guidance of vectors in words": (
        lambda: sample_ddpm(labelled_ddpm(), [1, 4, 4], label=1, guidance="strong"),
        "guidance",
    ),
    "large variances of DDIM": (
        lambda: sample_ddpm(ddpm(), [2], eta=0.0, variance="large"),
        "variance",
    ),
    "a loss of a tensor": (lambda: mdlm().loss(TEXT, Noise.for_batch(0, 2)), "batch"),
    "a batch of one row too few dimensions": (lambda: Batch.of(TEXT[0]), "tokens"),
    "a batch of numbers": (lambda: Batch.of(TEXT.float()), "tokens"),
    "a batch that is read in two ways": (
        lambda: Batch.of(TEXT, ends=TEXT > 0, layout=DENSE),
        "layout",
    ),
    "whole numbers to diffuse": (lambda: ddpm().loss(TEXT, Noise.for_batch(0, 2)), "x_0"),
    "a transition in a list": (
        lambda: D3PM(network(time=True), transition=[[1.0]]),
        "transition",
    ),
    "noise schedule that overshoots": (
        lambda: MethodOptions("ddpm", schedule_options={"offset": 1.5}).build(TINY, VOCAB),
        "method.schedule",
    ),
    "steps among a noise schedule's options": (
        lambda: MethodOptions("ddpm", schedule_options={"steps": 5.0}).build(TINY, VOCAB),
        "method.schedule",
    ),
    "MLP without channels": (lambda: network(mlp_ratio=0.0), "network.mlp_ratio"),
    "negative rotary base": (lambda: network(rotary_base=-1.0), "network.rotary_base"),
    "unknown MLP": (lambda: network(mlp="x"), "network.mlp"),
    "more blocks than can be made": (lambda: network(depth=10**9), "network.depth"),
    "steps beyond all measure": (lambda: sample(mdlm(), steps=10**30), "steps"),
    "count beyond all measure": (lambda: sample(mdlm(), 10**30), "count"),
    "counts by number": (lambda: sample(mdlm(), sampler="confidence", counts=3), "counts"),
    "grid in a list": (lambda: sample(mdlm(), grid=["uniform"]), "grid"),
    "top_p in words": (lambda: sample(mdlm(), top_p="most"), "top_p"),
    "threshold in words": (lambda: sample(mdlm(), sampler="threshold", threshold="x"), "threshold"),
    "noise in words": (
        lambda: sample(mdlm(), sampler="confidence", noise_temperature="x"),
        "noise_temperature",
    ),
    "order of words": (lambda: sample(mdlm(), sampler="ordered", order=["a", "b"]), "order"),
    "text too short": (
        lambda: fit(mdlm(), STREAM[:3], TrainingOptions(steps=1, length=LENGTH)),
        "stream",
    ),
    "diverged": (
        lambda: fit(broken(), STREAM, TrainingOptions(steps=1, length=LENGTH)),
        "training",
    ),
    "moving average of 1": (
        lambda: fit(mdlm(), STREAM, TrainingOptions(steps=1, length=LENGTH, ema_decay=1.0)),
        "training.ema_decay",
    ),
    "a number to score": (lambda: text_model().score(7), "text"),
    "a number among texts": (lambda: text_model().score(["a", 7]), "text"),
    "levels in words": (lambda: PixelTokenizer("many", 1, 8), "levels"),
    "half a channel": (lambda: PixelTokenizer(8, 0.5, 8), "channels"),
    "size of an image in words": (lambda: ImageOptions(size="small"), "size"),
    "color in words": (lambda: ImageOptions(color="yes"), "color"),
    "fractional steps of a tokenizer": (lambda: VQOptions(steps=2.5), "steps"),
    "factor in words": (lambda: VQConfig(factor="2"), "factor"),
    "quantiser by number": (lambda: VQConfig(quantiser=2), "quantiser"),
    "width of a classifier": (
        lambda: ClassifierNetwork(1, (8, 8), 10, width="wide"),
        "width",
    ),
    "cache too short": (
        lambda: network(CausalTransformer).extend(
            torch.zeros(1, 9, dtype=torch.long), network(CausalTransformer).new_caches(1)
        ),
        "length",
    ),
}


def outcome(call):
    """The argument and the message of the error that a call raises."""
    try:
        call()
    except InputError as error:
        return error.argument, str(error)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "no error"


if __name__ == "__main__":
    print(json.dumps({name: outcome(call) for name, (call, _) in TABLE.items()}))
