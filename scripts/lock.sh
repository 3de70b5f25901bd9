#!/usr/bin/env bash
# Writes requirements/*.txt: exact versions for every supported Python and platform, by markers.
# A version already in a file stays unless an option says otherwise:
#   scripts/lock.sh --upgrade                  everything to its newest version
#   scripts/lock.sh --upgrade-package torch    one package
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --universal --python-version 3.11 --no-annotate --quiet \
        --custom-compile-command scripts/lock.sh pyproject.toml "$@" >/dev/null
}
compile -o requirements/runtime.txt "$@"
compile -o requirements/development.txt \
    --extra dev --extra docs --extra notebook --extra plots --extra serve --extra survey \
    --extra triton "$@"
