#!/bin/sh
# Prints the first of the given Pythons that can make the environment; none given: the usual names.
# Says of each found one what it lacks when none can.
[ "$#" -gt 0 ] || set -- python3.11 python3.12 python3.13 python3.14 python3 python
lacks='import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit("is Python %d.%d; minibert needs 3.11 to 3.14" % sys.version_info[:2])
try:
    import venv, ensurepip
except ImportError as error:
    sys.exit("has no module %s, which makes environments; on Debian and Ubuntu: apt install python%d.%d-venv"
             % ((error.name,) + sys.version_info[:2]))'
for python in "$@"; do
    found=$(command -v "$python") || continue
    if reason=$("$python" -c "$lacks" 2>&1); then
        echo "$python"
        exit 0
    fi
    reasons="$reasons
$found $(echo "$reason" | tail -n 1)"
done
echo "No Python can make the environment (looked for: $*).${reasons:-
None of these is installed.}
Another one: make PYTHON=/path/to/python" >&2
exit 1
