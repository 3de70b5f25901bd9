"""The text of an Explanation: the calculation of one row of attention, step by step.

query, key (-> turned by position) -> products -> score (-> soft cap) -> softmax over the row ->
probs·value -> z
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minibert.answers.explain import Explanation
from minibert.terminal import Terminal, bar, cell_width, cut, number, signed_bar, visible

__all__ = ["render"]

# A row of this many keys is shown whole; of a longer one the most attended keys are.
_WHOLE_ROW = 24
_WHOLE_SENTENCE = 60
_NEAR = 8
_BAR = 40
_MOST_OF_Z = 12


def render(explanation: Explanation, terminal: Terminal | None = None, *, top: int = 8) -> str:
    """The calculation as text; `top` is the number of largest terms of each sum.

    Every number is the model's own, or computed from these in float64, and rounded to the digits
    shown. Characters in tokens that would disturb the terminal are written out.
    """
    page = _Page(explanation, terminal or Terminal(), top)
    sections = (page.heading(), page.vectors(), page.terms(), page.score(), page.row(), page.sum())
    return "\n\n".join("\n".join(section) for section in sections)


class _Page:
    """The sections of one explanation, in the order of the data."""

    def __init__(self, explanation: Explanation, terminal: Terminal, top: int) -> None:
        self.about = explanation
        self.terminal = terminal
        self.top = top
        self.token_width = 16 if terminal.width < 100 else 28

    def heading(self) -> list[str]:
        """Which model, which head, which tokens."""
        about, paint = self.about, self.terminal.paint
        where = f"layer {about.layer}, head {about.head}"
        size = f"of {about.n_layers} layers x {about.n_heads} heads, counted from 0"
        reason = "" if about.chosen else "   the most attended key"
        return [
            paint(visible(about.model_name, space=" "), "bold"),
            f"{paint(where, 'bold')} {size}",
            *self.group(),
            "",
            *self.terminal.wrapped(self.sentence()),
            "",
            f"  query  {self.place(about.query_position)}",
            f"  key    {self.place(about.key_position)}{reason}",
            *self.rounding(),
        ]

    def group(self) -> list[str]:
        """Which key-value head it reads, where several heads share one."""
        about = self.about
        if about.n_kv_heads in (0, about.n_heads):
            return []
        return [
            f"key and value are those of key-value head {about.kv_head} of {about.n_kv_heads}, "
            f"which {about.n_heads // about.n_kv_heads} heads share"
        ]

    def sentence(self) -> list[str]:
        """The tokens with their positions; of a long sentence those near the query and the key."""
        chosen = (self.about.query_position, self.about.key_position)
        positions = list(range(len(self.about.tokens)))
        if len(positions) > _WHOLE_SENTENCE:
            positions = [p for p in positions if min(abs(p - c) for c in chosen) <= _NEAR]
        pieces: list[str] = []
        for before, position in zip([-1, *positions], positions, strict=False):
            if position > before + 1:
                pieces.append("…")
            quiet = f"{self.terminal.paint(str(position), 'dim')} {self.token(position)}"
            pieces.append(self.place(position) if position in chosen else quiet)
        return pieces if positions[-1] == len(self.about.tokens) - 1 else [*pieces, "…"]

    def rounding(self) -> list[str]:
        """A note for models whose own numbers have fewer digits than are shown."""
        dtype = self.about.query.dtype
        if dtype not in (torch.bfloat16, torch.float16):
            return []
        name = str(dtype).removeprefix("torch.")
        return [
            "",
            f"  This model rounds to {name} after each step, so sums agree to a few digits.",
        ]

    def vectors(self) -> list[str]:
        """The first numbers of query and key, and their lengths; before the rotation as well."""
        about = self.about
        named = [("query", about.query), ("key", about.key)]
        if about.query_unrotated is not None and about.key_unrotated is not None:
            unturned = [("query unrotated", about.query_unrotated)]
            named = [*unturned, ("key unrotated", about.key_unrotated), *named]

        def table(shown: int) -> list[str]:
            dots = "…" if shown < len(self.about.query) else ""
            rows = [
                [name, *map(number, vector[:shown].tolist()), dots, f"‖{name}‖ = {_norm(vector)}"]
                for name, vector in named
            ]
            return self.terminal.table([""] * len(rows[0]), rows, "<" + ">" * shown + "<<")

        title = self.title(f"query and key, {len(self.about.query)} numbers each")
        if about.query_unrotated is not None:
            places = f"{about.query_position} and {about.key_position}"
            title += f", turned by their positions {places}"
        return [title, *self.fitting(len(self.about.query), table)]

    def terms(self) -> list[str]:
        """The largest products, the sum of the others, and the sum of all."""
        products = self.about.product.double()
        kept = products.abs().topk(min(self.top, len(products))).indices.tolist()
        end = [["sum", "", "", self.terminal.paint(number(self.about.dot), "bold"), ""]]
        if others := len(products) - len(kept):
            rest = number(_without(products, kept).sum().item())
            end.insert(0, [f"{others} others", "", "", rest, ""])
        title = self.title("query·key", f"the products query[i]·key[i], {_largest(kept)} first")
        header = ["i", "query[i]", "key[i]", "product", ""]

        def table(room: int) -> list[str]:
            rows = [*self.term_rows(products, kept, room), *end]
            return self.terminal.table(header, rows, ">>>><")

        return [title, *self.fitting(_BAR, table)]

    def term_rows(self, products: Tensor, kept: list[int], room: int) -> list[list[str]]:
        about, most = self.about, products.abs().max().item() or 1.0
        both = bool((products[kept] < 0).any())
        rows = []
        for i in kept:
            share = products[i].item() / most
            drawn = signed_bar(share, room // 2) if both else bar(share, room)
            style = "positive" if share > 0 else "negative"
            terms = (about.query[i].item(), about.key[i].item(), products[i].item())
            rows.append([str(i), *map(number, terms), self.terminal.paint(drawn, style)])
        return rows

    def score(self) -> list[str]:
        """The scaled dot product, and which keys the mask allows."""
        about, paint = self.about, self.terminal.paint
        product = f"{number(about.dot)} x {number(about.scale)}"
        allowed, size = int(about.mask.sum()), len(about.mask)
        mask = "allows every key" if allowed == size else f"allows {allowed} of {size} keys"
        if not about.mask[about.key_position]:
            mask += "; this one is masked"
        return [
            self.title("score", f"query·key x scale, scale = {_scale(about)}"),
            f"  score  {product} = {paint(number(about.score), 'bold')}",
            *self.cap(),
            f"  mask   {mask}",
        ]

    def cap(self) -> list[str]:
        """The soft cap on the score, where there is one."""
        about = self.about
        if about.soft_cap is None:
            return []
        cap, capped = number(about.soft_cap), number(about.capped[about.key_position].item())
        return [f"  capped {cap} x tanh({number(about.score)} / {cap}) = {capped}"]

    def row(self) -> list[str]:
        """The softmax over the keys of this query."""
        about = self.about
        shown, exponentials = self.keys_of_row(), about.exponentials
        hidden = [p for p in range(len(about.tokens)) if p not in set(shown)]
        groups = (
            ("other keys", [p for p in hidden if about.mask[p]]),
            ("masked keys", [p for p in hidden if not about.mask[p]]),
        )
        end = []
        for name, group in ((name, group) for name, group in groups if group):
            sums = (exponentials[group].sum().item(), about.probs[group].double().sum().item())
            end.append(["", f"{len(group)} {name}", "", *map(number, sums), ""])
        sums = (about.total, about.probs.double().sum().item())
        bold = (self.terminal.paint(number(value), "bold") for value in sums)
        end.append(["", "sum", "", *bold, ""])
        title = self.title(
            "probs", f"softmax of the row, exp(score − max) / sum; max = {number(about.largest)}"
        )
        score = "score" if about.soft_cap is None else "capped"
        header = ["key", "", score, "exp(score − max)", "prob", ""]

        def table(room: int) -> list[str]:
            rows = [self.key_row(p, exponentials[p].item(), room) for p in shown]
            return self.terminal.table(header, [*rows, *end], "><>>><")

        return [title, *self.fitting(_BAR, table)]

    def key_row(self, position: int, exponential: float, room: int) -> list[str]:
        about, paint = self.about, self.terminal.paint
        prob = about.probs[position].item()
        cells = [
            str(position),
            self.token(position),
            number(about.capped[position].item()),
            number(exponential) if about.mask[position] else "masked",
            number(prob),
        ]
        if position == about.key_position:
            cells = [paint(cell, "chosen") for cell in cells]
        return [*cells, paint(bar(prob, room), "positive")]

    def keys_of_row(self) -> list[int]:
        """The keys shown, in reading order: all, or the most attended ones and the chosen one."""
        about = self.about
        allowed = [p for p in range(len(about.tokens)) if about.mask[p]]
        if len(allowed) > _WHOLE_ROW:
            order = about.probs.double().argsort(descending=True, stable=True).tolist()
            allowed = [p for p in order if about.mask[p]][: max(self.top, 1)]
        return sorted({*allowed, about.key_position})

    def sum(self) -> list[str]:
        """The largest prob·value, and z, the sum of all of them."""
        about = self.about
        norms = about.contributions.norm(dim=-1).masked_fill(~about.mask, -1.0)
        kept = norms.topk(min(self.top, int(about.mask.sum()))).indices.tolist()
        order = _largest(kept).replace("largest", "longest")
        title = f"the sum of prob·value, {order} first; length = ‖prob·value‖"

        def table(shown: int) -> list[str]:
            dims = about.z.double().abs().topk(shown).indices.sort().values.tolist()
            header = ["key", "", "prob", "‖value‖", "length", *(f"z[{d}]" for d in dims)]
            return self.terminal.table(
                header, self.sum_rows(kept, dims), "><" + ">" * (3 + len(dims))
            )

        return [self.title("z", title), *self.fitting(min(_MOST_OF_Z, len(about.z)), table)]

    def sum_rows(self, kept: list[int], dims: list[int]) -> list[list[str]]:
        about, terms = self.about, self.about.contributions

        def numbers(vector: Tensor) -> list[str]:
            return [_norm(vector), *(number(vector[d].item()) for d in dims)]

        rows = []
        for p in kept:
            weight = number(about.probs[p].item())
            rows.append([str(p), self.token(p), weight, _norm(about.value[p]), *numbers(terms[p])])
        if others := int(about.mask.sum()) - len(kept):
            rest = _without(terms, kept).sum(dim=0)
            rows.append(["", f"{others} others", "", "", *numbers(rest)])
        z = [self.terminal.paint(cell, "bold") for cell in numbers(about.z)]
        return [*rows, ["", "z", "", "", *z]]

    def fitting(self, most: int, table: Callable[[int], list[str]]) -> list[str]:
        """The table with as many numbers, or as long bars, as a line has room for; at least one."""
        lines = table(most)
        while most > 1 and max(map(cell_width, lines)) > self.terminal.width:
            most -= 1
            lines = table(most)
        return lines

    def title(self, name: str, text: str = "") -> str:
        return self.terminal.paint(name, "bold") + (f" = {text}" if text else "")

    def token(self, position: int) -> str:
        return cut(visible(self.about.tokens[position]), self.token_width)

    def place(self, position: int) -> str:
        return self.terminal.paint(f"{position} {self.token(position)}", "chosen")


def _largest(kept: Sequence[int]) -> str:
    return "the largest" if len(kept) == 1 else f"the {len(kept)} largest"


def _norm(vector: Tensor) -> str:
    return number(vector.double().norm().item())


def _without(values: Tensor, left_out: Sequence[int]) -> Tensor:
    kept = torch.ones(len(values), dtype=torch.bool)
    kept[list(left_out)] = False
    return values[kept]


def _scale(about: Explanation) -> str:
    """The formula of the factor, found from its value."""
    width = len(about.query)
    value = number(about.scale)
    for formula, factor in (
        ("1", 1.0),
        (f"1/√{width}", width**-0.5),
        (f"1/(layer + 1) = 1/{about.layer + 1}", 1 / (about.layer + 1)),
        (
            f"1/(√{width}·(layer + 1)) = 1/(√{width}·{about.layer + 1})",
            width**-0.5 / (about.layer + 1),
        ),
    ):
        if math.isclose(about.scale, factor, rel_tol=1e-9):
            return formula if formula == "1" else f"{formula} = {value}"
    return value
