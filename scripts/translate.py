"""Translate sentences: `hf-vanilla-transformer translate`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["translate", *sys.argv[1:]])
