"""Uses of a trace as a type checker sees them; never run. Only lines marked `# wrong` are."""

from torch import Tensor

import minibert
from minibert.trace.edit import mean, replace, zero

model = minibert.load()
trace = model.trace("leaves fall", grad=True)
probs: Tensor = trace[0, 1].probs
query: Tensor = trace[-1].query
stream: Tensor = trace[0].resid_mid
stacked: Tensor = trace.stack("probs")
row: Tensor = trace[0].window("scores", queries=slice(0, 3))
edited = trace.rerun({("z", 0, 1): zero, ("probs", 1): lambda p: p * p})
patched = trace.rerun({("resid_post", 1): replace(edited, positions=1)})
averaged = model.trace("leaves", edit={("z", 0): mean(over=trace)})
graded: Tensor = trace.grad[0, 1].probs
hidden: tuple[Tensor, ...] = trace.hidden_states
matrices: tuple[Tensor, ...] = trace.attentions

trace[0, 1].prob  # wrong
trace.stack("probz")  # wrong
trace[0].window("query")  # wrong
trace["z"]  # wrong
trace.logit  # wrong
trace.grad[0].querry  # wrong
