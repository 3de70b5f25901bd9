"""What a survey measures equals published formulas over whole matrices, selector by selector."""

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import SurveyError
from minibert.survey import Document, survey
from minibert.survey.measures import measures
from minibert.survey.segments import Segmenter, SegmentTokens

PAIR = Document(
    "pair", "The strawberries, she said, grow on the hill.", None, "The hill? She ate strawberries."
)
ALONE = Document("alone", "the king saw the old house. and the king went home, the end")
TOKENS = ("the", "king")


def by_clark(attn, tokens):
    """The masses of Clark et al. 2019, §3.1 and §3.2, as selectors over whole matrices."""
    n = len(tokens)
    seps = np.array([token == "[SEP]" for token in tokens], dtype=float)
    clss = np.array([token == "[CLS]" for token in tokens], dtype=float)
    puncts = np.array([token in (".", ",") for token in tokens], dtype=float)
    # Theirs are always two: their segments have two texts.
    n_seps = max(1, seps.sum())
    selectors = {
        "to_self": (np.eye(n), n),
        "to_next": (np.eye(n, k=1), n),
        "to_previous": (np.eye(n, k=-1), n),
        "to_offset_-2": (np.eye(n, k=-2), n),
        "to_cls": (np.tile(clss, (n, 1)), n),
        "to_sep": (np.tile(seps, (n, 1)), n),
        "to_period_comma": (np.tile(puncts, (n, 1)), n),
        "sep_to_sep": (np.outer(seps, seps), n_seps),
        "rest_to_sep": (np.outer(1 - seps, seps), n - n_seps),
    }
    found = {name: (attn * cells).sum((-2, -1)) / rows for name, (cells, rows) in selectors.items()}
    logs = np.log(attn, out=np.zeros_like(attn), where=attn > 0)
    entropies = -(attn * logs).sum(-1)
    return found | {"entropy": entropies.mean(-1), "entropy_cls": entropies[..., 0]}


def by_pairs(attn, tokens):
    """The masses on related words, cell after cell, and how many rows have one."""
    words, texts, place, second = [], [], [], 0
    for token in tokens:
        if token.startswith("##"):
            start = place[-1]
            joined = words[start] + token[2:]
            words = [joined if p == start else w for w, p in zip(words, place, strict=True)]
            words.append(joined)
            place.append(start)
        else:
            words.append(token.strip("Ġ ").lower())
            place.append(len(place))
        texts.append(None if token in ("[CLS]", "[SEP]") else second)
        second += token == "[SEP]"
    related = {
        "to_same_word": lambda i, j: words[i] == words[j] and place[i] != place[j],
        "to_same_word_other_text": lambda i, j: words[i] == words[j] and texts[i] != texts[j],
        "to_duplicate": lambda i, j: tokens[i] == tokens[j] and j < i,
        "to_induction": lambda i, j: (
            0 < j < i and related["to_duplicate"](i, j - 1) and texts[j - 1] is not None
        ),
    }
    found = {}
    for name, holds in related.items():
        cells = np.array(
            [
                [
                    texts[i] is not None
                    and (texts[j] is not None or name == "to_induction")
                    and holds(i, j)
                    for j in range(len(tokens))
                ]
                for i in range(len(tokens))
            ]
        )
        rows = max(1, cells.any(-1).sum())
        found[name] = (attn * cells).sum((-2, -1)) / rows
    return found


def norms_of(model, trace):
    """‖f(x)‖ of each layer, head and key, f(x) = value · W_O of the head."""
    found = []
    for number, layer in enumerate(model.body.layers):
        found.append((trace[number].value[0] @ layer.attention.W_O).norm(dim=-1).double())
    return torch.stack(found).detach().numpy()


@pytest.mark.parametrize(("name", "document"), [("tiny-bert", PAIR), ("tiny-gpt2", ALONE)])
def test_published_formulas_give_the_same(name, document):
    model = minibert.load(name)
    trace = model.trace(*document.contents)
    attn, tokens = trace.stack("probs")[:, 0].double().detach().numpy(), list(trace.tokens.raw[0])
    moved = attn * norms_of(model, trace)[:, :, None, :]
    moved /= moved.sum(-1, keepdims=True)
    expected = by_clark(attn, tokens) | by_pairs(attn, tokens)
    by_norm = by_clark(moved, tokens) | by_pairs(moved, tokens)
    for token in TOKENS:
        column = [string.strip("Ġ ") == token for string in tokens]
        expected[f"to_token:{token}"] = attn[..., column].sum(-1).mean(-1)
    expected["to_first"] = attn[..., 0].mean(-1)
    expected["most_received"] = attn.sum(-2).max(-1) / len(tokens)
    expected |= {f"{n}_by_norm": one for n, one in by_norm.items() if not n.startswith("entropy")}
    found = survey(model, [document], offsets=(-2,), tokens=TOKENS)
    for measure, right in expected.items():
        if found.count(measure):
            np.testing.assert_allclose(
                found.table(measure), right, rtol=0, atol=2e-5, err_msg=measure
            )
    left_out = {one for one in expected if not found.count(one)}
    of_sep = {one for one in expected if one.startswith(("entropy_cls", "sep_to_sep"))}
    of_pairs = {one for one in expected if "other_text" in one}
    assert left_out == (of_sep | of_pairs if name == "tiny-gpt2" else set())


def test_segments_one_after_the_other_are_described_as_each_alone():
    segments, _ = Segmenter(minibert.load()).segments([PAIR, ALONE, PAIR])
    alone = [segment.tokens for segment in segments]
    joined = SegmentTokens.joined(alone)
    pairs, parts = joined.pairs
    first = 0
    for number, one in enumerate(alone):
        again = joined.one(number)
        assert (again.classes == one.classes).all()
        own, own_parts = one.pairs
        for whole, part in zip(parts, own_parts, strict=True):
            inside = pairs[whole][(pairs[whole] >= first).all(1)]
            inside = inside[(inside < first + len(one)).all(1)] - first
            assert inside.tolist() == own[part].tolist()
        first += len(one)


def test_a_measure_that_there_is_not_is_refused():
    with pytest.raises(SurveyError, match="measure to_nothing: not known here; known are entropy"):
        measures(names=("to_nothing",))
