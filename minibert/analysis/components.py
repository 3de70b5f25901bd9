"""The components that write to the residual stream, by name.

embed                    what enters layer 0
head 9-6                 head_out of layer 9, head 6
attention bias 9         b_O of layer 9, where it has one
attention norm bias 9    the bias of the LayerNorm after attention (post-norm families)
attention output norm bias 9    the bias of a LayerNorm that attention alone goes through
mlp 9                    mlp_out of layer 9, its bias b_out included
mlp norm bias 9          the bias of the LayerNorm after the MLP (post-norm families)
mlp output norm bias 9   the bias of a LayerNorm that the MLP alone goes through

attention 9              attn_out of layer 9, where heads are not told apart

What a block writes goes through its output norm first, where the model has one (Gemma 2, OLMo 2).

What lies between the stream and a logit has biases too: final norm bias (GPT-2), transform bias
and transform norm bias (the masked-language-model head), unembedding bias.
"""

from dataclasses import dataclass

__all__ = ["Component"]


@dataclass(frozen=True)
class Component:
    """One writer to the stream; layer and head count from 0, None where they do not apply."""

    kind: str
    layer: int | None = None
    head: int | None = None

    @property
    def label(self) -> str:
        """The name in the list above."""
        if self.layer is None:
            return self.kind
        return f"{self.kind} {self.layer}" + ("" if self.head is None else f"-{self.head}")

    def __str__(self) -> str:
        return self.label
