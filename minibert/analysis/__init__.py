"""Numbers about attention; every function gives a `minibert.result.Result`.

patterns.py     the patterns that heads are known by, and how far each follows five of them
lens.py         what each layer would predict
stream.py       the stream as a sum of its components, what enters layer 0 too; reading.py, the
                numbers that are linear in it
reasons.py      why this logit: as a sum over what was written, down to the words;
                score_reasons.py, why a head looks there; head_reasons.py, for all heads over whole
                texts; graph.py, as a graph
flow.py         attention weighted by what it moves, and over all layers: rollout and relevance
patching.py     an edit at every place, and what it does: ablation, patching, paths, causal tracing,
                knockout; metrics.py, what is read of the logits, and losses
edges.py        what patching every place or edge would change, estimated from one gradient; what a
                circuit keeps of a metric
composition.py  what the weights say: how much of what one head writes another reads
arguments.py    checks of what is given; rows.py, a trace cut to some positions
"""

from minibert.analysis.arguments import phrase_positions, to_single_token
from minibert.analysis.composition import composition_scores
from minibert.analysis.edges import (
    EdgeEstimates,
    Faithfulness,
    PatchEstimates,
    attribution_patching,
    edge_attribution,
    faithfulness,
)
from minibert.analysis.flow import head_norms, relevance_of, rollout_of, summed_norms
from minibert.analysis.graph import PredictionGraph, prediction_graph
from minibert.analysis.head_reasons import why_heads
from minibert.analysis.lens import LogitLens, logit_lens
from minibert.analysis.metrics import (
    TokenLosses,
    answer_probability,
    logit_difference,
    token_losses,
)
from minibert.analysis.patching import (
    CausalTraces,
    Effects,
    ablate_heads,
    attention_knockout,
    causal_tracing,
    patch_heads,
    patch_positions,
    path_patching,
)
from minibert.analysis.patterns import (
    PATTERNS,
    HeadScores,
    SharedDimensions,
    draws_for,
    head_scores,
    repeated_ids,
    shared_dimensions,
)
from minibert.analysis.reasons import Why, WhyTokens, why_logit, why_stream
from minibert.analysis.score_reasons import WhyScore, why
from minibert.analysis.stream import Decomposition, EmbeddingParts, decompose, embedding_parts

__all__ = [
    "PATTERNS",
    "CausalTraces",
    "Decomposition",
    "EdgeEstimates",
    "Effects",
    "EmbeddingParts",
    "Faithfulness",
    "HeadScores",
    "LogitLens",
    "PatchEstimates",
    "PredictionGraph",
    "SharedDimensions",
    "TokenLosses",
    "Why",
    "WhyScore",
    "WhyTokens",
    "ablate_heads",
    "answer_probability",
    "attention_knockout",
    "attribution_patching",
    "causal_tracing",
    "composition_scores",
    "decompose",
    "draws_for",
    "edge_attribution",
    "embedding_parts",
    "faithfulness",
    "head_norms",
    "head_scores",
    "logit_difference",
    "logit_lens",
    "patch_heads",
    "patch_positions",
    "path_patching",
    "phrase_positions",
    "prediction_graph",
    "relevance_of",
    "repeated_ids",
    "rollout_of",
    "shared_dimensions",
    "summed_norms",
    "to_single_token",
    "token_losses",
    "why",
    "why_heads",
    "why_logit",
    "why_stream",
]
