from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pytest

from airflow_epochs.config import Transform
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.operators.transform_file import find_transform


@pytest.mark.parametrize("text", ["orders.py", "orders:orders", "orders.py:", "orders.py:not a name", ":orders", ""])
def test_a_transform_that_is_not_file_colon_function_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(BadArgument, match=r"must have the form 'path/to/file\.py:function'"):
        Transform.parse(text)


def test_a_relative_transform_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "b" / "orders.py").write_text("def orders(batch, epoch): ...\n")
    found = find_transform("orders.py:orders", [tmp_path / "a", tmp_path / "b"])
    assert found.path == str(tmp_path / "b" / "orders.py")
    assert found.function == "orders"


def test_an_absolute_transform_needs_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text("def orders(batch, epoch): ...\n")
    assert find_transform(f"{file}:orders", []).path == str(file)


def test_a_missing_transform_is_refused_naming_every_place_looked_at(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        find_transform("orders.py:orders", [tmp_path / "a", tmp_path / "b"])
    assert str(tmp_path / "a" / "orders.py") in str(refused.value)
    assert str(tmp_path / "b" / "orders.py") in str(refused.value)


@pytest.mark.parametrize("name", ["orders.py", "lib/orders.py"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_transform_in_the_archive_of_its_dag_is_refused_until_it_is_a_plain_file_beside_it(
    tmp_path: Path, name: str, absolute: bool
) -> None:
    archive, code = tmp_path / "dags.zip", "def orders(batch, epoch): ...\n"
    with ZipFile(archive, "w") as packed:
        packed.writestr(name, code)
    text = f"{archive / name}:orders" if absolute else f"{name}:orders"
    folders = [archive, tmp_path, tmp_path.parent]  # a DAG in it is at dags.zip/dag.py
    with pytest.raises(Refused, match="EPOCHS-TRANSFORM-MISSING") as refused:
        find_transform(text, folders)
    assert f"is in the archive {archive}. Spark needs a plain file." in refused.value.what
    where = re.findall(r"beside the archive: (\S+)\. ", refused.value.remedy)[0]
    Path(where).parent.mkdir(exist_ok=True)
    Path(where).write_text(code)
    if absolute:
        assert f"Let `transform=` name {where}." in refused.value.remedy
        text = f"{where}:orders"
    assert find_transform(text, folders).path == str(tmp_path / name)


def test_a_transform_that_the_archive_of_its_dag_lacks_too_is_missing(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "dags.zip", "w") as packed:
        packed.writestr("dag.py", "")
    with pytest.raises(Refused, match=r"There is no transform file 'orders\.py'"):
        find_transform("orders.py:orders", [tmp_path / "dags.zip", tmp_path])


def test_a_folder_that_is_named_twice_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        find_transform("orders.py:orders", [tmp_path, tmp_path.parent, tmp_path, tmp_path.parent])
    assert refused.value.what.count(f"{tmp_path}/orders.py") == refused.value.what.count("/orders.py") - 1 == 1
    assert "the folder above each" in refused.value.remedy
    (tmp_path.parent / "orders.py").write_text("def orders(batch, epoch): ...\n")
    assert find_transform("orders.py:orders", [tmp_path, tmp_path.parent]).path == str(tmp_path.parent / "orders.py")


@pytest.mark.parametrize("changed", ["orders.py", "helper.py", "rates/__init__.py", None])
def test_the_digest_tells_the_code_that_is_run_wherever_it_lies(tmp_path: Path, changed: str | None) -> None:
    digests: list[str | None] = []
    for folder in (tmp_path / "a", tmp_path / "z" / "deeper"):
        (folder / "rates").mkdir(parents=True)
        (folder / "orders.py").write_text("import helper, rates\ndef orders(batch, epoch): ...\n")
        for file in ("helper.py", "rates/__init__.py"):
            (folder / file).write_text("RATE = 1\n")
        (folder / "other.py").write_text(f"# {folder}: imported by nobody\n")
        if changed and digests:
            with (folder / changed).open("a") as file_of_code:
                file_of_code.write("\n")
        digests.append(find_transform("orders.py:orders", [folder]).digest)
    assert (digests[0] == digests[1]) == (changed is None)


def sparse(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(2**40)


def test_a_huge_file_beside_the_transform_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text("def orders(batch, epoch): ...\n")
    sparse(tmp_path / "history.csv")
    assert find_transform("orders.py:orders", [tmp_path]).digest


@pytest.mark.parametrize("name", ["helpers/model.bin", "helpers/__init__.py", "orders.py", "helper.py"])
def test_a_huge_file_that_would_be_sent_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "helpers").mkdir()
    for file in ("helpers/__init__.py", "helper.py"):
        (tmp_path / file).touch()
    (tmp_path / "orders.py").write_text("import helper, helpers\ndef orders(batch, epoch): ...\n")
    sparse(tmp_path / name)
    with pytest.raises(Refused, match=rf"1,099,511,627,\d+ bytes, more than .* largest file is .*{name}"):
        find_transform("orders.py:orders", [tmp_path])


def test_the_digest_changes_with_the_file_and_with_a_sibling_it_imports_and_with_nothing_else(tmp_path: Path) -> None:
    file, sibling, stranger = tmp_path / "orders.py", tmp_path / "helpers.py", tmp_path / "stranger.py"
    file.write_text("import helpers\n")
    sibling.write_text("A = 1\n")
    stranger.write_text("A = 1\n")

    def digest() -> str | None:
        return find_transform("orders.py:orders", [tmp_path]).digest

    first = digest()
    stranger.write_text("A = 2\n")
    assert digest() == first
    sibling.write_text("A = 2\n")
    second = digest()
    assert second != first
    file.write_text("import helpers  # changed\n")
    assert digest() not in (first, second)
