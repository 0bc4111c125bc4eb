"""Compute BLEU and chrF on test pairs: `hf-vanilla-transformer evaluate`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
