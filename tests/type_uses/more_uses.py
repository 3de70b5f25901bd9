"""More uses as a type checker sees them; never run. Only lines marked `# wrong` are."""

from typing import Any

import torch
from torch import Tensor

import minibert
from minibert.trace.edit import EditMapping, hide, noise, replace, zero

model = minibert.load("tiny-gpt2", impl="chunked", dtype=torch.float32, task="causal-lm")
trace = model.trace("leaves", keep=("probs",), statistics=("entropy", ("key_mass", (0, -1))))
by_name = model.trace(input_ids=trace.tokens.ids, attention_mask=trace.tokens.mask)
listed = model.trace(["a", "b c"], statistics=["received"], packed=True)
page = trace.view(view="neuron", layers=[0, 1], heads=range(2), exact=(0, 1), lens=False)
one_mapping = {("z", 0): zero}
of_variable = trace.rerun(one_mapping)
of_annotation: EditMapping = {("probs", 0, (1, 2)): 0.0, "embed": trace}
mixed = trace.rerun(of_annotation, keep=["scores"])
of_all = trace.rerun({("z", layer): zero for layer in range(len(trace))})
for name in ("query", "key"):
    trace.rerun({(name, 0): zero})
anything: dict[Any, object] = {}
trace.rerun(anything)
lists = trace.rerun({("scores", 0): [hide(2), hide(0)], ("resid_post", 1): noise(1)})
each: Tensor = trace.rerun_each([{("z", 0, 1): zero}, one_mapping], lambda logits: logits[:, 0, 0])
story = model.generate("Once", max_new_tokens=3, temperature=0, top_k=5, stop="\n", seed=1)
edited = model.generate("Once", edit={("z", 0, 1): zero}, last="newest", stream=print)
of_ids = model.generate(input_ids=trace.tokens.ids)
entropy: Tensor | None = trace[0].statistics.entropy
q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()
z: Tensor = minibert.attend(q, k, v, impl="sdpa", want=("entropy", "argmax")).z
names: tuple[str, ...] = tuple(trace.tokens.strings[0])
patched = trace.rerun({("resid_post", 0): replace(trace).at(positions=1)})

model.trace("leaves", truncat=True)  # wrong
model.trace("leaves", statistics=("entropi",))  # wrong
model.trace("leaves", statistics=(("key_mas", (0,)),))  # wrong
model.trace("leaves", impl=3)  # wrong
model.trace("leaves", grad="yes")  # wrong
model.trace("leaves", edit=[("z", 0)])  # wrong
trace.view(view="heads")  # wrong
trace.view(layer=[0])  # wrong
trace.rerun({("z", "0"): zero})  # wrong
trace.rerun({("z", 0, 1, 2): zero})  # wrong
trace.rerun({0: zero})  # wrong
trace.rerun_each({("z", 0): zero}, print)  # wrong
model.generate("Once", max_tokens=3)  # wrong
model.generate("Once", temperature="0")  # wrong
model.generate("Once", last="new")  # wrong
model.generate("Once", stream="out")  # wrong
model.forward("leaves", attention=None)  # wrong
model.packed(["a"], pad=True)  # wrong
minibert.load("tiny-bert", task="masked_lm")  # wrong
minibert.load("tiny-bert", dtype="float16")  # wrong
minibert.load("tiny-bert", impl=None)  # wrong
minibert.attend(q, k, v, want=("entropy", "lse2"))  # wrong
minibert.attend(q, k, v, is_causal=True)  # wrong
