"""Translate sentences: `hf-vanilla-transformer translate`, from a checkout."""

from hf_vanilla_transformer.cli.translate import main


if __name__ == "__main__":
    main()
