"""The claims of Clark et al. 2019, Kobayashi et al. 2020 and Vig 2019, each with its criterion.

A claim says in one sentence what was found in bert-base-uncased, and in another one when it holds
in another model. The criteria were written before the attention of these models was measured (the
probes of MiniLM had been measured before). Where the source gives no number, the criterion has the
mildest one that the sentence can mean. Changed after the first numbers: Kobayashi's claim is only
asked of a model that looks at [SEP] over half of the time, and the last claim became one of its
own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import looking_findings as found
from benchmarks.looking_findings import Evidence, Finding

_CLARK, _KOBAYASHI, _VIG = "Clark et al. 2019", "Kobayashi et al. 2020", "Vig 2019"
_HALF = "some head has more than half of its attention there"
_NAMED = "some head is named by this pattern: more than half of what the baseline leaves"
_OFFSET = "the best head is right more often than the best fixed offset"
_FEWER = "such heads use fewer dimensions (participation ratio) than next-word heads"
_RULES = "the best head is right more often than the nearest mention and the same head word"

Find = Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Claim:
    """One claim: what was found in bert-base-uncased, and what decides whether it holds here.

    unit  of the number found here: share, nats, dimensions, or depth (0 the first layer, 1 the
          last)
    """

    source: str
    section: str
    claim: str
    published: str
    holds_if: str
    unit: str
    find: Find


def clark(section: str, claim: str, published: str, holds_if: str, unit: str, find: Find) -> Claim:
    return Claim(_CLARK, section, claim, published, holds_if, unit, find)


def vig(part: int, claim: str, published: str, holds_if: str, unit: str, find: Find) -> Claim:
    return Claim(_VIG, f"part {part}", claim, published, holds_if, unit, find)


_SURFACE = (
    clark(
        "3.1", "Most heads put little attention on the current token.", "no number",
        "the middle head of all puts less than 10 % on the token itself", "share", found.on_itself,
    ),
    clark(
        "3.1", "Some heads look at the previous token.", "4 heads: 1-4, 3-5, 6-11, 7-4", _HALF,
        "share", found.on_a_neighbour("to_previous"),
    ),
    clark(
        "3.1", "Some heads look at the next token.", "5 heads: 0-10, 1-1, 2-0, 2-9, 5-9", _HALF,
        "share", found.on_a_neighbour("to_next"),
    ),
    clark(
        "3.1", "These heads are mostly in early layers.", "mean depth 0.27",
        "the mean depth of the heads over half is below 0.5", "depth", found.neighbours_are_early,
    ),
    clark(
        "3.2", "Early heads look at [CLS].", "no number",
        "the layer with the most attention on [CLS] is in the first half", "share",
        found.most_in("to_cls", early=True),
    ),
    clark(
        "3.2", "Over half of the attention of middle layers is on [SEP].", "layers 5 to 9 of 12",
        "the layer with the most has over half, and is not in the first half", "share",
        found.on_sep,
    ),
    clark(
        "3.2", "[SEP] itself looks almost only at [SEP].", "over 90 %",
        "over 90 % in the layer with the most attention on [SEP]", "share", found.sep_on_sep,
    ),
    clark(
        "3.2", "Deep heads look at periods and commas.", "no number",
        "the layer with the most attention there is in the second half", "share",
        found.most_in("to_period_comma", early=False),
    ),
    clark(
        "3.3", "Where attention to [SEP] becomes high, gradients with respect to it become small.",
        "from layer 4 on", "from the first layer with over half on [SEP] on their mean size is "
        "less than half of that in the layers before", "share", found.gradients_on_sep,
    ),
    clark(
        "3.4", "Heads with broad attention are mostly in low layers.", "no number",
        "the mean entropy of the first half of the layers is above that of the second", "nats",
        found.broad_heads_are_low,
    ),
    clark(
        "3.4", "The broadest heads spend at most 10 % of their attention on any token.", "10 %",
        "the head with the highest entropy gives its most attended token less than 10 %", "share",
        found.broadest_head,
    ),
    clark(
        "3.4", "In the last layer [CLS] looks broadly.", "3.89 nats",
        "the entropy of [CLS] in the last layer is above that of all tokens there", "nats",
        found.cls_looks_broadly,
    ),
)  # fmt: skip

_SYNTAX = (
    clark(
        "4.2", "No head finds the syntactic head of all words.", "34.5 % (head 6-5)",
        "the best head finds less than half", "share", found.no_head_does_all,
    ),
    *(
        clark("4.2", f"A head finds {words} (`{name}`).", published, _OFFSET, "share",
              found.relation(name))
        for name, words, published in (
            ("det", "the noun of a determiner", "94.3 % (head 7-10)"),
            ("obj", "the verb of a direct object", "86.8 % (head 7-9)"),
            ("case", "the object of a preposition", "76.3 % (head 8-5)"),
            ("nmod:poss", "the noun of a possessive", "80.5 % (head 6-5)"),
            ("aux:pass", "the verb of a passive auxiliary", "82.5 % (head 3-9)"),
            ("compound:prt", "the verb of a particle", "99.1 % (head 5-6)"),
        )
    ),
    clark(
        "4.3", "A head finds antecedents (novels).", "65 % (head 4-3)", _RULES, "share",
        found.antecedents(found.LITBANK),
    ),
    clark(
        "4.3", "A head finds antecedents (names and pronouns, Wikipedia).", "65 % (head 4-3)",
        "the best head is right more often than the nearest name", "share",
        found.antecedents(found.GAP),
    ),
    clark(
        "5", "A probe on attention alone knows syntax.", "61 %",
        "its score is above that of the next word as head", "share",
        found.attachment("attention", ["next word (right-branching)"]),
    ),
    clark(
        "5", "Attention adds to what words and distances know.", "77 % over 58 %",
        "attention and words score above distances and words", "share",
        found.attachment("attention and words", ["distances and words"]),
    ),
    clark(
        "5", "Attention of random weights does not.", "77 % over 30 %",
        "attention and words score above random weights and words", "share",
        found.attachment("attention and words", ["attention of random weights and words"]),
    ),
    clark(
        "6", "Heads of one layer are near each other.", "no number",
        "their mean distance is below that of heads of different layers", "nats",
        found.heads_of_a_layer,
    ),
    Claim(
        _KOBAYASHI, "4", "Weighed by the norms of what is added, [SEP] gets little.", "no number",
        "in the layer with the most attention on [SEP], its share by norm is less than half of its "
        "share by weight", "share", found.sep_by_norm,
    ),
)  # fmt: skip

_PATTERNS = (
    *(
        vig(1, f"Some heads look at {words}.", published, _NAMED, "share", found.pattern(name))
        for name, words, published in (
            ("next", "the next word", "head 2-0"),
            ("previous", "the previous word", "head 0-2"),
            ("same_word", "identical words", "head 2-6"),
            ("same_word_other_sentence", "identical words in the other sentence", "head 10-10"),
            ("predictive", "the other pieces of a word", "head 2-1"),
            ("delimiter", "delimiters", "head 7-3"),
        )
    ),
    vig(
        2, "Some heads look at all words of their own sentence alike.", "head 0-0",
        "some head is nearer to that than rows drawn at random", "share",
        found.pattern("bag_of_words"),
    ),
    vig(
        2, "Few dimensions carry the attention to delimiters.", "no number", _FEWER, "dimensions",
        found.fewer_dimensions("delimiter"),
    ),
    vig(
        2, "Few dimensions carry bag-of-words attention.", "no number", _FEWER, "dimensions",
        found.fewer_dimensions("bag_of_words"),
    ),
    vig(
        2, "Many dimensions carry the attention to the next word.", "no number",
        "such heads use more than half of their dimensions (participation ratio)", "dimensions",
        found.many_dimensions,
    ),
)  # fmt: skip

CLAIMS = (*_SURFACE, *_SYNTAX, *_PATTERNS)
