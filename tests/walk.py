"""Walk the way of a user who has two files and an empty folder: wrong starts, a plan, README's commands, of which the
training is interrupted and resumed, and the model in stock classes. Each step is a process of its own.

    python -m tests.walk
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from hf_vanilla_transformer import load_pairs


# What README's command `hf-vanilla-transformer` runs.
PROGRAM = [sys.executable, "-m", "hf_vanilla_transformer_launcher"]
# Neither language is one of the demo's, and neither name one of the docs'.
SOURCE, TARGET = "da", "pl"
PAIRS, TEST_PAIRS, NEW = 3_000, 100, 100
# Small updates, so that a run of two minutes has enough of them to learn all pairs.
SHORT_RUN = ["--num_train_epochs", "12", "--tokens_per_batch", "256"]
FILES = [f"spoken numbers.{SOURCE}", f"spoken numbers.{TARGET}"]
README = Path(__file__).parents[1] / "README.md"
STOCK = """
import sys
import hf_vanilla_transformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer, model = (each.from_pretrained("runs/mine") for each in (AutoTokenizer, AutoModelForSeq2SeqLM))
print(tokenizer.decode(model.generate(**tokenizer(sys.argv[1], return_tensors="pt"))[0], skip_special_tokens=True))
"""


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_pairs()
        walk_wrong_starts()
        plan, train, translate, serve = commands_of_readme()
        step(*plan, shows=["d_model", "updates", "memory"])
        step("plan", "--train_file", *FILES, "--tflops", "300", shows=["computed for 300 TFLOP/s"])
        assert not Path("runs").exists(), "a plan leaves no files"
        interrupt([*train, *SHORT_RUN])
        step("train", "--output_dir", "runs/mine", "--resume_from_checkpoint", "last", shows=["the model is in"])
        test_files = [f"test.{language}" for language in (SOURCE, TARGET)]
        step("evaluate", "--model_name_or_path", "runs/mine", "--test_file", *test_files, shows=["BLEU", "chrF", "TER"])
        scores = step("evaluate", "--model_name_or_path", "runs/mine", "--test_file", *FILES, shows=["exact match"])
        exact = float(scores.partition("exact match: ")[2].partition(" %")[0])
        assert exact > 80, f"only {exact} % of the training pairs are exact"
        repeat = ["train", "--config", "runs/mine/arguments.yaml", "--output_dir", "runs/again"]
        step(*repeat, "--dry_run", shows=["updates"])
        step(*translate, shows=[])
        sources, references = (lines_of(name)[:NEW] for name in FILES)
        translations = lines_of(f"new.{TARGET}")
        right = sum(map(str.__eq__, translations, references))
        assert right > 0.8 * NEW, f"only {right} of {NEW} translations are right"
        assert step_of([sys.executable, "-c", STOCK, sources[0]]).splitlines()[-1] == translations[0]
        if find_spec("fastapi") is None:
            print("\nthe extra serve is not installed, so nothing was served")
        else:
            assert ask_server(serve, sources[0]) == translations[0]
    print(f"\nwalked in {time.monotonic() - started:.0f} s")


def commands_of_readme() -> list[list[str]]:
    """The arguments of README's commands for two files, for these files and languages."""
    block = README.read_text(encoding="utf-8").partition("## From your pairs")[2].partition("```bash\n")[2]
    block = block.partition("```")[0].replace("\\\n", "")
    lines = re.findall(r"^hf-vanilla-transformer (.*)$", block, flags=re.MULTILINE)
    lines = [line.replace(".en", f".{SOURCE}").replace(".fr", f".{TARGET}") for line in lines]
    plan, train, *later_commands = [shlex.split(line, comments=True) for line in lines]
    return [[command[0], command[1], *FILES, *command[4:]] for command in (plan, train)] + later_commands


def ask_server(command: list[str], text: str) -> str:
    """The translation of a text by the server that a command starts."""
    print(f"\n$ hf-vanilla-transformer {' '.join(command)}", flush=True)
    process = subprocess.Popen([*PROGRAM, *command, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = next(match[1] for line in process.stderr if (match := re.search(r"at (http://\S+)$", line)))
    request = urllib.request.Request(
        address, json.dumps({"inputs": text}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        (answer,) = json.load(response)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    return str(answer["translation_text"])


def write_pairs() -> None:
    pairs = load_pairs("numbers", source=SOURCE, target=TARGET, max_digits=4, train_size=PAIRS + TEST_PAIRS)["train"]
    for name, language, side in zip(FILES, (SOURCE, TARGET), ("source", "target"), strict=True):
        lines = [f"{text}\n" for text in pairs[side]]
        Path(name).write_text("".join(lines[TEST_PAIRS:]), encoding="utf-8")
        Path(f"test.{language}").write_text("".join(lines[:TEST_PAIRS]), encoding="utf-8")
    # Of the training pairs: which numbers so short a training translates beyond them depends on the processor.
    Path(f"new.{SOURCE}").write_text("".join(f"{line}\n" for line in lines_of(FILES[0])[:NEW]), encoding="utf-8")


def lines_of(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").splitlines()


def walk_wrong_starts() -> None:
    """Each ends before any work, in one sentence."""
    Path(f"shorter.{TARGET}").write_text("jeden\n", encoding="utf-8")
    train = ["train", "--output_dir", "runs/mine", "--train_file"]
    step(*train, FILES[0], code=1, shows=["two aligned text files"])
    step(*train, *FILES, FILES[0], code=1, shows=["error: "])
    step(*train, FILES[0], f"shorter.{TARGET}", code=1, shows=["has 1"])
    step(*train, FILES[0], FILES[0], code=1, shows=["are one file"])
    step(*train, "no.da", "no.pl", code=1, shows=["does not exist"])
    assert not Path("runs").exists(), "a wrong start leaves no files"


def interrupt(command: list[str]) -> None:
    """Start a training, and press Ctrl-C when its second checkpoint begins."""
    print(f"\n$ hf-vanilla-transformer {' '.join(command)}   # and Ctrl-C", flush=True)
    process = subprocess.Popen([*PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and len(list(Path("runs/mine").glob("checkpoint-*"))) < 2:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate()
    print(last_lines(shown))
    assert process.returncode == 130, shown
    assert "--resume_from_checkpoint last" in shown, shown


def step(*command: str, code: int = 0, shows: list[str]) -> str:
    """Run a verb; it ends with this code, and what it prints, which is returned, has all of `shows`."""
    print(f"\n$ hf-vanilla-transformer {' '.join(command)}", flush=True)
    shown = step_of([*PROGRAM, *command], code)
    for text in shows:
        assert text in shown, f"{text!r} is not in:\n{shown}"
    return shown


def step_of(command: list[str], code: int = 0) -> str:
    started = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(f"{last_lines(ended.stdout)}\n({time.monotonic() - started:.1f} s)", flush=True)
    assert ended.returncode == code, f"{ended.returncode}, not {code}:\n{ended.stdout}"
    return ended.stdout


def last_lines(text: str, count: int = 12) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "it/s" not in line]
    return "\n".join(lines[-count:])


if __name__ == "__main__":
    main()
