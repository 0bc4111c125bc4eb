"""Compute log-probabilities of given translations: `hf-vanilla-transformer score`, from a checkout."""

from hf_vanilla_transformer.cli.score import main


if __name__ == "__main__":
    main()
