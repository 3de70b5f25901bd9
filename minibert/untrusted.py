"""The door for every byte from outside: files, folders, and what a server answers.

A file is opened here or not at all. It must be a regular file of bounded size, JSON must be
shallow and of bounded count, and whatever a library throws while it reads becomes an error of
minibert.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

from minibert.errors import CheckpointError, MinibertError, printable

# Far above any checkpoint of these families, and low enough to be read in seconds.
MOST_BYTES = {
    "config.json": 2**22,
    "cfg.json": 2**22,
    "config.yaml": 2**18,
    "generation_config.json": 2**20,
    "model.safetensors.index.json": 2**24,
    "pytorch_model.bin.index.json": 2**24,
    "tokenizer.json": 2**26,
    "tokenizer_config.json": 2**22,
    "special_tokens_map.json": 2**20,
    "added_tokens.json": 2**22,
    "vocab.txt": 2**25,
}
_MOST_BYTES_OF_OTHERS = 2**22
MOST_TENSORS = 2**14
_MOST_VALUES, _DEEPEST = 2**21, 64
# A file that takes less room on disk than this part of its length is nearly all holes.
_LEAST_STORED, _SPARSE_FROM = 1 / 16, 2**26

Error = type[MinibertError]

#: A JSON object; any field may have any type.
Json = dict[str, Any]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"\w[\w./-]{0,254}")


@contextmanager
def guarded(
    where: object, error: Error = CheckpointError, problem: str = "cannot be read"
) -> Iterator[None]:
    """Nothing, until something fails inside: then an error of minibert that says where.

    Errors of minibert pass. So do KeyboardInterrupt and its like, but not the panic of a library
    in Rust, which is not an Exception.
    """
    try:
        yield
    except (MinibertError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as caught:
        what = next(iter(str(caught).splitlines()), "")
        reason = f"{type(caught).__name__}: {what}" if what else type(caught).__name__
        # `where` says already of which file.
        reason = getattr(caught, "strerror", None) or reason
        # Without the cause: its message is not bounded, and Python prints it.
        raise error(f"{where}: {problem} ({printable(reason, 400)}).") from None


_silencing = threading.Lock()


@contextmanager
def silenced() -> Iterator[None]:
    """Lose what is written to standard error inside, as a panic of a library in Rust is.

    That of other threads is lost as well, so only a few milliseconds should be spent inside.
    """
    with _silencing:
        try:
            kept = os.dup(2)
        except OSError:
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)


_SECONDS = 60


def tried_out(module: str, function: str, *arguments: object, memory: int = 2**32) -> str:
    """How a process ended that called the module's function; "" where it ended as it should.

    The process has limits, on Linux and macOS: a minute of the processor and `memory` bytes. The
    arguments are what JSON has. Inside of `shared_trials` a trial takes a few milliseconds.
    """
    with shared_trials() as trials:
        return trials.ended(module, function, arguments, memory, _SECONDS)


_here = threading.local()


@contextmanager
def shared_trials() -> Iterator["_Trials"]:
    """Let the trials of this thread inside be copies of one process, so that it imports once."""
    if shared := getattr(_here, "trials", None):
        yield shared
        return
    _here.trials = _Trials()
    try:
        yield _here.trials
    finally:
        _here.trials.close()
        _here.trials = None


class _Trials:
    """A process that calls functions in copies of itself (`run_trials`), started when needed."""

    _process: subprocess.Popen[bytes] | None = None

    def ended(self, *asked: object) -> str:
        """How the copy ended that did this; "" where it ended as it should."""
        if self._process is None:
            paths = str(Path(__file__).parents[1]), *sys.path
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import {__name__} as door; door.run_trials()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(2 * _SECONDS, _kill, [process])
        clock.start()
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            answer = b"%d" % process.wait()
            self.close()
        late = not clock.is_alive()
        clock.cancel()
        if late:
            return f"took more than {2 * _SECONDS} s"
        return f"ended with status {int(answer)}" if int(answer) else ""

    def close(self) -> None:
        """End the process, and the copy that may be running."""
        if self._process is not None:
            _kill(self._process)
            with suppress(BrokenPipeError), self._process:
                self._process = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg") and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def run_trials() -> None:
    """Do what each line of standard input asks for in a copy of this process, with limits.

    A line is [module, function, arguments, bytes of memory, seconds]; the answer is the status
    by which the copy ended. A system without copies (`fork`) does one thing, and ends by its
    status.
    """
    for line in sys.stdin.buffer:
        module, name, arguments, memory, seconds = json.loads(line)
        function = getattr(import_module(module), name)
        if hasattr(os, "fork") and (copy := os.fork()):
            status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
            os.write(1, b"%d\n" % status)
            continue
        # What the copy does or becomes cannot answer for it.
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        limit_this_process(memory, seconds)
        status = 1
        try:
            function(*arguments)
            status = 0
        finally:
            os._exit(status)


def limit_this_process(memory: int, seconds: int) -> None:
    """Bound what this process may take, in bytes and seconds of the processor, where that goes."""
    with suppress(ImportError):
        import resource

        # Of memory the process's own: a file mapped for reading may be of any size.
        for kind, most in (
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_CORE, 0),
        ):
            soft, hard = resource.getrlimit(kind)
            limits = [one for one in (soft, hard, most) if one != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min(limits), hard))


def open_regular(path: Path, error: Error = CheckpointError) -> BufferedReader:
    """The file, open for reading.

    Raises `error` for what is not a regular file (a folder, a pipe, a device) and for a file that
    is nearly all holes; neither can make it wait.
    """
    with guarded(path, error):
        # Without O_NONBLOCK the opening of a pipe waits until somebody writes to it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(_opened(path, flags, error), "rb")
        size = os.fstat(file.fileno()).st_size
        stored = getattr(os.fstat(file.fileno()), "st_blocks", size) * 512
        # Some file systems do not say how much they store, and answer 0.
        if size >= _SPARSE_FROM and 0 < stored < size * _LEAST_STORED:
            file.close()
            raise error(
                f"{path}: {size} bytes long, of which {stored} are stored: the rest are holes. "
                "The copy is not whole; download or save it again."
            )
        return file


def _opened(path: Path, flags: int, error: Error) -> int:
    number = os.open(path, flags)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise error(f"{path}: cannot be read: it is not a regular file (a folder, a pipe or a device).")


def lines_of(file: BufferedIOBase, longest: int) -> Iterator[bytes]:
    """The lines of an open file without their ends (`\\n`, `\\r\\n`), read as they are asked for.

    Of a line with more than `longest` bytes the first `longest + 1` are given; the rest is read
    over, so that no line takes more memory than that.
    """
    while line := file.readline(longest + 2):
        if not line.endswith(b"\n") and len(line) > longest:
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(2**20)
            yield line[: longest + 1]
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def read_bytes(path: Path, error: Error = CheckpointError, *, most: int | None = None) -> bytes:
    """The content of a file; `error` where it is longer than `most`, or files of its name are."""
    most = MOST_BYTES.get(path.name, _MOST_BYTES_OF_OTHERS) if most is None else most
    with open_regular(path, error) as file, guarded(path, error):
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise error(f"{path}: {size} bytes long; expected at most {most} of a {path.name}.")
        return file.read(size)


def read_text(path: Path, error: Error = CheckpointError, *, most: int | None = None) -> str:
    """The content as text in UTF-8."""
    content = read_bytes(path, error, most=most)
    with guarded(path, error, "is not a text in UTF-8"):
        return content.decode("utf-8")


def read_json(path: Path, error: Error = CheckpointError) -> Json:
    """The JSON object in a file.

    Raises `error` for what cannot be read, is not an object, or has more values or deeper nesting
    than any honest file.
    """
    return parse_json(read_bytes(path, error), path, error)


def parse_json(content: bytes, where: object, error: Error = CheckpointError) -> Json:
    """The JSON object in these bytes; `error`, which begins with `where`, as of `read_json`."""
    with guarded(where, error, "cannot be read as JSON"):
        value = json.loads(content.decode("utf-8"))
    if not isinstance(value, dict):
        raise error(f"{where}: expected an object, found {type(value).__name__}.")
    check_nesting(value, where, error)
    return value


def read_yaml(path: Path, error: Error = CheckpointError) -> Json:
    """The mapping in a YAML file; refused as by `read_json`."""
    import yaml  # type: ignore[import-untyped]

    class PlainYaml(yaml.SafeLoader):
        """YAML without references, which make a short file a large value."""

        def compose_node(self, parent: object, index: object) -> object:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has references")
            return super().compose_node(parent, index)

    content = read_text(path, error)
    with guarded(path, error, "cannot be read as YAML"):
        value = yaml.load(content, PlainYaml)
    if not isinstance(value, dict):
        raise error(f"{path}: expected a mapping, found {type(value).__name__}.")
    check_nesting(value, path, error)
    return value


def check_nesting(value: object, where: object, error: Error = CheckpointError) -> None:
    """Raise `error` where parsed JSON has too many values or too deep nesting."""
    level, count = [value], 0
    for _ in range(_DEEPEST):
        inner = [
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)
        ]
        level = [one for values in inner for one in values]
        count += len(level)
        if count > _MOST_VALUES:
            raise error(f"{where}: more than {_MOST_VALUES} values; no such file has as many.")
        if not level:
            return
    raise error(f"{where}: nested more than {_DEEPEST} deep; no such file is.")


def check_commit(commit: object, where: str) -> str:
    """The commit, once it is one: 40 hexadecimal digits, which are safe in a path."""
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise CheckpointError(
            f"{where}: the server names the commit {commit!r:.80}; expected 40 hexadecimal digits. "
            "Nothing was fetched. Check HF_ENDPOINT: this is not a Hub to be trusted."
        )
    return commit


def check_revision(revision: object) -> str:
    """The revision, once it is a branch, tag or commit as git allows them."""
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise CheckpointError(f"revision={revision!r:.80}: expected a branch, a tag or a commit.")
    return revision


def present(path: Path) -> bool:
    """True where anything has that name, even a link that leads nowhere: it is not left out."""
    return os.path.lexists(path)
