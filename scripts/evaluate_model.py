"""Compute BLEU and chrF on test pairs: `hf-vanilla-transformer evaluate`, from a checkout."""

from hf_vanilla_transformer.cli.evaluate import main


if __name__ == "__main__":
    main()
