"""Delimited text: what is a header, a delimiter, a missing cell; and back without touching a character."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from missbgm.errors import TableError
from missbgm.table.csv import DELIMITERS, NA_TOKENS, number, plain, read_csv, write_completed, write_csv

NAN = np.nan


def read(text, na=(), encoding="utf-8"):
    return read_csv(io.BytesIO(text.encode(encoding)), na)


def written(table, completed=None):
    file = io.BytesIO()
    write_completed(file, table, table.values if completed is None else np.asarray(completed, float))
    return file.getvalue()


def refusal(text, na=()):
    with pytest.raises(TableError) as error:
        read(text, na)
    return str(error.value)


# Reading


def test_a_plain_table():
    table = read("a,b\n1,2.5\n-3e2,\n")
    assert table.names == ["a", "b"]
    np.testing.assert_array_equal(table.values, [[1, 2.5], [-300, NAN]])
    np.testing.assert_array_equal(table.observed, [[True, True], [True, False]])
    assert table.cells == [["1", "2.5"], ["-3e2", ""]]


def test_a_path_reads_like_a_stream(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n1,2\n")
    assert read_csv(path).values.tolist() == [[1, 2]]


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "unended"])
def test_every_delimiter_and_line_end_is_found_out(delimiter, end, last):
    lines = [delimiter.join(cells) for cells in (["a", "b", "c"], ["1", "NA", "3"], ["4", "5", "6"])]
    text = end.join(lines) + end * last
    table = read(text)
    assert table.dialect.delimiter == delimiter
    np.testing.assert_array_equal(table.values, [[1, NAN, 3], [4, 5, 6]])
    assert written(table, [[1, 2, 3], [4, 5, 6]]) == text.replace("NA", "2").encode()


def test_a_comma_inside_cells_is_no_delimiter_where_a_semicolon_is_one():
    assert read('"a,1";"b,2"\n1;2\n').names == ["a,1", "b,2"]
    assert "Write decimals with a point." in refusal("a;b\n1;2,5\n")


def test_delimiters_inside_quotes_do_not_count():
    table = read('"a;b","c;d"\n1,2\n')
    assert (table.names, table.dialect.delimiter) == (["a;b", "c;d"], ",")


def test_one_column_goes_by_the_comma():
    assert refusal("a\n1\n2,5\n").endswith("(cells are told apart by ',').")


def test_lines_of_unequal_length_go_by_the_busiest_delimiter():
    assert refusal("a,b,c;d\n1,2,3\n4,5\n").endswith("(cells are told apart by ',').")


@pytest.mark.parametrize(
    ("encoding", "kept"), [("utf-8", "utf-8"), ("utf-8-sig", "utf-8-sig"), ("latin-1", "latin-1")]
)
def test_encodings_are_found_out_and_kept(encoding, kept):
    content = "größe,b\n1,\n2,3\n".encode(encoding)
    table = read_csv(io.BytesIO(content))
    assert table.names == ["größe", "b"]
    assert table.dialect.encoding == kept
    assert written(table, [[1, 4], [2, 3]]) == content.replace(b"1,", b"1,4")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_wide_encodings_are_refused(encoding):
    with pytest.raises(TableError, match=r"^the file is not plain text.*save the table as CSV in UTF-8\.$"):
        read("a,b\n1,2\n", encoding=encoding)


# Missing cells


@pytest.mark.parametrize("token", sorted(NA_TOKENS))
@pytest.mark.parametrize("dress", ["{}", " {} ", '"{}"', ' "{}" '])
def test_usual_tokens_are_missing_in_any_case_and_dress(token, dress):
    text = "\n".join(["a,b", *(f"{dress.format(t)},2" for t in (token, token.upper(), token.title()))])
    table = read(text + "\n")
    np.testing.assert_array_equal(table.observed, [[False, True]] * 3)


def test_own_tokens_are_missing_as_text_and_as_numbers():
    table = read("a,b,c\n-99,-99.0,x\n-9.9e1,99,X1\n", na=["-99", " x ", "X1"])
    np.testing.assert_array_equal(table.observed, [[False, False, False], [False, True, False]])


def test_own_text_tokens_keep_their_case():
    assert "'X'" in refusal("a,b\nX,1\n", na=["x"])


def test_a_row_of_delimiters_alone_is_a_row_of_missing_cells():
    np.testing.assert_array_equal(read("a,b\n1,2\n,\n3,4\n").values, [[1, 2], [NAN, NAN], [3, 4]])


# Headers


def test_without_a_header_columns_are_numbered():
    table = read("1,2,NA\n4,5,6\n")
    assert table.header is None
    assert table.names == ["x1", "x2", "x3"]
    np.testing.assert_array_equal(table.values, [[1, 2, NAN], [4, 5, 6]])


def test_quoted_numbers_above_bare_ones_are_names():
    table = read('"2019","2020"\n1,2\n')
    assert table.names == ["2019", "2020"]
    assert table.values.tolist() == [[1, 2]]


def test_quoted_numbers_all_over_are_numbers():
    assert read('"2019","2020"\n"1","2"\n').values.tolist() == [[2019, 2020], [1, 2]]


def test_one_text_makes_a_header():
    assert read("1,b\n1,2\n").names == ["1", "b"]


def test_an_own_token_in_the_first_line_is_a_missing_cell():
    assert read("-,2\n1,3\n", na=["-"]).header is None
    assert read("-,2\n1,3\n").names == ["-", "2"]


def test_names_may_hold_quotes_delimiters_and_line_ends():
    text = '"a ""b""","c,d","e\nf"\n1,2,\n'
    table = read(text)
    assert table.names == ['a "b"', "c,d", "e\nf"]
    assert written(table, [[1, 2, 3]]) == text.replace("2,\n", "2,3\n").encode()


