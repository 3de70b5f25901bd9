"""Every kernel variant, compiled without a GPU: is it still what was measured?

    python -m benchmarks.static_gate [MODULE ...] [--only REGEX] [--update] [--sass FOLDER]

A module of kernels exports VARIANTS, a list of dictionaries: `name`; `kernel`, the function's name
in the module; `signature`, argument to Triton type; `constexprs`; `num_warps`; `num_stages`;
`score_elements`, the cells of the score matrix that one program covers in one turn of its inner
loop. Optional: `divisible`, the arguments that are multiples of 16 (pointers and strides unless
told), `matrix`, the matrix instruction that must occur (where the tensors are of 16 bits that of
the GPU, none in float32), `arch`, the GPU it is compiled for (90, Hopper, unless told).

A variant passes when the matrix instruction occurs, wgmma is not serialised, nothing spills, the
GPU has the shared memory, and registers and instructions per score element are within
static_budget.json. The exit status is 1 when one does not, when nothing was compiled, and when
budget and variants name different kernels.
"""

import argparse
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import sass
from minibert.bench.result_rows import Row
from minibert.errors import how_to_install

REPOSITORY = Path(__file__).resolve().parents[1]
BUDGET = Path(__file__).with_name("static_budget.json")
MODULES = ("benchmarks.kernel_variants",)
# Room in a new budget. Triton brings its ptxas, so that the numbers move with the code alone.
SPARE_REGISTERS, SPARE_INSTRUCTIONS = 0, 1.03
MOST_REGISTERS, REGISTER_FILE = 255, 65_536
# Of an SM, for one program (CUDA C++ programming guide, technical specifications), and the matrix
# instruction, by compute capability.
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
MATRIX = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}

