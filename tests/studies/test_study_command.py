"""``noisewise study``: what it lists, runs, writes and refuses."""

from __future__ import annotations

import pytest
from coin_study import COINS

import noisewise as nw
from noisewise.cli import main


def test_the_list_says_what_each_study_shows_and_costs(capsys):
    assert main(["study", "list"]) == 0
    said = capsys.readouterr().out
    for study in nw.studies.catalogue():
        assert study.name in said
        assert study.shows in said
        assert study.cost in said
        assert len(study.cost) > 10


def test_every_study_has_a_name_of_its_own_and_cells():
    studies = nw.studies.catalogue()
    assert len({study.name for study in studies}) == len(studies)
    for study in studies:
        for settings in (study.settings, study.with_settings(study.tiny)):
            cells = study.cells(settings)
            assert len({tuple(cell.items()) for cell in cells}) == len(cells) > 0


def test_a_study_is_run_and_gone_on_with(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("noisewise.studies.catalogue", lambda: (COINS,))
    arguments = ["study", "coins", "--replicates", "3", "--set", "probabilities=[0.5]", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "| p = 0.5 | 0.5 |" in said
    assert "Ran 1 tasks" in said
    assert (tmp_path / "coins" / "table.md").read_text() in said
    assert main(arguments) == 0
    assert "Ran 0 tasks" in capsys.readouterr().out
    assert main(["study", "all", "--tiny", "--out", str(tmp_path / "all")]) == 0
    assert (tmp_path / "all" / "coins" / "results.nc").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["study", "nothing-like-it"], "There is no study 'nothing-like-it'; there are "),
        (["study", "ju-loglinear-means", "--set", "draws"], "--set takes name=value"),
        (["study", "ju-loglinear-means", "--set", "drows=3"], "no setting 'drows'; it has epsilons"),
        (["study", "ju-loglinear-means", "--replicates", "0"], "replicates must be a whole number of at least 1"),
    ],
)
def test_mistakes_get_a_sentence(tmp_path, capsys, arguments, said):
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
