"""Numbers about attention, one file an idea.

What heads do
    patterns.py      how far each head follows the five known patterns (pattern_kinds.py declares
                     them, matrix_scores.py scores one matrix, repeated.py has the random
                     sequences, scores.py the result); pattern_scores.py, patterns of one's own
    norms.py         attention weighted by what it moves
    rollout.py       attention over all layers together; flow.py, the same as a flow
What they add to the answer
    lens.py          what each layer would predict
    decomposition.py the stream as a sum of its components (components.py, frozen_norm.py)
    attribution.py   a logit as a sum over heads, MLPs and biases (vocabulary.py)
    relevance.py     gradient x attention, and relevance over all layers
    integrated.py    integrated gradients over attention and embeddings
    patching.py      an edit at every head or token, and what it does
    attribution_patching.py  the same estimated, for all places at once, from one gradient
    path_patching.py what a head does by way of some other heads alone (metrics.py)
What they say of a text
    losses.py        the loss at each token
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
from minibert.analysis.circuits import OVCircuit, QKCircuit, ov_circuit, qk_circuit
from minibert.analysis.comparison import ModelComparison, compare_models
from minibert.analysis.composition import composition_scores
from minibert.analysis.decomposition import Decomposition, decompose
from minibert.analysis.flow import Flow, attention_flow
from minibert.analysis.integrated import integrated_attention, integrated_embeddings
from minibert.analysis.lens import LogitLens, logit_lens
from minibert.analysis.losses import TokenLosses, token_losses
from minibert.analysis.norms import block_norms, head_norms, summed_norms
from minibert.analysis.patching import (
    Sweep,
    ablate_heads,
    logit_difference,
    patch_heads,
    patch_positions,
)
from minibert.analysis.path_patching import PathPatches, path_patching
from minibert.analysis.pattern_scores import PatternScores, pattern_scores
from minibert.analysis.patterns import head_scores
from minibert.analysis.relevance import gradient_x_attention, relevance_of
from minibert.analysis.repeated import draws_for, repeated_ids
from minibert.analysis.rollout import rollout_of
from minibert.analysis.scores import PATTERNS, HeadScores
from minibert.analysis.token_circuits import copying_scores, ov_on_tokens, qk_on_tokens
from minibert.analysis.vocabulary import to_single_token

__all__ = [
    "PATTERNS",
    "Decomposition",
    "Flow",
    "HeadScores",
    "LogitAttribution",
    "LogitLens",
    "ModelComparison",
    "OVCircuit",
    "PatchEstimates",
    "PathPatches",
    "PatternScores",
    "QKCircuit",
    "Sweep",
    "TokenLosses",
    "ablate_heads",
    "attention_flow",
    "attribution_patching",
    "block_norms",
    "compare_models",
    "composition_scores",
    "copying_scores",
    "decompose",
    "draws_for",
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
    "patch_heads",
    "patch_positions",
    "path_patching",
    "pattern_scores",
    "qk_circuit",
    "qk_on_tokens",
    "relevance_of",
    "repeated_ids",
    "rollout_of",
    "summed_norms",
    "to_single_token",
    "token_losses",
]
