"""The command `simulate`: the benchmark's table, written so that nothing is lost."""

import csv

import numpy as np
import pytest

from missbgm.cli.app import main
from missbgm.datasets import simulate_mnar_oracle_data
from missbgm.table.csv import read_csv


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments):
    return main(["simulate", *arguments.split()])


def test_the_table_is_the_benchmarks_to_the_last_bit(folder, capsys):
    assert run("-o x.csv --truth y.csv --rows 40 --columns 8 --missing-rate 0.4 --seed 5") == 0
    data = simulate_mnar_oracle_data(40, 8, missing_rate=0.4, seed=5)
    np.testing.assert_array_equal(read_csv(folder / "x.csv").values, data["x_obs"])
    np.testing.assert_array_equal(read_csv(folder / "y.csv").values, data["x_full"])
    assert capsys.readouterr().err == "wrote x.csv: table with holes\nwrote y.csv: complete table\n"


def test_missing_cells_are_empty_under_a_header(folder):
    run("-o x.csv --rows 10 --columns 6 --missing-rate 0.9")
    with (folder / "x.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["x1", "x2", "x3", "x4", "x5", "x6"]
    holes = np.isnan(simulate_mnar_oracle_data(10, 6, missing_rate=0.9)["x_obs"])
    assert holes.any()
    assert [[cell == "" for cell in row] for row in rows] == holes.tolist()


def test_defaults_are_the_papers(folder):
    run("-o x.csv")
    np.testing.assert_array_equal(
        read_csv(folder / "x.csv").values,
        simulate_mnar_oracle_data(500, 50, missing_rate=0.2, seed=123)["x_obs"],
    )


def test_without_truth_one_file_is_written(folder):
    run("-o x.csv --rows 5 --columns 6")
    assert [path.name for path in folder.iterdir()] == ["x.csv"]


def test_the_same_seed_gives_the_same_bytes(folder):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(f"-o {name} --rows 5 --columns 6 --seed {seed}")
    a, b, c = ((folder / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_table_for_standard_output_comes_without_notices_among_it(folder, capsysbinary):
    run("-o x.csv --rows 5 --columns 6 --quiet")
    assert run("-o - --rows 5 --columns 6") == 0
    captured = capsysbinary.readouterr()
    assert captured.out == (folder / "x.csv").read_bytes()
    assert captured.err == b"wrote standard output: table with holes\n"


def test_quiet_prints_nothing(capsys):
    assert run("-o x.csv --rows 5 --columns 6 --quiet") == 0
    assert capsys.readouterr() == ("", "")
