#!/usr/bin/env bash
# Every test, side by side in two lanes of one thread each: browsers, kernels, documents, hostile files and some
# benchmarks in one, the rest in the other. The tests of the layers and of traces run with types and shapes checked at
# each call, which takes twice the time. Arguments go to all. What the first lane says follows when the second has ended.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
typed=(tests/layers tests/text tests/trace tests/kernels/test_any_call.py)
beside=(tests/browser tests/kernels tests/siege tests/test_cli_check.py
    tests/test_documents.py tests/test_packaging.py tests/test_gpu_benchmark.py tests/test_instruments.py)
mkdir -p build
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

"$python" -m pytest "${beside[@]}" --ignore=tests/kernels/test_any_call.py "$@" >build/tests-beside.log 2>&1 &
trap 'kill $! 2>/dev/null' INT TERM
"$python" -m pytest "${typed[@]}" --jaxtyping-packages=minibert,type_checker.checked "$@"
with_types=$?
"$python" -m pytest "${beside[@]/#/--ignore=}" "${typed[@]/#/--ignore=}" "$@"
rest=$?
wait $!
browsers_and_kernels=$?
cat build/tests-beside.log
data=${MINIBERT_TEST_DATA:-../shared}
for part in models refs text; do
    [ -e "$data/$part" ] || echo "NOT VERIFIED: the tests that read $data/$part, which is absent" \
        "(CONTRIBUTING.md, Tests): README's claims about real weights rest on them."
done
exit $((with_types || rest || browsers_and_kernels))
