"""Masses of real attention, computed by BERT and GPT-2 in other people's programs."""

import numpy as np
import pytest
from data import data_path

from minibert.errors import AttentionError, SurveyError
from minibert.survey.measures import measures
from minibert.survey.rows import from_matrices
from minibert.survey.segments import SegmentTokens, tokens_of_strings
from minibert.survey.windows import row_sums, rows_that_count

FILES = (
    "bert-base-uncased__store",
    "bert-base-uncased__rabbit",
    "distilbert-base-uncased__cat",
    "gpt2__fox",
    "gpt2__apples_qk",
)
PUBLISHED = {
    "to_previous": {(1, 4), (3, 5), (6, 11), (7, 4)},
    "to_next": {(0, 10), (1, 1), (2, 0), (2, 9), (5, 9)},
}


def matrices(name):
    found = np.load(data_path("refs", f"{name}.npz"), allow_pickle=False)
    return found["attn"].astype(np.float64), [str(token) for token in found["tokens"]]


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
    smooth = 0.9999 * attn + 0.0001 / n
    entropies = -(smooth * np.log(smooth)).sum(-1)
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


def ours(attn, tokens, **options):
    chosen = measures(offsets=(-2, -1, 0, 1), tokens=("the",), by_norm="norms" in options)
    described = tokens_of_strings(tokens, chosen=("the",))
    norms = options.pop("norms", None)
    layers = []
    for layer, probs in enumerate(attn):
        masses = from_matrices(
            probs,
            described,
            offsets=(-2, -1, 0, 1),
            norms=None if norms is None else norms[layer],
            **options,
        )
        _, counts = rows_that_count(chosen, described)
        layers.append((row_sums(chosen, masses) / np.maximum(counts, 1)[:, None])[..., 0])
    return {one.name: np.stack(layers, 1)[row] for row, one in enumerate(chosen)}


@pytest.mark.parametrize("name", FILES)
def test_published_formulas_give_the_same_on_real_attention(name):
    attn, tokens = matrices(name)
    found = ours(attn, tokens, smoothing=0.0001)
    expected = by_clark(attn, tokens) | by_pairs(attn, tokens)
    expected["to_token:the"] = attn[..., [t.strip("Ġ ") == "the" for t in tokens]].sum(-1).mean(-1)
    expected["to_first"] = attn[..., 0].mean(-1)
    expected["most_received"] = attn.sum(-2).max(-1) / len(tokens)
    if "[CLS]" not in tokens:
        assert not found.pop("entropy_cls").any()
        del expected["entropy_cls"]
    for measure, right in expected.items():
        np.testing.assert_allclose(found[measure], right, rtol=0, atol=1e-6, err_msg=measure)


def test_rows_weighed_by_norms_are_shares_of_what_the_rows_move():
    attn, tokens = matrices("bert-base-uncased__store")
    norms = np.random.default_rng(0).uniform(0.1, 3, attn.shape[:3])
    found = ours(attn, tokens, norms=norms)
    moved = attn * norms[:, :, None, :]
    moved /= moved.sum(-1, keepdims=True)
    for measure, right in (by_clark(moved, tokens) | by_pairs(moved, tokens)).items():
        if not measure.startswith("entropy"):
            name = f"{measure}_by_norm"
            np.testing.assert_allclose(found[name], right, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("measure", PUBLISHED)
def test_the_heads_that_are_published_come_out_on_top(measure):
    scores = [ours(*matrices(name))[measure] for name in FILES[:2]]
    order = np.argsort(-np.mean(scores, axis=0).ravel())[:10]
    assert {divmod(int(one), 12) for one in order} >= PUBLISHED[measure]


def test_segments_one_after_the_other_are_described_as_each_alone():
    alone = [tokens_of_strings(matrices(name)[1]) for name in FILES[:2]]
    # Numbers of words and entries are each segment's own, so that equal ones must not meet.
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


def test_what_does_not_fit_is_refused():
    attn, tokens = matrices("gpt2__fox")
    described = tokens_of_strings(tokens)
    with pytest.raises(AttentionError, match="probs have shape"):
        from_matrices(attn[0, :, :-1], described)
    with pytest.raises(AttentionError, match="norms have shape"):
        from_matrices(attn[0], described, norms=np.ones((1, 2)))
    with pytest.raises(SurveyError, match="measure to_nothing: not known here; known are entropy"):
        measures(names=("to_nothing",))
