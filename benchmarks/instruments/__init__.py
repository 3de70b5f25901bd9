"""What a researcher does to a model, by minibert and by its peers: is it right, how long, how much.

`python -m benchmarks.instruments` runs it. Order of the files: tasks (what is asked), reference
(what is right), by_* (who answers and how), entries (all of them), measure (gate, then clock).
"""
