"""What heads look at by depth: [CLS], [SEP], periods and commas.

Clark et al. 2019, "What does BERT look at?", figure 2: the average attention that each head spends
on these tokens, layer by layer, and on [SEP] from [SEP] itself and from all others. With
--model bert-base-uncased and --corpus of Wikipedia it is the paper's; here are a few sentences.
"""

import argparse

import minibert
from minibert.survey import SAMPLE_PAIRS, Document, read_documents, survey

MEASURES = ("to_cls", "to_sep", "to_period_comma", "sep_to_sep", "rest_to_sep")
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-bert")
parser.add_argument("--corpus", help="a text file, or a folder of them")
parser.add_argument("--plot", help="a file for the picture, as figure2.svg")
options = parser.parse_args()

model = minibert.load(options.model)
sample = [Document(str(n), one, pair=other) for n, (one, other) in enumerate(SAMPLE_PAIRS)]
texts = read_documents([options.corpus]) if options.corpus else sample
found = survey(model, texts, measures=MEASURES, by_norm=False, profile=False)
for name in MEASURES:
    table = found.table(name)
    print(f"{name:16} layer means", *(f"{mean:.2f}" for mean in table.mean(1)), end="; most ")
    layer, head = divmod(int(table.argmax()), table.shape[1])
    print(f"{layer}-{head} {table[layer, head]:.2f}")
if options.plot:
    from matplotlib import pyplot as plt

    for name in MEASURES[:3]:
        for layer, heads in enumerate(found.table(name), 1):
            plt.scatter([layer] * len(heads), heads, color=f"C{MEASURES.index(name)}")
        means = found.table(name).mean(1)
        plt.plot(range(1, len(means) + 1), means, label=name, color=f"C{MEASURES.index(name)}")
    plt.legend(), plt.xlabel("layer"), plt.ylabel("average attention"), plt.savefig(options.plot)
