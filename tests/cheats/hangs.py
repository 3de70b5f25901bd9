"""Never returns.

Source: this project.
check: refused: has not returned after
"""


def attention(query, key, value, lengths, causal):
    while True:
        pass