Variant = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when every variant is within its budget."""
    # A kernel that was decorated under the interpreter cannot be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    chosen = _parser().parse_args(arguments)
    try:
        import triton
    except ImportError:
        print(f"benchmarks.static_gate needs triton: {how_to_install('triton')}")
        return 1
    budget = read_budget(chosen.budget)
    rows = []
    print(heading())
    wanted = [
        (variant, kernel)
        for variant, kernel in variants(chosen.modules or MODULES)
        if re.search(chosen.only, variant["name"])
    ]
    # The compilers run outside of Python most of the time, so threads are enough.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for found in threads.map(lambda one: row(*one, folder=chosen.sass), wanted):
            rows.append(judged(found, budget, chosen.update))
            print(shown(rows[-1]), flush=True)
    whole = not chosen.modules and not chosen.only
    if chosen.update:
        write_budget(chosen.budget, budget, rows, triton.__version__, whole=whole)
    faults = [f"{one['name']}: {fault}" for one in rows for fault in one["faults"]]
    if whole and not chosen.update:
        faults += leftovers(rows, budget)
    if not rows:
        faults.append("no kernel variant was found")
    print("\n".join(["", *faults]) if faults else f"\n{len(rows)} variants, all within budget")
    if faults and triton.__version__ != budget["triton"]:
        print(f"The budget is of triton {budget['triton']}; this is {triton.__version__}.")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compile every kernel variant without a GPU.")
    parser.add_argument("modules", nargs="*", help=f"names or files; {MODULES[0]} unless given")
    parser.add_argument("--only", default="", metavar="REGEX", help="variants with such a name")
    parser.add_argument("--budget", type=Path, default=BUDGET)
    parser.add_argument("--update", action="store_true", help="write what was found as the budget")
    parser.add_argument("--sass", type=Path, metavar="FOLDER", help="keep the machine code there")
    return parser


def variants(modules: Iterable[str]) -> Iterator[tuple[Variant, Any]]:
    """Each variant and its JITFunction; modules without VARIANTS hold no kernels of their own."""
    for name in modules:
        module = loaded(name)
        for variant in getattr(module, "VARIANTS", ()):
            yield variant, getattr(module, variant["kernel"])


def loaded(name: str) -> ModuleType:
    """The module of that name or file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Triton looks up the globals of a kernel in the module it was loaded as.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def compiled(variant: Variant, kernel: Any) -> Any:
    """The variant compiled for its GPU, by Triton's own compiler."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types, constants = dict(variant["signature"]), dict(variant["constexprs"])
    # None takes a branch out at compile time, as it does when a kernel is called with it.
    constants = {name: None for name in names if types.get(name) is None} | constants
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={
            (names.index(name), *place): [["tt.divisibility", 16]]
            for name, *place in divisible(variant, signature)
        },
    )
    options = {"num_warps": variant["num_warps"], "num_stages": variant["num_stages"]}
    return triton.compile(source, target=GPUTarget("cuda", arch_of(variant), 32), options=options)


def arch_of(variant: Variant) -> int:
    """The compute capability it is compiled for, 90 for 9.0."""
    return int(variant.get("arch", 90))


def divisible(variant: Variant, signature: dict[str, Any]) -> set[tuple[Any, ...]]:
    """The arguments that Triton may take for multiples of 16, as it finds out in a real call.

    An argument is (name,), an element of a tuple (name, place).
    """
    if "divisible" in variant:
        named = variant["divisible"]
        return {(one,) if isinstance(one, str) else tuple(one) for one in named}
    found: set[tuple[Any, ...]] = set()
    for name, kind in signature.items():
        if isinstance(kind, str) and (kind.startswith("*") or _is_stride(name, kind)):
            found.add((name,))
        elif isinstance(kind, tuple):
            found |= {(name, place) for place, one in enumerate(kind) if _is_stride(name, one)}
    return found


def _is_stride(name: str, kind: str) -> bool:
    return "stride" in name and kind in ("i32", "i64")


def row(variant: Variant, kernel: Any, *, folder: Path | None = None) -> Row:
    """What the compiler and the disassembler say of a variant, or why it did not compile."""
    found: Row = {"name": variant["name"], "faults": []}
    try:
        binary = compiled(variant, kernel)
        resources = sass.resources(binary.asm["ptx"], arch_of(variant))
        text = sass.disassembly(binary.asm["cubin"])
    # A kernel that does not compile is a finding, and the other variants are still of interest.
    except Exception as error:
        return {**found, "faults": [f"does not compile: {type(error).__name__}: {error}"[:600]]}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        slug = re.sub(r"[^\w.-]+", "-", variant["name"])
        (folder / f"{slug}.sass").write_text(text, encoding="utf-8")
    return {**found, **facts(variant, resources, text, binary.metadata.shared)}


def facts(variant: Variant, resources: sass.Resources, text: str, shared: int) -> Row:
    """The numbers of one variant.

    An instruction is issued for a warp, 32 lanes at once; `per_element` counts lanes, so that it
    is the instructions of a turn · warps · 32 / cells of the score matrix in a turn. `dearest` is
    the same of the longest hot loop: the edge blocks, where masks are.
    """
    code = sass.instructions(text)
    turns = [loop.size for loop in sass.hot_loops(code)] or [len(code)]
    lanes = variant["num_warps"] * 32
    threads_fit = REGISTER_FILE // (max(8, -(-resources.registers // 8) * 8) * lanes)
    return {
        "arch": arch_of(variant),
        "warps": variant["num_warps"],
        "stages": variant["num_stages"],
        "registers": resources.registers,
        "spilled_bytes": resources.spilled_bytes,
        "serialised": resources.serialised,
        "shared_bytes": shared,
        "wgmma": sass.count(code, "HGMMA"),
        "older_matrix": sass.count(code, "HMMA"),
        "tcgen05": sass.count(code, "UTCHMMA"),
        "instructions": len(code),
        "loops": len(sass.hot_loops(code)),
        "per_element": round(turns[0] * lanes / variant["score_elements"], 2),
        "dearest": round(turns[-1] * lanes / variant["score_elements"], 2),
        "programs_per_sm": min(
            threads_fit, SHARED_MEMORY[arch_of(variant)] // max(1, shared + 1024), 32
        ),
        "matrix": wanted_matrix(variant),
    }


def wanted_matrix(variant: Variant) -> str | None:
    """The matrix instruction that must occur: the GPU's own where the tensors are of 16 bits."""
    if "matrix" in variant:
        return str(variant["matrix"]) if variant["matrix"] else None
    kinds = re.findall(r"(?:\*|<)(\w+)", str(list(variant["signature"].values())))
    return MATRIX[arch_of(variant)] if {"fp16", "bf16"} & set(kinds) else None


