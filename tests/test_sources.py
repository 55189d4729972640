"""Corpora of any size: local and remote sources, shards, and builds that are stopped."""

import gc
import gzip
import json
import os
import re
import sys
import tracemalloc
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lrm.cli import Display
from lrm.data import Batches, build, check, corpora, files, fixed_sequences, prepare, verify
from lrm.data.corpora import SOURCES, Place
from lrm.data.shards import ShardWriter, Tokens
from lrm.errors import UserError
from lrm.plan.config import DataConfig

VOCAB = 300
TEXTS = [f"line {n}\n" + " ".join(f"word{n * k % 37}" for k in range(30)) for n in range(60)]


def rows(first=0, last=60):
    return [{"id": n, "text": TEXTS[n]} for n in range(first, last)]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zst":
        content = pyarrow.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)
    return path


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return path


def config(source, path, **changes):
    if source == "packages":
        changes = {"packages": ("lrm_one", "lrm_two"), **changes}
    else:
        changes = {"path": str(path), **changes}
    return DataConfig(source=source, **{"validation_fraction": 0.3, **changes})


def texts(config, skip=0):
    return list(SOURCES[config.source].documents(config, Place(skip)))


@pytest.fixture
def jsonl(tmp_path):
    folder = tmp_path / "lines"
    write_jsonl(folder / "a.jsonl", rows(0, 20))
    write_jsonl(folder / "b.jsonl.gz", rows(20, 40))
    write_jsonl(folder / "more" / "c.jsonl.zst", rows(40, 60))
    (folder / "notes.txt").write_text("no JSON")
    return folder


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The texts as two installed packages, whose import would fail."""
    folder = tmp_path / "site"
    for package, first in (("lrm_one", 0), ("lrm_two", 30)):
        (folder / package / "inner").mkdir(parents=True)
        for n in range(first, first + 30):
            name = "__init__" if n == first else f"{'inner/' * (n % 2)}part{n}"
            (folder / package / f"{name}.py").write_text(TEXTS[n])
        info = folder / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def parquet(tmp_path):
    write_parquet(tmp_path / "tables" / "a.parquet", rows(0, 25))
    write_parquet(tmp_path / "tables" / "b.parquet", rows(25, 60))
    return tmp_path / "tables"


@pytest.mark.parametrize("source", ["jsonl", "parquet"])
def test_rows_are_read_in_order_from_any_place(source, request):
    folder = request.getfixturevalue(source)
    whole = config(source, folder)
    assert texts(whole) == TEXTS
    for skip in (1, 7, 19, 20, 24, 25, 26, 59, 60):
        assert texts(whole, skip) == TEXTS[skip:]


def test_a_path_is_a_file_a_folder_or_a_pattern(jsonl, parquet):
    assert texts(config("jsonl", jsonl / "b.jsonl.gz")) == TEXTS[20:40]
    assert texts(config("jsonl", jsonl, pattern="*.jsonl*")) == TEXTS[:40]
    assert texts(config("jsonl", jsonl / "[ab].*")) == TEXTS[:40]
    assert texts(config("jsonl", jsonl / "**" / "*.zst")) == TEXTS[40:]
    assert texts(config("parquet", parquet / "b.parquet")) == TEXTS[25:]
    with pytest.raises(UserError, match="absent is not a file or folder, and no file matches"):
        prepare(config("jsonl", jsonl / "absent"), VOCAB, jsonl / "data")


def test_all_sources_of_the_same_texts_give_the_same_corpus(jsonl, parquet, tmp_path):
    for n, text in enumerate(TEXTS):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{n:03d}.txt").write_text(text)
    sources = {"jsonl": jsonl, "parquet": parquet, "folder": tmp_path / "texts"}
    made = [prepare(config(*pair), VOCAB, tmp_path / "data") for pair in sources.items()]
    assert len({corpus.hash for corpus in made}) == 1
    assert [corpus.name for corpus in made] == [
        "jsonl lines, BPE 300", "parquet tables, BPE 300", "folder texts, BPE 300",
    ]  # fmt: skip


def test_other_columns_are_not_read(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", [{"body": "b", "n": 1}, {"body": None, "n": 2}])
    asked = []
    read = pyarrow.parquet.ParquetFile.iter_batches

    def spy(self, size, groups, columns):
        asked.append(columns)
        return read(self, size, groups, columns)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", spy)
    assert texts(config("parquet", tmp_path, text_field="body")) == ["b", None]
    assert asked == [["body"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "x", "n": 1}', "no field 'text'; set data.text_field to one of body, n"),
        ('{"text": "x"', "not JSON .*; repair the line or take it out"),
        ('{"text": "\xff"}', "not JSON"),
        ('["x"]', "not a JSON object; write one object a line"),
        ('{"text": 3}', "field 'text' holds no text but int; set data.text_field"),
    ],
)
def test_a_bad_line_is_named(line, message, tmp_path):
    path = write_jsonl(tmp_path / "lines.jsonl", rows(0, 2))
    path.write_bytes(path.read_bytes() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=re.escape(f"{path}, line 4: ") + message):
        prepare(config("jsonl", path), VOCAB, tmp_path / "data")


def test_damaged_files_are_named(jsonl, parquet, tmp_path):
    for name in ("b.jsonl.gz", "more/c.jsonl.zst"):
        content = (jsonl / name).read_bytes()
        (jsonl / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=f"{name} cannot be read after line .*; repair it"):
            texts(config("jsonl", jsonl / name))
        (jsonl / name).write_bytes(b"\x00" * 50)
        with pytest.raises(UserError, match=f"{name} cannot be read after line 0"):
            texts(config("jsonl", jsonl / name))
    with pytest.raises(UserError, match="a.parquet: no column 'body'; .* one of id, text"):
        prepare(config("parquet", parquet, text_field="body"), VOCAB, tmp_path / "data")
    with pytest.raises(UserError, match="a.parquet: column 'id' holds no text but int64; set"):
        texts(config("parquet", parquet, text_field="id"))
    content = (parquet / "a.parquet").read_bytes()
    for damage in (content[:-9], b"PAR1" + bytes(99), b""):
        (parquet / "a.parquet").write_bytes(damage)
        with pytest.raises(UserError, match="a.parquet cannot be read as Parquet .*; repair it"):
            texts(config("parquet", parquet))


def test_a_folder_that_would_be_left_out_is_named(tmp_path, monkeypatch):
    """One that links lead to, and one that cannot be listed."""
    (tmp_path / "texts" / "more").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("a")
    own = config("folder", tmp_path / "texts")
    (tmp_path / "texts" / "other").symlink_to(tmp_path)
    with pytest.raises(UserError, match="texts/other links to a folder, and links are not"):
        files.recipe(own)
    # Where no ** goes through it nothing is left out.
    for pattern in ("*.txt", "*/*.txt", "mo*/**/*.txt", "more/**/*.txt", "absent/**/*.txt"):
        files.recipe(config("folder", tmp_path / "texts", pattern=pattern))
    (tmp_path / "texts" / "other").unlink()
    assert [name for name, _ in files.named_files(own)] == ["a.txt"]
    real = os.scandir

    def scandir(path):
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="cannot be listed .*more"):
        files.recipe(own)


def test_nothing_to_read_is_told(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    message = "the corpus is empty: too few texts in files that below .* match"
    with pytest.raises(UserError, match=message):
        prepare(config("jsonl", tmp_path / "empty.jsonl"), VOCAB, tmp_path / "data")
    with pytest.raises(UserError, match=message):
        prepare(config("parquet", tmp_path), VOCAB, tmp_path / "data")


# Installed packages


def test_packages_are_mixed_and_not_imported(packages):
    found = texts(config("packages", packages))
    assert sorted(found) == sorted(TEXTS) and found[0] not in found[1:]
    first = [text in TEXTS[:30] for text in found[:30]]
    assert 8 < sum(first) < 22  # not one package after the other
    assert texts(config("packages", packages, packages=("lrm_two", "lrm_one"))) == found
    for skip in (1, 29, 60):
        assert texts(config("packages", packages), skip) == found[skip:]
    alone = texts(config("packages", packages, packages=("lrm_two",)))
    assert alone == [text for text in found if text in TEXTS[30:]]
    assert not {"lrm_one", "lrm_two"} & sys.modules.keys()


def test_what_describes_one_build_of_a_package_is_left_out(packages, tmp_path):
    whole = prepare(config("packages", packages), VOCAB, tmp_path / "data")
    for name in ("version.py", "_version.py", "__config__.py", "_distributor_init_local.py",
                 "distutils/core.py", "__pycache__/part1.pyc", "notes.txt"):  # fmt: skip
        (packages / "lrm_one" / name).parent.mkdir(exist_ok=True)
        (packages / "lrm_one" / name).write_text("of one build")
    assert sorted(texts(config("packages", packages))) == sorted(TEXTS)
    (packages / "lrm_one" / "inner" / "version.py").write_text("a module like others")
    assert len(texts(config("packages", packages))) == 61
    assert whole.name == "2 Python packages, BPE 300"


def test_the_versions_of_packages_name_the_folder_and_their_texts_the_corpus(packages, tmp_path):
    def made():
        return prepare(config("packages", packages), VOCAB, tmp_path / "data")

    before = made()
    assert before.path.name.startswith("2-Python-packages-bpe300-")
    info = packages / "lrm_two-1.2.dist-info" / "METADATA"
    info.write_text(info.read_text().replace("Version: 1.2", "Version: 1.3"))
    newer = made()
    assert newer.path != before.path and newer.hash == before.hash
    info.write_text(info.read_text().replace("Version: 1.3", "Version: 1.4"))
    (packages / "lrm_two" / "part41.py").write_text("another text of this version")
    assert made().hash != before.hash


def test_packages_that_are_not_there_are_named(packages, tmp_path):
    for name, message in {
        "absent": "there is no package 'absent'; install it, or leave it out of data.packages",
        "os": "there is no package 'os'",
        "json": "'json' has no version, .*; leave it out of data.packages",
    }.items():
        settings = config("packages", packages, packages=("lrm_one", name))
        for use in (check, lambda *given: prepare(*given, tmp_path / "data")):
            with pytest.raises(UserError, match=message):
                use(settings, VOCAB)
    for path in (packages / "lrm_one").rglob("*.py"):
        path.unlink()
    few = config("packages", packages, packages=("lrm_one",))
    with pytest.raises(UserError, match="empty: the packages lrm_one hold too few .py files; name"):
        prepare(few, VOCAB, tmp_path / "data")


def test_the_packages_of_this_environment_are_found():
    settings = DataConfig(source="packages")
    found = SOURCES["packages"].recipe(settings)
    assert found == {name: metadata.version(name) for name in settings.packages}
    documents = texts(settings)
    assert len(documents) > 5000 and documents.count(None) < 10
    assert sum(len(text or "") for text in documents) > 1e8
    known = [Path(module.__file__).read_text("utf-8") for module in (np, np.linalg._linalg)]
    assert set(known) <= set(documents)


# Shards and stops


@pytest.fixture
def small(monkeypatch):
    """Many shards and batches, even of small corpora."""
    monkeypatch.setattr(build, "_SHARD", 700)
    monkeypatch.setattr(build, "_ENCODE_BATCH", 300)


def contents(corpus):
    return {path.name: path.read_bytes() for path in sorted(corpus.path.iterdir())}


def test_shards_do_not_change_a_corpus(jsonl, tmp_path, monkeypatch):
    one = prepare(config("jsonl", jsonl), VOCAB, tmp_path / "one")
    monkeypatch.setattr(build, "_SHARD", 700)
    monkeypatch.setattr(build, "_ENCODE_BATCH", 300)
    many = prepare(config("jsonl", jsonl), VOCAB, tmp_path / "many")
    assert len(many.meta["splits"]["train"]["shards"]) > 4
    assert len(many.meta["splits"]["validation"]["shards"]) > 1
    assert many.hash == one.hash
    verify(many)
    for split in ("train", "validation"):
        np.testing.assert_array_equal(getattr(many, split)[:], getattr(one, split)[:])
    batches = [Batches(corpus.train, 4, 16, seed=0) for corpus in (one, many)]
    for step in range(12):
        np.testing.assert_array_equal(*(each.batch(step) for each in batches))
    np.testing.assert_array_equal(
        *(fixed_sequences(corpus.validation, 9, 16) for corpus in (one, many))
    )


def test_tokens_are_the_concatenated_shards(tmp_path):
    sizes, start, paths = (5, 1, 8), 0, []
    for size in sizes:
        paths.append(tmp_path / f"{size}.bin")
        writer = ShardWriter(paths[-1], 100)
        writer.write(list(range(start, start + size)))
        writer.close()
        start += size
    tokens, whole = Tokens(paths), np.arange(14)
    assert len(tokens) == 14 and tokens[5] == 5 and tokens[-1] == 13
    np.testing.assert_array_equal(tokens, whole)
    for index in (slice(3, 9), slice(-4, None), slice(0, 0), np.array([[13, 0], [6, 5]]), -14):
        np.testing.assert_array_equal(tokens[index], whole[index])
    for index in (14, -15, np.array([3, 14])):
        with pytest.raises(IndexError):
            tokens[index]


def stopped(settings, folder, after, monkeypatch):
    """A build whose source breaks off after so many documents have been encoded."""
    source = SOURCES[settings.source]
    readings = []

    def documents(config, place):
        readings.append(place)
        for number, document in enumerate(source.documents(config, place), place.documents):
            if number == after and (place.documents or len(readings) > 1):
                raise KeyboardInterrupt
            yield document

    with monkeypatch.context() as patch:
        patch.setitem(
            corpora.SOURCES,
            settings.source,
            corpora.Source(source.label, source.recipe, documents, source.remedy),
        )
        with pytest.raises(KeyboardInterrupt):
            prepare(settings, VOCAB, folder)


@pytest.mark.parametrize("source", ["jsonl", "parquet", "packages", "huggingface"])
def test_a_stopped_build_goes_on_to_the_same_bytes(source, request, tmp_path, small, monkeypatch):
    if source == "huggingface":
        pytest.importorskip("datasets")
    folder = request.getfixturevalue("parquet" if source == "huggingface" else source)
    settings = config(source, folder)
    whole = prepare(settings, VOCAB, tmp_path / "whole")
    stopped(settings, tmp_path / "parts", 21, monkeypatch)
    (partial,) = (path for path in (tmp_path / "parts").iterdir() if path.is_dir())
    first = (partial / "train-00000.bin").stat()
    stopped(settings, tmp_path / "parts", 44, monkeypatch)
    assert (partial / "train-00000.bin").stat().st_mtime_ns == first.st_mtime_ns  # not done again
    lines = []
    parts = prepare(settings, VOCAB, tmp_path / "parts", lines.append)
    assert re.search(r"going on after \d\d documents", lines[0])
    assert contents(parts) == contents(whole)
    assert not partial.exists() and parts.path.exists()


def test_a_damaged_partial_build_begins_again(jsonl, tmp_path, small, monkeypatch):
    whole = prepare(config("jsonl", jsonl), VOCAB, tmp_path / "whole")
    for file in ("state.json", "train-00001.bin", "documents.bin"):
        folder = tmp_path / file
        stopped(config("jsonl", jsonl), folder, 44, monkeypatch)
        (partial,) = (path for path in folder.iterdir() if path.is_dir())
        (partial / file).write_bytes(b"{")
        assert contents(prepare(config("jsonl", jsonl), VOCAB, folder)) == contents(whole)


def test_duplicates_are_remembered_over_a_stop(tmp_path, small, monkeypatch):
    path = write_jsonl(tmp_path / "twice.jsonl", rows() + rows(0, 10))
    stopped(config("jsonl", path), tmp_path / "data", 62, monkeypatch)
    corpus = prepare(config("jsonl", path), VOCAB, tmp_path / "data")
    once = prepare(
        config("jsonl", write_jsonl(tmp_path / "once.jsonl", rows())), VOCAB, tmp_path / "data"
    )
    assert corpus.meta["duplicates"] == 10 and corpus.hash == once.hash


def test_limits(jsonl, tmp_path, small):
    whole = prepare(config("jsonl", jsonl), VOCAB, tmp_path / "data")
    few = prepare(config("jsonl", jsonl, documents=30), VOCAB, tmp_path / "data")
    assert sum(few.meta["splits"][split]["documents"] for split in few.meta["splits"]) == 30
    short = prepare(config("jsonl", jsonl, tokens=1500), VOCAB, tmp_path / "data")
    ends = np.flatnonzero(whole.train[:] == whole.train[-1]) + 1
    assert len(short.train) == ends[ends >= 1500][0]  # the document that reaches it is the last
    np.testing.assert_array_equal(short.train[:], whole.train[: len(short.train)])
    assert len({corpus.path for corpus in (whole, few, short)}) == 3


def test_the_tokenizer_sees_a_bounded_sample(tmp_path, monkeypatch):
    """The documents with the smallest digests, whatever comes first, and none out of reach."""
    seen = []
    train = build.bpe.train

    def spy(texts, size):
        seen.append(list(texts))
        return train(seen[-1], size)

    monkeypatch.setattr(build.bpe, "train", spy)
    monkeypatch.setattr(build, "_BPE_SAMPLE", 3000)
    for name, order in (("a", rows()), ("b", rows()[::-1] + rows(0, 5))):
        prepare(config("jsonl", write_jsonl(tmp_path / f"{name}.jsonl", order)), VOCAB, tmp_path)
    assert seen[0] == seen[1] and 3000 <= len("".join(seen[0])) < 3500
    assert seen[0] == sorted(seen[0], key=lambda text: build._digest(text.encode()))
    monkeypatch.setattr(build, "_BPE_REACH", 2000)
    prepare(config("jsonl", tmp_path / "a.jsonl", documents=59), VOCAB, tmp_path)
    assert set(seen[2]) < set(TEXTS[:15])


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_SHARD", 10_000)
    monkeypatch.setattr(build, "_ENCODE_BATCH", 20_000)
    monkeypatch.setattr(build, "_BPE_SAMPLE", 20_000)
    monkeypatch.setattr(build, "_BPE_REACH", 20_000)
    monkeypatch.setattr(build, "_REMEMBERED", 10)
    peaks = []
    for count in (300, 3000):
        path = tmp_path / f"{count}.jsonl"
        write_jsonl(path, [{"text": f"document {n} " + "some words " * 30} for n in range(count)])
        found = []
        for attempt in range(2):  # what else happens in the process can only add to a peak
            gc.collect()
            tracemalloc.start()
            prepare(config("jsonl", path), VOCAB, tmp_path / f"data{attempt}")
            found.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        peaks.append(min(found))
    assert peaks[1] < 1.3 * peaks[0] and path.stat().st_size > 900_000


def test_counts_are_shown(jsonl, tmp_path, small, capsys):
    settings = config("jsonl", jsonl, documents=50)
    prepare(settings, VOCAB, tmp_path / "data", display=Display(["corpus"]))
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"corpus  \[#*\.*\] +\d+%  \d+ documents  .* tokens  .* tokens/s", first)
    assert re.match(r"corpus  \[#+\] 100%  50 documents  ", last)


# Hugging Face, with its own library on local files


def test_huggingface_reads_local_folders(jsonl, parquet, tmp_path):
    pytest.importorskip("datasets")
    lines = tmp_path / "set"
    for name in ("a", "b"):
        write_jsonl(lines / f"{name}.jsonl", rows(0, 30) if name == "a" else rows(30, 60))
    expected = prepare(config("jsonl", jsonl), VOCAB, tmp_path / "data").hash
    for folder in (lines, parquet):
        settings = config("huggingface", folder)
        assert prepare(settings, VOCAB, tmp_path / "data").hash == expected
        few = DataConfig(source="huggingface", path=str(folder), documents=5)
        assert len(list(build.itertools.islice(texts(few), 5))) == 5


def test_huggingface_goes_on_from_a_state(parquet):
    pytest.importorskip("datasets")
    settings = config("huggingface", parquet)
    for after in (1, 10, 25, 31):
        place = Place()
        stream = SOURCES["huggingface"].documents(settings, place)
        assert [next(stream) for _ in range(after)] == TEXTS[:after]
        state = json.loads(json.dumps(place.save_state()))
        rest = list(SOURCES["huggingface"].documents(settings, Place(after, state)))
        assert rest == TEXTS[after:]


def test_huggingface_tells_what_is_wrong(parquet, tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="no field 'body'; set data.text_field to one of id, text"):
        texts(config("huggingface", parquet, text_field="body"))
    with pytest.raises(UserError, match="cannot be read after row 0 .*; check data.path, data.sub"):
        texts(config("huggingface", parquet, split="absent"))
    with pytest.raises(UserError, match="cannot be read after row 0 .*; check data.path"):
        texts(config("huggingface", tmp_path / "absent"))
    write_jsonl(tmp_path / "broken" / "a.jsonl", rows(0, 3))
    with (tmp_path / "broken" / "a.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(UserError, match="cannot be read after row 0 .*JSON"):
        texts(config("huggingface", tmp_path / "broken"))
