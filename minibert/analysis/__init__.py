"""Numbers about attention, one file an idea.

What heads do
    patterns.py      how far each head follows the five known patterns (pattern_kinds.py declares
                     them, matrix_scores.py scores one matrix, repeated.py has the random
                     sequences, scores.py the result); pattern_scores.py, patterns of one's own
    shared_dimensions.py  whether the queries of a head use the same few dimensions
    norms.py         attention weighted by what it moves
    rollout.py       attention over all layers together; flow.py, the same as a flow
What they add to the answer
    lens.py          what each layer would predict
    decomposition.py the stream as a sum of its components (components.py, frozen_norm.py)
    attribution.py   a logit as a sum over heads, MLPs and biases (vocabulary.py)
    relevance.py     gradient x attention, and relevance over all layers
    integrated.py    integrated gradients over attention and embeddings
    patching.py      an edit at every head or token, and what it does (sweeps.py, metrics.py)
    attribution_patching.py  the same estimated, for all places at once, from one gradient
    path_patching.py what a head does by way of some other heads alone
    causal_tracing.py which state brings back an answer that noise took away
    knockout.py      what the answer loses where tokens may not look at others
What they say of a text
    losses.py        the loss at each token
    embeddings.py    what enters layer 0 as a sum, also with other positions and segments
    comparison.py    where two checkpoints of one model differ, and how far
What their weights say
    circuits.py      QK and OV circuits (head_weights.py); token_circuits.py, on tokens
    composition.py   how heads of different layers work together
What they share
    arguments.py     checks of what is given; positions.py, of positions
    precision.py     numbers in float32 at least

What has the name of its file, rollout and relevance, is imported from there.
"""

from minibert.analysis.attribution import LogitAttribution, logit_attribution
from minibert.analysis.attribution_patching import PatchEstimates, attribution_patching
from minibert.analysis.causal_tracing import CausalTraces, causal_tracing
from minibert.analysis.circuits import OVCircuit, QKCircuit, ov_circuit, qk_circuit
from minibert.analysis.comparison import ModelComparison, compare_models
from minibert.analysis.composition import composition_scores
from minibert.analysis.decomposition import Decomposition, decompose
from minibert.analysis.embeddings import EmbeddingParts, embedding_parts
from minibert.analysis.flow import Flow, attention_flow
from minibert.analysis.integrated import integrated_attention, integrated_embeddings
from minibert.analysis.knockout import Knockouts, attention_knockout
from minibert.analysis.lens import LogitLens, logit_lens
from minibert.analysis.losses import TokenLosses, token_losses
from minibert.analysis.metrics import answer_probability, logit_difference
from minibert.analysis.norms import block_norms, head_norms, summed_norms
from minibert.analysis.patching import (
    Sweep,
    ablate_heads,
    patch_head_positions,
    patch_heads,
    patch_positions,
)
from minibert.analysis.path_patching import PathPatches, path_patching
from minibert.analysis.pattern_scores import PatternScores, pattern_scores
from minibert.analysis.patterns import head_scores
from minibert.analysis.positions import phrase_positions
from minibert.analysis.relevance import gradient_x_attention, relevance_of
from minibert.analysis.repeated import draws_for, repeated_ids
from minibert.analysis.rollout import rollout_of
from minibert.analysis.scores import PATTERNS, HeadScores
from minibert.analysis.shared_dimensions import SharedDimensions, shared_dimensions
from minibert.analysis.token_circuits import copying_scores, ov_on_tokens, qk_on_tokens
from minibert.analysis.vocabulary import to_single_token

__all__ = [
    "PATTERNS",
    "CausalTraces",
    "Decomposition",
    "EmbeddingParts",
    "Flow",
    "HeadScores",
    "Knockouts",
    "LogitAttribution",
    "LogitLens",
    "ModelComparison",
    "OVCircuit",
    "PatchEstimates",
    "PathPatches",
    "PatternScores",
    "QKCircuit",
    "SharedDimensions",
    "Sweep",
    "TokenLosses",
    "ablate_heads",
    "answer_probability",
    "attention_flow",
    "attention_knockout",
    "attribution_patching",
    "block_norms",
    "causal_tracing",
    "compare_models",
    "composition_scores",
    "copying_scores",
    "decompose",
    "draws_for",
    "embedding_parts",
    "gradient_x_attention",
    "head_norms",
    "head_scores",
    "integrated_attention",
    "integrated_embeddings",
    "logit_attribution",
    "logit_difference",
    "logit_lens",
    "ov_circuit",
    "ov_on_tokens",
    "patch_head_positions",
    "patch_heads",
    "patch_positions",
    "path_patching",
    "pattern_scores",
    "phrase_positions",
    "qk_circuit",
    "qk_on_tokens",
    "relevance_of",
    "repeated_ids",
    "rollout_of",
    "shared_dimensions",
    "summed_norms",
    "to_single_token",
    "token_losses",
]