def judged(found: Row, budget: Row, update: bool) -> Row:
    """The row with its faults; with `update` only those that no budget may allow."""
    if found["faults"]:
        return found
    faults = found["faults"]
    wgmma, tcgen05 = found["wgmma"], found["tcgen05"]
    matrix = {"HGMMA": wgmma, "HMMA": wgmma + found["older_matrix"], "UTCHMMA": tcgen05}
    if found["matrix"] and not matrix[found["matrix"]]:
        faults.append(f"no {found['matrix']} (matrix instruction) in it; {_others(found)}")
    if found["serialised"]:
        faults.append(f"wgmma is serialised: {found['serialised']}")
    if found["shared_bytes"] > (most := SHARED_MEMORY[found["arch"]]):
        faults.append(f"{found['shared_bytes']} bytes of shared memory; the GPU has {most}")
    if found["spilled_bytes"]:
        faults.append(f"spills {found['spilled_bytes']} bytes a thread")
    allowed = budget["variants"].get(found["name"])
    if update:
        return found
    if allowed is None:
        return {**found, "faults": [*faults, "not in the budget; --update writes it"]}
    for field, limit in allowed.items():
        if found[field] > limit:
            faults.append(f"{field} {found[field]}, the budget allows {limit}")
    return found


def _others(found: Row) -> str:
    return f"HMMA, the older kind: {found['older_matrix']}"


def read_budget(path: Path) -> Row:
    """The committed budget; an empty one where there is none yet."""
    if not path.exists():
        return {"triton": "none", "variants": {}}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_budget(path: Path, budget: Row, rows: list[Row], triton: str, *, whole: bool) -> None:
    """Put what was found, with a little room, in `path`; faulty rows are left out."""
    kept = {} if whole else budget["variants"]
    fresh = {one["name"]: limits(one) for one in rows if not one["faults"]}
    lines = [
        f"    {json.dumps(name)}: {json.dumps(allowed)}"
        for name, allowed in sorted({**kept, **fresh}.items())
    ]
    body = ",\n".join(lines)
    path.write_text(
        f'{{\n  "triton": "{triton}",\n  "variants": {{\n{body}\n  }}\n}}\n', encoding="utf-8"
    )


def limits(found: Row) -> Row:
    """The budget of a variant that was found as it should be."""
    return {
        "registers": min(MOST_REGISTERS, found["registers"] + SPARE_REGISTERS),
        "shared_bytes": found["shared_bytes"],
        "per_element": round(found["per_element"] * SPARE_INSTRUCTIONS, 2),
        "dearest": round(found["dearest"] * SPARE_INSTRUCTIONS, 2),
    }


def leftovers(rows: list[Row], budget: Row) -> list[str]:
    """Names in the budget that no variant has any more."""
    gone = set(budget["variants"]) - {one["name"] for one in rows}
    return [f"{name}: in the budget, but there is no such variant" for name in sorted(gone)]


COLUMNS = {
    "warps": 5, "stages": 6, "registers": 9, "spilled_bytes": 13, "shared_bytes": 12,
    "wgmma": 5, "loops": 5, "per_element": 11, "dearest": 7, "programs_per_sm": 15,
}  # fmt: skip


def heading() -> str:
    return "  ".join(["variant".ljust(44), *(name.rjust(w) for name, w in COLUMNS.items())])


def shown(found: Row) -> str:
    cells = [str(found.get(name, "-")).rjust(width) for name, width in COLUMNS.items()]
    mark = "  <- " + "; ".join(found["faults"])[:160] if found["faults"] else ""
    return "  ".join([found["name"].ljust(44), *cells]) + mark


if __name__ == "__main__":
    sys.exit(main())
