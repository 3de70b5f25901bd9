"""The config contract: what becomes of every field that a config.json of a known family may have.

A field is read; or irrelevant, with the reason why no number depends on it; or refused when it is
not what minibert computes. `check_contract` refuses by this table, and a test perturbs every field
that transformers has and compares the numbers. A field that transformers itself does not know in
a family changes nothing there, and nothing here. families/ has each family's part.
"""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.architectures import MODEL_TYPES
from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.verdicts import READ, Judged
from minibert.errors import CheckpointError

__all__ = ["CONTRACT", "READ", "Judged", "check_contract"]

CONTRACT: Mapping[str, Mapping[str, Judged]] = {
    model_type: family.contract
    for family in FAMILIES.values()
    for model_type in family.class_prefixes
}


def check_contract(config: Mapping[str, Any], model_type: str) -> None:
    """Raise CheckpointError for the first field that is not what minibert computes."""
    for name, judged in CONTRACT[model_type].items():
        # Compared with their types, because True equals 1.
        allowed = [(type(value), value) for value in judged.allowed]
        if judged.verdict != "refused" or name not in config:
            continue
        if (type(config[name]), config[name]) not in allowed:
            accepted = " or ".join(map(repr, judged.allowed))
            raise CheckpointError(
                f"config.json: {name} is {config[name]!r:.200}, expected {accepted}: "
                f"{judged.reason}. See docs/families.md#fields-of-a-configjson"
            )
    own_code = config.get("auto_map")
    known = FAMILIES[MODEL_TYPES[model_type]].taken_over
    if isinstance(own_code, Mapping) and any(
        "Model" in str(name) and not (known and str(code).startswith(known))
        for name, code in own_code.items()
    ):
        raise CheckpointError(
            f"config.json: auto_map names code of its own for the model ({own_code!r:.200}), which "
            "minibert does not run. Save the model as one of transformers' own classes. "
            "See docs/security.md#what-is-promised"
        )
