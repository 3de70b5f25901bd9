"""Hooks: the points that can be hooked, and a pass with hooks as a pass with edits.

HookPoint          a place of the model with its hooks
layer_edits        the hooks of a layer as edits of its quantities
HookedRootModule   `run_with_hooks`, `run_with_cache` and what adds and removes hooks
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minibert.errors import EditError, TraceError
from minibert.kernels.eager import soft_capped
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import Change
from minibert.layers.norms import Norm, centred, deviation, normed, scale_of
from minibert.layers.parts import Layer
from minibert.transformer_lens.config import INPUT_SWITCHES, HookedTransformerConfig
from minibert.transformer_lens.names import Slice

Hooked = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]
PreHook = Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]
Name = str | Callable[[str], bool]
Hooks = Sequence[tuple[Name, Callable[..., Any]]]
Device = torch.device | str | None

Hook = Callable[..., Any]


@dataclass
class LensHandle:
    """A hook on a point, and until when it stays."""

    user_hook: Hook
    is_permanent: bool = False
    context_level: int | None = None


class HookPoint(nn.Module):
    """The identity, with hooks on the tensor (forward) and on its gradient (backward)."""

    def __init__(self) -> None:
        super().__init__()
        self.fwd_hooks: list[LensHandle] = []
        self.bwd_hooks: list[LensHandle] = []
        self.ctx: dict[Any, Any] = {}
        self.name: str | None = None

    def add_hook(
        self,
        hook: Hook,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Call `hook` from now on; with `prepend` before those that are here already."""
        if not callable(hook):
            raise EditError(f"{self.name}: a hook is {hook!r:.80}; expected a function.")
        hooks = self._hooks(dir)
        hooks.insert(0 if prepend else len(hooks), LensHandle(hook, is_permanent, level))

    def add_perma_hook(self, hook: Hook, dir: str = "fwd") -> None:
        """Call `hook` until `remove_hooks(including_permanent=True)`."""
        self.add_hook(hook, dir, is_permanent=True)

    def remove_hooks(
        self,
        dir: str = "fwd",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of a direction ("fwd", "bwd" or "both"), or those of a level of it."""
        for each in ("fwd", "bwd") if dir == "both" else (dir,):
            hooks = self._hooks(each)
            hooks[:] = [
                handle
                for handle in hooks
                if (handle.is_permanent and not including_permanent)
                or (level is not None and handle.context_level != level)
            ]

    def has_hooks(self, dir: str = "both") -> bool:
        """True where a hook of that direction is here."""
        return any(map(self._hooks, ("fwd", "bwd") if dir == "both" else (dir,)))

    @property
    def writes(self) -> bool:
        """True where a hook may change the tensor or its gradient."""
        fwd = (getattr(each.user_hook, "reads_only", False) for each in self.fwd_hooks)
        return bool(self.bwd_hooks) or not all(fwd)

    def clear_context(self) -> None:
        """Empty `ctx`, where hooks keep what they like."""
        self.ctx = {}

    def layer(self) -> int:
        """The layer that the name "blocks.3.attn.hook_q" says. Raises EditError without one."""
        parts = (self.name or "").split(".")
        if len(parts) < 2 or not parts[1].isdigit():
            raise EditError(f"{self.name} belongs to no layer.")
        return int(parts[1])

    def forward(self, x: Tensor) -> Tensor:
        """x, after the hooks.

        Raises EditError for a hook that returns something else than a tensor of the same shape.
        """
        if not self.has_hooks():
            return x
        if self.writes:
            x = x.clone()
        for handle in tuple(self.fwd_hooks):
            x = self._changed(handle.user_hook(x, hook=self), x)
        if self.bwd_hooks and x.requires_grad:
            # A tensor of its own: a gradient hook must see this point's gradient alone.
            x = x.view_as(x)
            x.register_hook(self._backward)
        return x

    def _backward(self, gradient: Tensor) -> Tensor:
        for handle in tuple(self.bwd_hooks):
            found = handle.user_hook(gradient, hook=self)
            first = found[0] if isinstance(found, tuple) and len(found) == 1 else found
            gradient = self._changed(first, gradient)
        return gradient

    def _changed(self, found: Any, x: Tensor) -> Tensor:
        if found is None:
            return x
        if not isinstance(found, Tensor) or found.shape != x.shape:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EditError(
                f"A hook on {self.name} returned {shown}; expected a tensor of the shape "
                f"{tuple(x.shape)}, or None."
            )
        return found

    def _hooks(self, direction: str) -> list[LensHandle]:
        if direction not in ("fwd", "bwd"):
            raise EditError(f'dir={direction!r:.80}: expected "fwd" or "bwd".')
        return self.fwd_hooks if direction == "fwd" else self.bwd_hooks


Points = Mapping[str, HookPoint]


def layer_edits(
    points: Points, body: Body, evaluation: Evaluation, cfg: HookedTransformerConfig
) -> Callable[[int], dict[str, Change]]:
    """What the points change of each layer's table, asked for layer by layer."""
    config = body.config
    quantities = _quantities(config)

    def of_layer(layer: int) -> dict[str, Change]:
        edits: dict[str, Change] = {}
        for name, (quantity, by_head) in quantities.items():
            point = _active(points, f"blocks.{layer}.{name}")
            if point is not None:
                edits[quantity] = _by_position(point) if by_head else point
        scores = _active(points, f"blocks.{layer}.attn.hook_attn_scores")
        if scores is not None:
            edits |= _through_scores(scores, edits.get("probs"), config, evaluation, layer)
        own, before = body.layers[layer], edits.get("resid_pre")
        return edits | head_inputs(points, f"blocks.{layer}.", own, cfg, before)

    return of_layer


@contextmanager
def listening(points: Points, body: Body, cfg: HookedTransformerConfig) -> Iterator[None]:
    """While this lasts, the points at the body's modules see what passes there.

    Raises EditError for a hook on a point that is switched off.
    """
    check_switches(points, cfg)
    handles: list[RemovableHandle] = []
    try:
        for index, layer in enumerate(body.layers):
            handles.extend(_of_modules(points, f"blocks.{index}.", layer, cfg))
            handles.extend(_in_front(points, f"blocks.{index}.", layer, body.config))
        norm = body.final_norm
        inside = None if norm is None else _inside(norm, points, "ln_final")
        if norm is not None and inside is not None:
            handles.append(norm.register_forward_hook(inside))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _active(points: Points, name: str) -> HookPoint | None:
    point = points.get(name)
    return point if point is not None and point.has_hooks() else None


def _quantities(config: Config) -> dict[str, tuple[str, bool]]:
    """The points that are quantities of the table, and whether their heads stand behind positions.

    They are in the order in which a pass computes them.
    """
    found = {"hook_resid_pre": ("resid_pre", False)}
    turned = config.rotary is not None
    for short, name in (("q", "query"), ("k", "key")):
        # The points in front of a norm of queries and keys are hooks on its module.
        if config.query_key_norm == "none":
            found[f"attn.hook_{short}"] = (f"{name}_unrotated" if turned else name, True)
        if turned:
            found[f"attn.hook_rot_{short}"] = (name, True)
    found |= {
        "attn.hook_v": ("value", True),
        "attn.hook_pattern": ("probs", False),
        "attn.hook_z": ("z", True),
        "attn.hook_result": ("head_out", True),
    }
    before = config.norm_place == "before"
    found |= {"hook_attn_out": ("attn_out", False)} if before else {}
    found |= {} if config.parallel else {"hook_resid_mid": ("resid_mid", False)}
    found["mlp.hook_pre"] = ("mlp_gate" if config.gated else "mlp_pre", False)
    found |= {"mlp.hook_pre_linear": ("mlp_pre", False)} if config.gated else {}
    found["mlp.hook_post"] = ("mlp_post", False)
    found |= {"hook_mlp_out": ("mlp_out", False)} if before else {}
    return found | {"hook_resid_post": ("resid_post", False)}


def _by_position(point: HookPoint) -> Change:
    """The change of a quantity whose heads stand in front of its positions."""
    return lambda value: point(value.transpose(1, 2)).transpose(1, 2)


def _through_scores(
    point: HookPoint, pattern: Change | None, config: Config, evaluation: Evaluation, layer: int
) -> dict[str, Change]:
    """The scores as TransformerLens has them: after the soft cap and the mask.

    So what a hook writes there goes into the softmax as it is, and the table's own softmax, which
    masks behind it, is replaced. A query that no key is left for looks nowhere.
    """
    window = config.window(layer)
    allowed = evaluation if window is None else evaluation.in_window(window)
    found: list[Tensor] = []

    def scores(value: Tensor) -> Tensor:
        masked = soft_capped(value, config.attention_soft_cap)
        found.append(point(masked.masked_fill(~allowed.allowed.full(), float("-inf"))))
        return value

    def probs(value: Tensor) -> Tensor:
        if point.writes:
            value = torch.softmax(found[-1], -1).nan_to_num(0.0)
        return value if pattern is None else pattern(value)

    return {"scores": scores, "probs": probs}


def _of_modules(
    points: Points, at: str, layer: Layer, cfg: HookedTransformerConfig
) -> Iterator[RemovableHandle]:
    """Listen at the norms of a layer, inside and behind them."""
    post = "" if layer.attention_norm is None else "_post"
    norms = (
        (layer.attention_norm, "ln1", None),
        (layer.attention_output_norm, f"ln1{post}", "hook_attn_out"),
        (layer.mlp_norm, "ln2", None),
        (layer.mlp_output_norm, f"ln2{post}", "hook_mlp_out"),
    )
    for norm, name, behind in norms:
        if norm is None:
            continue
        by_head = norm is layer.attention_norm and reads_by_head(cfg)
        inside = _inside(norm, points, at + name, by_head=by_head)
        if inside is not None:
            yield norm.register_forward_hook(inside)
        out = None if behind is None else _active(points, at + behind)
        if out is not None:
            yield norm.register_forward_hook(_output(out))


def _in_front(points: Points, at: str, layer: Layer, config: Config) -> Iterator[RemovableHandle]:
    """Listen where the MLP reads its input, and in front of norms of queries and keys."""
    attention, mlp = layer.attention, layer.mlp
    point = _active(points, f"{at}hook_mlp_in")
    if point is not None:
        first = (mlp.gate, mlp.up) if layer.mlp_norm is None else (layer.mlp_norm,)
        read = read_by_mlp(point)
        for module in filter(None, first):
            yield module.register_forward_pre_hook(read)
    for short, norm in (("q", attention.query_norm), ("k", attention.key_norm)):
        point = _active(points, f"{at}attn.hook_{short}")
        if norm is not None and point is not None:
            of_heads = attention.norms_heads
            yield norm.register_forward_pre_hook(_projected(point, config.d_head, of_heads))


def _output(point: HookPoint) -> Hooked:
    return lambda module, inputs, out: point(out)


def _projected(point: HookPoint, d_head: int, of_heads: bool) -> PreHook:
    if of_heads:
        return lambda module, inputs: (point(inputs[0].transpose(1, 2)).transpose(1, 2),)
    return lambda module, inputs: (point(inputs[0].unflatten(-1, (-1, d_head))).flatten(-2),)


def _inside(norm: Norm, points: Points, name: str, *, by_head: bool = False) -> Hooked | None:
    """What listens between a norm's division and its weight; None where no hook is.

    With `by_head` the norm is called for inputs of heads (batch, position, head, d_model).
    """
    scale, normalized = (
        points.get(f"{name}.hook_{each}", HookPoint()) for each in ("scale", "normalized")
    )
    if not scale.has_hooks() and not normalized.has_hooks():
        return None
    seen: list[tuple[Tensor, Tensor | None]] = []

    def listen(module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        x = inputs[0]
        if by_head and x.dim() == 3:
            # The stream itself, which no head reads then.
            return None
        # A gated MLP reads its norm twice in one pass, which is one place in the model.
        if seen and seen[-1][0] is x:
            return seen[-1][1]
        wide = x.float() if x.dtype.itemsize < 4 else x
        divided = normalized(centred(norm, wide) / scale(deviation(norm, wide)))
        found = None
        if scale.writes or normalized.writes:
            found = divided * scale_of(norm)
            bias = getattr(norm, "bias", None)
            found = (found if bias is None else found + bias).to(out.dtype)
        seen[:] = [(x, found)]
        return found

    return listen


_QUANTITIES = ("query_input", "key_input", "value_input")


def check_switches(points: Points, cfg: HookedTransformerConfig) -> None:
    """Raise EditError for a hook on a point that is switched off."""
    for switch, names in INPUT_SWITCHES.items():
        if getattr(cfg, switch):
            continue
        for layer in range(cfg.n_layers):
            for name in names:
                if points[f"blocks.{layer}.{name}"].has_hooks():
                    raise EditError(
                        f"blocks.{layer}.{name} has a hook and is switched off; call "
                        f"model.set_{switch}(True), or remove the hook."
                    )


def reads_by_head(cfg: HookedTransformerConfig) -> bool:
    """True where each head has an input of its own."""
    return cfg.use_attn_in or cfg.use_split_qkv_input


def head_inputs(
    points: Points, at: str, layer: Layer, cfg: HookedTransformerConfig, before: Change | None
) -> dict[str, Change]:
    """The edits that hand the stream to each head through its points; none where nothing listens.

    `before` is the edit of resid_pre itself.
    """
    if not reads_by_head(cfg):
        return {}
    own = INPUT_SWITCHES["use_split_qkv_input" if cfg.use_split_qkv_input else "use_attn_in"]
    inside = () if layer.attention_norm is None else ("ln1.hook_scale", "ln1.hook_normalized")
    if not any(points[at + name].has_hooks() for name in (*own, *inside)):
        return {}
    attention = layer.attention
    found: list[Tensor] = []

    def resid_pre(stream: Tensor) -> Tensor:
        stream = stream if before is None else before(stream)
        for name in own:
            shared = name in ("hook_k_input", "hook_v_input")
            heads = attention.n_kv_heads if shared else attention.n_heads
            read = points[at + name](stream.unsqueeze(2).expand(-1, -1, heads, -1))
            found.append(normed(layer.attention_norm, read).transpose(1, 2))
        return stream

    def read_from(index: int) -> Change:
        return lambda value: found[index]

    # With hook_attn_in there is one input for all three.
    edits = {name: read_from(min(n, len(own) - 1)) for n, name in enumerate(_QUANTITIES)}
    return edits | {"resid_pre": resid_pre}


def read_by_mlp(point: HookPoint) -> PreHook:
    """What changes the input of the first module that the MLP's input goes through."""
    seen: list[tuple[Tensor, Tensor]] = []

    def change(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        # A gated MLP reads its input twice in one pass, which is one place in the model.
        if not seen or seen[-1][0] is not x:
            seen[:] = [(x, point(x))]
        return (seen[-1][1], *rest)

    return change


# Their positions stand in front of a head axis.
_BY_HEAD = (
    *("hook_q", "hook_k", "hook_v", "hook_rot_q", "hook_rot_k", "hook_z", "hook_result"),
    *("hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"),
)


def chosen_names(names_filter: Any, names: Iterable[str]) -> list[str]:
    """The names that a filter takes: None (all), a name, a list of names, or a function of a name.

    Raises TraceError for another filter, and for a name that there is not.
    """
    every = list(names)
    if names_filter is None:
        return every
    if callable(names_filter):
        return [name for name in every if names_filter(name)]
    asked = [names_filter] if isinstance(names_filter, str) else names_filter
    if not isinstance(asked, list | tuple | set) or not all(isinstance(n, str) for n in asked):
        raise TraceError(
            f"names_filter is {names_filter!r:.80}; expected a name, a list of names, a function "
            "of a name, or None."
        )
    for name in asked:
        if name not in every:
            raise TraceError(
                f"names_filter has {name!r:.80}, which is no hook point here; `model.hook_dict` "
                "has all of them."
            )
    return [name for name in every if name in asked]


def saving(
    cache: dict[str, Tensor],
    *,
    device: torch.device | str | None,
    remove_batch_dim: bool,
    pos_slice: Slice,
    gradient: bool = False,
) -> Callable[..., None]:
    """A hook that puts the tensor under its point's name into `cache`, a gradient as name_grad."""
    save = partial(
        _save, cache, device=device, unbatched=remove_batch_dim, at=pos_slice, gradient=gradient
    )
    save.reads_only = True  # type: ignore[attr-defined]
    return save


def _save(
    cache: dict[str, Tensor],
    tensor: Tensor,
    *,
    hook: Any,
    device: torch.device | str | None,
    unbatched: bool,
    at: Slice,
    gradient: bool,
) -> None:
    saved = tensor.detach().to(device)
    if unbatched:
        if saved.dim() and saved.shape[0] != 1:
            raise TraceError(
                f"remove_batch_dim=True, and {hook.name} holds {saved.shape[0]} sentences; "
                "expected one."
            )
        saved = saved[0]
    # A norm of inputs of heads has their axis too.
    by_head = hook.name.endswith(_BY_HEAD) or (".ln1." in hook.name and tensor.dim() == 4)
    places = -3 if by_head else -2
    if saved.dim() >= -places:
        saved = at.apply(saved, places)
    cache[f"{hook.name}_grad" if gradient else hook.name] = saved


class HookedRootModule(nn.Module):
    """A module that knows the hook points below it by name.

    mod_dict    every module below, by name
    hook_dict   every hook point below, by name
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_caching = False
        self.context_level = 0
        self.mod_dict: dict[str, nn.Module] = {}
        self.hook_dict: dict[str, HookPoint] = {}

    def setup(self) -> None:
        """Name every module below. Called when all of them are made."""
        self.mod_dict = {name: module for name, module in self.named_modules() if name}
        for name, module in self.mod_dict.items():
            module.name = name  # type: ignore[assignment]
        points = self.mod_dict.items()
        self.hook_dict = {name: point for name, point in points if isinstance(point, HookPoint)}

    def hook_points(self) -> list[HookPoint]:
        """Every hook point below."""
        return list(self.hook_dict.values())

    def add_hook(
        self,
        name: Name,
        hook: Callable[..., Any],
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Add a hook to the point of that name, or to all whose name the function takes.

        Raises EditError for a name that is no hook point.
        """
        for point in self._points(name):
            point.add_hook(hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, name: Name, hook: Callable[..., Any], dir: str = "fwd") -> None:
        """Add a hook that `reset_hooks` leaves."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def remove_all_hook_fns(
        self,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points."""
        for point in self.hook_points():
            point.remove_hooks(direction, including_permanent, level)

    def clear_contexts(self) -> None:
        """Empty the `ctx` of all points."""
        for point in self.hook_points():
            point.clear_context()

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hooks of all points, and empty their `ctx`."""
        if clear_contexts:
            self.clear_contexts()
        self.remove_all_hook_fns(direction, including_permanent, level)
        self.is_caching = False

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator["HookedRootModule"]:
        """With these hooks, each a pair (name or function of a name, hook); then without them."""
        self.context_level += 1
        try:
            for direction, pairs in (("fwd", fwd_hooks), ("bwd", bwd_hooks)):
                for name, hook in pairs:
                    self.add_hook(name, hook, direction, level=self.context_level)
            yield self
        finally:
            if reset_hooks_end:
                self.reset_hooks(clear_contexts, level=self.context_level)
            self.context_level -= 1

    def run_with_hooks(
        self,
        *model_args: Any,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """One forward pass with these hooks.

        Backward hooks are gone when it returns, unless reset_hooks_end=False; a warning says so.
        """
        if len(bwd_hooks) and reset_hooks_end:
            warnings.warn(
                "run_with_hooks removes its backward hooks before a backward pass can run; pass "
                "reset_hooks_end=False, or use `with model.hooks(bwd_hooks=...)`.",
                stacklevel=2,
            )
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self(*model_args, **model_kwargs)

    def run_with_cache(
        self,
        *model_args: Any,
        names_filter: Any = None,
        device: Device = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Any, Any]:
        """What the module returns, and what passed through its hook points, by name.

        names_filter    which points: a name, a list, a function of a name; None: all
        device          where the tensors are kept; None: where they are
        incl_bwd        call backward on what is returned, one number; gradients are name_grad
        pos_slice       the positions that are kept, see `Slice`
        """
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, pos_slice=pos_slice
        )
        with self.hooks(forward, backward, reset_hooks_end, clear_contexts):
            out = self(*model_args, **model_kwargs)
            if incl_bwd:
                _check_number(out)
                out.backward()
        return out, cache

    def get_caching_hooks(
        self,
        names_filter: Any = None,
        incl_bwd: bool = False,
        device: Device = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: Any = None,
    ) -> tuple[dict[str, Tensor], list[Any], list[Any]]:
        """A dictionary, and the forward and backward hooks that would fill it."""
        cache = {} if cache is None else cache
        options: dict[str, Any] = {
            "device": device,
            "remove_batch_dim": remove_batch_dim,
            "pos_slice": Slice.unwrap(pos_slice),
        }
        names = chosen_names(names_filter, self._cached_names(names_filter))
        forward = [(name, saving(cache, **options)) for name in names]
        backward = [(name, saving(cache, **options, gradient=True)) for name in names]
        return cache, forward, backward if incl_bwd else []

    def add_caching_hooks(
        self,
        names_filter: Any = None,
        incl_bwd: bool = False,
        device: Device = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """A dictionary that every pass fills from now on, until `reset_hooks`."""
        self.is_caching = True
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim, cache
        )
        for direction, pairs in (("fwd", forward), ("bwd", backward)):
            for name, hook in pairs:
                self.add_hook(name, hook, direction)
        return cache

    def _cached_names(self, names_filter: Any) -> list[str]:
        """The names that a function of a name chooses from; all that there are for a list."""
        return list(self.hook_dict)

    def _points(self, name: Name) -> list[HookPoint]:
        if not isinstance(name, str):
            return [self.hook_dict[each] for each in self._cached_names(name) if name(each)]
        if name not in self.hook_dict:
            near = [each for each in self.hook_dict if not each.startswith("blocks.")]
            near += [each for each in self.hook_dict if each.startswith("blocks.0.")]
            raise EditError(f"{name!r:.80} is no hook point; there are {', '.join(near)}.")
        return [self.hook_dict[name]]


def _check_number(out: Any) -> None:
    if not isinstance(out, Tensor) or out.numel() != 1 or not out.requires_grad:
        raise TraceError(
            "incl_bwd=True differentiates what the model returns, which is not one number with a "
            'gradient here; pass return_type="loss", with gradients switched on.'
        )
