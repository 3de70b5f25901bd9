"""Does an installed minibert do its main job? Run outside a clone, without a network.

Loads each embedded model, checks what README says of a head, and writes the two pages.
"""

import subprocess
import sys
from pathlib import Path

import minibert

TEXT = "the horse quickly ran away"

assert Path.cwd() not in Path(minibert.__file__).parents, "this is a clone, not an installation"
for name in ("tiny-bert", "tiny-bert-sentiment", "tiny-gpt2", "tiny-llama"):
    head = minibert.load(name).trace(TEXT)[2, 1]
    assert (head.probs.sum(-1) - 1).abs().max() < 1e-6, name
    assert (head.probs @ head.value - head.z).abs().max() < 1e-5, name
for arguments in (
    ["--version"],
    ["predict", "the horse [MASK] away ."],
    ["explain", TEXT, "--layer", "0", "--head", "2", "--query", "horse"],
    ["view", TEXT, "-o", "page.html"],
    ["live", "-o", "live.html"],
):
    subprocess.run([sys.executable, "-m", "minibert", *arguments], check=True)
for page in ("page.html", "live.html"):
    print(page, Path(page).stat().st_size, "bytes")
