"""Scripts of examples/ as one writes them with TransformerLens 3.9, for benchmarks/examples.py.

They import nothing of minibert and print the same lines, so that the numbers can be compared.
tiny.py gives them model and prompts and is not counted. Six of the twelve are not written:
causal_tracing, whose noise is another generator's, so that no number could be compared; and those
that train, collect to the disk or survey a corpus (fine_tuning, sae_data, part_of_speech,
two_checkpoints, clark_figure_2), which TransformerLens leaves to torch and transformers.
"""
