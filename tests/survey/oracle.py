"""What a survey measures, recomputed from whole matrices with NumPy, formula by formula.

A measure of a document is a sum over the rows that count, divided by their number; of a survey the
mean over the documents that have such rows. Tokens are strings as their vocabulary writes them.
"""

import unicodedata

import numpy as np

SPECIAL = ("[CLS]", "[SEP]")


def described(tokens):
    """The word, the place of the word, and the text of each token; of special ones the text is −1.

    Pieces of a word begin with ## or, where words begin with Ġ, are letters behind letters.
    """
    words, place, texts, text = [], [], [], 0
    spaced = any(token.startswith("Ġ") for token in tokens)
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else ""
        goes_on = token.startswith("##")
        goes_on |= spaced and token[0] != "Ġ" and token[0].isalnum() and before[-1:].isalnum()
        start = place[-1] if goes_on and number else number
        joined = (words[start] if start < number else "") + token.strip("Ġ ").removeprefix("##")
        words = [joined if at == start else one for one, at in zip(words, place, strict=True)]
        words.append(joined.lower())
        place.append(start)
        texts.append(-1 if token in SPECIAL else text)
        text += token == "[SEP]"
    return np.array([one.lower() for one in words]), np.array(place), np.array(texts)


def cells_of(tokens, offsets=(), chosen=()):
    """For each measure of masses the weights (query, key) that it adds up, and the rows that count.

    Clark et al. 2019, §3.1 and §3.2; Vig 2019; Wang et al. 2022; Olsson et al. 2022.
    """
    n = len(tokens)
    query, key = np.indices((n, n))
    words, place, texts = described(tokens)
    ids, every = np.array(tokens), np.ones(n, bool)
    plain = texts >= 0
    real = plain[query] & plain[key]
    bare = [token.strip("Ġ ").removeprefix("##") for token in tokens]
    is_sep = ids == "[SEP]"
    period_comma = np.array([one in (".", ",") for one in bare])
    signs = [bool(one) and all(unicodedata.category(c)[0] == "P" for c in one) for one in bare]
    same = real & (words[query] == words[key]) & (place[query] != place[key])
    duplicate = real & (ids[query] == ids[key]) & (key < query)
    after = np.zeros_like(duplicate)
    after[:, 1:] = duplicate[:, :-1]
    after &= key < query
    other = real & (texts[query] != texts[key])
    whole = {
        "to_self": key == query,
        "to_previous": key == query - 1,
        "to_next": key == query + 1,
        "to_first": key == 0,
        "to_cls": (ids == "[CLS]")[key],
        "to_sep": is_sep[key],
        "to_period_comma": period_comma[key],
        "to_punctuation": (plain & signs)[key],
        **{f"to_offset_{k}": key == query + k for k in offsets},
        **{f"to_token:{one}": np.array([each == one for each in bare])[key] for one in chosen},
    }
    found = {name: (cells, every) for name, cells in whole.items()}
    found["sep_to_sep"] = is_sep[key], is_sep
    found["rest_to_sep"] = is_sep[key], ~is_sep
    found["to_other_text"] = other, plain & (texts.max() > 0)
    for name, cells in {
        "to_same_word": same, "to_same_word_other_text": same & other,
        "to_duplicate": duplicate, "to_induction": after,
    }.items():  # fmt: skip
        found[name] = cells, cells.any(1)
    return found


def measured(probs, tokens, *, norms=None, offsets=(), chosen=()):
    """By measure the sum over rows, (layer, head), and how many rows count, of one piece of text.

    probs (layer, head, query, key), norms (layer, head, key) of value · W_O.
    """
    n = len(tokens)
    logs = np.log(np.where(probs > 0, probs, 1))
    entropy, cls = -(probs * logs).sum(-1), np.array(tokens) == "[CLS]"
    found = {
        "entropy": (entropy.sum(-1), n),
        "entropy_cls": (entropy[..., cls].sum(-1), cls.sum()),
        # Each of its rows has the number.
        "most_received": (probs.sum(-2).max(-1), n),
    }
    weighed = None if norms is None else probs * norms[:, :, None]
    for name, (cells, rows) in cells_of(tokens, offsets, chosen).items():
        found[name] = (probs * cells).sum(-1)[..., rows].sum(-1), rows.sum()
        if weighed is not None:
            shares = weighed / weighed.sum(-1, keepdims=True)
            found[f"{name}_by_norm"] = (shares * cells).sum(-1)[..., rows].sum(-1), rows.sum()
    return found


def document(pieces):
    """By measure the mean over the rows of all pieces of a document; nan without any."""
    found = {}
    with np.errstate(invalid="ignore"):
        for name in pieces[0]:
            total, rows = (sum(one[name][part] for one in pieces) for part in (0, 1))
            found[name] = total / np.where(rows, rows, np.nan)
    return found


def compare(survey, documents, *, rtol=0.0, atol=1e-5):
    """Every measure that the documents have is in the survey, with their mean and their count."""
    for name in documents[0]:
        values = np.stack([one[name] for one in documents])
        there = np.isfinite(values).all(-1)
        counts = survey.sums.documents[survey.names.index(name)]
        assert set(there.sum(0).tolist()) == {int(counts)}, name
        expected = np.where(there[..., None], values, 0).sum(0) / np.where(counts, counts, np.nan)
        np.testing.assert_allclose(survey.table(name), expected, rtol=rtol, atol=atol, err_msg=name)


def profile(documents, reach):
    """(layer, head, offset): the mean over documents of the sums of diagonals by rows.

    A document is the probs of each of its pieces.
    """
    found = np.zeros((*documents[0][0].shape[:2], 2 * reach + 1))
    for pieces in documents:
        rows = sum(probs.shape[-1] for probs in pieces)
        for probs in pieces:
            n = probs.shape[-1]
            for offset in range(1 - n, n):
                found[..., reach + offset] += np.trace(probs, offset, 2, 3) / rows
    return found / len(documents)
