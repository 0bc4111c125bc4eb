"""Our model as CTranslate2's, and CTranslate2 in processes of its own: inside of a process with torch it is slower.

A token's word is its number, but for the special ones. Run as a command, this file is that process: it reads jobs from
its input, one JSON object a line, and writes what came of each.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def word(token: int, config: Any) -> str:
    """What CTranslate2 calls a token."""
    names = {config.pad_token_id: "<pad>", config.bos_token_id: "<s>", config.eos_token_id: "</s>"}
    return names.get(token, str(token))


def convert(model: Any, folder: Path, longest: int = 2048) -> None:
    """Write a model with a joint vocabulary for CTranslate2.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): in float32.
        folder (`Path`): that is made.
        longest (`int`): number of positions; CTranslate2 has a table of them.
    """
    import torch
    from ctranslate2.specs import TransformerSpec

    config, base = model.config, model.model
    spec = TransformerSpec.from_config((config.encoder_layers, config.decoder_layers), config.num_heads, pre_norm=False)
    table = base.encoder.add_positions(torch.zeros(longest, config.d_model), torch.arange(longest)).numpy()
    for ours, theirs in ((base.encoder, spec.encoder), (base.decoder, spec.decoder)):
        embeddings = theirs.embeddings[0] if theirs is spec.encoder else theirs.embeddings
        embeddings.weight = ours.embed_tokens.weight.numpy()
        theirs.scale_embeddings = True
        theirs.position_encodings.encodings = table
        for layer, its in zip(ours.layers, theirs.layer, strict=True):
            own = layer.self_attn
            _linear(its.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
            _linear(its.self_attention.linear[1], own.out_proj)
            _norm(its.self_attention.layer_norm, layer.self_attn_layer_norm)
            _linear(its.ffn.linear_0, layer.fc1)
            _linear(its.ffn.linear_1, layer.fc2)
            _norm(its.ffn.layer_norm, layer.final_layer_norm)
            if theirs is spec.decoder:
                cross = layer.encoder_attn
                _linear(its.attention.linear[0], cross.q_proj)
                _linear(its.attention.linear[1], cross.k_proj, cross.v_proj)
                _linear(its.attention.linear[2], cross.out_proj)
                _norm(its.attention.layer_norm, layer.encoder_attn_layer_norm)
    _linear(spec.decoder.projection, model.lm_head)
    words = [word(token, config) for token in range(config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<pad>"
    spec.config.decoder_start_token = word(config.decoder_start_token_id, config)
    spec.config.add_source_bos, spec.config.add_source_eos = False, False
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def _linear(spec: Any, *layers: Any) -> None:
    import torch

    spec.weight = torch.cat([layer.weight for layer in layers]).numpy()
    if layers[0].bias is not None:
        spec.bias = torch.cat([layer.bias for layer in layers]).numpy()


def _norm(spec: Any, layer_norm: Any) -> None:
    spec.gamma, spec.beta = layer_norm.weight.numpy(), layer_norm.bias.numpy()


class Setting(NamedTuple):
    """How CTranslate2 shares its work out: batches at once, threads of each, and instructions, its own choice if ""."""

    workers: int
    threads: int
    instructions: str


def settings(threads: int) -> list[Setting]:
    """Those among which a user would look for the fastest: all threads for a batch, or one for each of several."""
    import torch

    # It does not take these by itself.
    instructions = ["", "AVX512"] if torch.backends.cpu.get_cpu_capability() == "AVX512" else [""]
    shares = dict.fromkeys([(1, threads), (threads, 1)])
    return [Setting(*share, kind) for share in shares for kind in instructions]


class CTranslate2Processes:
    """CTranslate2 in a process for each of its settings, of which each job gets the fastest.

    Args:
        folder (`Path`): made by [`convert`].
        compute_type (`str`): `"float32"` or `"int8"`.
        threads (`int`): that it may use.
    """

    def __init__(self, folder: Path, compute_type: str, threads: int):
        self._processes = {each: CTranslate2Process(folder, compute_type, each) for each in settings(threads)}
        self._chosen: tuple[Setting, Mapping[str, Any]] | None = None
        self.described = ""

    def choose(self, sources: Sequence[Sequence[str]], *options: Mapping[str, Any]) -> None:
        """Take the setting and the options that are the fastest at a job, each the best of four."""
        seconds = {}
        for setting, process in self._processes.items():
            for number, each in enumerate(options):
                seconds[setting, number] = min(process.translate(sources, **each)[0] for _ in range(4))
        setting, number = min(seconds, key=seconds.__getitem__)
        self._chosen = setting, options[number]
        self.described = f"{setting}, {dict(options[number])}"

    def translate(self, sources: Sequence[Sequence[str]]) -> tuple[float, list[list[str]]]:
        """Seconds that it took there, and the best translation of each source; as it was chosen."""
        if self._chosen is None:
            raise ValueError("no setting is chosen; call choose() before translate().")
        setting, options = self._chosen
        return self._processes[setting].translate(sources, **options)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


class CTranslate2Process:
    """A CTranslate2 translator that can be asked from here.

    Args:
        folder (`Path`): made by [`convert`].
        compute_type (`str`): `"float32"` or `"int8"`.
        setting (`Setting`): how it works.
    """

    def __init__(self, folder: Path, compute_type: str, setting: Setting):
        command = [sys.executable, __file__, str(folder), compute_type, str(setting.workers), str(setting.threads)]
        instructions = {"CT2_FORCE_CPU_ISA": setting.instructions} if setting.instructions else {}
        self._workers = setting.workers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **instructions}
        )

    def translate(self, sources: Sequence[Sequence[str]], **options: Any) -> tuple[float, list[list[str]]]:
        """Seconds that it took there, and the best translation of each source; workers share a whole batch."""
        if options.get("max_batch_size") == 0:
            options["max_batch_size"] = -(-len(sources) // self._workers)
        to_it: Any = self._process.stdin
        from_it: Any = self._process.stdout
        to_it.write(json.dumps({"sources": sources, "options": options}) + "\n")
        to_it.flush()
        answer = from_it.readline()
        if not answer:
            raise RuntimeError("CTranslate2's process ended; its own words stand above.")
        return tuple(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Translate what comes until the input ends."""
    import ctranslate2

    folder, compute_type, workers, threads = sys.argv[1:]
    translator = ctranslate2.Translator(
        folder, compute_type=compute_type, inter_threads=int(workers), intra_threads=int(threads)
    )
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        results = translator.translate_batch(job["sources"], **job["options"])
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, [result.hypotheses[0] for result in results]]), flush=True)


if __name__ == "__main__":
    main()
