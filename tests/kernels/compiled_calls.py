"""A program: `attend` inside torch.compile beside itself outside, as JSON, for test_operators.py.

It has a process of its own, without the checks of shapes that the tests put into every function.
"""

import json
from typing import Any

import torch

from benchmarks.gpu import cases
from minibert.errors import AttentionError
from minibert.kernels.api import attend

CPU = torch.device("cpu")


def compiled(run: Any) -> Any:
    """Compiled as one graph, or an error."""
    torch._dynamo.reset()
    return torch.compile(run, fullgraph=True, backend="aot_eager")


def apart(some: Any, others: Any) -> float:
    pairs = zip(some, others, strict=True)
    gaps = [one.double().sub(other.double()).nan_to_num(0.0, 0.0, 0.0) for one, other in pairs]
    return max(float(gap.abs().max()) for gap in gaps)


def of_option(option: str, impl: str, want: tuple[str, ...]) -> dict[str, float]:
    """How far values and gradients are apart."""
    drawn = cases.draw(option, 16, "float32", CPU).with_gradient()
    leaves = tuple(drawn.leaves().values())

    def run(keywords: Any, *vectors: Any) -> Any:
        found = attend(*vectors, **keywords, impl=impl, want=want)
        return found.z * 2, found.lse, *(getattr(found.statistics, name) for name in want)

    if impl != "eager":
        with torch.no_grad():
            given = (drawn.keywords, *drawn.vectors())
            return {"values": apart(compiled(run)(*given), run(*given))}
    outside = run(drawn.keywords, *drawn.vectors())
    inside = compiled(run)(drawn.keywords, *drawn.vectors())
    by = torch.randn_like(outside[0])
    both = [torch.autograd.grad(one[0], leaves, by) for one in (inside, outside)]
    return {"values": apart(inside, outside), "gradients": apart(*both)}


def refusal() -> str:
    """What a graph says of lengths that cannot be."""
    drawn = cases.draw("lengths", 16, "float32", CPU)
    graph = compiled(lambda lengths: attend(*drawn.vectors(), lengths=lengths, impl="eager").z)
    graph(drawn.keywords["lengths"])
    try:
        graph(drawn.keywords["lengths"] + 1000)
    except AttentionError as error:
        return str(error)
    return "nothing"


def main() -> None:
    found: dict[str, Any] = {"refusal": refusal()}
    for impl in ("auto", "chunked", "sdpa"):
        found[impl] = of_option("causal", impl, ("entropy",))
    for option in cases.OPTIONS:
        try:
            found[option] = of_option(option, "eager", ("entropy",))
        # The test says which call it was.
        except Exception as error:
            found[option] = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
