"""Serve translations by HTTP: `hf-vanilla-transformer serve`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
