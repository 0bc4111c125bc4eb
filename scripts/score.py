"""Compute log-probabilities of given translations: `hf-vanilla-transformer score`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["score", *sys.argv[1:]])
