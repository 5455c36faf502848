"""A run of power: what is chosen, and that a lost process costs the trial that it was given."""

from multiprocessing import active_children

from biprop.kernels.planted import PLANTED
from biprop.power.pool import made
from biprop.power.subjects import Choice, chosen, planted_subjects
from biprop.power.working import Task
from biprop.reports.power import Trial


def test_backends_are_chosen() -> None:
    """Each planted kernel is of one backend, those of Triton on a CPU are interpreted."""
    subjects, _ = planted_subjects("cpu")
    of_triton = chosen(subjects, Choice(backends=("triton",)))
    of_torch = chosen(subjects, Choice(backends=("torch",)))
    interpreted = {item.name for item in PLANTED if item.interpreted}

    assert of_triton
    assert {subject.name for subject in of_triton} <= interpreted
    assert not interpreted & {subject.name for subject in of_torch}
    assert len(of_triton) + len(of_torch) == len(subjects)


def test_a_lost_process_costs_one_trial() -> None:
    """Of three trials the second is lost, with the reason, and the third is made by another."""
    subjects, _ = planted_subjects("cpu")
    (subject,) = chosen(subjects, Choice(names=("scale_by_row",)))
    tasks = [
        Task(subject=subject, dtype="float32", method="biprop", seed=seed, examples=4)
        for seed in (1, 2, 3)
    ]
    trials: list[Trial] = []
    for ended in made(tasks, devices=("cpu",), workers=1):
        assert isinstance(ended.trial, Trial)
        trials.append(ended.trial)
        if len(trials) == 1:
            (process,) = (item for item in active_children() if item.name == "biprop power")
            process.kill()
            process.join()

    assert [(trial.seed, trial.found) for trial in trials] == [(1, True), (2, False), (3, True)]
    assert trials[1].error == "The process that made the trial was killed by SIGKILL."
    assert [item for item in active_children() if item.name == "biprop power"] == []
