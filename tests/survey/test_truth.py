"""A survey of real text by a real model equals transformers and NumPy, formula by formula."""

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.survey.documents import read_documents
from minibert.survey.run import survey

COUNT, LONGEST = 50, 96


@pytest.fixture(scope="module")
def documents():
    path = data_path("text", "wikitext-2", "wiki.valid.tokens")
    lines = read_documents([path], unit="line", shortest=100)
    return [document for _, document in zip(range(COUNT), lines, strict=False)]


@pytest.fixture(scope="module")
def by_transformers(documents):
    """By measure the mean over documents, (layer, head); and the mean profile."""
    import transformers

    folder = data_path("models", "all-MiniLM-L6-v2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float64
    ).eval()
    found, profiles = {}, np.zeros((6, 12, 2 * LONGEST - 1))
    for document in documents:
        encoded = tokenizer(document.text, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            out = model(**encoded, output_attentions=True, output_hidden_states=True)
        attn = torch.cat(out.attentions).numpy()
        tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        moved = attn * norms(model, out.hidden_states)[:, :, None, :]
        moved /= moved.sum(-1, keepdims=True)
        n = len(tokens)
        logs = np.log(attn, out=np.zeros_like(attn), where=attn > 0)
        entropies = -(attn * logs).sum(-1)
        numbers = {"entropy": entropies.mean(-1), "entropy_cls": entropies[..., 0]}
        numbers["most_received"] = attn.sum(-2).max(-1) / n
        numbers |= masses(attn, tokens)
        numbers |= {f"{name}_by_norm": one for name, one in masses(moved, tokens).items()}
        for name, one in numbers.items():
            found.setdefault(name, []).append(one)
        for offset in range(1 - n, n):
            profiles[..., LONGEST - 1 + offset] += np.trace(attn, offset, 2, 3) / n
    return {name: np.mean(ones, 0) for name, ones in found.items()}, profiles / len(documents)


def norms(model, hidden_states):
    """‖f(x)‖ of each layer, head and key, f(x) = (x·W_V + b_V)·W_O of the head."""
    found = []
    for layer, hidden in zip(model.encoder.layer, hidden_states, strict=False):
        value = layer.attention.self.value(hidden)[0].unflatten(-1, (12, -1))
        weight = layer.attention.output.dense.weight.unflatten(1, (12, -1))
        found.append(torch.einsum("phd,mhd->hpm", value, weight).norm(dim=-1))
    return torch.stack(found).detach().numpy()


def masses(attn, tokens):
    n = len(tokens)
    kinds = {
        "to_first": [i == 0 for i in range(n)],
        "to_cls": [token == "[CLS]" for token in tokens],
        "to_sep": [token == "[SEP]" for token in tokens],
        "to_period_comma": [token in (".", ",") for token in tokens],
        "to_token:the": [token == "the" for token in tokens],
    }
    found = {name: attn[..., np.array(keys)].sum(-1).mean(-1) for name, keys in kinds.items()}
    sep = np.array(kinds["to_sep"])
    found["sep_to_sep"] = attn[:, :, sep][..., sep].sum(-1).mean(-1)
    found["rest_to_sep"] = attn[:, :, ~sep][..., sep].sum(-1).mean(-1)
    for name, k in {"to_self": 0, "to_next": 1, "to_previous": -1, "to_offset_3": 3}.items():
        found[name] = np.trace(attn, k, 2, 3) / n
    same = np.array([[a == b and a not in ("[CLS]", "[SEP]") for b in tokens] for a in tokens])
    earlier = np.tril(same, -1)
    after = np.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1]
    after &= ~np.eye(n, dtype=bool)
    for name, cells in {"to_duplicate": earlier, "to_induction": after}.items():
        rows = cells.any(-1)
        if rows.any():
            found[name] = (attn * cells).sum((-2, -1)) / rows.sum()
    return found


def test_fifty_documents_equal_transformers_and_numpy(documents, by_transformers):
    # Cut, since transformers has one segment a document.
    model = minibert.load(data_path("models", "all-MiniLM-L6-v2"))
    tokenizer = model.tokenizer
    short = [type(one)(one.id, one.text[: cut_at(tokenizer(one.text))]) for one in documents]
    found = survey(model, short, offsets=(3,), tokens=("the",), longest=LONGEST)
    expected, profile = by_transformers
    assert found.count("entropy") == COUNT
    assert len(expected) == 29
    for name, right in expected.items():
        np.testing.assert_allclose(found.table(name), right, rtol=0, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found.profile, profile, rtol=0, atol=1e-5)


def cut_at(tokens):
    """The character behind the last token that fits beside [CLS] and [SEP]."""
    spans = [span for span in tokens.spans[0] if span is not None]
    return spans[: LONGEST - 2][-1][1]