# Blank lines


def test_blank_lines_are_skipped():
    table = read("\n  \na,b\n\n1,2\n   \n3,4\n\n")
    assert table.values.tolist() == [[1, 2], [3, 4]]
    assert written(table) == b"a,b\n1,2\n3,4\n"


def test_blank_lines_inside_one_column_are_missing_cells():
    table = read("\na\n1\n\n 3\n\n\n")
    np.testing.assert_array_equal(table.values, [[1], [NAN], [3]])
    assert written(table, [[1], [2], [3]]) == b"a\n1\n2\n 3\n"


# What is refused


@pytest.mark.parametrize("text", ["", "\n", " \r\n\r\n", "\ufeff"])
def test_an_empty_file_is_refused(text):
    assert refusal(text) == "the file is empty; expected a header and rows of numbers."


def test_a_header_alone_is_refused():
    assert refusal("a,b\n") == "the file has a header and no rows; expected at least one row of numbers."


@pytest.mark.parametrize(("row", "cells"), [("1,2,3", 3), ("1", 1)])
def test_a_row_of_another_length_is_named(row, cells):
    assert refusal(f"a,b\n1,2\n\n{row}\n") == (
        f"row 2 has {cells} cells, expected 2 as in the first line; mend that row "
        "(cells are told apart by ',')."
    )


def test_a_column_without_name_is_refused():
    text = refusal("a,,\n1,2,3\n")
    assert text.startswith(
        "column 2 has no name; name it in the header, or remove it if it holds row numbers"
    )


def test_two_columns_of_one_name_are_refused():
    assert refusal('a,b,"a"\n1,2,3\n') == "columns 1 and 3 are both called 'a'; give each a name of its own."


def test_text_is_refused_with_its_column_row_and_fellows():
    assert refusal("a,b,c,d\n1,red,2,x\n1,blue,inf,y\n") == (
        "column 'b' holds 'red' in row 1 (not counting the header), which is not a finite number; columns "
        "must be numeric in this version. Code it as numbers, drop it, or name 'red' as a token for missing "
        "cells. The same goes for 'c', 'd'."
    )


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999", "1_000", "0x10", "1 2", "--1", '"a'])
def test_what_is_not_a_finite_number_is_refused(cell):
    text = refusal(f"a,b\n1,2\n{cell},3\n")
    assert text.startswith(f"column 'a' holds {cell!r} in row 2")
    assert "decimals" not in text


