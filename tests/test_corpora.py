"""The prepare scripts that read from the network, against the stand-in of tests/hub.py and the real client."""

import gzip
import json
import subprocess
import sys

import pandas
import pytest

from data.redpajama import prepare as redpajama
from tests.test_data import ROOT, encoded, texts_in


@pytest.fixture
def prepare(hub, tmp_path):
    """Runs a script in a process of its own, since the address of the Hub is read at import -> its texts."""
    def prepare(name, *argv):
        argv = [sys.executable, ROOT / "data" / name / "prepare.py", "--tokenizer=bytes", "--val_fraction=0.3", *argv]
        subprocess.run([*argv, f"--out_dir={tmp_path / 'out'}"], check=True)
        return texts_in(tmp_path / "out")
    return prepare


@pytest.mark.parametrize("argv, repo, commit, path, n_files, column", [
    (["wikipedia"], "wikimedia/wikipedia", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa",
     "20231101.en/train-{:05}-of-00041.parquet", 41, "text"),
    (["wikipedia", "--snapshot=20220301.en"], "legacy-datasets/wikipedia", "97a0b052c326b45fb68593a14972d9eed884cd17",
     "data/20220301.en/train-{:05}-of-00041.parquet", 41, "text"),
    (["jigsaw"], "monology/jigsaw", "690f4aa8ee63d1c28d6088859bba26b0c8db7b6e",
     "data/train-{:05}-of-00001.parquet", 1, "comment_text")])
def test_a_corpus_of_the_hub_is_read_from_all_its_files(argv, repo, commit, path, n_files, column, hub, prepare):
    texts = [[f"text {i} of file {file}\n\nand more" for i in range(9)] for file in range(n_files)]
    tables = [pandas.DataFrame({"id": ["0"] * 9, column: part}) for part in texts]
    files = {path.format(i): table.to_parquet() for i, table in enumerate(tables)}
    hub.add(f"datasets/{repo}", files, commit=commit)
    assert prepare(*argv) == encoded(sum(texts, []))


def test_redpajama_is_read_from_all_its_shards(hub, tmp_path, monkeypatch):
    names = [f"2023-14/{i:04d}/en_{part}" for i in range(2) for part in ("head", "middle")]
    texts = {name: [f"page {i} of {name} 😀 é\r\n" for i in range(30)] for name in names}
    files = {f"documents/{name}.json.gz": gzip.compress("\n".join(json.dumps(dict(raw_content=page)) for page in pages)
                                                        .encode()) for name, pages in texts.items()}
    hub.add("datasets/org/pages", files | {"listings/en-2023-14-head_middle.txt": "\n".join(names).encode() + b"\n"})
    monkeypatch.setattr(redpajama, "HOST", f"{hub.url}/datasets/org/pages/resolve/main")
    redpajama.main(["--tokenizer=bytes", f"--out_dir={tmp_path}", "--val_fraction=0.05"])
    assert texts_in(tmp_path) == encoded(sum(texts.values(), []))
