"""A back end for vLLM 0.32: `minibert.attend` over the paged cache, with statistics by request.

step of the server -> rows of each request -> z, which vLLM continues with, and numbers -> Parquet

A request's keys are gathered from its pages, and one call gives z and its statistics, for a prompt,
a part of one and a decoded token. When the request ends, FOLDER/REQUEST.parquet is written, which
`minibert.attached.measured_files.read` and `minibert watch` read. `minibert.vllm_plugin` turns it
on. What would change a result and is not computed here is refused when the server starts.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)

from minibert.attached.measured_files import write_parquet
from minibert.attached.measuring import LayerMeasured, Measured, Numbers, checked, of_queries
from minibert.errors import MinibertError, TraceError
from minibert.kernels.api import attend
from minibert.kernels.call import Want
from minibert.vllm_plugin import FOLDER, WANT

_MOST_OF_A_NAME = 200


@dataclass(frozen=True)
class Row:
    """A request's part of one step."""

    request: str
    tokens: slice
    """Its queries among those of the step."""
    length: int
    """Its keys, those of the step included."""
    pages: Tensor


@dataclass(frozen=True)
class Step:
    """What all layers of a step are given."""

    rows: Sequence[Row]
    slots: Tensor
    """Where the keys of each token go: page · slots of a page + slot; -1 for none."""


