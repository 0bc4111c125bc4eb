"""Table 3 at a small scale: its sizes, and whole runs on a few sentences and updates."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS
from scripts import reproduce_table3


pytestmark = pytest.mark.long

# Table 3 as printed: N, d_model, d_ff, h, d_k, d_v, P_drop, eps_ls. Row A keeps h d_k, B keeps d_v, and C keeps h.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "A h=1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1),
    "A h=4": (6, 512, 2048, 4, 128, 128, 0.1, 0.1),
    "A h=16": (6, 512, 2048, 16, 32, 32, 0.1, 0.1),
    "A h=32": (6, 512, 2048, 32, 16, 16, 0.1, 0.1),
    "B d_k=16": (6, 512, 2048, 8, 16, 64, 0.1, 0.1),
    "B d_k=32": (6, 512, 2048, 8, 32, 64, 0.1, 0.1),
    "C N=2": (2, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C N=4": (4, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C N=8": (8, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C d_model=256": (6, 256, 2048, 8, 32, 32, 0.1, 0.1),
    "C d_model=1024": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1),
    "C d_ff=1024": (6, 512, 1024, 8, 64, 64, 0.1, 0.1),
    "C d_ff=4096": (6, 512, 4096, 8, 64, 64, 0.1, 0.1),
    "D P_drop=0.0": (6, 512, 2048, 8, 64, 64, 0.0, 0.1),
    "D P_drop=0.2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1),
    "D eps_ls=0.0": (6, 512, 2048, 8, 64, 64, 0.1, 0.0),
    "D eps_ls=0.2": (6, 512, 2048, 8, 64, 64, 0.1, 0.2),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1),
}
VOCAB_SIZE = 5120
LEARNED_POSITIONS = 1024
ROWS = ["base", "B d_k=16", "D eps_ls=0.2"]
WORDS = {"one": "ein", "two": "zwei", "red": "rote", "old": "alte", "house": "Haus", "dog": "Hund", "runs": "rennt"}


def weights_and_vectors(row: str) -> tuple[int, int]:
    """How many weights are in matrices, and in biases and norms, by the paper's formulas, at the small scale."""
    depth, d_model, d_ff, heads, d_k, d_v, _, _ = TABLE_3[row]
    depth, d_model, d_ff, d_k, d_v = depth // 2, d_model // 4, d_ff // 4, d_k // 4, d_v // 4
    attention = 2 * d_model * heads * d_k + 2 * d_model * heads * d_v
    attention_biases = 2 * heads * d_k + heads * d_v + d_model
    feed_forward, feed_forward_biases = 2 * d_model * d_ff, d_ff + d_model
    norms = (2 + 3) * 2 * d_model  # The encoder's layers have two, the decoder's three.
    positions = 2 * LEARNED_POSITIONS * d_model if row == "E" else 0
    matrices = VOCAB_SIZE * d_model + positions + depth * (3 * attention + 2 * feed_forward)
    return matrices, depth * (3 * attention_biases + 2 * feed_forward_biases + norms)


def scaled_config(row: str) -> VanillaTransformerConfig:
    return VanillaTransformerConfig.from_paper(row, vocab_size=VOCAB_SIZE, **reproduce_table3.sizes_of(row))


@pytest.mark.parametrize("row", TABLE_3)
def test_rows_are_the_paper_s_in_proportion(row):
    depth, d_model, d_ff, heads, d_k, d_v, dropout, smoothing = TABLE_3[row]
    config = scaled_config(row)
    assert (2 * config.encoder_layers, 2 * config.decoder_layers) == (depth, depth)
    assert (4 * config.d_model, 4 * config.d_ff, config.num_heads) == (d_model, d_ff, heads)
    assert (4 * config.key_dim, 4 * config.value_dim) == (d_k, d_v)
    assert (config.dropout, config.label_smoothing) == (dropout, smoothing)
    assert config.position_embedding_type == ("learned" if row == "E" else "sinusoidal")
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    matrices, vectors = weights_and_vectors(row)
    assert model.num_parameters() == matrices + vectors


def test_all_rows_are_there():
    assert list(TABLE_3) == list(PAPER_ROWS) == list(reproduce_table3.PAPER_RESULTS)


@pytest.mark.parametrize("row", [row for row, figures in reproduce_table3.PAPER_RESULTS.items() if figures[2]])
def test_matrices_have_a_32nd_of_the_paper_s_weights(row):
    # The printed count of the big model fits no vocabulary that the other rows fit.
    printed = 218.3 if row == "big" else reproduce_table3.PAPER_RESULTS[row][2]
    assert 32 * weights_and_vectors(row)[0] / 1e6 == pytest.approx(printed, abs=0.6)


