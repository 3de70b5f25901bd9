#!/usr/bin/env bash
# The newest release of every dependency, beside the pins of requirements/: some tests in an environment of its own,
# then the kernels compiled by several versions of Triton within the registers of benchmarks/gpu/budgets.json.
# Which build of torch comes is left to pip's own configuration, as in the Makefile. Where the package index cannot be
# reached it says so and ends with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
here=build/newest
tests=(tests/kernels/test_any_call.py tests/bench/test_signatures.py
    tests/checkpoint/test_contract.py tests/test_embedded_models.py tests/test_verification.py)
tritons=(3.6.0 3.7.1 3.9.0)

rm -rf "$here"
"${PYTHON:-python3}" -m venv "$here"
mapfile -t packages < <("$here/bin/python" - <<'END'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["triton"], *extras["verify"], sep="\n")
END
)
# Triton's interpreter, in which the kernels are tested, breaks from numpy 2.4 on.
packages+=('numpy<2.4' pytest hypothesis jaxtyping beartype packaging psutil)
if ! "$here/bin/pip" install --quiet --disable-pip-version-check --upgrade "${packages[@]}"; then
    "$here/bin/pip" download --quiet --no-deps --dest "$here/probe" pytest >/dev/null 2>&1 && exit 1
    echo "NOT VERIFIED: the package index cannot be reached, so the newest releases were not tried"
    exit 0
fi
"$here/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -Ei '^(torch|triton|transformers|numpy|tokenizers) '
export PYTHONPATH=$PWD OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Without the real weights, which take minutes.
MINIBERT_TEST_DATA=/nonexistent CI=1 "$here/bin/python" -m pytest -q "${tests[@]}"

for version in "${tritons[@]}"; do
    "$here/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$here/triton-$version" \
        "triton==$version"
    echo "Triton $version"
    # A cache of its own: "compiled" counts what was not found in one.
    env -u TRITON_INTERPRET TRITON_CACHE_DIR="$here/cache-$version" PYTHONPATH="$here/triton-$version:$PWD" \
        "$here/bin/python" -m benchmarks.gpu.rehearsal --budgets check | grep -E '"ok": false|"calls"'
done
