#!/usr/bin/env bash
# `make check` and every test in parts, four at a time of one thread each, for two cores: browsers and workers often
# wait. A lane that has ended a part takes the next.
# The tests of the layers and of traces, but for the drawn laws, run with types and shapes checked at each call, which
# takes twice the time.
# Arguments go to all tests. What a part says follows when it has ended.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
# Long ones first, so that all lanes end together. What no other names is the rest, so that a new file is in one of them.
parts=(browser documents rest pages judge check models corpora typed kernels)
judge=(tests/bench tests/test_benchmarks.py tests/test_cheats.py tests/test_cli_bench.py tests/test_cli_check.py
    tests/test_third_party_kernels.py)
# The site is built once.
site=(tests/browser/test_site.py tests/test_site.py)
documents=(tests/test_documents.py tests/test_packaging.py tests/test_installing.py tests/test_types.py tests/test_gpu.py
    "${site[@]}")
models=(tests/analysis tests/attached tests/hooked tests/trace/test_laws.py)
browser=(tests/browser)
typed=(tests/layers tests/text tests/trace tests/kernels/test_any_call.py)
pages=(tests/live tests/rehearsal tests/serve tests/viz)
corpora=(tests/checkpoint tests/survey tests/training)
kernels=(tests/kernels)
named=("${judge[@]}" "${documents[@]}" "${models[@]}" "${browser[@]}" "${typed[@]}" "${pages[@]}" "${corpora[@]}"
    "${kernels[@]}")
rest=("${named[@]/#/--ignore=}")
browser+=(--ignore="${site[0]}")
typed+=(--ignore=tests/trace/test_laws.py --jaxtyping-packages=minibert,type_checker.checked)
kernels+=(--ignore=tests/kernels/test_any_call.py)
logs=build/tests
rm -rf "$logs"
mkdir -p "$logs"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Runs the parts that nobody has taken, one after another; fails where one of them does.
lane() {
    local part paths status=0
    for part in "${parts[@]}"; do
        mkdir "$logs/$part" 2>/dev/null || continue
        paths="$part[@]"
        if [ "$part" = check ]; then
            make check >"$logs/check/log" 2>&1 || status=1
        else
            "$python" -m pytest "${!paths}" "$@" >"$logs/$part/log" 2>&1 || status=1
        fi
        echo "== $part"
        cat "$logs/$part/log"
    done
    return $status
}

# How far each part is, every 15 seconds.
progress() {
    local log
    while sleep 15; do
        for log in "$logs"/*/log; do
            printf '%s %s  ' "$(basename "$(dirname "$log")")" \
                "$(grep -o '\[ *[0-9]*%\]' "$log" 2>/dev/null | tail -1 | tr -d '[] ')"
        done
        echo
    done
}

# Before the tests that need pyright and axe-core.
scripts/check_pages.sh install
progress &
telling=$!
lanes=()
for _ in 1 2 3 4; do
    lane "$@" &
    lanes+=($!)
done
trap 'kill $telling "${lanes[@]}" 2>/dev/null' INT TERM
status=0
for one in "${lanes[@]}"; do
    wait "$one" || status=1
done
kill $telling 2>/dev/null
skipped=build/tests/without_data
[ ! -s "$skipped" ] || echo "NOT VERIFIED: the $(wc -l <"$skipped") tests that read ../shared or the folder" \
    "MINIBERT_TEST_DATA names (CONTRIBUTING.md, Tests): README's claims about real weights rest on them."
echo "Firefox: NOT VERIFIED: make firefox runs the tests of the pages in one that is installed."
exit $status
