"""Train a Transformer: `hf-vanilla-transformer train`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
