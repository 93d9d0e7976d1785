"""Files are fetched as scripts/data.json pins them, from a forge of local files and pip's local index."""

import hashlib
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scripts.fetch_data import BUILDERS, FORGE, MANIFEST, fetch
from tests.kit.data import data, reason, suite


def pinned(source: str, content: bytes) -> dict[str, Any]:
    return {"from": source, "sha256": hashlib.sha256(content).hexdigest()}


def manifest(**files: dict[str, Any]) -> dict[str, Any]:
    """A manifest of repositories by their names."""
    fields = {"commit": "c0ffee", "licence": "MIT"}
    return {"repositories": [fields | {"name": f"o/{name}", "files": found} for name, found in files.items()]}


TWO = manifest(
    first={"a/one.json": pinned("tests/one.json", b"1"), "a/two.json": pinned("tests/two.json", b"2")},
    second={"b.txt": pinned("b.txt", b"b")},
)


class Forge:
    """Archives below a folder: what is fetched from a repository that is taken away is an error."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, folder.as_uri()

    def path(self, name: str) -> Path:
        return self.folder / "o" / name / "tar.gz" / "c0ffee"

    def add(self, name: str, files: dict[str, bytes]) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(self.path(name), mode="w:gz") as opened:
            for path, content in files.items():
                member = tarfile.TarInfo(f"x/{path}")
                member.size = len(content)
                opened.addfile(member, io.BytesIO(content))


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    monkeypatch.setattr("time.sleep", lambda _: None)
    made = Forge(tmp_path / "forge")
    # Not only what is wanted: a folder's other files are left alone.
    made.add("first", {"tests/one.json": b"1", "tests/two.json": b"2", "tests/three.json": b"3"})
    made.add("second", {"b.txt": b"b"})
    return made


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "data"


def written(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_only_what_is_missing_or_differs_is_fetched(forge: Forge, to: Path) -> None:
    assert fetch(to, forge=forge.url, manifest=TWO) == 3
    assert written(to) == {"a/one.json": b"1", "a/two.json": b"2", "b.txt": b"b"}
    forge.path("first").unlink()
    (to / "b.txt").write_bytes(b"changed")
    assert fetch(to, forge=forge.url, manifest=TWO) == 1
    assert (to / "b.txt").read_bytes() == b"b"
    forge.path("second").unlink()
    assert fetch(to, forge=forge.url, manifest=TWO) == 0


def test_a_part_and_what_a_folder_beside_lacks(forge: Forge, to: Path, tmp_path: Path) -> None:
    second = forge.path("second").rename(tmp_path / "second")
    assert fetch(tmp_path / "beside", "a", forge=forge.url, manifest=TWO) == 2
    forge.path("first").unlink()
    second.rename(forge.path("second"))
    assert fetch(to, beside=tmp_path / "beside", forge=forge.url, manifest=TWO) == 1
    assert written(to) == {"b.txt": b"b"}


def test_a_broken_download_is_tried_again(forge: Forge, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, waited = forge.path("first").read_bytes(), list[float]()
    forge.path("first").write_bytes(whole[: len(whole) // 2])

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            forge.path("first").write_bytes(whole)

    monkeypatch.setattr("time.sleep", sleep)
    assert fetch(to, forge=forge.url, manifest=TWO) == 3
    assert waited == [1, 2]


def test_an_interrupted_run_is_resumed(forge: Forge, to: Path, tmp_path: Path) -> None:
    second = forge.path("second").rename(tmp_path / "second")
    with pytest.raises(SystemExit, match=r"o/second/tar.gz/c0ffee: .*No such file.*run this again"):
        fetch(to, forge=forge.url, manifest=TWO)
    second.rename(forge.path("second"))
    forge.path("first").unlink()
    assert fetch(to, forge=forge.url, manifest=TWO) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"b.txt": b"forged"}, rf"^b\.txt: sha256 is {hashlib.sha256(b'forged').hexdigest()}, expected "),
        ({"c.txt": b"b"}, r"^b\.txt: .* holds no b\.txt"),
    ],
    ids=["another sha256", "no such file"],
)
def test_what_is_not_the_pinned_file_is_not_written(
    forge: Forge, to: Path, files: dict[str, bytes], message: str
) -> None:
    forge.add("second", files)
    with pytest.raises(SystemExit, match=message):
        fetch(to, forge=forge.url, manifest=TWO)
    assert written(to).keys() == {"a/one.json", "a/two.json"}


def test_a_compressed_file_is_known_by_its_content(forge: Forge, to: Path) -> None:
    line = b'{"id":"s","schema":{"const":"\xc3\xa9"},"tests":[{"valid":true,"data":"\xc3\xa9"}]}\n'
    bench = manifest(bench={"schemas/maskbench.jsonl.xz": pinned("maskbench/data/*.json", line)})
    source = {"schema": {"const": "é"}, "meta": {}, "tests": [{"description": "", "valid": True, "data": "é"}]}
    names = ("s", "JsonSchemaStore---cloudformation.schema")  # the latter is left out
    forge.add("bench", {f"maskbench/data/{name}.json": json.dumps(source).encode() for name in names})
    assert fetch(to, forge=forge.url, manifest=bench) == 1
    path = to / "schemas" / "maskbench.jsonl.xz"
    assert lzma.decompress(path.read_bytes()) == line
    assert fetch(to, forge=forge.url, manifest=bench) == 0
    path.write_bytes(path.read_bytes()[:-5])
    assert fetch(to, forge=forge.url, manifest=bench) == 1


def wheel(path: str, **spec: Any) -> dict[str, Any]:
    """A manifest of one file of a package."""
    fields = {"wheel": "tool==1.0", "platform": "any", "licence": "MIT"}
    return {"repositories": [], "wheels": [fields | {"files": {path: spec}}]}


PROGRAM = wheel("tool/1.0/bin", **pinned("tool/bin", b"program"), executable=True)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one wheel that pip finds."""
    path = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("tool/bin", b"program")
        packed.writestr("tool/other", b"other")
        packed.writestr("tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        packed.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("tool-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return path


def test_a_program_out_of_a_wheel(index: Path, to: Path) -> None:
    assert fetch(to, manifest=PROGRAM) == 1
    assert written(to) == {"tool/1.0/bin": b"program"}
    assert os.access(to / "tool/1.0/bin", os.X_OK)
    index.unlink()  # nothing is downloaded again
    assert fetch(to, manifest=PROGRAM) == 0
    with pytest.raises(SystemExit, match=r"(?s)^tool==1.0: .*No matching distribution.*run this again"):
        fetch(to / "empty", manifest=PROGRAM)


def test_a_whole_wheel_and_a_forged_program(index: Path, to: Path) -> None:
    assert fetch(to, manifest=wheel("tool.whl", **pinned(".", index.read_bytes()))) == 1
    with pytest.raises(SystemExit, match=r"^tool/1.0/bin: sha256 is "):
        fetch(to, manifest=wheel("tool/1.0/bin", **pinned("tool/bin", b"another")))
    assert written(to) == {"tool.whl": index.read_bytes()}


def test_the_validators_cases_keep_their_lines() -> None:
    built = BUILDERS["schemas/kvv-walle/cases.jsonl"](
        {"t/TestB/valid.jsonl": b'{"type": "null"}\n', "t/TestA/valid.jsonl": b'\n{"const": "\xe2\x80\xa8"}\n'}
    )
    assert [json.loads(line) for line in built.decode().split("\n") if line] == [
        {"suite": "TestA", "line": 2, "schema": {"const": "\u2028"}},
        {"suite": "TestB", "line": 1, "schema": {"type": "null"}},
    ]


def test_the_manifest_pins_every_file() -> None:
    repositories, wheels = MANIFEST["repositories"], MANIFEST["wheels"]
    assert sum(len(found["files"]) for found in repositories) == 178
    assert all(len(spec["sha256"]) == 64 for found in (*repositories, *wheels) for spec in found["files"].values())
    assert all("==" in found["wheel"] for found in wheels)
    assert all(len(found["commit"]) == 40 for found in repositories)
    assert {path for found in repositories for path in found["files"]} >= set(BUILDERS)
    assert FORGE.startswith("https://")


def test_a_skipped_test_names_the_data_and_how_to_get_them() -> None:
    assert reason("kimi_k2/tokenizer").endswith("run python -m scripts.fetch_data --only kimi_k2/tokenizer")
    assert "cannot be redistributed" in reason("kimi_k2/rendered/k2_thinking.jsonl")


def test_the_data_that_lie_here_are_the_pinned_ones() -> None:
    folder = suite().parents[1]
    for found in MANIFEST["repositories"]:
        for path, spec in found["files"].items():
            if (folder / path).suffix != ".xz" and (folder / path).is_file():
                assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == spec["sha256"], path


def test_the_front_end_that_lies_here_is_the_pinned_one() -> None:
    for path, spec in MANIFEST["wheels"][0]["files"].items():
        assert hashlib.sha256(data(path).read_bytes()).hexdigest() == spec["sha256"], path