class Recorder:
    """The numbers of the requests that run, by request and name of the layer."""

    def __init__(self, folder: Path, want: Want) -> None:
        self.folder, self.want = folder, want
        self.model_name = ""
        self.runner: Any = None
        self.followed: list[Any] = []
        self.requests: dict[str, dict[str, LayerMeasured]] = {}

    def add(self, request: str, layer_name: str, found: Numbers) -> None:
        """Keep the numbers of a call."""
        layers = self.requests.setdefault(request, {})
        layer = layers.setdefault(layer_name, LayerMeasured())
        if found.past < layer.n_queries:
            # The request was put aside, and is computed again.
            layer = layers[layer_name] = LayerMeasured()
        layer.add(found)

    def finish(self, requests: Collection[str]) -> None:
        """Write the files of requests that ended."""
        for request in sorted(requests):
            if layers := self.requests.pop(request, None):
                seen = Measured(self.model_name, self.want)
                seen.runs.append({"layers": [*layers.values()]})
                name = quote(request, safe="")[:_MOST_OF_A_NAME]
                write_parquet(self.folder / f"{name}.parquet", seen, request)

    def ids(self, common: CommonAttentionMetadata) -> list[str]:
        """The request of each row of a step; "" for rows that vLLM makes up to warm up."""
        count = common.num_reqs
        if (batch := getattr(self.runner, "input_batch", None)) is not None:
            names = [*batch.req_ids]
        else:
            # Model runner V2.
            table = self.runner.req_states.req_id_to_index if self.runner else {}
            of_row = {row: name for name, row in table.items()}
            rows = [] if common.req_idx is None else common.req_idx.tolist()
            names = [of_row.get(row, "") for row in rows]
        return (names + [""] * count)[:count]

    def follow(self) -> None:
        """Have the runner of this process tell what it begins with: vLLM has no call for this."""
        homes = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
        runners = [getattr(sys.modules.get(home), "GPUModelRunner", None) for home in homes]
        if not any(runners):
            raise MinibertError(f"This vLLM has none of {', '.join(homes)}; 0.32 is known.")
        for runner in filter(None, runners):
            if runner not in self.followed:
                self.followed.append(runner)
                runner.execute_model = self._told(runner.execute_model)

    def _told(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(execute)
        def execute_model(runner: Any, scheduler_output: Any, *others: Any, **named: Any) -> Any:
            self.runner = runner
            self.finish(scheduler_output.finished_req_ids)
            return execute(runner, scheduler_output, *others, **named)

        return execute_model


_recorders: list[Recorder] = []


def recorder() -> Recorder:
    """The one of this process. Raises TraceError for settings that cannot be used."""
    if not _recorders:
        folder = Path(os.environ.get(FOLDER, ""))
        if not os.environ.get(FOLDER) or not folder.is_dir():
            raise TraceError(f"{FOLDER}={folder}: expected a folder, where the numbers go.")
        text = os.environ.get(WANT, '["entropy", "received"]')
        try:
            items = [tuple(one) if isinstance(one, list) else one for one in json.loads(text)]
        except (TypeError, ValueError) as error:
            raise TraceError(
                f'{WANT}={text:.200}: expected JSON, as ["entropy", ["top_keys", 8]].'
            ) from error
        _recorders.append(Recorder(folder, checked(items)))
        # A server that ends does not say that its last requests did.
        atexit.register(lambda: _recorders[0].finish([*_recorders[0].requests]))
    return _recorders[0]


class Backend(AttentionBackend):
    """Attention by `minibert.attend`; vLLM chooses it as CUSTOM."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        """The name in vLLM's registry."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["Attention"]:
        """What computes a layer."""
        return Attention

    @staticmethod
    def get_builder_cls() -> type["Builder"]:
        """What makes the metadata of a step."""
        return Builder

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Windows are computed."""
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        """Sinks are computed."""
        return True


class Builder(AttentionMetadataBuilder[Step]):
    """Makes the metadata of a step; its graphs are not captured, which is the base's default."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        recorder().model_name = Path(vllm_config.model_config.model).name
        recorder().follow()

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Step:
        """The rows of a step."""
        common = common_attn_metadata
        if common.causal is not True:
            raise MinibertError("vLLM asks for attention without causal order, which is not known.")
        starts, lengths = common.query_start_loc_cpu.tolist(), common.seq_lens.tolist()
        rows = [
            Row(request, slice(start, stop), length, pages)
            for request, start, stop, length, pages in zip(
                recorder().ids(common), starts[:-1], starts[1:], lengths, common.block_table_tensor,
                strict=True,
            )
            if stop > start  # others fill up a batch
        ]  # fmt: skip
        return Step(rows, common.slot_mapping)


class Attention(AttentionImpl[Step]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        _check(get_current_vllm_config(), attn_type, kv_cache_dtype)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype, self.sinks = kv_cache_dtype, sinks
        self.sliding_window, self.soft_cap = sliding_window, logits_soft_cap or None
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes)
        self.shares_keys = kv_sharing_target_layer_name is not None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Step | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """z in `output`, (token, head, d_value); kv_cache is (page, kv_head, slot, key | value)."""
        if attn_metadata is None:
            # A pass that only measures memory.
            return output.zero_()
        if not self.shares_keys:
            _store(kv_cache, torch.cat((key, value), -1), attn_metadata.slots)
        for row in attn_metadata.rows:
            z, found = self._of_request(query[row.tokens], kv_cache, row)
            output[row.tokens] = z
            if row.request:
                recorder().add(row.request, layer.layer_name, found)
        return output

    def _of_request(self, query: Tensor, kv_cache: Tensor, row: Row) -> tuple[Tensor, Numbers]:
        """z of a request's queries, (token, head, d_value), and their statistics."""
        pages = row.pages[: -(-row.length // kv_cache.shape[2])].long()
        kept = kv_cache[pages].transpose(0, 1).flatten(1, 2)[None, :, : row.length]
        key, value = kept.split((self.head_size, kept.shape[-1] - self.head_size), -1)
        window = None if self.sliding_window is None else (self.sliding_window - 1, 0)
        compute = partial(
            attend, query.transpose(0, 1)[None], key, value, causal=True, window=window,
            scale=self.scale, soft_cap=self.soft_cap, impl="eager" if len(query) == 1 else "auto",
            sinks=None if self.sinks is None else self.sinks.to(query.dtype),
            alibi_slopes=None
            if self.alibi_slopes is None
            else self.alibi_slopes.to(query.device),
        )  # fmt: skip
        z, values = of_queries(compute, recorder().want, 0, row.length)
        n_queries = len(query)
        found = Numbers(values, row.length - n_queries, n_queries, 0, n_queries)
        return z[0].transpose(0, 1), found


def _store(kv_cache: Tensor, vectors: Tensor, slots: Tensor) -> None:
    """Write keys and values, (token, kv_head, key | value), to their slots."""
    used = slots >= 0
    slots, vectors = slots[used], vectors[: len(slots)][used]
    size = kv_cache.shape[2]
    kv_cache[slots // size, :, slots % size] = vectors.to(kv_cache.dtype)


def _check(config: VllmConfig, attn_type: str, kv_cache_dtype: str) -> None:
    """Raise MinibertError for what this back end does not compute."""
    parallel = config.parallel_config
    problems = {
        f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
        f"a cache of {kv_cache_dtype}": kv_cache_dtype not in ("auto", "float16", "bfloat16"),
        "speculative decoding": config.speculative_config is not None,
        "several processes for a model": parallel.world_size > 1,
    }
    if found := [name for name, given in problems.items() if given]:
        raise MinibertError(
            f"minibert's back end does not measure {', '.join(found)}. Start vLLM without it, or "
            f"without {FOLDER}."
        )