@pytest.fixture(scope="module", autouse=True)
def batches_of_a_few_sentences():
    """So that the 8 validation pairs form several batches of different sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_table3, "TOKENS_PER_BATCH", 24)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Arguments that name 20 pairs for training and 8 for validation."""
    folder = tmp_path_factory.mktemp("pairs")
    english = [f"{a} {b} {c}" for a in ("one", "two") for b in ("red", "old") for c in ("house", "dog", "house runs")]
    english += [f"{a} {c} runs" for a in ("one", "two") for c in ("house", "red dog", "old dog", "dog")]
    german = [" ".join(WORDS[word] for word in sentence.split()) for sentence in english]
    texts = {"train.en": english, "train.de": german, "val.en": english[4:12], "val.de": german[4:12]}
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = [str(folder / name) for name in texts]
    return ["--train_file", *paths[:2], "--validation_file", *paths[2:]]


def run(files: list[str], folder: Path, *more: str) -> Path:
    return reproduce_table3.main([*files, "--rows", *ROWS, "--max_steps", "2", "--output_dir", str(folder), *more])


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """The folder of a run of three rows that was interrupted after the first, and the result of this row."""
    folder = tmp_path_factory.mktemp("results") / "table3"
    run_row, done = reproduce_table3.run_row, []

    def interrupt_the_second(settings, pairs):
        if done:
            raise KeyboardInterrupt
        done.append(settings.args.results)
        return run_row(settings, pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_table3, "run_row", interrupt_the_second)
        with pytest.raises(KeyboardInterrupt):
            run(files, folder)
    first = Path(done[0]).read_bytes()
    run(files, folder)
    return folder, first


def results_in(folder: Path) -> dict[str, dict]:
    return {row: json.loads((folder / f"{row.replace(' ', '_')}.json").read_text()) for row in ROWS}


def test_an_interrupted_run_trains_only_the_missing_rows(finished):
    folder, first = finished
    assert (folder / "D_eps_ls=0.2.json").read_bytes() == first
    names = {"base", "B_d_k=16", "D_eps_ls=0.2"}
    assert {path.name for path in folder.iterdir()} == {*names, *(f"{name}.json" for name in names), "table3.md"}


def test_a_finished_run_trains_nothing(finished, files, monkeypatch, capsys):
    folder, _ = finished
    table = (folder / "table3.md").read_text()
    monkeypatch.setattr(reproduce_table3, "run_row", None)
    assert run(files, folder).read_text() == table
    printed = capsys.readouterr().out
    assert "3 rows of Table 3, 2 updates each; 0 of them are missing" in printed
    assert table in printed


def test_a_row_without_its_perplexity_is_trained_again(finished, files, tmp_path):
    folder, first = finished
    without = json.loads(first)
    del without["perplexity"]
    (tmp_path / "D_eps_ls=0.2.json").write_text(json.dumps(without))
    reproduce_table3.main([*files, "--rows", ROWS[2], "--max_steps", "2", "--output_dir", str(tmp_path)])
    alone = json.loads((tmp_path / "D_eps_ls=0.2.json").read_text())
    # And a row does not depend on those before it.
    for name in ("parameters", "perplexity", "scores", "settings"):
        assert alone[name] == results_in(folder)[ROWS[2]][name]


def test_perplexity_by_hand(finished, files):
    folder, _ = finished
    sources, targets = (Path(path).read_text().splitlines() for path in files[-2:])
    for row, result in results_in(folder).items():
        tokenizer = AutoTokenizer.from_pretrained(folder / row.replace(" ", "_"))
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / row.replace(" ", "_")).double().eval()
        log_probabilities = []
        for source, target in zip(sources, targets, strict=True):
            ids = tokenizer([source], return_tensors="pt").input_ids
            labels = tokenizer(target).input_ids
            assert labels[-1] == tokenizer.eos_token_id
            logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[1, *labels[:-1]]])).logits[0]
            log_probabilities += (logits[torch.arange(len(labels)), labels] - logits.logsumexp(-1)).tolist()
        by_hand = math.exp(-sum(log_probabilities) / len(log_probabilities))
        assert result["perplexity"] == pytest.approx(by_hand, rel=1e-5)


