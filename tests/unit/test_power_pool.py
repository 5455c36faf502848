"""Processes of a run of power: one that is lost costs the trial that it was given, and no other."""

from multiprocessing import active_children

from biprop.power.pool import made
from biprop.power.subjects import Choice, chosen, planted_subjects
from biprop.power.working import Task
from biprop.reports.power import Trial


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
