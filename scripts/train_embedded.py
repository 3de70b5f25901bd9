"""Trains the embedded model: a small masked language model, on public-domain novels.

    python scripts/train_embedded.py TEXT... --output minibert/embedded/tiny-bert --minutes 30

Writes a Hugging Face folder with float16 weights and a card. The same seed, texts, machine and
number of steps give the same weights; `--minutes` only bounds how long it may take.
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from minibert.config import Config
from minibert.model import Model
from minibert.saving import save
from minibert.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


def main() -> None:
    """Read the texts, train the tokenizer, train the model, save it with its card."""
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    texts = [path.read_text(encoding="utf-8") for path in options.texts]
    train_tokenizer(texts, options.vocabulary).save(str(options.output / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(options.output)
    held_out, *training = [torch.tensor(tokenizer.encode(text)) for text in texts]
    config = Config(
        family="bert",
        task="masked-lm",
        vocab_size=options.vocabulary,
        n_positions=128,
        n_layers=4,
        n_heads=4,
        d_model=128,
        d_mlp=512,
        n_segments=2,
        pad_id=PAD,
    )
    model = Model.from_config(config, seed=options.seed, tokenizer=tokenizer, name="tiny-bert")
    start_from_waves(model)
    steps, seconds = train(model, torch.cat(training), options)
    scores = evaluate(model, held_out)
    save(model, options.output, dtype=torch.float16)
    about = {
        "texts": [path.name for path in options.texts[1:]],
        "held_out": options.texts[0].name,
        "tokens_in_training_text": int(sum(map(len, training))),
        "steps": steps,
        "tokens_seen": steps * options.batch * config.n_positions,
        "seconds": round(seconds),
        "seed": options.seed,
        "machine": f"{platform.machine()}, {options.threads} thread(s), torch {torch.__version__}",
        **scores,
    }
    (options.output / "training.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", type=Path, help="text files; the first is held out")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train_tokenizer(texts: list[str], size: int) -> Backend:
    """An uncased WordPiece tokenizer with BERT's special tokens."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return backend


@torch.no_grad()
def start_from_waves(model: Model) -> None:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5) to begin with; they are trained on.

    From random ones a model of this size takes most of its time to find its neighbours. The
    wavelengths end at 100 and not at 10,000 tokens, because 128 positions are all there are:
    neighbours differ more, and heads need no huge scores to tell them apart.
    """
    table = model.body.position.weight
    position = torch.arange(len(table))[:, None]
    frequency = torch.exp(torch.arange(0, table.shape[1], 2) * (-math.log(100) / table.shape[1]))
    table[:, 0::2] = 0.05 * torch.sin(position * frequency)
    table[:, 1::2] = 0.05 * torch.cos(position * frequency)


def train(model: Model, text: Tensor, options: argparse.Namespace) -> tuple[int, float]:
    """AdamW with a warm-up and a cosine that ends with the steps or the minutes."""
    model.requires_grad_()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(options.seed)
    start, limit = time.monotonic(), options.minutes * 60
    progress = tqdm(range(options.steps), disable=None)
    step = 0
    for step in progress:
        done = max(step / options.steps, (time.monotonic() - start) / limit)
        if done >= 1:
            break
        rate = min(1.0, step / 500) * (0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = options.rate * rate
        ids, segments = batch(text, options.batch, model.config.n_positions, generator)
        loss = masked_loss(model, ids, segments, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0:
            progress.write(f"step {step}  loss {loss.item():.3f}  {time.monotonic() - start:.0f} s")
    model.requires_grad_(False)
    return step, time.monotonic() - start


def batch(
    text: Tensor, size: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random stretches of text: half as [CLS] A [SEP], half as a pair of neighbours."""
    starts = torch.randint(len(text) - length, (size,), generator=generator)
    ids = text[starts[:, None] + torch.arange(length)]
    ids[:, 0], ids[:, -1] = CLS, SEP
    segments = torch.zeros_like(ids)
    middles = torch.randint(length // 4, 3 * length // 4, (size // 2,), generator=generator)
    rows = torch.arange(size // 2)
    ids[rows, middles] = SEP
    segments[: size // 2] = (torch.arange(length) > middles[:, None]).long()
    return ids, segments


def masked_loss(model: Model, ids: Tensor, segments: Tensor, generator: torch.Generator) -> Tensor:
    """Cross-entropy at the masked tokens, 20 % of them, in nats (Devlin et al. 2019, 3.1)."""
    chosen = (torch.rand(ids.shape, generator=generator) < 0.2) & (ids > MASK)
    dice = torch.rand(ids.shape, generator=generator)
    noise = torch.randint(len(SPECIAL), model.config.vocab_size, ids.shape, generator=generator)
    corrupted = torch.where(chosen & (dice < 0.8), MASK, ids)
    corrupted = torch.where(chosen & (dice > 0.9), noise, corrupted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = hidden_state(model, corrupted, segments)
        logits = model.head(hidden[chosen], None, corrupted, None)
    return F.cross_entropy(logits.float(), ids[chosen])


def hidden_state(model: Model, ids: Tensor, segments: Tensor) -> Tensor:
    """The last hidden state; the head is left to the masked positions alone."""
    allowed = model.allowed(ids)
    hidden = model.body.embed(ids, segments)
    for layer in model.body.layers:
        # The explicit path: its backward is twice as fast as the fused kernel at this length.
        hidden = layer(hidden, allowed, None, keep=("probs",))
    return hidden


@torch.no_grad()
def evaluate(model: Model, text: Tensor) -> dict[str, float]:
    """Loss and accuracy at masked tokens of a text the model never saw, beside the unigram's."""
    generator = torch.Generator().manual_seed(1)
    losses, right, seen = [], 0, 0
    for _ in range(40):
        ids, segments = batch(text, 32, model.config.n_positions, generator)
        chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & (ids > MASK)
        corrupted = torch.where(chosen, MASK, ids)
        logits = model.head(hidden_state(model, corrupted, segments)[chosen], None, ids, None)
        losses.append(F.cross_entropy(logits, ids[chosen]).item())
        right += int((logits.argmax(-1) == ids[chosen]).sum())
        seen += int(chosen.sum())
    most_common = text.bincount().max().item() / len(text)
    return {
        "held_out_loss_nats": round(sum(losses) / len(losses), 3),
        "held_out_accuracy": round(right / seen, 3),
        "unigram_accuracy": round(most_common, 3),
    }


if __name__ == "__main__":
    main()
