"""What attention gives: z, lse, scores, probs, and the statistics of its rows."""

from dataclasses import dataclass

from torch import Tensor

from minibert.quantities import Float, Int

__all__ = ["Attended", "Statistics"]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Numbers that describe each attention row; None where `want` did not name them.

    p is a row of probs, s the row of scores with soft cap, bias and ALiBi, both over the allowed
    keys alone: a sink is no key. A dead row (no key allowed) has probs 0. In float32; in float64
    for float64 inputs. Of packed sentences everything is counted within a token's own sentence:
    its rows, keys and positions.

    row_max      max s: the largest score. Dead row: −inf.
    max_prob     max p, in [0, 1]: how sure the query is. Dead row: 0.
    entropy      −sum p·ln p, in nats: 0 for one key, ln n for n equal keys (Clark et al. 2019,
                 §3.3). Dead row: 0.
    argmax       the key with the largest s; of equals any. Dead row: −1.
    received     sum of p over the query rows, per key: how much a key is looked at, in rows. With
                 lengths and as many queries as keys (self-attention) padded query rows are left
                 out; otherwise every row counts.
    key_mass     p at the key positions asked for ("key_mass", positions), in their order
                 (Clark et al. 2019, §3.2 with the positions of [CLS] and [SEP]).
    offset_mass  p at the key that stands at the query's position + offset, for the offsets asked
                 for: −1 previous, 0 itself, 1 next (Clark et al. 2019, §3.1). 0 outside the text.
                 Query i stands at position K − Q + i.
    map          mean of p over the real cells of each block, when queries and keys are cut into
                 equal blocks, at most ("map", blocks) a side; 64 unless told. Real as in received;
                 0 for a block without real cells.
    key_sums     sum of p times each of the columns ("key_sums", columns), (batch, head, key,
                 column), batch and head may be 1: the mass on a kind of keys where a column is 1
                 at these and 0 elsewhere, or anything linear in keys.
    pair_mass    p of each query and key of ("pair_mass", pairs), (batch, pair, 2), batch may be 1;
                 0 for the pair −1, −1. Of packed sentences tokens are counted over all of them.
    profile      sum of p along each diagonal, from offset 1 − K to Q − 1: how much goes how far.
                 Real queries as in received. Of packed sentences 2·n − 1 numbers each, one after
                 the other.
    """

    row_max: Float[Tensor, "batch *head query"] | None = None
    max_prob: Float[Tensor, "batch *head query"] | None = None
    entropy: Float[Tensor, "batch *head query"] | None = None
    argmax: Int[Tensor, "batch *head query"] | None = None
    received: Float[Tensor, "batch *head key"] | None = None
    key_mass: Float[Tensor, "batch *head query position"] | None = None
    offset_mass: Float[Tensor, "batch *head query offset"] | None = None
    map: Float[Tensor, "batch *head query_block key_block"] | None = None
    key_sums: Float[Tensor, "batch *head query column"] | None = None
    pair_mass: Float[Tensor, "batch *head pair"] | None = None
    profile: Float[Tensor, "batch *head diagonal"] | None = None


@dataclass(frozen=True, eq=False)
class Attended:
    """What `attend` and `compute` give; None where it was not wanted (`attend` always wants lse).

    z           probs · value, in the dtype of the inputs (the reference: float64). Dead row: 0.
    lse         ln sum exp(s), natural logarithm, s the allowed scores with soft cap, bias and
                ALiBi, and the sink where there is one: what the softmax divides by, kept so that
                any prob is exp(s − lse) (Milakov & Gimelshein 2018; Dao et al. 2022, §3.1).
                float32; float64 for float64 inputs. Dead row: −inf, or the sink.
    scores      scale · query · keyᵀ, before soft cap, bias and mask.
    probs       exp(s − lse), 0 where masked. Rows sum to 1, to less with a sink. Dead row: 0.
    statistics  see `Statistics`; None when none was asked for.
    """

    z: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"] | None = None
    scores: Float[Tensor, "batch head query key"] | None = None
    probs: Float[Tensor, "batch head query key"] | None = None
    statistics: Statistics | None = None
