"""Does llama.cpp compute what PyTorch computes? `python -m training.check`: half a minute on a CPU, no corpus needed.

Ends with an error at the first thing that is not as it should be.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from specdec_cli.make_drafts.training.decoder import Decoder
from specdec_cli.make_drafts.training.shape import Shape
from training import distill, evaluate, export, tokenizer, train
from training.data import Stream
from training.llama_rows import Reader
from training.sizes import Size

ROOT = Path(__file__).parent.parent
SHAPE = Shape(layers=3, width=64, heads=2, feed_forward=160, vocabulary=512, context=128)
DRAFT = Shape(layers=1, width=32, heads=1, feed_forward=96, vocabulary=512, context=128)
CPU = torch.device("cpu")

ODD = [
    "def f(x):\n    return x + 1\n\n\n\nclass A(B):\n\tdef __init__(self, *args, **kwargs):\r\n\t\tpass\n",
    "   leading, trailing   \n\n   \t  \n",
    "naïve café — “quotes” … ½ Ünïcödé 日本語 🙂👩‍👩‍👧 \u200b\u00a0x",
    "1234567890 3.14159e-10 0x1F 1_000_000 v1.2.3",
    "don't I'LL they've <|endoftext|> a<|endoftext|>b",
    "self.assertEqual(a['b'][0].c(d), {**e, 'f': [g for g in h if g]})  # type: ignore[x]",
    "if x:\n        y()\n    else:\n  z = {\n}\n)]}:::---===\n\n",
    "",
]


def expect(name: str, true: bool, what: str) -> None:
    print(f"{'ok  ' if true else 'FAIL'} {name}: {what}", flush=True)
    if not true:
        raise SystemExit(1)


def own_texts() -> list[str]:
    """Our own source: enough text for a tokenizer of 512."""
    return [path.read_text("utf-8") for path in sorted((ROOT / "specdec_cli").rglob("*.py"))]


def check_tokenizer(encoder: tokenizer.Tokenizer, path: Path) -> None:
    reader = Reader(path)
    texts = [*ODD, *own_texts()]
    wrong = [
        text
        for text, ids in zip(texts, tokenizer.encode(encoder, texts), strict=True)
        if reader.model.tokenize(text, special=False) != ids
    ]
    reader.close()
    expect("tokenizer", not wrong, f"{len(texts)} texts, {len(wrong)} cut differently {[text[:30] for text in wrong]}")


@torch.no_grad()
def torch_rows(model: Decoder, ids: list[int], exits: tuple[int, ...] = ()) -> list[np.ndarray]:
    return [model.logits(hidden)[0].numpy() for hidden in model(torch.tensor([ids]), exits)]


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """The size of the difference, as a share of the size of the exact one."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def check_logits(model: Decoder, ids: list[int], folder: Path, words: tokenizer.Vocabulary) -> None:
    """llama.cpp keeps keys and values as float16, whatever the weights are: float32 agrees to a few thousandths."""
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    exact, early = torch_rows(model, ids, (1, 2))[-1], torch_rows(model, ids, (1, 2))[:-1]
    for kind, most in (("F32", 2e-3), ("F16", 3e-3), ("Q8_0", 0.05)):
        path = export.write(folder / f"{kind}.gguf", weights, SHAPE, words, "check", kind=kind)
        found = rows_of(path, ids)
        off = distance(found, exact)
        same = (found.argmax(-1) == exact.argmax(-1)).mean()
        expect(f"logits, {kind}", off < most, f"off by {off:.1e}; greedy the same at {same:.0%}")
    for layers, rows in zip((1, 2), early, strict=True):
        off = distance(rows_of(evaluate.cut(folder / "F32.gguf", layers, folder), ids), rows)
        expect(f"exit after {layers}", off < 2e-3, f"the pruned file is off by {off:.1e}")
    half = SHAPE.width // SHAPE.heads // 2
    for wrong in ("attn_q", "attn_k"):  # as if positions turned the first half of a head with the second
        weight = weights[f"blk.1.{wrong}.weight"]
        halves = weight.reshape(SHAPE.heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)
        path = export.write(folder / "wrong.gguf", {**weights, f"blk.1.{wrong}.weight": halves}, SHAPE, words, "wrong")
        off = distance(rows_of(path, ids), exact)
        expect(f"a wrong {wrong} would show", off > 0.3, f"off by {off:.1e}")


def rows_of(path: Path, ids: list[int]) -> np.ndarray:
    reader = Reader(path)
    found = reader.rows(ids)
    reader.close()
    return found


