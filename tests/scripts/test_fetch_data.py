import hashlib
import io
import json
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts.fetch_data import BUILDERS, FORGE, MANIFEST, fetch
from tests.kit.data import data, reason, suite


def archive(name: str, files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return packed.getvalue()


class Forge(ThreadingHTTPServer):
    """Serves archives by their path; ``asked`` records the paths of all requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.archives: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Forge

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.archives.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.cut:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)
        return None

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = Forge()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def repository(name: str, files: dict[str, tuple[str, bytes]]) -> dict[str, Any]:
    return {
        "name": name,
        "commit": "c0ffee",
        "licence": "MIT",
        "files": {
            path: {"from": source, "sha256": hashlib.sha256(content).hexdigest()}
            for path, (source, content) in files.items()
        },
    }


TWO = {
    "repositories": [
        repository("o/first", {"a/one.json": ("tests/one.json", b"1"), "a/two.json": ("tests/two.json", b"2")}),
        repository("o/second", {"b.txt": ("b.txt", b"b")}),
    ]
}
FIRST, SECOND = "/o/first/tar.gz/c0ffee", "/o/second/tar.gz/c0ffee"


@pytest.fixture
def two(forge: Forge) -> Forge:
    # Not only what is wanted: a folder's other files are left alone.
    forge.archives[FIRST] = archive("x", {"tests/one.json": b"1", "tests/two.json": b"2", "tests/three.json": b"3"})
    forge.archives[SECOND] = archive("x", {"b.txt": b"b"})
    return forge


def test_everything_is_written_once(two: Forge, tmp_path: Path) -> None:
    assert fetch(tmp_path, forge=two.url, manifest=TWO) == 3
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a/one.json",
        "a/two.json",
        "b.txt",
    }
    assert (tmp_path / "a" / "two.json").read_bytes() == b"2"
    assert two.asked == [FIRST, SECOND]
    assert fetch(tmp_path, forge=two.url, manifest=TWO) == 0
    assert two.asked == [FIRST, SECOND]


def test_only_what_is_missing_or_differs_is_fetched_again(two: Forge, tmp_path: Path) -> None:
    fetch(tmp_path, forge=two.url, manifest=TWO)
    (tmp_path / "b.txt").write_bytes(b"changed")
    assert fetch(tmp_path, forge=two.url, manifest=TWO) == 1
    assert (tmp_path / "b.txt").read_bytes() == b"b"
    assert two.asked[2:] == [SECOND]


def test_only_a_part(two: Forge, tmp_path: Path) -> None:
    assert fetch(tmp_path, "b", forge=two.url, manifest=TWO) == 1
    assert two.asked == [SECOND]


def test_what_a_folder_beside_has_is_not_fetched(two: Forge, tmp_path: Path) -> None:
    fetch(tmp_path / "beside", "a", forge=two.url, manifest=TWO)
    assert fetch(tmp_path / "data", beside=tmp_path / "beside", forge=two.url, manifest=TWO) == 1
    assert two.asked == [FIRST, SECOND]


def test_a_broken_download_is_tried_again(two: Forge, tmp_path: Path) -> None:
    two.cut = 2
    assert fetch(tmp_path, forge=two.url, manifest=TWO) == 3
    assert two.asked == [FIRST] * 3 + [SECOND]


def test_an_interrupted_run_is_resumed(two: Forge, tmp_path: Path) -> None:
    second = two.archives.pop(SECOND)
    with pytest.raises(SystemExit, match=r"o/second/tar.gz/c0ffee: .*404.*run this again"):
        fetch(tmp_path, forge=two.url, manifest=TWO)
    two.archives[SECOND] = second
    two.asked.clear()
    assert fetch(tmp_path, forge=two.url, manifest=TWO) == 1
    assert two.asked == [SECOND]


def test_a_wrong_sha256_is_an_error_and_nothing_is_written(two: Forge, tmp_path: Path) -> None:
    two.archives[SECOND] = archive("x", {"b.txt": b"forged"})
    with pytest.raises(SystemExit) as caught:
        fetch(tmp_path, forge=two.url, manifest=TWO)
    assert str(caught.value).startswith(f"b.txt: sha256 is {hashlib.sha256(b'forged').hexdigest()}, expected ")
    assert not (tmp_path / "b.txt").exists()
    assert not list(tmp_path.rglob("*.part"))


def test_a_file_that_the_commit_lacks_is_an_error(two: Forge, tmp_path: Path) -> None:
    two.archives[SECOND] = archive("x", {"c.txt": b"b"})
    with pytest.raises(SystemExit, match=r"^b\.txt: .* holds no b\.txt"):
        fetch(tmp_path, forge=two.url, manifest=TWO)


def test_a_compressed_file_is_known_by_its_content(forge: Forge, tmp_path: Path) -> None:
    line = b'{"id":"s","schema":{"const":"\xc3\xa9"},"tests":[{"valid":true,"data":"\xc3\xa9"}]}\n'
    manifest = {
        "repositories": [repository("o/bench", {"schemas/maskbench.jsonl.xz": ("maskbench/data/*.json", line)})]
    }
    large = "JsonSchemaStore---cloudformation.schema"
    source = {"schema": {"const": "é"}, "meta": {}, "tests": [{"description": "", "valid": True, "data": "é"}]}
    forge.archives["/o/bench/tar.gz/c0ffee"] = archive(
        "x", {f"maskbench/data/{name}.json": json.dumps(source).encode() for name in ("s", large)}
    )
    assert fetch(tmp_path, forge=forge.url, manifest=manifest) == 1
    path = tmp_path / "schemas" / "maskbench.jsonl.xz"
    assert lzma.decompress(path.read_bytes()) == line
    assert fetch(tmp_path, forge=forge.url, manifest=manifest) == 0
    path.write_bytes(path.read_bytes()[:-5])
    assert fetch(tmp_path, forge=forge.url, manifest=manifest) == 1


def wheel(program: bytes) -> dict[str, Any]:
    """A manifest of one file of a package."""
    spec = {"from": "tool/bin", "sha256": hashlib.sha256(program).hexdigest(), "executable": True}
    return {
        "repositories": [],
        "wheels": [{"wheel": "tool==1.0", "platform": "any", "licence": "MIT", "files": {"tool/1.0/bin": spec}}],
    }


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip downloads from, with one package."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tool-1.0-py3-none-any.whl", "w") as packed:
        packed.writestr("tool/bin", b"program")
        packed.writestr("tool/other", b"other")
        packed.writestr("tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        packed.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("tool-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_program_out_of_a_wheel(index: Path, tmp_path: Path) -> None:
    assert fetch(tmp_path / "data", manifest=wheel(b"program")) == 1
    (path,) = (path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert (path.name, path.read_bytes()) == ("bin", b"program")
    assert os.access(path, os.X_OK)
    next(index.iterdir()).unlink()  # nothing is downloaded again
    assert fetch(tmp_path / "data", manifest=wheel(b"program")) == 0


@pytest.mark.usefixtures("index")
def test_a_forged_program_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^tool/1.0/bin: sha256 is "):
        fetch(tmp_path / "data", manifest=wheel(b"another"))
    assert not (tmp_path / "data").exists()


def test_a_wheel_that_pip_does_not_find(index: Path, tmp_path: Path) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(SystemExit, match=r"(?s)^tool==1.0: .*No matching distribution.*run this again"):
        fetch(tmp_path / "data", manifest=wheel(b"program"))


def test_a_whole_wheel(index: Path, tmp_path: Path) -> None:
    packed = next(index.iterdir()).read_bytes()
    manifest = wheel(b"")
    manifest["wheels"][0]["files"] = {"tool.whl": {"from": ".", "sha256": hashlib.sha256(packed).hexdigest()}}
    assert fetch(tmp_path / "data", manifest=manifest) == 1
    assert (tmp_path / "data" / "tool.whl").read_bytes() == packed


def test_the_validators_cases_keep_their_lines() -> None:
    built = BUILDERS["schemas/kvv-walle/cases.jsonl"](
        {"t/TestB/valid.jsonl": b'{"type": "null"}\n', "t/TestA/valid.jsonl": b'\n{"const": "\xe2\x80\xa8"}\n'}
    )
    assert [json.loads(line) for line in built.decode().split("\n") if line] == [
        {"suite": "TestA", "line": 2, "schema": {"const": "\u2028"}},
        {"suite": "TestB", "line": 1, "schema": {"type": "null"}},
    ]


def test_the_manifest_pins_every_file() -> None:
    files = [spec for found in MANIFEST["repositories"] for spec in found["files"].values()]
    assert len(files) == 178
    files += [spec for found in MANIFEST["wheels"] for spec in found["files"].values()]
    assert all(len(spec["sha256"]) == 64 for spec in files)
    assert all("==" in found["wheel"] for found in MANIFEST["wheels"])
    assert all(len(found["commit"]) == 40 for found in MANIFEST["repositories"])
    assert {path for found in MANIFEST["repositories"] for path in found["files"]} >= set(BUILDERS)
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
