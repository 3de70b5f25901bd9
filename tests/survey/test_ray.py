"""Workers of Ray give the tables that one process gives, whatever becomes of them."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from minibert.errors import SurveyError
from minibert.survey.documents import Document
from minibert.survey.windows import PART
from tests.survey.small_surveys import contents, run, texts

pytest.importorskip("pyarrow", reason="the tables of a survey need pyarrow")
ray = pytest.importorskip("ray", reason="Ray is not in the development environment")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of the survey of one process."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return contents(folder)


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, with three processor cores whatever it has."""
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def workers_of(process):
    """The processes of workers below a process."""
    found = []
    for one in process.children(recursive=True):
        try:
            if one.cmdline()[:1] and one.cmdline()[0].startswith("ray::Worker"):
                found.append(one)
        except psutil.NoSuchProcess:
            continue
    return found


def test_any_number_of_workers_gives_the_tables_of_one_process(cluster, whole, tmp_path):
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        run(folder, engine="ray", workers=workers)
        assert contents(folder) == whole
    assert not workers_of(psutil.Process())


def test_a_worker_that_is_killed_twice_loses_nothing(cluster, whole, tmp_path):
    killed = []

    def deadly():
        for number, text in enumerate(texts()):
            if number in (20, 40):
                victim = workers_of(psutil.Process())[0]
                victim.kill()
                killed.append(victim.pid)
            yield text

    run(tmp_path, deadly(), engine="ray", workers=2)
    assert len(set(killed)) == 2
    assert contents(tmp_path) == whole


class Poison(Document):
    """A document that ends the process that unpacks it."""

    def __reduce__(self):
        return os._exit, (3,)


class Broken(Document):
    """A document that cannot be unpacked."""

    def __reduce__(self):
        return int, ("no number",)


def test_what_ends_every_worker_ends_the_survey_and_what_was_measured_is_kept(
    cluster, whole, tmp_path
):
    given = texts()
    poisoned = [*given[:9], Poison("the ninth", given[9]), *given[10:]]
    with pytest.raises(SurveyError, match=r"5 workers of Ray were lost while .* from 8 to 11;"):
        run(tmp_path, poisoned, engine="ray", workers=2)
    assert PART in contents(tmp_path)
    run(tmp_path)
    assert contents(tmp_path) == whole


def test_an_error_of_a_worker_is_the_error_of_the_survey(cluster, tmp_path):
    with pytest.raises(Exception, match="no number"):
        run(tmp_path, [Broken("broken", "The horse ran .")], engine="ray", workers=1)


def test_more_than_ray_has_is_refused(cluster, tmp_path):
    with pytest.raises(SurveyError, match=r"workers=4 of 1 threads .* of 3 .* room for 3\. Ask"):
        run(tmp_path, engine="ray", workers=4)


def test_an_interrupted_command_ends_its_workers_and_goes_on_without_ray(tmp_path):
    corpus, folder, other = tmp_path / "corpus.txt", tmp_path / "tables", tmp_path / "other"
    corpus.write_text("the horse ran away , and a boat turned slowly .\n" * 4_000)
    command = [sys.executable, "-m", "minibert", "survey", str(corpus), "--unit", "line"]
    command += ["--no-report", "--output"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        [*command, str(folder), "--engine", "ray", "--workers", "1", "--threads", "1"],
        start_new_session=True,
        **options,
    )
    while not (folder / PART).exists() and process.poll() is None:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    # As a terminal does: every process of the group is told.
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert output == ""
    assert f"note: interrupted; the same command goes on with what is in {folder}." in errors
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert (folder / PART).stat().st_size
    for place in (folder, other):
        subprocess.run([*command, str(place)], check=True, **options)
    assert contents(folder) == contents(other)
