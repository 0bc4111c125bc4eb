"""Table 3 at a small scale: its sizes, and whole runs on a few sentences and updates."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS
from hf_vanilla_transformer.model.cpu_decoder import supports_cpu_decoder
from scripts import reproduce_table3
from tests.parity.paper_numpy import learning_rate


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


@pytest.mark.parametrize("row", TABLE_3)
def test_rows_are_the_paper_s_in_proportion(row):
    depth, d_model, d_ff, heads, d_k, d_v, dropout, smoothing = TABLE_3[row]
    config = reproduce_table3.scaled_config(row, VOCAB_SIZE)
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
    assert reproduce_table3.TableArguments().chosen_rows() == list(TABLE_3)


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
    """The folder of a run of three rows that was interrupted after the first, its files then, and its models."""
    folder = tmp_path_factory.mktemp("results") / "table3"
    models = {}
    train_row = reproduce_table3.train_row

    def keep_model(row, material):
        trained = train_row(row, material)
        models.setdefault(row, []).append((trained, material))
        return trained

    def interrupt(row, result):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        with patch.context() as after_a_row:
            after_a_row.setattr(reproduce_table3, "describe_result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(files, folder)
        after_the_interrupt = {path.name: path.read_bytes() for path in folder.iterdir()}
        patch.setattr(reproduce_table3, "train_row", keep_model)
        run(files, folder)
    return folder, after_the_interrupt, models


def results_in(folder: Path) -> dict[str, dict]:
    return {row: json.loads((folder / reproduce_table3.file_name(row)).read_text()) for row in ROWS}


def test_an_interrupted_run_trains_only_the_missing_rows(finished):
    folder, after_the_interrupt, models = finished
    (kept,) = after_the_interrupt
    assert (folder / kept).read_bytes() == after_the_interrupt[kept]
    missing = [row for row in ROWS if reproduce_table3.file_name(row) != kept]
    assert {row: len(trained) for row, trained in models.items()} == dict.fromkeys(missing, 1)
    assert {path.name for path in folder.iterdir()} == {"base.json", "B_d_k=16.json", "D_eps_ls=0.2.json", "table3.md"}


def test_a_finished_run_trains_nothing(finished, files, monkeypatch, capsys):
    folder, *_ = finished
    table = (folder / "table3.md").read_text()
    monkeypatch.setattr(reproduce_table3, "train_row", None)
    assert run(files, folder).read_text() == table
    printed = capsys.readouterr().out
    assert "3 rows of Table 3, 2 updates each; 3 of them are in" in printed
    assert table in printed


def test_a_row_does_not_depend_on_those_before_it(finished, files, tmp_path, monkeypatch):
    folder, *_ = finished
    reproduce_table3.main([*files, "--rows", ROWS[2], "--max_steps", "2", "--output_dir", str(tmp_path)])
    alone = json.loads((tmp_path / reproduce_table3.file_name(ROWS[2])).read_text())
    for name in ("parameters", "perplexity", "bleu", "settings"):
        assert alone[name] == results_in(folder)[ROWS[2]][name]


def test_perplexity_by_hand(finished):
    folder, _, models = finished
    for row, ((model, material),) in models.items():
        # A new model, without the wrappers of the training.
        fresh = VanillaTransformerForConditionalGeneration(material.config(row)).double().eval()
        fresh.load_state_dict(model.state_dict())
        log_probabilities = []
        for source, target in zip(*(material.pairs["validation"][side] for side in ("source", "target")), strict=True):
            ids = material.tokenizer([source], return_tensors="pt").input_ids
            labels = material.tokenizer(target).input_ids
            assert labels[-1] == material.tokenizer.eos_token_id
            logits = fresh(input_ids=ids, decoder_input_ids=torch.tensor([[1, *labels[:-1]]])).logits[0]
            log_probabilities += (logits[torch.arange(len(labels)), labels] - logits.logsumexp(-1)).tolist()
        by_hand = math.exp(-sum(log_probabilities) / len(log_probabilities))
        assert results_in(folder)[row]["perplexity"] == pytest.approx(by_hand, rel=1e-5)


def test_updates_follow_the_paper_s_schedule(finished, tmp_path, monkeypatch):
    _, _, models = finished
    ((_, material),) = next(iter(models.values()))
    rates = []

    class Rates(TrainerCallback):
        def on_optimizer_step(self, args, state, control, optimizer, **kwargs):
            rates.append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(material.args, "output_dir", str(tmp_path))
    monkeypatch.setattr(material.args, "warmup_steps", 2)
    monkeypatch.setattr(material.args, "max_steps", 3)
    monkeypatch.setattr(reproduce_table3, "ReleaseMemory", Rates)
    reproduce_table3.train_row("C d_model=256", material)
    assert rates == pytest.approx([learning_rate(step, 64, 2) / 3 for step in (1, 2, 3)])


def test_freed_memory_is_released_while_a_row_is_trained(finished, tmp_path, monkeypatch):
    _, _, models = finished
    ((_, material),) = next(iter(models.values()))
    steps = []

    class Recorder(reproduce_table3.ReleaseMemory):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    monkeypatch.setattr(reproduce_table3, "ReleaseMemory", Recorder)
    monkeypatch.setattr(material.args, "output_dir", str(tmp_path))
    reproduce_table3.train_row("C N=2", material)
    assert steps == [1, 2]


def test_the_table(finished):
    folder, *_ = finished
    head, rule, *lines = (folder / "table3.md").read_text().splitlines()
    assert {line.count("|") for line in (head, rule, *lines)} == {9}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row for row, *_ in cells] == ROWS
    results = results_in(folder)
    base = results["base"]
    assert cells[0][2:] == [
        f"{base['parameters'] / 1e6:.2f}",
        f"{base['perplexity']:.2f}",
        f"{base['bleu']:.1f}",
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


def test_a_row_that_diverges_does_not_stop_the_others(files, tmp_path, monkeypatch, capsys):
    perplexity = reproduce_table3.perplexity

    def diverged(model, data, tokenizer):
        return math.nan if model.config.key_dim == 4 else perplexity(model, data, tokenizer)

    with monkeypatch.context() as patch:
        patch.setattr(reproduce_table3, "perplexity", diverged)
        with pytest.raises(SystemExit, match="the table lacks B d_k=16; the same command trains these rows again"):
            run(files, tmp_path)
    assert "B d_k=16: the perplexity is nan: the training diverged" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"base.json", "D_eps_ls=0.2.json"}
    assert run(files, tmp_path).is_file()


def test_rows_are_decoded_by_the_cpu_decoder(finished):
    _, _, models = finished
    for ((model, _),) in models.values():
        with torch.inference_mode():
            assert supports_cpu_decoder(model)


def test_only_learned_positions_limit_the_length(files, tmp_path, capsys):
    long = [name if name.startswith("--") else str(tmp_path / Path(name).name) for name in files]
    for old, new in zip(files, long, strict=True):
        if old != new:
            Path(new).write_text(f"{'z ' * 3000}\n" + Path(old).read_text())
    with pytest.raises(SystemExit, match="but the model 1024 learned positions"):
        reproduce_table3.main([*long, "--rows", "base", "E", "--output_dir", str(tmp_path / "results")])
    with pytest.raises(SystemExit, match="error: the table lacks base"):
        reproduce_table3.main([*long, "--rows", "base", "--output_dir", str(tmp_path / "results")])
    assert "raise tokens_per_batch" in capsys.readouterr().out


def test_other_settings_are_refused(finished, files):
    folder, *_ = finished
    with pytest.raises(SystemExit, match=r"base\.json was made with seed=1, but seed=2 is asked for; name another"):
        run(files, folder, "--seed", "2")
    with pytest.raises(SystemExit, match=r"with max_steps=2, but max_steps=3 is asked for; name another --output_dir"):
        run(files, folder, "--max_steps", "3")
    with pytest.raises(
        SystemExit, match=r"with lowercase=False, but lowercase=True is asked for; .* or remove the file"
    ):
        run(files, folder, "--lowercase")


def test_another_precision_is_refused(finished, files, monkeypatch):
    folder, *_ = finished
    asked = []

    def describe(args):
        asked.append(args.bf16)
        return "float8"

    monkeypatch.setattr(reproduce_table3, "describe_precision", describe)
    with pytest.raises(SystemExit, match=r"but precision=float8 is asked for; name another"):
        run(files, folder)
    assert all(asked)


def test_other_sentences_in_files_of_the_same_name_are_refused(finished, files, tmp_path):
    folder, *_ = finished
    changed = [name if name.startswith("--") else str(tmp_path / Path(name).name) for name in files]
    for old, new in zip(files, changed, strict=True):
        if old != new:
            Path(new).write_text(Path(old).read_text().replace("Hund", "Wolf"))
    with pytest.raises(SystemExit, match=r"base\.json was made with .*data_sha256=\w+"):
        run(changed, folder)


def test_a_damaged_result_is_refused(files, tmp_path):
    (tmp_path / "base.json").write_text('{"perplexity": 1')
    with pytest.raises(SystemExit, match=r"base\.json does not hold a result of this command; remove it"):
        run(files, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rows", "A h=3"], '"A h=3" is no row of Table 3; choose one of: "base"'),
        (["--max_steps", "0"], "max_steps is 0; it must be at least 1"),
        (["--warmup_steps", "0"], "warmup_steps is 0; it must be at least 1"),
        (["--rate_factor", "0"], r"rate_factor is 0\.0; it must be above 0"),
        (["--seed", "-1"], "seed is -1; it must be at least 0"),
        ([], "no pairs are given; give --train_file and --validation_file, or set MULTI30K_DIR"),
        (["--output_dir", __file__], "is a file; name a folder for the results"),
    ],
)
def test_wrong_arguments(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    with pytest.raises(SystemExit, match=sentence):
        reproduce_table3.main(["--output_dir", str(tmp_path / "results"), *arguments])
    assert not (tmp_path / "results").exists()


def test_bleu_goes_by_the_target_language(tmp_path, monkeypatch):
    def stop(args, data_args, scoring, rows):
        raise ValueError(f"words of {scoring.bleu_tokenize}")

    monkeypatch.setattr(reproduce_table3, "prepare", stop)
    with pytest.raises(SystemExit, match="error: words of zh"):
        reproduce_table3.main(["--target_lang", "zh", "--output_dir", str(tmp_path)])


def test_pairs_for_validation_are_missing(files, tmp_path):
    with pytest.raises(SystemExit, match=r"the data has no validation pairs, only train; give --validation_file"):
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