# Cells and numbers


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("a", "a"),
        (" a\t", "a"),
        ('"a"', "a"),
        (' " a " ', "a"),
        ('"a ""b"""', 'a "b"'),
        ('"', '"'),
        ('""', ""),
    ],
)
def test_plain_is_what_a_cell_says(cell, text):
    assert plain(cell) == text


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_written_numbers_tell_all_32_bit_floats_apart(value):
    assert np.float32(number(value)) == np.float32(value)


# Writing

CELL = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.from_regex(r"[+-]?[0-9]{1,4}\.[0-9]{0,25}([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(["007", "+1", "1.", ".5", "-0", "1E5", "1.50"]),
)
DRESSED = st.tuples(CELL, st.sampled_from(["{}", " {}", "{} ", '"{}"', ' "{}" ', '" {}"'])).map(
    lambda pair: pair[1].format(pair[0])
)
MISSING = st.sampled_from(["", "NA", " nan ", '"?"', "N/A", ".", '""'])


@st.composite
def tables(draw):
    """Cells of a table, some of them missing, under a header or a line that cannot be taken for one."""
    width = draw(st.integers(2, 4))
    row = st.lists(st.one_of(DRESSED, DRESSED, MISSING), min_size=width, max_size=width)
    first = draw(st.sampled_from([[f'"é {j}"' for j in range(width)], ["1"] * width]))
    return [first, *draw(st.lists(row, min_size=1, max_size=5))]


def said(cell):
    return cell.strip().strip('"').strip().lower()


def joined(rows, delimiter, end, last):
    return end.join(delimiter.join(row) for row in rows) + end * last


@settings(max_examples=200, deadline=None)
@given(
    tables(),
    st.sampled_from(DELIMITERS),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]),
)
def test_observed_cells_come_back_character_for_character(rows, delimiter, end, last, encoding):
    table = read(joined(rows, delimiter, end, last), encoding=encoding)
    body = rows[1:] if table.header else rows
    seen = [[said(cell) not in NA_TOKENS for cell in row] for row in body]
    assert table.observed.tolist() == seen
    assert table.values[table.observed].tolist() == [
        float(said(cell)) for row in body for cell in row if said(cell) not in NA_TOKENS
    ]
    filled = [["7.25" if said(cell) in NA_TOKENS else cell for cell in row] for row in rows]
    completed = np.where(table.observed, 0, 7.25)
    assert written(table, completed) == joined(filled, delimiter, end, last).encode(encoding)


PIECES = st.sampled_from(["1", "2.5", "1,2\n", "3,4\r\n", ",", "\n", '"', '"1"', " ", "a", ";", "\t"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=10).map("".join))
def test_no_character_of_any_readable_text_is_lost_but_blank_lines(text):
    try:
        table = read(text)
    except TableError:
        return  # no other error may come out
    untouched = replace(table, observed=np.ones(table.observed.shape, bool))
    assert "".join(written(untouched).decode().split()) == "".join(text.split())


def test_new_files_are_read_back_by_other_programs():
    file = io.BytesIO()
    rows = [["1", 'say "x"'], ["", "a,b"], ["2\n3", "é"]]
    write_csv(file, ["id", "größe"], rows)
    content = file.getvalue().decode("utf-8")
    assert list(csv.reader(io.StringIO(content, newline=""))) == [["id", "größe"], *rows]
    assert "\r" not in content


def test_a_wrong_number_of_rows_is_an_error_and_not_a_shorter_file():
    with pytest.raises(ValueError, match="zip"):
        written(read("a,b\n1,2\n3,4\n"), [[1, 2]])
