"""The command `impute`, end to end with tiny settings; the model called from Python is the oracle."""

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from missbgm import MissBGM, MissBGMWarning, __version__
from missbgm.cli import impute
from missbgm.cli.app import main
from missbgm.cli.options import ImputeOptions
from missbgm.cli.settings import read_settings
from missbgm.table.csv import number, read_csv

SETTINGS = (
    "epochs=1",
    "z_dim=2",
    "g_units=[4]",
    "missingness_units=[4]",
    "egm_init.n_iter=5",
    "egm_init.e_units=[4]",
    "egm_init.dz_units=[4]",
    "egm_init.dx_units=[4]",
    "posterior.n_mcmc=20",
    "posterior.burn_in=10",
)
SET = [part for setting in SETTINGS for part in ("--set", setting)]
# Odd ways to write numbers, five holes, and a column whose observed cells are all 7.
TABLE = (
    'height,"weight, kg",when,seven\n'
    ' 1.50,NA,"2.0",007\n'
    "1.8e0,-0.250,3.,\n"
    ",+4.125,.5,7\n"
    "1.75, 3.0 ,?,7.00\n"
    '"1.62",2,1.25,7\n'
    "1.9,1.5,0.000000000000000000001,n/a\n"
)
HOLES = [(0, 1), (1, 3), (2, 0), (3, 2), (5, 3)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_bytes(TABLE.encode())
    return tmp_path


def run(*arguments):
    return main(["impute", *arguments, *SET])


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def model():
    """The same fit from Python, with its draws."""
    fitted = MissBGM(read_settings(None, SETTINGS), 3)
    with pytest.warns(MissBGMWarning, match="did not mix"):
        fitted.fit(read_csv(io.BytesIO(TABLE.encode())).values, verbose=0).predict(verbose=0)
    return fitted


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One run with every output."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "t.csv").write_bytes(TABLE.encode())
    files = {name: str(folder / name) for name in ("t.csv", "out.csv", "cells.csv", "draws.csv", "run.txt")}
    outputs = ["-o", files["out.csv"], "--cells", files["cells.csv"], "--summary", files["run.txt"]]
    draws = ["--draws", files["draws.csv"], "--n-draws", "3", "--seed", "3", "--quiet"]
    assert run(files["t.csv"], *outputs, *draws) == 0
    return folder


# The completed table


def filled(values):
    """The table's text with these values in its holes."""
    lines = TABLE.splitlines(keepends=True)
    body = [line.rstrip("\n").split(",") for line in lines[1:]]
    for (row, column), value in zip(HOLES, values, strict=True):
        body[row][column] = number(value)
    return lines[0] + "".join(",".join(cells) + "\n" for cells in body)


def test_holes_get_the_models_means_and_all_else_keeps_its_text(done, model):
    assert (done / "out.csv").read_text(encoding="utf-8") == filled(model.draws_.point("mean"))


@pytest.mark.parametrize("point", ["median", "mode"])
def test_another_point_estimate_fills_the_holes_on_demand(folder, model, point):
    assert run("t.csv", "-o", "out.csv", "--seed", "3", "--point", point, "--quiet") == 0
    assert (folder / "out.csv").read_text(encoding="utf-8") == filled(model.draws_.point(point))


@pytest.mark.parametrize("others", [[], ["--cells", "cells.csv"]], ids=["alone", "with cells"])
def test_the_joint_mode_fills_the_holes_on_demand(folder, model, others):
    assert run("t.csv", "-o", "out.csv", "--seed", "3", "--point", "map", "--quiet", *others) == 0
    joint = [model.x_map_imputed_[cell] for cell in HOLES]
    assert (folder / "out.csv").read_text(encoding="utf-8") == filled(joint)


def test_the_joint_mode_alone_needs_no_draws(folder, monkeypatch):
    monkeypatch.setattr(MissBGM, "predict", None)
    assert run("t.csv", "-o", "out.csv", "--point", "map", "--summary", "run.txt", "--quiet") == 0
    text = (folder / "run.txt").read_text(encoding="utf-8")
    assert "joint posterior mode of all cells (MAP)" in text
    assert "No draws were made." in text


@pytest.mark.parametrize(
    "dialect", [(";", "\r\n", "utf-8-sig"), ("\t", "\r", "latin-1"), ("|", "\n", "utf-8")]
)
def test_the_way_a_file_is_written_is_kept(folder, dialect):
    delimiter, end, encoding = dialect
    lines = ["größe,b,c,seven", "1.50,NA,2.0,7", "1.8,2,3.,7", "1,+4,.5,7", "1.7,3,1,7", "1,2,3,7", "0,2,1,7"]
    content = end.join(lines).replace(",", delimiter)
    (folder / "t.csv").write_bytes(content.encode(encoding))
    assert run("t.csv", "-o", "out.csv", "--quiet") == 0
    written = (folder / "out.csv").read_bytes()
    found = number(read_csv(io.BytesIO(written)).values[0, 1])
    assert written == content.replace("NA", found).encode(encoding)


# Cells, draws and summary


def test_cells_are_listed_with_the_models_mean_sd_and_interval(done, model):
    header, *rows = rows_of(done / "cells.csv")
    assert header == ["row", "column", "mean", "sd", "lower", "upper"]
    names = ["height", "weight, kg", "when", "seven"]
    assert [row[:2] for row in rows] == [[str(i + 1), names[j]] for i, j in HOLES]
    numbers = np.column_stack([model.draws_.point("mean"), model.draws_.sd(), model.draws_.interval(0.05)])
    assert [row[2:] for row in rows] == [[number(x) for x in cell] for cell in numbers]
    assert rows[1][2:] == ["7", "0", "7", "7"]


def test_intervals_have_the_level_of_the_settings(folder, model):
    assert (
        run("t.csv", "-o", "o", "--cells", "c", "--seed", "3", "--quiet", "--set", "posterior.alpha=0.5") == 0
    )
    ends = [row[4:] for row in rows_of(folder / "c")[1:]]
    assert ends == [[number(x) for x in cell] for cell in model.draws_.interval(0.5)]


def test_draws_are_in_the_long_format_of_mice(done, model):
    header, *rows = rows_of(done / "draws.csv")
    assert header == [".imp", ".id", "height", "weight, kg", "when", "seven"]
    assert [row[:2] for row in rows] == [[str(m), str(i)] for m in range(4) for i in range(1, 7)]
    plain = [[cell.strip(' "') for cell in row] for row in csv.reader(TABLE.splitlines()[1:])]
    tables = [[list(row) for row in plain] for _ in range(4)]
    for place, (i, j) in enumerate(HOLES):
        tables[0][i][j] = "NA"
        # Three of twenty, evenly spread, the last included.
        for m, draw in enumerate((5, 12, 19), 1):
            tables[m][i][j] = number(model.draws_.values[draw, place])
    assert [row[2:] for row in rows] == [row for table in tables for row in table]


@pytest.mark.parametrize("n", [1, 20])
def test_as_many_draws_are_written_as_were_asked_for(folder, model, n):
    assert run("t.csv", "-o", "o", "--draws", "d", "--n-draws", str(n), "--seed", "3", "--quiet") == 0
    _, *rows = rows_of(folder / "d")
    assert len(rows) == 6 * (n + 1)
    assert rows[-6][3] == number(model.draws_.values[-1, 0])


def test_the_summary_says_what_was_done(done):
    lines = (done / "run.txt").read_text(encoding="utf-8").splitlines()
    facts = [tuple(part.strip() for part in (line[:14], line[14:])) for line in lines[:-2]]
    assert facts[:9] == [
        ("Table", str(done / "t.csv")),
        ("Rows", "6"),
        ("Columns", "4"),
        ("Missing cells", "5 of 24 (20.8%)"),
        ("height", "1 of 6 (16.7%)"),
        ("weight, kg", "1 of 6 (16.7%)"),
        ("when", "1 of 6 (16.7%)"),
        ("seven", "2 of 6 (33.3%)"),
        ("Filled with", "posterior mean of each cell"),
    ]
    assert facts[9] == ("Fit", "finished (1 epochs)")
    assert facts[10][0] == "Chains"
    assert facts[10][1].startswith("The chains did not mix well (largest R-hat ")
    settings = [fact for name, fact in facts if name == "Setting"]
    assert {text.partition(" (default ")[0].replace(" = ", "=") for text in settings} == set(SETTINGS)
    assert "posterior.n_mcmc = 20 (default 1000)" in settings
    assert facts[-3:-1] == [("Version", f"missbgm {__version__}"), ("Seed", "3")]
    assert facts[-1][0] == "Seconds"
    assert float(facts[-1][1]) >= 0
    assert lines[-2] == ""
    assert lines[-1].startswith("Mechanism assumed: the paper's network with beta = 0.01; ")


# Standard streams


def test_a_table_for_standard_output_comes_without_notices_among_it(done, folder, capsysbinary):
    assert run("t.csv", "-o", "-", "--seed", "3") == 0
    captured = capsysbinary.readouterr()
    assert captured.out == (done / "out.csv").read_bytes()
    assert captured.err.endswith(b"wrote standard output: completed table\n")


def test_any_output_may_be_the_stream(done, folder, capsysbinary):
    assert run("t.csv", "-o", "out.csv", "--cells", "-", "--seed", "3", "--quiet") == 0
    assert capsysbinary.readouterr().out == (done / "cells.csv").read_bytes()


def test_a_table_is_read_from_standard_input(done, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TABLE.encode())))
    options = ImputeOptions(output=Path("o"), summary=Path("s"), seed=3, set=SETTINGS, quiet=True)
    with pytest.warns(MissBGMWarning, match="did not mix"):
        impute.run(Path("-"), options, lambda _: None)
    assert (folder / "o").read_bytes() == (done / "out.csv").read_bytes()
    assert (folder / "s").read_text(encoding="utf-8").splitlines()[0].split(maxsplit=1)[1] == "standard input"


