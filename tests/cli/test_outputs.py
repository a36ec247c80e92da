"""Files written whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from missbgm.cli import outputs
from missbgm.cli.outputs import STREAM, check_outputs, named, write_outputs
from missbgm.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text(content):
    return lambda file: file.write(content.encode())


def fails(file):
    file.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_streams_are_named_in_words():
    assert named(STREAM) == "standard output"
    assert named(STREAM, "standard input") == "standard input"
    assert named(Path("a/b.csv")) == str(Path("a/b.csv"))


# Checks


def test_new_and_existing_files_are_accepted(folder):
    (folder / "old").write_text("")
    check_outputs([Path("new"), Path("old"), STREAM], [Path("input"), STREAM])


@pytest.mark.parametrize("other", ["a", "./b/../a", "link", "hard", "-"])
def test_one_file_twice_is_refused_however_it_is_written(folder, other):
    (folder / "a").write_text("kept")
    (folder / "b").mkdir()
    (folder / "link").symlink_to("a")
    (folder / "hard").hardlink_to("a")
    first = STREAM if other == "-" else folder / "a"
    with pytest.raises(ConfigError) as error:
        check_outputs([first, Path(other)])
    assert str(error.value) == f"two outputs would go to {Path(other)}; give each a file of its own."


def test_one_new_file_twice_is_refused(folder):
    with pytest.raises(ConfigError, match=r"^two outputs would go to"):
        check_outputs([folder / "new", Path("new")])


@pytest.mark.parametrize("output", ["input", "link"])
def test_an_input_is_not_overwritten(folder, output):
    (folder / "input").write_text("kept")
    (folder / "link").symlink_to("input")
    with pytest.raises(ConfigError) as error:
        check_outputs([Path("other"), Path(output)], [folder / "input"])
    assert str(error.value) == f"{output} is an input and would be overwritten; choose another output."


def test_a_stream_may_be_input_and_output_at_once():
    check_outputs([STREAM], [STREAM])


def test_a_folder_is_no_file(folder):
    with pytest.raises(IsADirectoryError, match=r"^\. is a folder; expected the name of a file to write\.$"):
        check_outputs([Path()])


def test_a_folder_that_is_not_there_is_named(folder):
    with pytest.raises(FileNotFoundError) as error:
        check_outputs([Path("no/x.csv")])
    assert (
        str(error.value)
        == f"cannot write {Path('no/x.csv')}: there is no folder {folder / 'no'}; create it first."
    )


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_file_without_permission_is_refused(folder, monkeypatch, closed):
    # The superuser may write anywhere, so the system's answer is made up.
    (folder / "x.csv").write_text("kept")
    forbidden = folder if closed == "folder" else Path("x.csv")
    monkeypatch.setattr(outputs.os, "access", lambda path, mode: Path(path) != forbidden)
    with pytest.raises(PermissionError, match=r"^cannot write x\.csv: no permission; choose another file or"):
        check_outputs([Path("x.csv")])


# Writing


def test_every_file_is_written(folder):
    (folder / "a").write_text("old")
    write_outputs({Path("a"): text("new"), folder / "b": text("more")})
    assert contents(folder) == {"a": "new", "b": "more"}


@pytest.mark.parametrize("order", [1, -1], ids=["failure last", "failure first"])
def test_a_failure_leaves_everything_as_it_was(folder, order):
    (folder / "a").write_text("old")
    writers = [(Path("a"), text("new")), (Path("b"), fails)][::order]
    with pytest.raises(OSError, match="No space"):
        write_outputs(dict(writers))
    assert contents(folder) == {"a": "old"}


def test_an_interruption_leaves_no_temporary_file(folder):
    def interrupted(file):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_outputs({Path("a"): interrupted})
    assert contents(folder) == {}


def test_nothing_goes_to_standard_output_after_a_failure(capsysbinary):
    with pytest.raises(OSError, match="No space"):
        write_outputs({STREAM: text("table"), Path("b"): fails})
    assert capsysbinary.readouterr().out == b""


def test_a_stream_gets_its_bytes_as_they_are(folder, capsysbinary):
    write_outputs({STREAM: text("a,b\r\n1,é\n"), Path("b"): text("file")})
    assert capsysbinary.readouterr().out == "a,b\r\n1,é\n".encode()
    assert contents(folder) == {"b": "file"}


def test_permissions_of_a_file_that_is_replaced_are_kept(folder):
    (folder / "a").write_text("old")
    (folder / "a").chmod(0o640)
    write_outputs({Path("a"): text("new")})
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o640


def test_a_link_goes_on_pointing_to_the_file_that_is_replaced(folder):
    (folder / "there").mkdir()
    (folder / "there" / "a").write_text("old")
    (folder / "link").symlink_to(Path("there") / "a")
    (folder / "dangling").symlink_to(Path("there") / "b")
    write_outputs({Path("link"): text("new"), Path("dangling"): text("more")})
    assert (folder / "link").is_symlink()
    assert (folder / "dangling").is_symlink()
    assert contents(folder / "there") == {"a": "new", "b": "more"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_written_to_and_stays_one(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_outputs({pipe: text("through")})
    reader.join(10)
    assert read == [b"through"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_device_is_an_error():
    with pytest.raises(OSError, match="No space left"):
        write_outputs({Path("/dev/full"): text("x" * 100_000)})


def test_a_reader_that_leaves_ends_the_program_without_a_second_complaint():
    code = """if True:
        import sys
        from missbgm.cli.outputs import STREAM, write_outputs
        def when_nobody_reads(file):
            sys.stdin.read()
            file.write(b"x")
        try:
            write_outputs({STREAM: when_nobody_reads})
        except BrokenPipeError:
            raise SystemExit(7)
        """
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    process.stdout.close()
    process.stdin.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 7
    assert complaint == b""
