"""What holds for every test: quiet libraries, hypothesis' settings, a fixed seed.

minibert is not imported here at the top: jaxtyping has to instrument it first.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from tests.data import MISSING, WITHOUT_DATA
from tests.packages import REPOSITORY, copy_tree, environment, run

# Without a GPU, Triton runs in its interpreter. Triton reads this when it is first imported, which
# parts of torch do.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Read when huggingface_hub, transformers and tokenizers are first imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Time says nothing about rightness on a shared machine, so examples have no deadline.
settings.register_profile(
    "local", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
# Always the same examples there, and so fewer of them: those who work here draw new ones, and look
# for the smallest that fails, which takes minutes.
settings.register_profile(
    "ci",
    settings.get_profile("local"),
    derandomize=True,
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down each test that is skipped without the test data, for `.ci/run`."""
    if report.skipped and MISSING in str(report.longrepr):
        WITHOUT_DATA.parent.mkdir(parents=True, exist_ok=True)
        with WITHOUT_DATA.open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Collections of garbage look at what this file made, not at all that was imported before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: without the checks of annotations, which only tests have."""
    monkeypatch.setattr(sys.modules["jaxtyping"].config, "jaxtyping_disable", True)


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    from minibert.kernels import registry

    monkeypatch.setattr(registry, "_IMPLEMENTATIONS", dict(registry._IMPLEMENTATIONS))
    monkeypatch.setattr(registry, "_CHOICES", {})


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel built from it."""
    base = tmp_path_factory.mktemp("built")
    copy_tree(base / "tree")
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", base, "tree"]
    run(command, where=base, seconds=1200)
    return base


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    """The wheel."""
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of docs/, built strictly, and by a proxy where nobody listens: no network."""
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin"} | proxies,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="session")
def python_beside(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path
) -> Callable[[tuple[str, ...]], Path]:
    """Gives a Python with minibert, only what it declares, and the distributions named."""
    return cache(
        lambda beside: environment(tmp_path_factory.mktemp("beside"), wheel, beside=beside)
    )
