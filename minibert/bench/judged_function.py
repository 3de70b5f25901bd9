"""A user's function as the judge sees it: numbers in, numbers out, from another process."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minibert.bench.channel import alike
from minibert.bench.result_rows import Row
from minibert.bench.signatures import SIGNATURES, TOLD
from minibert.bench.user_file import OUTPUTS, target_parts
from minibert.bench.ways import OTHER, USUAL, Way
from minibert.bench.worker_process import Printed, WorkerError, WorkerProcess
from minibert.kernels.call import SHAPES
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.problem import Problem
from minibert.kernels.checks import check_outputs
from minibert.kernels.registry import Implementation

#: The fields of a problem that are no tensors.
_SETTINGS = ("scale", "causal", "window", "soft_cap", "packed", "packed_keys")


class JudgedFunction:
    """FILE.py:function in a worker; each call may take `seconds`.

    It calls for `parity.check`. The worker gets copies of the inputs; what it answers is taken as
    numbers of the promised shapes and dtypes, or not at all.
    """

    def __init__(
        self,
        target: str,
        device: torch.device,
        *,
        seconds: float,
        signature: str | None = None,
        layout: str = "",
        causal_only: bool = False,
    ) -> None:
        """Run the file.

        `signature` names the calling convention; None: its parameters tell. `layout` says how its
        vectors lie, as `Way.told` takes it. With `causal_only` the function is always causal,
        without being told.

        Raises MinibertError when there is no such file or function, and WorkerEndedError when it
        ends the process.
        """
        self.source, self.name = target_parts(target)
        self.device, self.causal_only, self.layout = device, causal_only, layout
        USUAL.told(layout or USUAL.layout)
        known = self.source if isinstance(self.source, str) else self.source.name
        self.label = f"{known}:{self.name}"
        self.printed = Printed(known)
        self.worker = WorkerProcess(self.label, str(device), seconds, self.printed)
        try:
            path = str(self.source) if isinstance(self.source, Path) else None
            module = None if path else str(self.source)
            answer, _ = self.worker.ask(
                "read", path=path, module=module, name=self.name, signature=signature
            )
        except BaseException:
            self.close()
            raise
        self.signature = SIGNATURES[str(answer.get("signature"))]
        self.way = self.signature.way
        self.triton = bool(answer.get("triton"))
        self.masked = bool(answer.get("masked"))
        # What is found out about it, and what is not judged.
        self.said: list[str] = []
        self.uncovered: list[str] = []
        #: The types that are not judged, and why.
        self.untried: dict[str, str] = {}
        self._take(answer)

    def _take(self, answer: Row) -> None:
        """What it says of its options."""
        told = {str(one) for one in answer.get("options", ())}
        told |= {"causal"} if self.causal_only else set()
        self.options = tuple(one for one in (*TOLD, *SHAPES) if one in told)

    def called(self, way: Way) -> None:
        """Call it in this way from now on."""
        answer, _ = self.worker.ask("called", way=way.fields())
        self.way = way
        self._take(answer)

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    def implementation(self, outputs: tuple[str, ...]) -> Implementation:
        """What `parity.check` may ask of it, held to give these outputs."""
        return Implementation(
            name=self.label,
            # Not the method itself, whose own lines are not where the user's errors arise.
            fn=partial(self.call),
            wants=frozenset(outputs) - {"z", "lse"},
            # Whether it can be told all windows is asked before.
            options=frozenset({*self.options, *SHAPES, "window"}),
        )

    def call(self, problem: Problem, *, again: bool = False) -> dict[str, Tensor]:
        """The outputs when the call returns. Raises WorkerError for what it does instead."""
        # What is wanted of it stays with the judge.
        given = problem.tensors()
        tensors = {name: one.detach() for name, one in given.items() if name not in problem.want}
        self._asked = problem
        _, found = self.worker.ask(
            "call",
            tensors=tensors,
            most=_room(problem),
            settings={name: getattr(problem, name) for name in _SETTINGS},
            again=again,
        )
        return self._outputs(found)

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of the last call and its outputs, as they are now."""
        problem, most = self._asked, _room(self._asked)
        sizes = sum(one.numel() * one.itemsize for one in problem.tensors().values())
        _, inputs = self.worker.ask("later", of="inputs", most=sizes)
        _, outputs = self.worker.ask("later", of="outputs", most=most)
        given = problem.tensors()
        for name, one in inputs.items():
            if name not in given or not alike(one, given[name]):
                raise self.worker.distrust(f"{self.label} answered with inputs it was not given.")
        return given | inputs, self._outputs(outputs)

    def _outputs(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs, of promised names and shapes."""
        problem = self._asked
        others = {one for one in found if one.startswith(OTHER)}
        if unknown := found.keys() - {*OUTPUTS, *GRADIENTS, *others}:
            raise WorkerError(f"gave {', '.join(sorted(unknown))}; known are {', '.join(OUTPUTS)}")
        forward = {name: one for name, one in found.items() if name not in GRADIENTS}
        check_outputs(forward, self.label, *problem.shapes, problem.want)
        if any(one.is_meta for one in found.values()):
            raise self.worker.distrust(f"{self.label} answered with more than was asked for.")
        return found


def _room(problem: Problem) -> int:
    """The bytes that all outputs take at most, each number in 8 bytes."""
    (B, H, Q, D), K = problem.z_shape, problem.n_keys
    vectors = problem.query.numel() + problem.key.numel() + problem.value.numel()
    return 8 * (B * H * (Q * (D + 2 * K + 16) + K) + vectors) + 2048
