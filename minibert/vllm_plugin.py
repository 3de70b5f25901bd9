"""The entry point of vLLM's plug-ins (group `vllm.general_plugins`): it makes the back end known.

vLLM calls `register` in each of its processes. Where nothing is to be measured it returns at once,
and nothing of minibert runs in the server.

    MINIBERT_VLLM_FOLDER   where the Parquet files go; not set: off
    MINIBERT_VLLM_WANT     JSON, as '["entropy", "received", ["top_keys", 8]]'
"""

import os

FOLDER, WANT = "MINIBERT_VLLM_FOLDER", "MINIBERT_VLLM_WANT"
_BACKEND = "minibert.vllm_attention.Backend"


def register() -> None:
    """Register the back end as CUSTOM, and on a CPU, where none can be chosen, as its own."""
    if not os.environ.get(FOLDER):
        return
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, _BACKEND)
    if current_platform.is_cpu():
        register_backend(AttentionBackendEnum.CPU_ATTN, _BACKEND)