def test_faults_of_standard_input_are_laid_to_it(monkeypatch, folder):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match=r"^standard input: the file is empty"):
        impute.run(Path("-"), ImputeOptions(output=Path("o")), lambda _: None)


# Same seed, same bytes


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(done, folder):
    def outputs(seed):
        files = ["-o", f"o{seed}", "--cells", f"c{seed}", "--draws", f"d{seed}", "--n-draws", "3"]
        assert run("t.csv", *files, "--seed", str(seed), "--quiet") == 0
        return [(folder / f"{name}{seed}").read_bytes() for name in "ocd"]

    first = [(done / name).read_bytes() for name in ("out.csv", "cells.csv", "draws.csv")]
    assert outputs(3) == first
    assert all(a != b for a, b in zip(outputs(4), first, strict=True))


# Settings and tokens


def test_a_file_of_settings_is_read_under_the_assignments(done, folder):
    (folder / "s.yaml").write_text("epochs: 500000\nz_dim: 2\n", encoding="utf-8")
    assert run("t.csv", "-o", "out.csv", "--config", "s.yaml", "--seed", "3", "--quiet") == 0
    assert (folder / "out.csv").read_bytes() == (done / "out.csv").read_bytes()


def test_options_may_come_before_the_table(done, folder):
    assert main(["impute", *SET, "--seed=3", "--quiet", "--output=out.csv", "t.csv"]) == 0
    assert (folder / "out.csv").read_bytes() == (done / "out.csv").read_bytes()


