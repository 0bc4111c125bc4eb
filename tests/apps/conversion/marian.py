"""A Marian tokenizer in transformers' form, trained on a few sentences, and what Marian itself translates."""

import io
import json
from importlib.util import find_spec
from pathlib import Path


SENTENCES = ["the small house", "a dog runs", "two men play in the old town"]
VOCABULARY = 64


def write_tokenizer(folder: Path) -> None:
    """Write `source.spm`, `target.spm`, `vocab.json` and the tokenizer's configuration."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, "he saw her by the sea", "we like big red cars", "quick jumps over five"]),
        model_writer=model,
        vocab_size=VOCABULARY - 1,
        hard_vocab_limit=False,
        model_type="unigram",
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    pieces |= {f"<unused{i}>": i for i in range(len(pieces), VOCABULARY - 1)}
    (folder / "vocab.json").write_text(json.dumps({**pieces, "<pad>": VOCABULARY - 1}))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model.getvalue())
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": "en",
        "target_lang": "de",
        "separate_vocabs": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def translate_by_marian(folder: Path, vocabularies: list[str]) -> tuple[list[str], list[str]]:
    """Sentences, and Marian's greedy translations of them: by pymarian, or without it those that it made earlier."""
    recorded = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    if find_spec("pymarian") is None:
        return recorded["sentences"], recorded["greedy"]
    import pymarian

    translator = pymarian.Translator(
        models=[str(folder / "model.npz")],
        vocabs=[str(folder / name) for name in vocabularies],
        beam_size=1,
        cpu_threads=1,
        quiet=True,
        quiet_translation=True,
    )
    return recorded["sentences"], translator.translate(recorded["sentences"])
