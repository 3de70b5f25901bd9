"""minibert's pages beside BertViz: bytes, Python, time to painted, memory, hover, layer change.

`python -m benchmarks.pages` runs it. Order of the files: plan (what is measured), given (the
attention), making (a page, in a process of its own), scripts (what BertViz fetches), browser and
probe.js (a page on screen), views (where to point), gate (right first), rows (one row), reach
(ratios and the figures to reach), table (what is printed).
"""
