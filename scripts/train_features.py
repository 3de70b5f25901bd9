"""Train the features of tiny-gpt2's stream in front of layer 1, and measure them.

    python scripts/train_features.py train FOLDER TEXT ...      # writes FOLDER
    python scripts/train_features.py measure FOLDER TEXT ...    # writes benchmarks/results

An autoencoder of the 32 largest of 1,024 features, with the loss of the dead ones (Gao et al. 2024,
"Scaling and evaluating sparse autoencoders", sections 2.3 and A.2), saved as SAELens' files. Each
token counts by the share of its vector that is left over, as those of first tokens are far longer.
`measure` wants other texts: how many features are active, what share of the variance they explain,
and the loss of the model with `decoded` in place of the stream: of the loss that zeros in its
place cost, the recovered share.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.survey.collecting import collect
from minibert.trace.edit import zero
from minibert.trace.identity import weights_digest
from minibert.training.texts import read_texts

MODEL, POINT = "tiny-gpt2", ("resid_pre", 1)
FEATURES, K, DEAD_K, DEAD_AFTER = 1024, 32, 64, 100
STEPS, BATCH, RATE, SEED = 2500, 2048, 1e-3, 0
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "features.jsonl"
LENGTH = 128


def autoencoder(values: np.ndarray) -> dict[str, Tensor]:
    """The weights, after STEPS batches of rows of these values."""
    torch.manual_seed(SEED)
    rows = np.random.default_rng(SEED)
    W_dec = F.normalize(torch.randn(FEATURES, values.shape[1]), dim=1)
    weights = {"W_enc": W_dec.T.contiguous(), "W_dec": W_dec, "b_enc": torch.zeros(FEATURES)}
    weights["b_dec"] = torch.from_numpy(values[:: len(values) // 10000].mean(0))
    for each in weights.values():
        each.requires_grad_()
    adam = torch.optim.Adam(weights.values(), lr=RATE, betas=(0.9, 0.999))
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda n: min(1, 5 * (1 - n / STEPS)))
    idle = torch.zeros(FEATURES)
    for step in range(STEPS):
        x = torch.from_numpy(values[rows.integers(0, len(values), BATCH)])
        pre = (x - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]
        found = pre.topk(K, dim=1)
        acts = torch.zeros_like(pre).scatter(1, found.indices, found.values.relu())
        error = x - acts @ weights["W_dec"] - weights["b_dec"]
        sizes = (x - weights["b_dec"].detach()).square().sum(1)
        loss = (error.square().sum(1) / sizes).mean()
        idle = torch.where((acts > 0).any(0), 0, idle + 1)
        if int((dead := idle > DEAD_AFTER).sum()) > DEAD_K:
            spare = pre.masked_fill(~dead, float("-inf")).topk(DEAD_K, dim=1)
            more = torch.zeros_like(pre).scatter(1, spare.indices, spare.values.relu())
            left = (error.detach() - more @ weights["W_dec"]).square().sum(1)
            loss = loss + (left / sizes).mean() / 32
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        with torch.no_grad():
            weights["W_dec"].copy_(F.normalize(weights["W_dec"], dim=1))
        if step % 200 == 0:
            print(f"{step:5} left over {loss:.4f}, dead {int(dead.sum())}", flush=True)
    return {name: each.detach() for name, each in weights.items()}


def train(folder: Path, texts: list[Path]) -> None:
    """Write cfg.json and sae_weights.safetensors."""
    model = minibert.load(MODEL)
    documents = read_texts(texts)
    with tempfile.TemporaryDirectory() as place:
        read = [document.text for document in documents]
        values = collect(model, read, [POINT], output=Path(place) / "values").values(*POINT)
        weights = autoencoder(np.asarray(values))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "sae_weights.safetensors")
    about = {
        "architecture": "topk", "d_in": model.config.d_model, "d_sae": FEATURES, "k": K,
        "dtype": "float32", "apply_b_dec_to_input": True, "normalize_activations": "none",
        "reshape_activations": "none", "rescale_acts_by_decoder_norm": False,
        "metadata": {
            "model_name": MODEL, "hook_name": f"blocks.{POINT[1]}.hook_{POINT[0]}",
            "sae_lens_version": "6.54.12", "training_tokens": STEPS * BATCH, "seed": SEED,
            "model_weights": weights_digest(model),
            "texts": [[document.name, document.digest] for document in documents],
        },
    }  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@torch.no_grad()
def measure(folder: Path, texts: list[Path]) -> None:
    """Write one row: counts, and losses in nats a token."""
    model, features = minibert.load(MODEL), minibert.features.load(folder)
    documents = read_texts(texts)
    sums, active, seen = dict[str, float](), torch.zeros(len(features)), 0
    for document in documents:
        ids = torch.tensor(model.tokenizer.encode(document.text))
        for batch in ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH).split(32):
            trace = model.trace(batch)
            found = features.read(trace)
            active += (found.values > 0).sum((0, 1))
            x = found.decoded + found.error
            logits = {"loss": trace.logits, "loss_zeros": trace.rerun({POINT: zero}).logits}
            logits["loss_decoded"] = trace.rerun({POINT: found.decoded}).logits
            own = {name: loss(one, batch) for name, one in logits.items()}
            own |= {"error": found.error.square().sum().item()}
            size = (x - features.dictionary.b_dec).square().sum(-1)
            own |= {"variance": (x - x.mean((0, 1))).square().sum().item()}
            own |= {"share": (found.error.square().sum(-1) / size).sum().item()}
            sums = {name: sums.get(name, 0.0) + number for name, number in own.items()}
            seen += batch.numel()
    losses = {name: sums[name] / (seen // LENGTH * (LENGTH - 1)) for name in sums if "loss" in name}
    row = {
        "what": "features", "model": MODEL, "point": list(POINT), "features": len(features),
        "weights_sha256": digest(folder / "sae_weights.safetensors"),
        "texts": [document.name for document in documents], "tokens": seen,
        "active": active.sum().item() / seen, "dead": int((active == 0).sum()),
        "variance_explained": 1 - sums["error"] / sums["variance"],
        "explained_of_a_token": 1 - sums["share"] / seen, **losses,
        "loss_recovered": (losses["loss_zeros"] - losses["loss_decoded"])
        / (losses["loss_zeros"] - losses["loss"]),
    }  # fmt: skip
    RESULTS.write_text(json.dumps(row) + "\n", encoding="utf-8")
    print(json.dumps(row, indent=1))


def loss(logits: Tensor, ids: Tensor) -> float:
    """The sum of the losses of all tokens but the first."""
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
    ).item()


if __name__ == "__main__":
    {"train": train, "measure": measure}[sys.argv[1]](
        Path(sys.argv[2]), list(map(Path, sys.argv[3:]))
    )
