"""Align the words of sentences and their translations: `hf-vanilla-transformer align`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["align", *sys.argv[1:]])
