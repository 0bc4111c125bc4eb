"""Draw attention, masks, positions, the schedule or curves: `hf-vanilla-transformer plot`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["plot", *sys.argv[1:]])
