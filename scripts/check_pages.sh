#!/usr/bin/env bash
# Checks types and lint of the pages' code, and that viz/built is what viz/static gives. Where node
# or npm is missing it says that it is skipped. `scripts/check_pages.sh install` only installs what these and some tests
# need.
set -euo pipefail
cd "$(dirname "$0")/../viz"

skip() {
    echo "types, lint and build of the pages: SKIPPED, $1"
    exit 0
}

command -v node >/dev/null && command -v npm >/dev/null || skip "there is no node and npm"
node -e 'process.exit(parseInt(process.version.slice(1)) < 20 ? 1 : 0)' || skip "node is older than 20"
if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    npm ci --silent --no-audit --no-fund || skip "npm could not install what package-lock.json names"
fi
[ "${1:-}" != install ] || exit 0

npm run --silent types
npm run --silent lint
npm run --silent check-build
echo "types, lint and build of the pages: passed"
