"""Convert a model of another system, or back: `hf-vanilla-transformer convert`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["convert", *sys.argv[1:]])
