"""`minibert explain`: one row of attention as a calculation."""

import sys

from minibert.cli.options import Loading, Texts, say_json, spread
from minibert.terminal import Terminal, say


@spread()
def explain(
    texts: Texts,
    layer: int,
    head: int,
    query: str,
    key: str | None = None,
    top: int = 8,
    why: bool = False,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Show the calculation of one row of attention.

    It goes from a query and a key to the score, the softmax of the row, and the sum that gives z.

    Options:
        layer: The layer, from 0.
        head: The head, from 0.
        query: The query: the position of a token, or the token.
        key: The key, in the same way. Default: the most attended one.
        top [>=1]: How many of the largest terms to show.
        why: Also say what makes the head look there, down to the words (docs/why.md).
    """
    model, tokens = texts.tokens(loading)
    from minibert.answers.explain import explain as explain_row
    from minibert.answers.explain import find_token, render, trace_of_head

    # Searched here too, so that a wrong token is an error before anything is computed.
    row = find_token(tokens, query, what="query")
    column = None if key is None else find_token(tokens, key, what="key")
    trace = trace_of_head(model, tokens, layer=layer, head=head)
    explanation = explain_row(trace, layer=layer, head=head, query=row, key=column)
    place = (layer, head, row, explanation.key_position)
    found = trace.why(*place) if why else None
    if as_json:
        say_json(explanation.to_dict() | ({} if found is None else {"why": found.to_dict()}))
        return
    say(render(explanation, Terminal.of(sys.stdout), top=top))
    if found is not None:
        say(f"\n{found}\n\n{found.tree()}")
