"""A process that does one task after the other, as the supervisor names them.

A line of JSON on standard input is a task; lines on standard output say what comes of it:
{"begin": contender}, {"row": ...}, {"end": true}. It may end at any moment, by an error that leaves
the device unusable or by the supervisor's hand: what was said stays said.
"""

import json
import os
import sys
from typing import Any


def main() -> int:
    """The exit status: 1 when the device can no longer be used."""
    device_name = sys.argv[1]
    # The channel is ours alone: what a compiler prints goes to standard error.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message, default=str), file=channel, flush=True)

    if device_name == "cpu":
        # The dry run: Triton's interpreter, switched on before anything imports Triton.
        os.environ["TRITON_INTERPRET"] = "1"
    # A pool of compilers takes longer to start than these few kernels need.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        import torch

        from benchmarks.gpu import journal, measure, plan, resources
        from minibert.bench.gate import failure

        device = torch.device(device_name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"no GPU: torch {torch.__version__} sees none")
        compiled = resources.compilations()
        say({"ready": journal.machine(device)})
    except Exception as error:
        say({"unusable": f"{type(error).__name__}: {error}"})
        return 1
    for line in sys.stdin:
        task = plan.from_message(json.loads(line))
        try:
            for row in measure.rows(task, device, lambda name: say({"begin": name})):
                say({"row": {**row, **compiled()}})
        except Exception as error:
            for name in task.contenders:
                if name not in task.skip:
                    say({"row": {"implementation": name, **failure(error)}})
        try:
            measure.survive(device)
        except Exception as error:
            # Without an `end` the next task is for another worker.
            print(f"the device is lost: {error}", file=sys.stderr)
            return 1
        say({"end": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
