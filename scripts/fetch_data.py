"""Fetch the data of the figures and the larger tests: files of public repositories and packages, pinned by sha256.

    python scripts/fetch_data.py [--only schemas/mcp-tools]

Writes the layout that `data.json` lists into data/. Files that ../shared beside the clone has are not fetched.
"""

import argparse
import fnmatch
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FORGE = "https://codeload.github.com"
MANIFEST: dict[str, Any] = json.loads(Path(__file__).with_name("data.json").read_text(encoding="utf-8"))
Contents = dict[str, bytes]
_ATTEMPTS = 3


def data_folder() -> Path:
    """Return ``../shared`` if it is beside the clone, else ``data``; any file may be missing there."""
    shared = ROOT.parent / "shared"
    return shared if (shared / "kimi_k2").is_dir() else ROOT / "data"


def data_path(path: str) -> Path:
    """Return where a file or folder of the data lies, or would lie: in ``data_folder()``, else in ``data``."""
    found = data_folder() / path
    return found if found.exists() else ROOT / "data" / path


def _jsonl(records: Iterable[Any], **options: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False, **options) + "\n" for record in records).encode()


def _walle(contents: Contents) -> bytes:
    """The schemas that Moonshot's validator accepts, each with its suite and line."""
    return _jsonl(
        {"suite": PurePosixPath(path).parent.name, "line": number, "schema": json.loads(line)}
        for path, content in sorted(contents.items())
        for number, line in enumerate(content.decode().split("\n"), 1)
        if line.strip()
    )


def _mcp_tools(contents: Contents) -> bytes:
    """The tools of the development servers in OpenAI's form."""
    (content,) = contents.values()
    servers = {name: server["tools"] for entry in json.loads(content) for name, server in entry["tools"].items()}
    return _jsonl(
        {
            "server": name,
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool["name"],
                        "description": tool["description"] or "",
                        "parameters": tool["inputSchema"],
                    },
                }
                for tool in servers[name]
            ],
        }
        for name in MANIFEST["mcp_servers"]
    )


def _maskbench(contents: Contents) -> bytes:
    """Every schema with its instances, one a line, without CloudFormation's, which is too large to be of use."""
    schemas = {PurePosixPath(path).stem: json.loads(content) for path, content in sorted(contents.items())}
    del schemas["JsonSchemaStore---cloudformation.schema"]
    return _jsonl(
        (
            {
                "id": name,
                "schema": found["schema"],
                "tests": [{"valid": test["valid"], "data": test["data"]} for test in found["tests"]],
            }
            for name, found in schemas.items()
        ),
        separators=(",", ":"),
    )


BUILDERS: dict[str, Callable[[Contents], bytes]] = {
    "schemas/kvv-walle/cases.jsonl": _walle,
    "schemas/mcp-tools/livemcp_dev.jsonl": _mcp_tools,
    "schemas/maskbench.jsonl.xz": _maskbench,
}


def _is_there(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    try:
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    except lzma.LZMAError:
        return False
    return hashlib.sha256(content).hexdigest() == sha256


def _archive(url: str, patterns: list[str]) -> Contents:
    """The files of a ``.tar.gz`` whose paths, without the leading folder, match one of the patterns."""
    for attempt in range(_ATTEMPTS):
        found: Contents = {}
        try:
            with (
                urllib.request.urlopen(url, timeout=60) as answer,  # noqa: S310 - the forge's address is our own
                tarfile.open(fileobj=answer, mode="r|gz") as archive,
            ):
                for member in archive:
                    path = member.name.partition("/")[2]
                    if member.isfile() and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                        opened = archive.extractfile(member)
                        found[path] = opened.read() if opened else b""
        except (OSError, HTTPException, EOFError, tarfile.TarError) as error:
            if attempt == _ATTEMPTS - 1:
                sys.exit(f"{url}: {error}. Check the network, then run this again: files already written are kept.")
            time.sleep(2**attempt)
        else:
            return found
    raise AssertionError("unreachable")


def _wheel(requirement: str, platform: str, patterns: list[str]) -> Contents:
    """The files of a package's wheel whose paths match one of the patterns; "." stands for the wheel itself."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--no-deps", "--only-binary", ":all:", "--platform", platform, "--dest", folder)
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pinned
        if done.returncode:
            sys.exit(f"{requirement}: {done.stderr.strip()[-400:]}. Check pip and the network, then run this again.")
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            wanted = [name for name in wheel.namelist() if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
            found = {name: wheel.read(name) for name in wanted}
        return found | ({".": path.read_bytes()} if "." in patterns else {})


def fetch(
    to: Path, only: str = "", *, beside: Path | None = None, forge: str = FORGE, manifest: dict[str, Any] = MANIFEST
) -> int:
    """Write the files that are missing or differ; return how many.

    Args:
        to: The folder to write, as ``data_folder`` names it.
        only: Fetch only files whose paths start with this.
        beside: A folder of the same layout, whose files are not fetched.
        forge: Base address of ``OWNER/NAME/tar.gz/COMMIT``.
        manifest: The content of ``data.json``.

    Raises:
        SystemExit: A download failed, or a file's sha256 differs from the manifest's; that file is not written.
    """
    written = 0
    folders = (to,) if beside is None else (to, beside)
    for source in (*manifest["repositories"], *manifest.get("wheels", ())):
        files = {path: spec for path, spec in source["files"].items() if path.startswith(only)}
        missing = {
            path: spec
            for path, spec in files.items()
            if not any(_is_there(folder / path, spec["sha256"]) for folder in folders)
        }
        if not missing:
            continue
        wheel = source.get("wheel")
        origin = wheel or f"{forge}/{source['name']}/tar.gz/{source['commit']}"
        print(f"{len(missing)} of {len(files)} files from {origin} ({source['licence']})")
        patterns = [spec["from"] for spec in missing.values()]
        contents = _wheel(wheel, source["platform"], patterns) if wheel else _archive(origin, patterns)
        for path, spec in missing.items():
            found = {name: data for name, data in contents.items() if fnmatch.fnmatchcase(name, spec["from"])}
            if not found:
                sys.exit(f"{path}: {origin} holds no {spec['from']}. Renew its pin in scripts/data.json.")
            content = BUILDERS[path](found) if path in BUILDERS else found[spec["from"]]
            if (got := hashlib.sha256(content).hexdigest()) != spec["sha256"]:
                sys.exit(
                    f"{path}: sha256 is {got}, expected {spec['sha256']} (from {origin}). Nothing was written. "
                    "The download is damaged, or is not the pinned one: run again, else report it."
                )
            part = to / f"{path}.{os.getpid()}.part"  # two tests may fetch at once
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(lzma.compress(content) if path.endswith(".xz") else content)
            part.chmod(0o755 if spec.get("executable") else 0o644)
            part.replace(to / path)
            written += 1
    return written


def main() -> None:
    """Read the options, fetch, and name what no public repository has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="fetch only files whose paths start with this")
    written = fetch(ROOT / "data", parser.parse_args().only, beside=data_folder())
    print(f"{written} files written" if written else "everything is there already")
    for path, reason in MANIFEST["not_public"].items():
        print(f"not fetched: {path}: {reason}")


if __name__ == "__main__":
    main()