def test_rows_have_the_sizes_and_the_recipe_of_the_small_scale(finished):
    folder, _ = finished
    for row, result in results_in(folder).items():
        config = AutoConfig.from_pretrained(folder / row.replace(" ", "_"))
        scaled = scaled_config(row)
        for name in reproduce_table3.SYMBOLS:
            assert getattr(config, name) == getattr(scaled, name)
        assert result["optimizer"] == "Adam, learning rate of Eq. 3 times 0.333"
        assert result["settings"]["tokens_per_batch"] == 24
        assert result["updates"] == 2


def test_the_table(finished):
    folder, _ = finished
    head, rule, *lines = (folder / "table3.md").read_text().splitlines()
    assert {line.count("|") for line in (head, rule, *lines)} == {9}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row for row, *_ in cells] == ROWS
    results = results_in(folder)
    base = results["base"]
    assert cells[0][2:] == [
        f"{base['parameters'] / 1e6:.2f}",
        f"{base['perplexity']:.2f}",
        f"{base['scores']['validation']['bleu']:.1f}",
        "65",
        "4.92",
        "25.8",
    ]
    assert cells[1][1] == "d_k=4"
    assert cells[1][5:] == ["58", "5.16 (+0.24)", "25.1 (-0.7)"]
    assert cells[2][1] == "eps_ls=0.2"
    assert cells[2][5:] == ["", "5.47 (+0.55)", "25.7 (-0.1)"]
    difference = results[ROWS[2]]["perplexity"] - base["perplexity"]
    assert cells[2][3] == f"{results[ROWS[2]]['perplexity']:.2f} ({difference:+.2f})"


def test_other_settings_are_refused(finished, files):
    folder, _ = finished
    with pytest.raises(SystemExit, match=r"base\.json was made with seed=1, but 2 is asked for; name a different"):
        run(files, folder, "--seed", "2")
    with pytest.raises(SystemExit, match=r"with max_steps=2, but 3 is asked for; name a different --output_dir"):
        run(files, folder, "--max_steps", "3")
    with pytest.raises(SystemExit, match=r"with lowercase=False, but True is asked for; .* or remove the file"):
        run(files, folder, "--lowercase")


def test_a_damaged_result_is_refused(files, tmp_path):
    (tmp_path / "base.json").write_text('{"perplexity": 1')
    with pytest.raises(SystemExit, match=r"base\.json does not hold a result of this command; remove it"):
        run(files, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rows", "A h=3"], '"A h=3" is no row of Table 3; choose one of: "base"'),
        ([], "no pairs are given; give --train_file and --validation_file, or set MULTI30K_DIR"),
    ],
)
def test_wrong_arguments(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    with pytest.raises(SystemExit, match=sentence):
        reproduce_table3.main(["--output_dir", str(tmp_path / "results"), *arguments])
    assert not (tmp_path / "results").exists()


def test_an_output_folder_that_is_a_file(files):
    with pytest.raises(SystemExit, match=r"File exists: .*test_reproduce_table3\.py"):
        reproduce_table3.main([*files, "--output_dir", __file__])


def test_bleu_goes_by_the_target_language(files, tmp_path, monkeypatch, capsys):
    def stop(settings, pairs):
        raise SystemExit(f"words of {settings.scoring.bleu_tokenize}; {settings.output_folder.name}")

    monkeypatch.setattr(reproduce_table3, "run_row", stop)
    zh = [str(shutil.copy(path, tmp_path / Path(path).name.replace(".de", ".zh"))) for path in files if "." in path]
    # All rows are missing, and the last comes first.
    with pytest.raises(SystemExit, match="words of zh; big"):
        reproduce_table3.main([files[0], *zh[:2], files[3], *zh[2:], "--output_dir", str(tmp_path / "results")])
    assert "20 rows of Table 3" in capsys.readouterr().out


def test_pairs_for_validation_are_missing(files, tmp_path):
    with pytest.raises(SystemExit, match=r"the data has no split \"validation\", only train"):
        reproduce_table3.main([*files[:3], "--output_dir", str(tmp_path / "results")])


def test_multi30k_is_found_by_its_folder(files, tmp_path, monkeypatch):
    folder = Path(files[1]).parent
    monkeypatch.setenv("MULTI30K_DIR", str(folder))
    (folder / "val.de").rename(tmp_path / "val.de")
    try:
        with pytest.raises(SystemExit, match=r"val\.de does not exist; check the path"):
            reproduce_table3.main(["--output_dir", str(tmp_path / "results")])
    finally:
        (tmp_path / "val.de").rename(folder / "val.de")
