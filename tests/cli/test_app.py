"""The command line's outside: help, exit codes, and errors of one line. No test here fits a model."""

import subprocess
import sys

import pytest

from missbgm import __version__
from missbgm.cli.app import main

HEAVY = ("jax", "numpy", "scipy", "sklearn", "equinox", "optax", "yaml")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n,3\n4,5\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def say(capsys):
    """Run the program in the folder of the table: its exit code and what it prints on standard error."""

    def run(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err

    return run


# Help


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "impute " in captured.out
    assert "simulate " in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("impute", "output config seed draws n-draws cells summary point na set quiet"),
        ("simulate", "output rows columns missing-rate seed truth quiet"),
    ],
)
def test_help_of_a_command_lists_its_options_and_no_other(command, options, capsys):
    assert main([command, "--help"]) == 0
    words = capsys.readouterr().out.replace("│", " ").split()
    listed = {word.strip("[].,") for word in words if word.startswith("--")}
    assert listed == {f"--{name}" for name in options.split()}


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["impute", "--help"], ["--version"], ["impute"], ["imputt"]]
)
def test_nothing_heavy_is_imported_to_help_or_to_refuse(arguments):
    code = f"""if True:
        import sys
        from missbgm.cli.app import main
        main({arguments!r})
        print("imported:", *(name for name in {HEAVY!r} if name in sys.modules))
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("imported:\n")


def test_the_installed_program_ends_with_the_exit_code(tmp_path):
    code = """if True:
        import sys
        from importlib.metadata import entry_points
        (script,) = entry_points(group="console_scripts", name="missbgm")
        sys.argv = ["missbgm", "simulate", "-o", "none/x"]
        sys.exit(script.load()())
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: cannot write none/x: there is no folder")


def test_an_interruption_ends_with_the_shells_exit_code(monkeypatch, table):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("missbgm.cli.simulate.run", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["simulate", "-o", "x.csv"])
    assert end.value.code == 130


# Exit code 2: not called rightly


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("imputt t.csv", 'Unknown command "imputt".'),
        ("impute", 'Command "impute" parameter TABLE requires an argument.'),
        ("impute t.csv", 'Command "impute" parameter --output requires an argument.'),
        ("impute t.csv -o", 'Command "impute" parameter -o requires an argument.'),
        ("impute t.csv u.csv -o x", "Unused Tokens: ['u.csv']."),
        ("impute t.csv -o x --bogus 3", "Unknown option: --bogus."),
        ("impute t.csv -o x --seed one", '--seed: unable to convert "one" into int.'),
        ("impute t.csv -o x --seed -1", 'Invalid value "-1" for --seed. Must be >= 0.'),
        ("impute t.csv -o x --n-draws 0", 'Invalid value "0" for --n-draws. Must be >= 1.'),
        ("impute t.csv -o x --point max", 'Invalid value "max" for --point. Choose from: "mean", "median",'),
        ("impute t.csv -o x --set epochs", "expected name=value, such as posterior.n_mcmc=200; got 'epochs'"),
        ("impute t.csv -o x --set =3", "expected name=value, such as posterior.n_mcmc=200; got '=3'"),
        ("impute t.csv -o -x.csv", "expected a file name, got '-x.csv'"),
        ("impute t.csv -o x --draws --cells", "expected a file name, got '--cells'"),
        ("simulate", 'Command "simulate" parameter --output requires an argument.'),
        ("simulate -o x --rows 0", 'Invalid value "0" for --rows. Must be >= 1.'),
        ("simulate -o x --columns two", '--columns: unable to convert "two" into int.'),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(table, say, arguments, complaint):
    code, error = say(*arguments.split())
    assert code == 2
    assert error.startswith("error: ")
    assert complaint in error
    assert error.endswith(" See missbgm --help.\n")
    assert error.count("\n") == 1
    assert sorted(path.name for path in table.iterdir()) == ["t.csv"]


# Exit code 1: called rightly, and failed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("impute none.csv -o x", "none.csv: No such file or directory"),
        ("impute . -o x", ".: Is a directory"),
        ("impute t.csv -o none/x", "cannot write none/x: there is no folder {folder}/none; create it first."),
        ("impute t.csv -o .", ". is a folder; expected the name of a file to write."),
        ("impute t.csv -o t.csv", "t.csv is an input and would be overwritten; choose another output."),
        ("impute t.csv -o x --config x", "x is an input and would be overwritten; choose another output."),
        ("impute t.csv -o x --cells ./x", "two outputs would go to x; give each a file of its own."),
        ("impute t.csv -o - --draws -", "two outputs would go to -; give each a file of its own."),
        (
            "impute t.csv -o x --config no.yaml",
            "cannot read the settings in no.yaml: No such file or directory",
        ),
        ("impute t.csv -o x --set epoch=1", "unknown setting 'epoch'; did you mean 'epochs'?"),
        ("simulate -o x --truth x", "two outputs would go to x; give each a file of its own."),
        ("simulate -o x --missing-rate 1", "missing_rate must lie strictly between 0 and 1; got 1.0."),
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(table, say, arguments, message):
    code, error = say(*arguments.split())
    assert code == 1
    assert error == f"error: {message.format(folder=table)}\n"
    assert sorted(path.name for path in table.iterdir()) == ["t.csv"]


def test_errors_of_many_lines_are_folded_into_one(table, say):
    (table / "bad.yaml").write_text("epochs: [1\nz_dim: 2\n", encoding="utf-8")
    code, error = say("impute", "t.csv", "-o", "x", "--config", "bad.yaml")
    assert code == 1
    assert error.startswith("error: bad.yaml is not valid YAML: ")
    assert error.count("\n") == 1


def test_errors_are_printed_even_when_quiet(table, say):
    assert say("impute", "none.csv", "-o", "x", "--quiet") == (
        1,
        "error: none.csv: No such file or directory\n",
    )


def test_a_mistake_of_the_program_is_not_hidden(table, monkeypatch):
    def mistaken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("missbgm.cli.simulate.run", mistaken)
    with pytest.raises(ZeroDivisionError):
        main(["simulate", "-o", "x.csv"])
