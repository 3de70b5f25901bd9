"""BertViz' own tests, notebooks and README, run with our functions in place of its own.

They are read from a checkout of its repository, which BERTVIZ_REPOSITORY names, in an environment
that has bertviz too (CONTRIBUTING.md says how to make one). What is loaded by name is small and
random (bertviz_stand_ins.py). Every call goes to BertViz' function as well: the page must hold what
BertViz puts into its own, and `get_attention` must give the same.
"""

import ast
import importlib.util
import json
import os
import re
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_pages import example_of, header_of, unpacked
from bertviz_stand_ins import in_transformers, own_model, own_tokenizer

import minibert.viz
from minibert.viz import Page, neuron_view

FUNCTIONS = ("head_view", "model_view", "show")
NOTEBOOKS = (
    "head_view_distilbert",
    "model_view_bart",
    "model_view_bert",
    "model_view_distilbert",
    "model_view_encoder_decoder",
    "neuron_view_bert",
    "neuron_view_gpt2",
    "neuron_view_roberta",
)
IMPORTS = {"from bertviz import ": "from minibert.viz import ",
           "from bertviz.neuron_view import ": "from minibert.viz.neuron_view import "}  # fmt: skip
# What its menus add to the whole.
PARTS = re.compile(r"Sentence [AB] -> Sentence [AB]")


@pytest.fixture(scope="module")
def checkout() -> Path:
    named = os.environ.get("BERTVIZ_REPOSITORY")
    if not named:
        pytest.skip("BERTVIZ_REPOSITORY names no checkout of github.com/jessevig/bertviz")
    pytest.importorskip("bertviz", reason="bertviz is not installed")
    pytest.importorskip("boto3", reason="boto3, which bertviz.transformers_neuron_view imports")
    folder = Path(named)
    assert (folder / "bertviz" / "tests" / "test_attention.py").is_file(), folder
    return folder