@torch.no_grad()
def check_sampling(model: Decoder, ids: list[int]) -> None:
    """Greedy samples through the cache are the argmaxes of a pass without one; warm ones follow the softmax."""
    prompts = torch.tensor([ids[:9], ids[20:29]])
    written = distill.sample(model, prompts, 60, torch.zeros(2))
    best = model.logits(model(written)[-1]).argmax(-1)
    expect("cache", bool((best[:, 8:-1] == written[:, 9:]).all()), "greedy samples are the argmaxes of one pass")
    torch.manual_seed(0)
    many = distill.sample(model, prompts[:1].expand(4000, -1), 10, torch.full((4000,), 0.8))[:, -1]
    wanted = (model.logits(model(prompts[:1])[-1])[0, -1] / 0.8).softmax(-1)
    seen = torch.bincount(many, minlength=SHAPE.vocabulary) / 4000
    away = 0.5 * (seen - wanted).abs().sum().item()
    chance = 0.5 * (2 / torch.pi * wanted * (1 - wanted) / 4000).sqrt().sum().item()
    expect("sampling", away < 1.3 * chance, f"total variation {away:.3f} from the softmax, {chance:.3f} by chance")


def check_divergence() -> None:
    p, q = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    loss, accepted, agreed = distill.divergence(p, q, torch.tensor(0.0))
    probs = [np.exp(evaluate.log_softmax(part.numpy())) for part in (p, q)]
    kl = (probs[0] * np.log(probs[0] / probs[1])).sum(-1).mean()
    overlap = np.minimum(*probs).sum(-1).mean()
    expect("divergence", abs(loss.item() - kl) < 1e-5 and abs(accepted.item() - overlap) < 1e-5, f"KL {kl:.4f}")
    all_variation = distill.divergence(p, q, torch.tensor(1.0))[0].item()
    same = (p.argmax(-1) == q.argmax(-1)).double().mean().item()
    expect(
        "variation",
        abs(all_variation - 1 + overlap) < 1e-5 and abs(agreed.item() - same) < 1e-5,
        f"{all_variation:.4f}",
    )


def check_training(ids: list[int], folder: Path) -> None:
    """Both trainings learn, and one that was paused ends with the weights of one that was not."""
    size = Size(512, 1, SHAPE, DRAFT, 4, 2, 40 * 4 * 128, 40 * 4 * 128, 4096, 8, 64, exits=(1, 2))
    data = Stream(np.array(ids, np.uint16), CPU)
    ends, paused = [], 0
    for name, stops in (("whole", (60.0,)), ("paused", (0.5, 0.5, 60.0))):
        (folder / name).mkdir()
        for seconds in stops:
            model = Decoder(SHAPE)
            model.start(1)
            try:
                stop_at = time.monotonic() + seconds
                train.train_target(model, size, data, data, folder / name, train.FOREVER, stop_at, False)
            except train.Paused:
                paused += 1
        ends.append(torch.load(folder / name / "target.pt", weights_only=True)["weights"])
    same = all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    expect(
        "going on",
        same and paused > 0,
        f"a training that was paused {paused} times has the weights of one that was not",
    )
    fresh, trained = Decoder(SHAPE), Decoder(SHAPE)
    fresh.start(1)
    trained.load_state_dict(ends[0])
    before, after = (train.exit_losses(model, (1, 2), data, 4) for model in (fresh, trained))
    fell = all(after[key] < before[key] - 0.6 for key in before)
    expect("target", fell, ", ".join(f"{key} {before[key]:.2f} to {after[key]:.2f}" for key in before))
    trained.requires_grad_(False)
    draft = Decoder(DRAFT)
    draft.start(2)
    distill.write_samples(trained, size, data, folder)
    samples = Stream.of([folder / distill.SAMPLES], CPU)
    first = distill.compare(trained, draft, data, 4)
    stop_at = time.monotonic() + 60
    distill.train_draft(draft, trained, size, data, samples, data, folder, train.FOREVER, stop_at, False)
    then = distill.compare(trained, draft, data, 4)
    fell = then["accepted"] > first["accepted"] + 0.1
    expect("draft", fell, f"expected acceptance {first['accepted']:.2f} to {then['accepted']:.2f}")


def main() -> None:
    torch.set_num_threads(1)
    texts = own_texts()
    encoder = tokenizer.train(texts, SHAPE.vocabulary)
    words = tokenizer.vocabulary(encoder)
    ids = [token for found in tokenizer.encode(encoder, texts[:40]) for token in found]
    model = Decoder(SHAPE)
    model.start(3)
    for name, weight in model.named_parameters():  # larger than for training, so that differences show
        weight.data *= 8 if name.startswith("token_embd") else 2 if weight.dim() == 2 else 1 + 0.2 * torch.rand(())
    model.requires_grad_(False)
    steps: list[Callable[[Path], None]] = [
        lambda folder: check_logits(model, ids[:128], folder, words),
        lambda folder: check_tokenizer(encoder, folder / "F32.gguf"),
        lambda folder: check_sampling(model, ids),
        lambda _: check_divergence(),
        lambda folder: check_training(ids, folder),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            step(Path(folder))


if __name__ == "__main__":
    main()
