"""Train on the built-in number corpus, evaluate and translate: `hf-vanilla-transformer demo`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["demo", *sys.argv[1:]])
