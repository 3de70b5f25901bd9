"""Windows come back in their order, whichever worker is quick, slow or lost.

Ray is played by a few lines that answer in a drawn order, so this needs no Ray; test_ray.py has it.
"""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.errors import SurveyError
from minibert.survey.documents import Document
from minibert.survey.ray_workers import AHEAD, RayWorkers, check_versions
from minibert.survey.run import Options
from minibert.survey.tables import versions
from minibert.survey.windows import Measured, Sums, Window

MODEL = minibert.load()


class LostError(Exception):
    """A worker is gone."""


class WrongError(Exception):
    """What measuring raised, as Ray wraps it."""

    cause = SurveyError("the model is wrong")


class PlayedRay:
    """Answers in the order that `choose` draws; loses a worker for each time a window is in `lost`.

    −1 in `lost` is a worker that is lost before it has loaded the model.
    """

    exceptions = SimpleNamespace(RayTaskError=WrongError, RayError=LostError)

    def __init__(self, choose, lost=(), wrong=None):
        self.choose, self.lost, self.wrong = choose, Counter(lost), wrong
        self.alive, self.started = set(), 0

    def nodes(self):
        return [
            {"Alive": True, "Resources": {"CPU": 2.0}},
            {"Alive": True, "Resources": {"CPU": 1.0}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def put(self, value):
        return value

    def remote(self, **options):
        assert options == {"num_cpus": 1, "max_restarts": 0}
        return lambda kind: SimpleNamespace(remote=lambda *given: self.begin())

    def begin(self):
        self.started += 1
        number = self.started
        self.alive.add(number)

        method = SimpleNamespace(remote=lambda *given: Answer(number, *given))
        return SimpleNamespace(number=number, about=method, measure=method)

    def wait(self, answers, num_returns):
        assert answers
        assert num_returns == 1
        return [self.choose(answers)], []

    def get(self, answer):
        number = -1 if answer.window is None else answer.window.number
        if self.lost[number]:
            self.lost[number] -= 1
            self.alive.remove(answer.worker)
            raise LostError("the machine\nwas switched off")
        if number == self.wrong:
            raise WrongError
        if answer.window is None:
            return "here", versions()
        return Measured(Sums.empty(1, 1, 1, 0), tokens=number)

    def kill(self, worker):
        self.alive.remove(worker.number)


class Answer:
    """What a worker will have said."""

    def __init__(self, worker, window=None):
        self.worker, self.window = worker, window


def windows(count):
    return [Window(n, n, (Document(f"document {n}", "The horse ran ."),)) for n in range(count)]


def workers_of(ray, count=None, threads=1):
    with pytest.MonkeyPatch.context() as patch:
        # Options look whether Ray is there.
        patch.setitem(sys.modules, "ray", ray)
        options = Options(engine="ray", workers=count, threads=threads)
    made = RayWorkers(
        ray, MODEL, options.measuring, workers=options.workers, threads=options.threads
    )
    made.start()
    return made


@given(
    st.data(),
    st.integers(1, 3),
    st.integers(0, 12),
    # Four times is what a window may lose; none of more than that is drawn.
    st.lists(st.integers(-1, 11), max_size=4),
)
def test_windows_are_measured_once_and_come_in_their_order(data, count, n_windows, lost):
    ray = PlayedRay(lambda answers: data.draw(st.sampled_from(answers)), lost)
    workers = workers_of(ray, count)
    read = []

    def unread():
        for window in windows(n_windows):
            read.append(window.number)
            yield window

    merged = []
    for window, measured in workers.measured(unread()):
        assert len(read) - len(merged) <= AHEAD * count
        assert window.number == measured.tokens
        merged.append(window.number)
    assert merged == list(range(n_windows))
    workers.stop()
    assert not ray.alive


def test_a_window_that_loses_five_workers_ends_the_survey():
    lost_when = {3: "while they measured the documents from document 3 to", -1: "before they had"}
    for number, when in lost_when.items():
        ray = PlayedRay(lambda answers: answers[0], [number] * 5)
        workers = workers_of(ray, 1)
        with pytest.raises(SurveyError, match=f"^5 workers .*{when} .*: the machine was switched"):
            list(workers.measured(windows(6)))
        workers.stop()
        assert not ray.alive


def test_what_measuring_raises_comes_back_as_it_is():
    with pytest.raises(SurveyError, match="the model is wrong"):
        list(workers_of(PlayedRay(lambda answers: answers[0], wrong=2)).measured(windows(4)))


def test_there_are_as_many_workers_as_have_room_and_no_more():
    ray = PlayedRay(lambda answers: answers[0])
    workers_of(ray)
    assert ray.started == 3
    with pytest.raises(SurveyError, match=r"workers=4 of 1 threads .* of 2, 1 .* room for 3\. Ask"):
        workers_of(ray, 4)
    with pytest.raises(SurveyError, match=r"workers=2 of 2 threads .* room for 1\. Ask"):
        workers_of(ray, 2, threads=2)


def test_a_machine_with_other_versions_is_refused():
    check_versions("here", versions())
    with pytest.raises(SurveyError, match=r"node-7: has torch 1\.0, not .* same versions there"):
        check_versions("node-7", {**versions(), "torch": "1.0"})