@pytest.fixture
def own_stand_ins(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own classes make small random models and find small vocabularies."""
    import bertviz.transformers_neuron_view as own

    monkeypatch.setattr(own.PreTrainedModel, "from_pretrained", classmethod(own_model))

    def tokenizer(cls: Any, _: str, **options: Any) -> Any:
        return own_tokenizer(cls, tmp_path, **options)

    # Some have one of their own.
    for name in ("Bert", "GPT2", "Roberta", "XLNet"):
        cls = getattr(own, f"{name}Tokenizer")
        monkeypatch.setattr(cls, "from_pretrained", classmethod(tokenizer), raising=False)


@pytest.fixture(scope="module")
def folders(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.PreTrainedTokenizerBase, "as_target_tokenizer"):
        pytest.skip("the notebooks are written for transformers below 5")
    return in_transformers(tmp_path_factory.mktemp("models"))


@pytest.fixture
def stand_ins(
    folders: dict[str, Path], own_stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers finds small random models by their names."""
    import transformers

    for loader in (transformers.AutoModel, transformers.AutoTokenizer):
        original = loader.from_pretrained
        monkeypatch.setattr(
            loader,
            "from_pretrained",
            lambda name, *a, original=original, **k: original(folders[name], *a, **k),
        )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of our functions as they are called; each call is compared with BertViz' own."""
    made: list[str] = []

    def beside(ours: Callable[..., Page], name: str, compare: Callable[..., None]) -> Any:
        def call(*arguments: Any, **named: Any) -> Page:
            page = ours(*arguments, **named)
            compare(page, name, *arguments, **(named | {"html_action": "return"}))
            made.append(name)
            return page

        return call

    for name, where in zip(FUNCTIONS, (minibert.viz, minibert.viz, neuron_view), strict=True):
        compare = same_neurons if name == "show" else same_weights
        monkeypatch.setattr(where, name, beside(getattr(where, name), name, compare))
    yield made
    print(f"{len(made)} calls: {', '.join(made)}")


def same_weights(page: Page, name: str, *arguments: Any, **named: Any) -> None:
    """The page holds the weights and tokens of BertViz' page for the same call."""
    import bertviz

    written = getattr(bertviz, name)(*arguments, **named).data
    [found] = re.findall(r"const params = (\{.*\});", written)
    params = json.loads(found)
    assert header_of(page)["view"] == name.removesuffix("_view")
    wholes = [one for one in params["attention"] if not PARTS.fullmatch(one["name"] or "")]
    assert len(header_of(page)["examples"]) == len(wholes)
    for index, theirs in enumerate(wholes):
        about = example_of(page, index)
        assert about["layers"] == params["include_layers"]
        for layer, weights in zip(about["layers"], theirs["attn"], strict=True):
            shown = unpacked(page, "probs", layer, index=index)
            np.testing.assert_allclose(shown, weights, atol=4e-3)
        sides = {"left_text": "tokens", "right_text": "key_tokens"}
        for side, tokens in sides.items():
            # A piece of a word is "##ing" there, and joined to its word here.
            expected = [text.removeprefix("##") for text in theirs[side]]
            assert (about[tokens] or about["tokens"])["text"] == expected
    for part in params["attention"]:
        if part["name"] == "Sentence B -> Sentence A":
            segment = example_of(page)["tokens"]["segment"]
            assert segment == [0] * len(part["right_text"]) + [1] * len(part["left_text"])
    opened = dict(pair.split("=") for pair in header_of(page)["start"].split("&") if pair)
    for option, written_as in (("layer", "{}"), ("heads", "{}"), ("display_mode", "{}")):
        if params.get(option) is not None:
            values = params[option] if isinstance(params[option], list) else [params[option]]
            key = {"display_mode": "theme"}.get(option, option)
            assert opened[key] == ".".join(written_as.format(value) for value in values)


def same_neurons(page: Page, _: str, *arguments: Any, **named: Any) -> None:
    """The page holds the weights, queries, keys and tokens of BertViz' page for the same call."""
    import bertviz.neuron_view

    written = bertviz.neuron_view.show(*arguments, **named).data
    [found] = re.findall(r"window\.bertviz_params = (\{.*\})\n", written)
    params = json.loads(found)
    theirs, about = params["attention"]["all"], example_of(page)
    assert header_of(page)["view"] == "neuron"
    for layer in range(len(theirs["attn"])):
        for quantity, name in (("probs", "attn"), ("query", "queries"), ("key", "keys")):
            shown = unpacked(page, quantity, layer)
            expected = np.array(theirs[name][layer])
            close = {"atol": 4e-3} if quantity == "probs" else {"rtol": 2**-11, "atol": 2**-24}
            np.testing.assert_allclose(shown, expected, **close)
    ends = {"<s>": "[CLS]", "</s>": "[SEP]"}
    shown_text = [ends.get(text, text) for text in about["tokens"]["text"]]
    assert shown_text == [text.removeprefix("##") for text in theirs["left_text"]]
    if "ba" in params["attention"]:
        part = params["attention"]["ba"]
        lengths = len(part["right_text"]), len(part["left_text"])
        assert about["tokens"]["segment"] == [0] * lengths[0] + [1] * lengths[1]
    assert about["causal"] is not params["bidirectional"]
    opened = dict(pair.split("=") for pair in header_of(page)["start"].split("&"))
    chosen = {"layer": params["layer"], "heads": params["head"], "theme": params["display_mode"]}
    assert opened == {key: str(value) for key, value in chosen.items() if value is not None}


def with_our_imports(code: str) -> str:
    for theirs, ours in IMPORTS.items():
        code = code.replace(theirs, ours)
    return code


def called(code: str) -> list[str]:
    """The names of the functions of BertViz that some code calls, in its order."""
    found = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    names = [node for node in found if isinstance(node, ast.Name) and node.id in FUNCTIONS]
    return [node.id for node in sorted(names, key=lambda node: node.lineno)]


def run_cells(cells: list[str], calls: list[str]) -> None:
    """Run them one after the other; every call of BertViz' functions in them is made."""
    names: dict[str, Any] = {}
    expected = [name for cell in cells for name in called(cell)]
    assert expected
    for cell in cells:
        exec(compile(with_our_imports(cell), "cell", "exec"), names)
    assert calls == expected


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_with_its_import_changed(
    name: str, checkout: Path, stand_ins: None, calls: list[str]
) -> None:
    found = sorted(path.stem for path in (checkout / "notebooks").glob("*.ipynb"))
    assert found == list(NOTEBOOKS)
    path = checkout / "notebooks" / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    run_cells(cells, calls)


def test_the_code_of_the_readme_runs_with_its_imports_changed(
    checkout: Path,
    stand_ins: None,
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readme = (checkout / "README.md").read_text(encoding="utf-8")
    # It writes its files there.
    (tmp_path / "PATH_TO_YOUR_FILE").mkdir()
    monkeypatch.chdir(tmp_path)
    run_cells(re.findall(r"```python\n(.*?)```", readme, re.DOTALL), calls)
    for view in ("head", "neuron"):
        written = (tmp_path / "PATH_TO_YOUR_FILE" / f"{view}_view.html").read_text()
        assert written.startswith("<!doctype html>")


def test_its_test_suite_passes_with_our_get_attention(
    checkout: Path, own_stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bertviz.neuron_view

    theirs, made = bertviz.neuron_view.get_attention, []

    def beside(model: Any, model_type: str, *arguments: Any, **named: Any) -> Any:
        ours = neuron_view.get_attention(model, model_type, *arguments, **named)
        assert ours == theirs(model, model_type, *arguments, **named)
        made.append(model_type)
        return ours

    monkeypatch.setattr(bertviz.neuron_view, "get_attention", beside)
    monkeypatch.setenv("BERTVIZ_DO_TESTS", "true")
    monkeypatch.chdir(checkout / "bertviz" / "tests")
    spec = importlib.util.spec_from_file_location("its_tests", Path("test_attention.py").resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TestResult()
    suite.run(result)
    assert not result.errors + result.failures + result.skipped, result.errors + result.failures
    assert result.testsRun == 4
    assert sorted(made) == ["bert"] * 6 + ["gpt2"] + ["roberta"] * 2 + ["xlnet"]