def test_own_tokens_are_missing_too(done, folder):
    text = TABLE.replace("NA", "-99").replace("\n,", "\nxx,")
    (folder / "t.csv").write_text(text, encoding="utf-8")
    assert run("t.csv", "-o", "out.csv", "--na", "-99", "--na", "xx", "--seed", "3", "--quiet") == 0
    assert (folder / "out.csv").read_bytes() == (done / "out.csv").read_bytes()


# Notices


def test_notices_say_what_was_written_and_whether_chains_mixed(folder, capsys):
    assert (
        run("t.csv", "-o", "out.csv", "--cells", "c", "--draws", "d", "--n-draws", "1", "--summary", "s") == 0
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    warning, *notices = captured.err.splitlines()
    assert warning.startswith("warning: The chains did not mix well (largest R-hat ")
    assert notices == [
        "wrote out.csv: completed table",
        "wrote c: cells",
        "wrote d: draws",
        "wrote s: summary",
    ]


def test_quiet_prints_nothing(folder, capsys):
    assert run("t.csv", "-o", "out.csv", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_table_without_header_gets_a_note(folder, capsys):
    (folder / "t.csv").write_text(TABLE.partition("\n")[2], encoding="utf-8")
    assert run("t.csv", "-o", "out.csv", "--cells", "c") == 0
    note = "note: the first line holds numbers, so there is no header; columns are called x1, x2, ...\n"
    assert capsys.readouterr().err.startswith(note)
    assert [row[1] for row in rows_of(folder / "c")[1:]] == ["x2", "x4", "x1", "x3", "x4"]
    assert (folder / "out.csv").read_text(encoding="utf-8").startswith(" 1.50,")


def test_a_complete_table_comes_back_byte_for_byte_with_a_note(folder, capsys):
    complete = filled([1.0, 7.0, 1.6, 2.5, 7.0])
    (folder / "t.csv").write_text(complete, encoding="utf-8")
    assert run("t.csv", "-o", "o", "--cells", "c", "--draws", "d", "--n-draws", "1", "--summary", "s") == 0
    assert capsys.readouterr().err.startswith("note: no cell is missing, so there is nothing to fill; name")
    assert (folder / "o").read_text(encoding="utf-8") == complete
    assert rows_of(folder / "c") == [["row", "column", "mean", "sd", "lower", "upper"]]
    plain = [[cell.strip(' "') for cell in row] for row in rows_of(folder / "t.csv")[1:]]
    assert [row[2:] for row in rows_of(folder / "d")[1:]] == plain * 2
    assert "Nothing to check: no missing cell was drawn." in (folder / "s").read_text(encoding="utf-8")


def test_constant_columns_are_filled_without_a_model(folder):
    (folder / "t.csv").write_text("a,b\n0.5,\n,2\n0.50,2\n", encoding="utf-8")
    assert run("t.csv", "-o", "o", "--cells", "c", "--quiet") == 0
    assert (folder / "o").read_text(encoding="utf-8") == "a,b\n0.5,2\n0.5,2\n0.50,2\n"
    assert rows_of(folder / "c")[1:] == [["1", "b", "2", "0", "2", "2"], ["2", "a", "0.5", "0", "0.5", "0.5"]]


# Failures


@pytest.fixture
def unfitted(monkeypatch):
    """Fitting anything is an error."""

    def refuse(*_, **__):
        raise AssertionError("the fault should have been found before the work")

    monkeypatch.setattr(MissBGM, "fit", refuse)


@pytest.mark.parametrize(
    ("arguments", "table", "message"),
    [
        (
            "",
            "a,b\n1,\n2,?\n",
            "t.csv: no cell of 'b' is observed, so nothing can be said about it; drop that column.",
        ),
        ("", "a,b\n1,2\n1,x\n", "t.csv: column 'b' holds 'x' in row 2 (not counting the header), which"),
        ("", "", "t.csv: the file is empty; expected a header and rows of numbers."),
        (
            "--draws d",
            ".id,b\n1,2\n3,\n",
            "t.csv: a column is called '.id', which --draws needs for itself; rename",
        ),
        ("--draws d", ".imp,b\n1,2\n3,\n", "t.csv: a column is called '.imp', which --draws needs"),
        (
            "--draws d --n-draws 21",
            TABLE,
            "--n-draws must be at most 20, the number of draws that are kept; got 21.",
        ),
        ("--cells none/c", TABLE, "cannot write none/c: there is no folder"),
    ],
)
def test_faults_are_found_before_the_work(folder, unfitted, capsys, arguments, table, message):
    (folder / "t.csv").write_text(table, encoding="utf-8")
    assert run("t.csv", "-o", "out.csv", *arguments.split()) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["t.csv"]
    assert (folder / "t.csv").read_text(encoding="utf-8") == table


def test_the_settings_are_not_overwritten(folder, unfitted, capsys):
    (folder / "s.yaml").write_text("epochs: 1\n", encoding="utf-8")
    assert run("t.csv", "-o", "s.yaml", "--config", "./s.yaml") == 1
    assert (
        capsys.readouterr().err
        == "error: s.yaml is an input and would be overwritten; choose another output.\n"
    )


def test_more_draws_may_be_written_when_there_are_more_chains(folder):
    draws = ["--draws", "d", "--n-draws", "40", "--set", "posterior.n_chains=2"]
    assert main(["impute", "t.csv", "-o", "o", *SET, *draws, "--quiet"]) == 0
    assert rows_of(folder / "d")[-1][0] == "40"


def test_a_failure_while_writing_leaves_what_was_there(folder, monkeypatch, capsys):
    def fail(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(impute, "write_cells", fail)
    (folder / "out.csv").write_text("old", encoding="utf-8")
    assert run("t.csv", "-o", "out.csv", "--cells", "c", "--summary", "s") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: [Errno 28] No space left on device"
    assert {path.name for path in folder.iterdir()} == {"t.csv", "out.csv"}
    assert (folder / "out.csv").read_text(encoding="utf-8") == "old"


def test_the_engine_with_integrated_missing_cells_is_one_setting_away(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 1)) + 0.5 * rng.standard_normal((40, 3))
    missing = rng.random(x.shape) < 0.2
    missing[:, 0] = False
    lines = [
        ",".join("" if gone else repr(float(v)) for v, gone in zip(*row, strict=True))
        for row in zip(x, missing, strict=True)
    ]
    source, filled, summary, cells = (
        tmp_path / name for name in ("t.csv", "out.csv", "run.txt", "cells.csv")
    )
    source.write_text("\n".join(["age,income,dose", *lines]) + "\n", encoding="utf-8")
    chosen = [
        "engine=collapse",
        "z_dim=1",
        "missingness.income=selfmask",
        "posterior.n_mcmc=30",
        "collapse.n_iter=20",
    ]
    chosen += [
        "collapse.n_fold_iter=10",
        "collapse.n_refits=1",
        "collapse.transform=raw",
        "collapse.components=1",
    ]
    given = [part for setting in chosen for part in ("--set", setting)]
    files = ["-o", str(filled), "--summary", str(summary), "--cells", str(cells)]
    assert main(["impute", str(source), *files, *given, "--quiet"]) == 0
    table = read_csv(source, ())
    model = MissBGM(read_settings(None, chosen)).fit(table.values, names=table.names, verbose=0)
    expected, _ = model.predict(verbose=0)
    np.testing.assert_allclose(read_csv(filled, ()).values, expected, rtol=1e-6)
    text = summary.read_text(encoding="utf-8")
    assert "- selfmask, income: the chance depends on the cell's own value only." in text
    assert "- ignorable, dose:" in text
    assert "finished (20 iterations)" in text
    assert "Rows were drawn by weighted proposals" in text


def test_a_column_that_the_file_does_not_have_is_refused(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    given = ["--set", "engine=collapse", "--set", "missingness={wait: mcar}"]
    assert main(["impute", str(tmp_path / "t.csv"), "-o", str(tmp_path / "o.csv"), *given]) == 1
    assert "missingness names the column 'wait', which the table does not have" in capsys.readouterr().err
