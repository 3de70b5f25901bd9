"""Own calls are counted by file, and those of others are not."""

import json

from benchmarks import calls
from minibert.bench.result_rows import version


def test_only_calls_of_minibert_are_counted() -> None:
    assert calls.counted(lambda: json.dumps([1, 2])) == {}
    [(file, count)] = calls.counted(lambda: version("a-package-that-does-not-exist")).items()
    assert file.endswith("result_rows.py")
    assert count == 1
