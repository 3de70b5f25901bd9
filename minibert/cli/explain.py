"""`minibert explain`: one row of attention as a calculation."""

import sys
from typing import Annotated

import typer

from minibert.cli.options import AsJson, Loading, Texts, say_json, spread
from minibert.terminal import Terminal, note, say


@spread()
def explain(
    texts: Texts,
    layer: Annotated[int, typer.Option(help="The layer, from 0.")],
    head: Annotated[int, typer.Option(help="The head, from 0.")],
    query: Annotated[str, typer.Option(help="The query: the position of a token, or the token.")],
    key: Annotated[
        str | None,
        typer.Option(help="The key, in the same way. Default: the most attended one."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the largest terms to show.")] = 8,
    as_json: AsJson = False,
    *,
    loading: Loading,
) -> None:
    """Show the calculation of one row of attention.

    It goes from a query and a key to the score, the softmax of the row, and the sum that gives z.
    """
    model, tokens = texts.tokens(loading)
    from minibert.answers.explain import explain as explain_row
    from minibert.answers.explain import find_token, render, token_note, trace_of_head

    # Searched here too, so that a wrong token is an error before anything is computed.
    row = find_token(tokens, query, what="query")
    column = None if key is None else find_token(tokens, key, what="key")
    for what, wanted in (("query", query), ("key", key)):
        if wanted is not None and (about := token_note(tokens, wanted, what=what)):
            note("note", about)
    trace = trace_of_head(model, tokens, layer=layer, head=head)
    explanation = explain_row(trace, layer=layer, head=head, query=row, key=column)
    if as_json:
        say_json(explanation.to_dict())
    else:
        say(render(explanation, Terminal.of(sys.stdout), top=top))
